// Hadamard rotations with random signs, by one simdgroup over a row in threadgroup memory.
//
// y = H (signs x) / sqrt(d) a round; H is Sylvester's matrix of d / order elements inside Paley's of
// `order` (1: none). `constants` has the rounds' signs [rounds][d], then Paley's matrix [order][order] where
// there is one.
// Reference: taper_kv_codecs::Rotation.
#pragma once
#include "common.h"

struct RotationOf {
    device const float* constants;
    uint d;
    uint rounds;  // 0: the row stays as it is
    uint order;
};

// What follows a rotation among the constants.
INLINE device const float* constants_after(RotationOf of) {
    return of.constants + of.rounds * of.d + (of.order > 1 ? of.order * of.order : 0);
}

// A sketch's rotation, which follows that of the rows.
INLINE RotationOf sketch_after(RotationOf of) {
    of.constants = constants_after(of);
    return of;
}

// H x / sqrt(32 N) of a row whose element lane + 32 j is a lane's x[j], as `hadamard` has it.
template <int N> INLINE void hadamard_of_lanes(thread float* x, uint lane) {
    for (uint h = 1; h < 32; h *= 2) {
        UNROLL for (int j = 0; j < N; ++j) {
            const float other = simd_shuffle_xor(x[j], ushort(h));
            x[j] = lane & h ? other - x[j] : x[j] + other;
        }
    }
    UNROLL for (int h = 1; h < N; h *= 2) {
        UNROLL for (int j = 0; j < N; ++j) {
            if (j & h) continue;
            const float a = x[j], b = x[j + h];
            x[j] = a + b, x[j + h] = a - b;
        }
    }
    const float norm = rsqrt(float(32 * N));
    UNROLL for (int j = 0; j < N; ++j) x[j] *= norm;
}

// A rotation of such a row, or back.
template <int N> INLINE void rotate_lanes(thread float* x, RotationOf of, bool back, uint lane) {
    for (uint i = 0; i < of.rounds; ++i) {
        device const float* signs = of.constants + (back ? of.rounds - 1 - i : i) * of.d + lane;
        if (back) hadamard_of_lanes<N>(x, lane);
        UNROLL for (int j = 0; j < N; ++j) x[j] *= signs[32 * j];
        if (!back) hadamard_of_lanes<N>(x, lane);
    }
}

// Whether rows of this size are rotated in their lanes.
INLINE bool is_of_lanes(RotationOf of) { return of.order == 1 && (of.d == 64 || of.d == 128 || of.d == 256); }

template <int N> INLINE void rotate_row(threadgroup float* x, RotationOf of, bool back, uint lane) {
    float own[N];
    UNROLL for (int j = 0; j < N; ++j) own[j] = x[lane + 32 * uint(j)];
    rotate_lanes<N>(own, of, back, lane);
    UNROLL for (int j = 0; j < N; ++j) x[lane + 32 * uint(j)] = own[j];
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

inline void rotate_in_lanes(threadgroup float* x, RotationOf of, bool back, uint lane) {
    if (of.rounds == 0) return;
    if (of.d == 64) rotate_row<2>(x, of, back, lane);
    else if (of.d == 128) rotate_row<4>(x, of, back, lane);
    else rotate_row<8>(x, of, back, lane);
}

inline void hadamard(threadgroup float* x, threadgroup float* scratch, RotationOf of, bool transposed, uint lane) {
    const uint width = of.d / of.order;
    for (uint h = 1; h < width; h *= 2) {
        for (uint p = lane; p < of.d / 2; p += 32) {
            const uint i = p / h * 2 * h + p % h;
            const float a = x[i], b = x[i + h];
            x[i] = a + b, x[i + h] = a - b;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    const float norm = rsqrt(float(of.d));
    if (of.order > 1) {
        device const float* paley = of.constants + of.rounds * of.d;
        for (uint i = lane; i < of.d; i += 32) {
            const uint j = i / width, column = i % width;
            float sum = 0.0f;
            for (uint k = 0; k < of.order; ++k) {
                sum = fma(paley[transposed ? k * of.order + j : j * of.order + k], x[k * width + column], sum);
            }
            scratch[i] = sum;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint i = lane; i < of.d; i += 32) x[i] = (of.order > 1 ? scratch[i] : x[i]) * norm;
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

// What other lanes wrote into the row must be visible. `scratch` has room for d elements.
inline void rotate(threadgroup float* x, threadgroup float* scratch, RotationOf of, uint lane) {
    if (is_of_lanes(of)) return rotate_in_lanes(x, of, false, lane);
    for (uint r = 0; r < of.rounds; ++r) {
        for (uint i = lane; i < of.d; i += 32) x[i] *= of.constants[r * of.d + i];
        simdgroup_barrier(mem_flags::mem_threadgroup);
        hadamard(x, scratch, of, false, lane);
    }
}

inline void rotate_back(threadgroup float* x, threadgroup float* scratch, RotationOf of, uint lane) {
    if (is_of_lanes(of)) return rotate_in_lanes(x, of, true, lane);
    for (uint r = of.rounds; r > 0; --r) {
        hadamard(x, scratch, of, true, lane);
        for (uint i = lane; i < of.d; i += 32) x[i] *= of.constants[(r - 1) * of.d + i];
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}
