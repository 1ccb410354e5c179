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
    for (uint r = 0; r < of.rounds; ++r) {
        for (uint i = lane; i < of.d; i += 32) x[i] *= of.constants[r * of.d + i];
        simdgroup_barrier(mem_flags::mem_threadgroup);
        hadamard(x, scratch, of, false, lane);
    }
}

inline void rotate_back(threadgroup float* x, threadgroup float* scratch, RotationOf of, uint lane) {
    for (uint r = of.rounds; r > 0; --r) {
        hadamard(x, scratch, of, true, lane);
        for (uint i = lane; i < of.d; i += 32) x[i] *= of.constants[(r - 1) * of.d + i];
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}
