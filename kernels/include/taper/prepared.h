// Activations as the halves that tiles take: of eight consecutive columns those that meet in a tile are
// neighbours (PREPARE_WIDE: of 32, those that meet in matmul_wide.metal's). For weights of 0 bits they stand as they are.
#pragma once
#include "common.h"

enum { PREPARE_NORM = 1, PREPARE_WIDE = 2 };

INLINE uint halves(float a, float b) { return uint(as_type<ushort>(half(a))) | uint(as_type<ushort>(half(b))) << 16; }

// Eight columns of a row, from `i` on, as halves in their order.
INLINE void store_halves(thread float* v, device uint* row, uint i, uint bits, uint flags) {
    UNROLL for (int e = 0; e < 8; ++e) v[e] = clamped(v[e]);
    uint pairs[4];
    if (bits == 4) {
        UNROLL for (int e = 0; e < 4; ++e) pairs[e] = halves(v[e], v[e + 4]);
    } else if (bits == 0) {
        UNROLL for (int e = 0; e < 4; ++e) pairs[e] = halves(v[2 * e], v[2 * e + 1]);
    } else {
        UNROLL for (int e = 0; e < 4; ++e) pairs[e] = halves(v[e / 2 * 4 + e % 2], v[e / 2 * 4 + e % 2 + 2]);
    }
    device uint* to = row + i / 32 * 16;
    if (flags & PREPARE_WIDE) {
        UNROLL for (int e = 0; e < 4; ++e) to[uint(e) * 4 + i / 8 % 4] = pairs[e];
    } else {
        uint4 four;
        four.x = pairs[0], four.y = pairs[1], four.z = pairs[2], four.w = pairs[3];
        *(device uint4*)(to + i / 8 % 4 * 4) = four;
    }
}

// One column, where the above puts it.
INLINE void store_half(float v, device ushort* row, uint i, uint bits, uint flags) {
    const uint e = i % 8, eight = i / 8 % 4;
    const uint pair = bits == 4 ? e % 4 : e / 4 * 2 + e % 2, upper = bits == 4 ? e / 4 : e / 2 % 2;
    const uint at = flags & PREPARE_WIDE ? pair * 4 + eight : eight * 4 + pair;
    row[bits == 0 ? i : i / 32 * 32 + at * 2 + upper] = as_type<ushort>(half(clamped(v)));
}
