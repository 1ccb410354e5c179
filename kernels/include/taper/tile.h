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
INLINE void tile_load(thread TileA& a, threadgroup const half* p, uint stride) {
    simdgroup_load(a.part[0], p, stride);
    simdgroup_load(a.part[1], p + 8 * stride, stride);
    simdgroup_load(a.part[2], p + 8, stride);
    simdgroup_load(a.part[3], p + 8 * stride + 8, stride);
}

// B, column by column: 16 elements of each of 8 columns.
INLINE void tile_load(thread TileB& b, threadgroup const half* p, uint stride) {
    simdgroup_load(b.part[0], p, stride, ulong2(0, 0), true);
    simdgroup_load(b.part[1], p + 8, stride, ulong2(0, 0), true);
}

INLINE void tile_zero(thread TileC& c) {
    c.part[0] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    c.part[1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
}

INLINE void tile_multiply(thread TileC& c, thread const TileA& a, thread const TileB& b) {
    simdgroup_multiply_accumulate(c.part[0], a.part[0], b.part[0], c.part[0]);
    simdgroup_multiply_accumulate(c.part[1], a.part[1], b.part[0], c.part[1]);
    simdgroup_multiply_accumulate(c.part[0], a.part[2], b.part[1], c.part[0]);
    simdgroup_multiply_accumulate(c.part[1], a.part[3], b.part[1], c.part[1]);
}

INLINE void tile_store(thread const TileC& c, device float* p, uint stride) {
    simdgroup_store(c.part[0], p, stride);
    simdgroup_store(c.part[1], p + 8 * stride, stride);
}

// A lane has two neighbours of a row of a simdgroup matrix: which row, and columns 2 pair, 2 pair + 1.
INLINE uint tile_row(uint lane) { return (lane >> 1 & 3) | (lane >> 4) << 2; }
INLINE uint tile_pair(uint lane) { return (lane & 1) | (lane >> 3 & 1) << 1; }
INLINE void tile_set(thread simdgroup_half8x8& part, uint first, uint second) {
    part.thread_elements()[0] = as_type<half>(ushort(first));
    part.thread_elements()[1] = as_type<half>(ushort(second));
}

// A from what lanes have: lane 4 r + t two halves of row r at columns 2 t and 2 t + 8 (a0, a2), and of
// row r + 8 (a1, a3).
INLINE void tile_of_lanes(thread TileA& a, uint lane, uint a0, uint a1, uint a2, uint a3) {
    const ushort from = ushort(tile_row(lane) * 4 + tile_pair(lane));
    const uint own[4] = {a0, a1, a2, a3};
    UNROLL for (int i = 0; i < 4; ++i) {
        const uint two = simd_shuffle(own[i], from);
        tile_set(a.part[i], two, two >> 16);
    }
}

// B, likewise: lane 4 c + t two halves of column c at rows 2 t (b0) and 2 t + 8 (b1).
INLINE void tile_of_lanes(thread TileB& b, uint lane, uint b0, uint b1) {
    const uint row = tile_row(lane), column = 2 * tile_pair(lane), own[2] = {b0, b1};
    UNROLL for (int i = 0; i < 2; ++i) {
        const uint left = simd_shuffle(own[i], ushort(column * 4 + row / 2));
        const uint right = simd_shuffle(own[i], ushort(column * 4 + 4 + row / 2));
        tile_set(b.part[i], left >> row % 2 * 16, right >> row % 2 * 16);
    }
}

// C to lanes: lane 4 r + t gets columns 2 t and 2 t + 1 of row r, and of row r + 8.
INLINE void tile_to_lanes(thread TileC& c, uint lane, thread float* out) {
    const uint row = lane / 4, pair = lane % 4;
    const ushort from = ushort((pair & 1) | (row & 3) << 1 | (pair >> 1) << 3 | (row >> 2) << 4);
    UNROLL for (int i = 0; i < 2; ++i) {
        out[2 * i] = simd_shuffle(float(c.part[i].thread_elements()[0]), from);
        out[2 * i + 1] = simd_shuffle(float(c.part[i].thread_elements()[1]), from);
    }
}
#endif
