// How rows of activations become the halves of prepared.h.
#pragma once
#include "common.h"
#include "prepared.h"

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
