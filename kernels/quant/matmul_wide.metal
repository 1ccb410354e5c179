// Products of more than 32 rows of activations with weights of 4 bits, on matrix units that four simdgroups
// use together: batched decoding on NVIDIA GPUs of compute capability 9.0.
//
// matmul_wide_*: what matmul_tile.metal's matmul_tile_* compute, cut likewise: T tokens and TN rows a
//   threadgroup, x from matmul_prepare in the order for wide products. A simdgroup has 16 of every 64 rows.
//   A step's weights are widened while products of the one before may go on, so that activations have a stage
//   more. Grid: x over 64 tokens, y over 128 rows, z over shares of the columns. Threads: 128.
// Reference: as matvec's, within the rounding of f16.
#include "taper/common.h"
#include "taper/wide_product.h"

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
    const MatmulRows rows = {at.y * TN, p.rows, at.x * WIDE_T, p.tokens};
    const uint begin = at.z * p.share, end = min(begin + p.share, p.cols), g = lane / 4, t = lane % 4;
    const Columns of = {data, scales, x, p.cols, begin, (end - begin) / TK, p.packed, p.scale_type};
    WideC c[TN / 64];
    wide_product<BITS, GROUP>(of, rows, tid, sg, lane, memory, c);
    UNROLL for (int i = 0; i < TN / 64; ++i) {
        const uint row = rows.row0 + uint(i) * 64 + sg * 16 + g;
        UNROLL for (int j = 0; j < WIDE_T / 8; ++j) {
            float sum[4];
            wide_to_lanes(c[i], j, lane, sum);
            UNROLL for (int u = 0; u < 2; ++u) {
                const uint token = rows.token0 + uint(j) * 8 + 2 * t + uint(u);
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
    threadgroup uint4 memory[WIDE_MEMORY(BITS, GROUP)] SWIZZLED; \
    multiply<BITS, GROUP>(data, scales, x, sums, p, at, tid, sg, lane, memory); \
}
MATMUL(4, 32)
MATMUL(4, 64)
MATMUL(4, 128)
