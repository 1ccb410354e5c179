// Experts' products of many pairs with weights of 4 bits, on matrix units that four simdgroups use together: prompts on
// NVIDIA GPUs of compute capability 9.0.
//
// experts_wide_*: what experts_tile.metal's experts_tile_* compute, from tiles of 64 places and halves in the order for
//   wide products. Grid: x tiles, y over 128 rows (with a gate, over 64 columns of y). Threads: 128.
// Reference: as experts', within the rounding of f16.
#include "taper/common.h"
#include "taper/experts.h"
#include "taper/wide_product.h"

template <int BITS, int GROUP>
INLINE void multiply(
    device const uint* data, device const uint* scales, device const half* x, device const ExpertTile* tiles,
    device const uint* order, device const float* bias, device const float* weights, device uint* out,
    ExpertTileParams p, uint2 at, uint tid, uint sg, uint lane, threadgroup uint4* memory)
{
    const ExpertRows rows = {p, tiles[at.x], order, at.y * TN};
    if (rows.tile.count == 0) return;
    const Columns of = {data, scales, x, p.cols, 0, p.cols / TK, p.packed, p.scale_type};
    WideC c[TN / 64];
    wide_product<BITS, GROUP>(of, rows, tid, sg, lane, memory, c);
    // All have read what was multiplied.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup float* sums = (threadgroup float*)memory;
    UNROLL for (int i = 0; i < TN / 64; ++i) {
        UNROLL for (int j = 0; j < WIDE_T / 8; ++j) {
            float sum[4];
            wide_to_lanes(c[i], j, lane, sum);
            keep_sums(sums, SUMS_STRIDE(TN), uint(i) * 64 + sg * 16, uint(j) * 8, lane, sum);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    expert_outputs<TN, THREADS>(rows, bias, weights, out, tid, sums);
}

#define WIDE_TILE(BITS, GROUP) \
kernel void experts_wide_q##BITS##_g##GROUP( \
    device const uint* data [[buffer(0)]], \
    device const uint* scales [[buffer(1)]], \
    device const half* x [[buffer(2)]], \
    device const ExpertTile* tiles [[buffer(3)]], \
    device const uint* order [[buffer(4)]], \
    device const float* bias [[buffer(5)]], \
    device const float* weights [[buffer(6)]], \
    device uint* out [[buffer(7)]], \
    constant ExpertTileParams& p [[buffer(8)]], \
    uint2 at [[threadgroup_position_in_grid]], \
    uint tid [[thread_index_in_threadgroup]], \
    uint sg [[simdgroup_index_in_threadgroup]], \
    uint lane [[thread_index_in_simdgroup]]) \
{ \
    threadgroup uint4 memory[WIDE_MEMORY(BITS, GROUP)] SWIZZLED; \
    multiply<BITS, GROUP>(data, scales, x, tiles, order, bias, weights, out, p, at, tid, sg, lane, memory); \
}
WIDE_TILE(4, 32)
WIDE_TILE(4, 64)
WIDE_TILE(4, 128)
