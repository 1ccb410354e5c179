// Products of more than 32 rows of activations with weights of 4 bits, on matrix units that four simdgroups
// use together: batched decoding on NVIDIA GPUs of compute capability 9.0.
//
// matmul_wide_*: what matmul_tile.metal's matmul_tile_* compute, cut likewise: T tokens and TN rows a
//   threadgroup, x from matmul_prepare in the order for wide products. A simdgroup has 16 of every 64 rows.
//   A step's weights are widened while products of the one before may go on, so that activations have a stage
//   more. Grid: x over 64 tokens, y over 128 rows, z over shares of the columns. Threads: 128.
// Reference: as matvec's, within the rounding of f16.
#include "taper/common.h"
#include "taper/copies.h"
#include "taper/packed.h"
#include "taper/wide.h"
#include "taper/widened.h"

// How matrix units find their operands; only NVIDIA's look.
#ifdef __METAL_VERSION__
#define SWIZZLED
#else
#define SWIZZLED __attribute__((aligned(1024)))
#endif

enum { T = 64, TN = 128, TK = 64, THREADS = 128, STAGES = 3, X_STAGES = STAGES + 1 };

struct MatmulParams {
    uint tokens;
    uint rows;
    uint cols;
    uint group_shift;
    uint scale_type;
    uint packed;
    uint share;  // columns of a share, a multiple of 64
    uint wide;   // rows of the weights as `sums` counts them, a multiple of 128
    uint tall;   // tokens as `sums` counts them, a multiple of T
};

template <int BITS, int GROUP>
INLINE void multiply(
    device const uint* data, device const uint* scales, device const half* x, device float* sums,
    MatmulParams p, uint3 at, uint tid, uint sg, uint lane, threadgroup uint4* memory)
{
    enum {
        CHUNKS = TK * BITS / 128,                      // 16 bytes of a row, a step
        LOADS = TN * CHUNKS / THREADS, X_LOADS = T * TK / 8 / THREADS,
        WORDS = TK > GROUP ? TK / GROUP : 1,           // scales of a row
        X_SIZE = T * TK / 8, W_SIZE = TN * CHUNKS, S_SIZE = TN * WORDS / 4
    };
    const uint token0 = at.x * T, row0 = at.y * TN, groups = p.cols / GROUP;
    const uint begin = at.z * p.share, end = min(begin + p.share, p.cols), steps = (end - begin) / TK;
    const uint g = lane / 4, t = lane % 4;
    threadgroup uint4* weights = memory + X_STAGES * X_SIZE;

    // A thread's shares of a stage.
    const uint w_row = tid / CHUNKS, w_chunk = tid % CHUNKS, x_row = tid / 8, x_chunk = tid % 8;
    const uint w_to = w_row * CHUNKS + weight_place<BITS>(w_row, w_chunk), x_to = wide_place(x_row, x_chunk);
    device const uint4* w_from[LOADS];
    UNROLL for (int l = 0; l < LOADS; ++l) {
        const uint row = min(row0 + w_row + uint(l) * (THREADS / CHUNKS), p.rows - 1);
        w_from[l] = (device const uint4*)data + piece_at(row, begin * BITS / 128 + w_chunk, p.cols * BITS / 128, p.packed);
    }
    const uint w_step = p.packed ? CHUNKS * 8 : CHUNKS;
    device const uint* s_from = scales + scales_at(min(row0 + tid, p.rows - 1), groups, p.packed);
    device const uint4* x_from[X_LOADS];
    UNROLL for (int l = 0; l < X_LOADS; ++l) {
        const uint token = min(token0 + x_row + uint(l) * (THREADS / 8), p.tokens - 1);
        x_from[l] = (device const uint4*)x + (size_t(token) * p.cols + begin) / 8 + x_chunk;
    }
#define COPY_WEIGHTS(STEP) \
    if ((STEP) < steps) { \
        threadgroup uint4* to = weights + (STEP) % STAGES * (W_SIZE + S_SIZE); \
        UNROLL for (int l = 0; l < LOADS; ++l) copy_16(to + w_to + l * THREADS, w_from[l] + (STEP) * w_step); \
        UNROLL for (int i = 0; i < WORDS; ++i) { \
            const uint group = (begin + (STEP) * TK) / GROUP + uint(i); \
            copy_4((threadgroup uint*)(to + W_SIZE) + tid * WORDS + uint(i), s_from + scale_in_row(group, p.packed)); \
        } \
    }
#define COPY_X(STEP) \
    if ((STEP) < steps) { \
        threadgroup uint4* to = memory + (STEP) % X_STAGES * X_SIZE + x_to; \
        UNROLL for (int l = 0; l < X_LOADS; ++l) copy_16(to + l * THREADS, x_from[l] + (STEP) * 8); \
    }
    UNROLL for (int s = 0; s < STAGES - 1; ++s) COPY_WEIGHTS(uint(s))
    previous_launch_done();
    UNROLL for (int s = 0; s < STAGES - 1; ++s) {
        COPY_X(uint(s))
        copies_end();
    }

    WideC c[TN / 64];
    UNROLL for (int i = 0; i < TN / 64; ++i) wide_zero(c[i]);
    const bool bf16 = p.scale_type == 2;
    for (uint step = 0; step < steps; ++step) {
        copies_wait<STAGES - 2>();
        wide_publish();
        threadgroup_barrier(mem_flags::mem_threadgroup);
        threadgroup const uint4* xs = memory + step % X_STAGES * X_SIZE;
        threadgroup const uint* ws = (threadgroup const uint*)(weights + step % STAGES * (W_SIZE + S_SIZE));
        threadgroup const uint* ss = ws + 4 * W_SIZE;
        half2 scale[TN / 32], bias[TN / 32];
        UNROLL for (int h = 0; h < TK / 32; ++h) {
            uint a[TN / 64][2][4];
            UNROLL for (int i = 0; i < TN / 64; ++i) {
                UNROLL for (int u = 0; u < 2; ++u) {
                    const uint row = uint(i) * 64 + sg * 16 + uint(u) * 8 + g;
                    if (h == 0 || GROUP == 32) {
                        const uint pair = ss[row * WORDS + uint(GROUP == 32 ? h : 0)];
                        scale[2 * i + u] = half_pair(pair, bf16), bias[2 * i + u] = half_pair(pair >> 16, bf16);
                    }
                    uint raw[2];
                    if (BITS == 4) {
                        raw[0] = ws[(row * CHUNKS + weight_place<BITS>(row, uint(h))) * 4 + t];
                    } else {
                        const uint place = row * CHUNKS + weight_place<BITS>(row, uint(h) * 2 + t / 2);
                        const uint2 two = *(threadgroup const uint2*)(ws + place * 4 + t % 2 * 2);
                        raw[0] = two.x, raw[1] = two.y;
                    }
                    widened<BITS>(raw, scale[2 * i + u], bias[2 * i + u], a[i][u]);
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
                COPY_WEIGHTS(step + STAGES - 1)
                COPY_X(step + STAGES - 1)
                copies_end();
            }
        }
    }
    wide_wait<0>();
    copies_wait<0>();
    UNROLL for (int i = 0; i < TN / 64; ++i) {
        const uint row = row0 + uint(i) * 64 + sg * 16 + g;
        UNROLL for (int j = 0; j < T / 8; ++j) {
            float sum[4];
            wide_to_lanes(c[i], j, lane, sum);
            UNROLL for (int u = 0; u < 2; ++u) {
                const uint token = token0 + uint(j) * 8 + 2 * t + uint(u);
                device float* to = sums + (size_t(at.z) * p.tall + token) * p.wide + row;
                if (token < p.tokens) to[0] = sum[u], to[8] = sum[2 + u];
            }
        }
    }
}

#define MATMUL(BITS, GROUP) \
kernel void matmul_wide_q##BITS##_g##GROUP( \
    device const uint* data [[buffer(0)]], \
    device const uint* scales [[buffer(1)]], \
    device const half* x [[buffer(2)]], \
    device float* sums [[buffer(3)]], \
    constant MatmulParams& p [[buffer(4)]], \
    uint3 at [[threadgroup_position_in_grid]], \
    uint tid [[thread_index_in_threadgroup]], \
    uint sg [[simdgroup_index_in_threadgroup]], \
    uint lane [[thread_index_in_simdgroup]]) \
{ \
    EARLY_LAUNCH; \
    threadgroup uint4 memory[X_STAGES * T * TK / 8 + STAGES * (TN * TK * BITS / 128 + TN * (TK > GROUP ? TK / GROUP : 1) / 4)] SWIZZLED; \
    multiply<BITS, GROUP>(data, scales, x, sums, p, at, tid, sg, lane, memory); \
}
MATMUL(4, 32)
MATMUL(4, 64)
MATMUL(4, 128)
