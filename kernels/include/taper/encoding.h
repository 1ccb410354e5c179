// Writing rows of a compressed cache: what its formats share, and affine rows.
#pragma once
#include "codes.h"
#include "common.h"

enum { MAX_DIM = 256, MAX_RINGS = 16, MAX_SCALES = 5 };
constant float FAR = 1.0e30f;

struct Writer {
    device uchar* region;
    uint format;
    uint d;
    uint rings;
    uint group;
    uint young;
    device const float* wide;  // levels of a wide trellis [512]
};

// Threadgroup memory of an encoder.
struct Room {
    threadgroup float* rows;     // [8][256], rotated
    threadgroup float* scratch;  // as many
    threadgroup float* levels;   // [64], then thresholds [32]
    threadgroup float* centre;   // [256]
    threadgroup float* partial;  // [8]
    threadgroup float* squares;  // of eight rows [8]
    threadgroup float* gammas;   // their scales [8]
    threadgroup uchar* codes;    // [8][256]
    threadgroup uint* symbols;   // [8][5][16][2]
    threadgroup float* sums;     // [8][5][16][2]
    threadgroup float* costs;    // of a wide trellis's walks [8][64]
    threadgroup float2* by_pair;  // of walks.h [64]
    threadgroup uint* nearest;   // of walks.h [512]
};

enum { ROOM = MAX_SCALES * MAX_RINGS * 2 };

// What is a row's alone of what walks leave.
INLINE Room room_of(Room room, uint row) {
    room.symbols += row * ROOM, room.sums += row * ROOM, room.costs += row * 64;
    return room;
}

inline void put_half(device uchar* p, float x) { *(device ushort*)p = as_type<ushort>(half(clamped(x))); }
inline bool finite(float x) { return abs(x) <= 3.4e38f; }

// Of a row's elements, from the sum of their squares.
INLINE float deviation_of(float square, uint d) {
    const float norm = sqrt(square);
    return norm > 0.0f && finite(norm) ? norm / sqrt(float(d)) : 1.0f;
}

// The sum over 256 threads.
inline float sum_of_all(float x, threadgroup float* partial, uint sg, uint lane) {
    x = simd_sum(x);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) partial[sg] = x;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (uint i = 0; i < 8; ++i) total += partial[i];
    return total;
}

inline float max_of_all(float x, threadgroup float* partial, uint sg, uint lane) {
    x = simd_max(x);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) partial[sg] = x;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < 8; ++i) x = max(x, partial[i]);
    return x;
}

// The ring's codes, lowest bits first.
inline void put_ring(Writer to, uint token, uint ring, uint bits, uint low, uint high, uint top) {
    device ushort* at = (device ushort*)(to.region + ((token / 4 * to.rings + ring) * 4 + token % 4) * 2 * bits);
    at[0] = ushort(low);
    if (bits > 1) at[1] = ushort(low >> 16);
    if (bits > 2) at[2] = ushort(high);
    if (bits > 3) at[3] = ushort(high >> 16);
    if (bits > 4) at[4] = ushort(top);
}

// MLX's affine codes of a row, by one simdgroup: the end of the range with the larger magnitude is met
// exactly.
inline void put_affine(Writer to, uint token, threadgroup const float* x, uint lane) {
    const uint bits = to.format == AFFINE4 ? 4 : 8;
    const uint bytes = to.d * bits / 8, groups = (to.d + to.group - 1) / to.group;
    device uchar* row = to.region + token * (bytes + 4 * groups);
    const float most = float((1u << bits) - 1u);
    for (uint g = 0; g < groups; ++g) {
        const uint from = g * to.group, end = min(from + to.group, to.d);
        float low = INFINITY, high = -INFINITY;
        for (uint i = from + lane; i < end; i += 32) low = min(low, x[i]), high = max(high, x[i]);
        low = -simd_max(-low), high = simd_max(high);
        const bool negative = abs(low) > abs(high);
        const float edge = negative ? low : high;
        const float step = max((high - low) / most, 1e-7f);
        float scale = negative ? step : -step;
        const float at_zero = round(edge / scale);
        scale = at_zero == 0.0f ? scale : edge / at_zero;
        const ushort s = as_type<ushort>(half(clamped(scale)));
        const ushort b = as_type<ushort>(half(at_zero == 0.0f ? 0.0f : clamped(edge)));
        const float kept = half_of(s), bias = half_of(b), inverse = kept == 0.0f ? 0.0f : 1.0f / kept;
        if (lane == 0) *(device uint*)(row + bytes + 4 * g) = uint(s) | uint(b) << 16;
        const uint each = 8 / bits;
        for (uint i = from + lane * each; i < end; i += 32 * each) {
            uint code = 0;
            for (uint j = 0; j < each; ++j) {
                const float c = min(max(round((x[i + j] - bias) * inverse), 0.0f), most);
                code |= uint(c) << (j * bits);
            }
            row[i * bits / 8] = uchar(code);
        }
    }
}
