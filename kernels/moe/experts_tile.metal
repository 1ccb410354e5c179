// Experts' products of some pairs with weights of 4 or 8 bits on the matrix units, where these are fast.
//
// experts_tile_*: what experts_matmul.metal's experts_matmul_* compute, from tiles of T places and halves in
//   prepared.h's order; a weight is its code, exact in a half, times scale plus bias.
//   Grid: x tiles, y over 128 rows (with a gate, over 64 columns of y). Threads: 128.
// Reference: as experts', within the rounding of f16.
#include "taper/common.h"
#include "taper/experts.h"
#include "taper/tile_product.h"

template <int BITS, int GROUP, int T, int STAGES>
INLINE void multiply(
    device const uint* data, device const uint* scales, device const half* x, device const ExpertTile* tiles,
    device const uint* order, device const float* bias, device const float* weights, device uint* out,
    ExpertTileParams p, uint2 at, uint tid, uint sg, uint lane, threadgroup uint4* memory)
{
    const ExpertRows rows = {p, tiles[at.x], order, at.y * TN};
    if (rows.tile.count == 0) return;
    const Columns of = {data, scales, x, p.cols, 0, p.cols / TK, p.packed, p.scale_type};
    TileC c[TILES * T / 8];
    tile_product<BITS, GROUP, T, STAGES>(of, rows, tid, sg, lane, memory, c);
    // All have read what was multiplied.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup float* sums = (threadgroup float*)memory;
    UNROLL for (int i = 0; i < TILES; ++i) {
        UNROLL for (int j = 0; j < T / 8; ++j) {
            float sum[4];
            tile_to_lanes(c[i * T / 8 + j], lane, sum);
            keep_sums(sums, SUMS_STRIDE(TN), sg * 32 + uint(i) * 16, uint(j) * 8, lane, sum);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    expert_outputs<TN, THREADS>(rows, bias, weights, out, tid, sums);
}

#define TILE(BITS, GROUP, T, STAGES) \
kernel void experts_tile_q##BITS##_g##GROUP##_t##T( \
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
    threadgroup uint4 memory[TILE_MEMORY(BITS, GROUP, T, STAGES)]; \
    multiply<BITS, GROUP, T, STAGES>(data, scales, x, tiles, order, bias, weights, out, p, at, tid, sg, lane, memory); \
}
#define EXPERT_TILES(BITS, GROUP, STAGES) \
    TILE(BITS, GROUP, 8, 4) TILE(BITS, GROUP, 16, 4) TILE(BITS, GROUP, 32, 3) TILE(BITS, GROUP, 64, STAGES)
EXPERT_TILES(4, 32, 3)
EXPERT_TILES(4, 64, 3)
EXPERT_TILES(4, 128, 3)
EXPERT_TILES(8, 32, 2)
EXPERT_TILES(8, 64, 2)
EXPERT_TILES(8, 128, 2)
