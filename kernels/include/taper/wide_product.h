// What tile_product.h computes, for 64 rows of halves in the order for wide products, on matrix units that four
// simdgroups use together. A simdgroup has 16 of every 64 rows. A step's weights are widened while products of the one
// before may go on, so that halves have a stage more.
#pragma once
#include "tile_product.h"
#include "wide.h"

// How matrix units find their operands; only NVIDIA's look.
#ifdef __METAL_VERSION__
#define SWIZZLED
#else
#define SWIZZLED __attribute__((aligned(1024)))
#endif

enum { WIDE_T = 64, WIDE_STAGES = 3, WIDE_X_STAGES = WIDE_STAGES + 1 };

#define WIDE_MEMORY(BITS, GROUP) \
    (WIDE_X_STAGES * Stage<BITS, GROUP, WIDE_T>::X_SIZE + \
     WIDE_STAGES * (Stage<BITS, GROUP, WIDE_T>::W_SIZE + Stage<BITS, GROUP, WIDE_T>::S_SIZE))

// c[i] gets the sums of the i-th 64 rows.
template <int BITS, int GROUP, typename ROWS>
INLINE void wide_product(
    Columns of, thread const ROWS& rows, uint tid, uint sg, uint lane, threadgroup uint4* memory, thread WideC* c)
{
    typedef Stage<BITS, GROUP, WIDE_T> S;
    enum { SIZE = S::W_SIZE + S::S_SIZE, X_SIZE = S::X_SIZE };
    const uint g = lane / 4, t = lane % 4, x_to = wide_place(tid / 8, tid % 8);
    threadgroup uint4* weights = memory + WIDE_X_STAGES * X_SIZE;
    Copied<BITS, GROUP, WIDE_T> from;
    find_weights(from, of, rows, tid);
    UNROLL for (int s = 0; s < WIDE_STAGES - 1; ++s) copy_weights(from, of, uint(s), tid, weights + s * SIZE);
    ROWS::ready();
    find_x(from, of, rows, tid);
    UNROLL for (int s = 0; s < WIDE_STAGES - 1; ++s) {
        copy_x(from, of, uint(s), tid, x_to, memory + s * X_SIZE);
        copies_end();
    }
    UNROLL for (int i = 0; i < TN / 64; ++i) wide_zero(c[i]);
    const bool bf16 = of.scale_type == 2;
    for (uint step = 0; step < of.steps; ++step) {
        copies_wait<WIDE_STAGES - 2>();
        wide_publish();
        threadgroup_barrier(mem_flags::mem_threadgroup);
        threadgroup const uint4* xs = memory + step % WIDE_X_STAGES * X_SIZE;
        threadgroup const uint* ws = (threadgroup const uint*)(weights + step % WIDE_STAGES * SIZE);
        half2 scale[TN / 32], bias[TN / 32];
        UNROLL for (int h = 0; h < TK / 32; ++h) {
            uint a[TN / 64][2][4];
            UNROLL for (int i = 0; i < TN / 64; ++i) {
                UNROLL for (int u = 0; u < 2; ++u) {
                    const uint row = uint(i) * 64 + sg * 16 + uint(u) * 8 + g;
                    widened_row<BITS, GROUP, WIDE_T>(ws, row, uint(h), t, bf16, scale[2 * i + u], bias[2 * i + u], a[i][u]);
                }
            }
            wide_begin();
            UNROLL for (int k = 0; k < 2; ++k) {
                UNROLL for (int i = 0; i < TN / 64; ++i) {
                    wide_multiply(c[i], lane, a[i][0][2 * k], a[i][1][2 * k], a[i][0][2 * k + 1], a[i][1][2 * k + 1], xs, uint(2 * h + k));
                }
            }
            wide_end();
            // The products before these are done, and the step before this one with them.
            wide_wait<1>();
            if (h == 0) {
                const uint next = step + WIDE_STAGES - 1;
                copy_weights(from, of, next, tid, weights + next % WIDE_STAGES * SIZE);
                copy_x(from, of, next, tid, x_to, memory + next % WIDE_X_STAGES * X_SIZE);
                copies_end();
            }
        }
    }
    wide_wait<0>();
    copies_wait<0>();
}
