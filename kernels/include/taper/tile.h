// Products of small matrices by the lanes of a simdgroup together: C [16, 8] += A [16, 16] B [16, 8],
// with A and B in f16 and sums in f32. On Apple GPUs of simdgroup matrices; on NVIDIA GPUs the same
// tile is one instruction of the tensor cores.
#pragma once
#include "common.h"

#ifdef __NVPTX__
#include <nvptx_tile.h>
#else
struct TileA { simdgroup_half8x8 part[4]; };
struct TileB { simdgroup_half8x8 part[2]; };
struct TileC { simdgroup_float8x8 part[2]; };

// A, row by row, `stride` elements apart.
inline void tile_load(thread TileA& a, threadgroup const half* p, uint stride) {
    simdgroup_load(a.part[0], p, stride);
    simdgroup_load(a.part[1], p + 8 * stride, stride);
    simdgroup_load(a.part[2], p + 8, stride);
    simdgroup_load(a.part[3], p + 8 * stride + 8, stride);
}

// B, column by column: 16 elements of each of 8 columns.
inline void tile_load(thread TileB& b, threadgroup const half* p, uint stride) {
    simdgroup_load(b.part[0], p, stride, ulong2(0, 0), true);
    simdgroup_load(b.part[1], p + 8, stride, ulong2(0, 0), true);
}

inline void tile_zero(thread TileC& c) {
    c.part[0] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    c.part[1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
}

inline void tile_multiply(thread TileC& c, thread const TileA& a, thread const TileB& b) {
    simdgroup_multiply_accumulate(c.part[0], a.part[0], b.part[0], c.part[0]);
    simdgroup_multiply_accumulate(c.part[1], a.part[1], b.part[0], c.part[1]);
    simdgroup_multiply_accumulate(c.part[0], a.part[2], b.part[1], c.part[0]);
    simdgroup_multiply_accumulate(c.part[1], a.part[3], b.part[1], c.part[1]);
}

inline void tile_store(thread const TileC& c, device float* p, uint stride) {
    simdgroup_store(c.part[0], p, stride);
    simdgroup_store(c.part[1], p + 8 * stride, stride);
}
#endif
