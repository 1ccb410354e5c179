// Products of larger matrices by four simdgroups together: C [64, 64] += A [64, 16] B [16, 64], with A and
// B in f16 and sums in f32. Simdgroup s has rows 16 s .. of A and C, as tile.h's tiles have them; B lies in
// threadgroup memory, 64 columns of 64 elements each, or 64 rows of 64, whose 16 bytes stand where `wide_place` says,
// from a multiple of 1024 bytes on. On NVIDIA GPUs of compute capability 9.0 it is one instruction, which goes on
// while the threads do something else. Products from `wide_begin` to `wide_end` form a group: `wide_wait<N>` waits
// for all but the newest N, and then their results and what they read are free.
#pragma once
#include "tile.h"

INLINE uint wide_place(uint column, uint c) { return column * 8 + (c ^ (column & 7)); }

#ifdef __NVPTX__
#include <nvptx_wide.h>
#else
struct WideC { TileC tile[8]; };
INLINE void wide_zero(thread WideC& c) {
    UNROLL for (int j = 0; j < 8; ++j) tile_zero(c.tile[j]);
}
// Memory that a thread wrote may be read by products after a barrier that follows.
INLINE void wide_publish() {}
INLINE void wide_begin() {}
// C += A B with the k-th 16 elements of B's columns. A as tile_of_lanes takes it.
INLINE void wide_multiply(thread WideC& c, uint lane, uint a0, uint a1, uint a2, uint a3, threadgroup const uint4* b, uint k) {
    TileA a;
    tile_of_lanes(a, lane, a0, a1, a2, a3);
    UNROLL for (int j = 0; j < 8; ++j) {
        const uint column = uint(j) * 8 + lane / 4, t = lane % 4;
        TileB tile;
        threadgroup const uint* low = (threadgroup const uint*)(b + wide_place(column, 2 * k));
        threadgroup const uint* high = (threadgroup const uint*)(b + wide_place(column, 2 * k + 1));
        tile_of_lanes(tile, lane, low[t], high[t]);
        tile_multiply(c.tile[j], a, tile);
    }
}
// C += A B with the k-th 16 rows of B.
INLINE void wide_multiply_rows(thread WideC& c, uint lane, uint a0, uint a1, uint a2, uint a3, threadgroup const uint4* b, uint k) {
    TileA a;
    tile_of_lanes(a, lane, a0, a1, a2, a3);
    const uint row = 16 * k + 2 * (lane % 4), column = lane / 4;
    UNROLL for (int j = 0; j < 8; ++j) {
        uint two[2];
        UNROLL for (int i = 0; i < 2; ++i) {
            const uint at = row + 8 * uint(i);
            const uint first = ((threadgroup const ushort*)(b + wide_place(at, j)))[column];
            const uint second = ((threadgroup const ushort*)(b + wide_place(at + 1, j)))[column];
            two[i] = first | second << 16;
        }
        TileB tile;
        tile_of_lanes(tile, lane, two[0], two[1]);
        tile_multiply(c.tile[j], a, tile);
    }
}
INLINE void wide_end() {}
template <int N> INLINE void wide_wait() {}
INLINE void wide_to_lanes(thread WideC& c, int j, uint lane, thread float* out) { tile_to_lanes(c.tile[j], lane, out); }
// Multiplies rows: lanes 4 r + t have the factors of rows r and r + 8 of their simdgroup.
INLINE void wide_scale(thread WideC& c, uint lane, float low, float high) {
    const ushort from = ushort(tile_row(lane) * 4);
    const float factors[2] = {simd_shuffle(low, from), simd_shuffle(high, from)};
    UNROLL for (int j = 0; j < 8; ++j) {
        UNROLL for (int i = 0; i < 4; ++i) c.tile[j].part[i / 2].thread_elements()[i % 2] *= factors[i / 2];
    }
}
#endif
