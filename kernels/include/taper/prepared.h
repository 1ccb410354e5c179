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

enum { PREPARE_THREADS = 256, PREPARE_COLS = PREPARE_THREADS * 8 };

// A threadgroup's columns of a row of activations as halves, the block-th PREPARE_COLS; all its threads come here. With
// PREPARE_NORM they go through a norm first. The row is one of floats, a multiple of eight.
INLINE void prepare_row(
    device const float* from, device const float* gains, device uint* to, uint cols, uint bits, uint flags, float eps,
    uint block, uint tid, uint sg, uint lane, threadgroup float* partial)
{
    const uint i = block * PREPARE_COLS + tid * 8;
    const bool norm = flags & PREPARE_NORM;
    float inverse = 1.0f;
    if (norm) {
        float squares = 0.0f;
        UNROLL_BY(4) for (uint k = tid * 4; k < cols; k += PREPARE_THREADS * 4) {
            const float4 v = *(device const float4*)(from + k);
            squares = fma(v.x, v.x, squares), squares = fma(v.y, v.y, squares);
            squares = fma(v.z, v.z, squares), squares = fma(v.w, v.w, squares);
        }
        squares = simd_sum(squares);
        if (lane == 0) partial[sg] = squares;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float total = 0.0f;
        for (uint k = 0; k < PREPARE_THREADS / 32; ++k) total += partial[k];
        inverse = rsqrt(total / float(cols) + eps);
    }
    if (i >= cols) return;
    const float4 a = *(device const float4*)(from + i), b = *(device const float4*)(from + i + 4);
    float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    if (norm) {
        const float4 g = *(device const float4*)(gains + i), h = *(device const float4*)(gains + i + 4);
        const float gain[8] = {g.x, g.y, g.z, g.w, h.x, h.y, h.z, h.w};
        UNROLL for (int e = 0; e < 8; ++e) v[e] = v[e] * inverse * gain[e];
    }
    store_halves(v, to, i, bits, flags);
}
