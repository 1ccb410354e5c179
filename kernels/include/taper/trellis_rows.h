// Rows of a block in trellis codes: their scales, the centre of keys, and up to eight rows at a time.
#pragma once
#include "codes.h"
#include "common.h"
#include "encoding.h"
#include "walks.h"
#include "wide_walk.h"

enum { AT_ONCE = 8 };
// Steps of an octave of a trellis row's scale, and where the first one of a block lies.
constant float STEPS = 24.0f;
enum { FIRST = 192 };

// Stores the scales of consecutive trellis rows; a larger one than the block has seen moves its base. One simdgroup,
// a lane a token.
inline void put_scales(Writer to, uint token, uint n, threadgroup const float* gammas, uint lane) {
    device uchar* scales = to.region + code_bytes(to.rings, bits_of(to.format));
    device short* base = (device short*)(scales + BLOCK);
    int own = int(scales[lane]), from = int(*base);
    for (uint r = 0; r < n; ++r) {
        const float place = round(log2(gammas[r]) * STEPS);
        const bool some = gammas[r] > 0.0f && finite(place);
        const int position = some ? int(place) + 128 : 0;
        const bool any = simd_max(float(own)) > 0.0f;
        if (some && !any) from = position - int(FIRST);
        int code = some ? position - from : 0;
        if (code > 255) {
            const int up = code - int(FIRST);
            own = own == 0 ? 0 : max(own - up, 1);
            from += up;
            code = int(FIRST);
        }
        if (lane == token + r) own = max(code, 0);
    }
    scales[lane] = uchar(own);
    if (lane == 0) *base = short(from);
}

// The best of a row's factors: its codes are written, and its scale is returned. One simdgroup.
inline float put_best(Writer to, uint token, float square, uint tried, Room room, uint lane) {
    const bool some = square > 0.0f && finite(sqrt(square));
    float least = INFINITY, gamma = 0.0f;
    uint best = MAX_SCALES;
    for (uint s = 0; some && s < tried; ++s) {
        float along = 0.0f, energy = 0.0f;
        for (uint ring = 0; ring < to.rings; ++ring) {
            along += room.sums[(s * MAX_RINGS + ring) * 2], energy += room.sums[(s * MAX_RINGS + ring) * 2 + 1];
        }
        const float error = energy * square / (along * along) - 1.0f;
        if (along > 0.0f && error < least) least = error, gamma = square / along, best = s;
    }
    if (lane < to.rings) {
        const uint at = (best * MAX_RINGS + lane) * 2;
        const bool any = best < MAX_SCALES;
        put_ring(to, token, lane, bits_of(to.format), any ? room.symbols[at] : 0u, any ? room.symbols[at + 1] : 0u, 0u);
    }
    return gamma;
}

// Writes centred, rotated rows of consecutive tokens in trellis codes: at most eight, one every `stride` floats. All
// threads. No barrier ends it: what is written next, is written behind one.
template <int KEYS>
void put_trellis(Writer to, uint token, uint n, threadgroup const float* x, uint stride, Room room, uint tid, uint sg, uint lane) {
    const uint bits = bits_of(to.format);
    if (sg < n) {
        float square = 0.0f;
        for (uint i = lane; i < to.d; i += 32) square = fma(x[sg * stride + i], x[sg * stride + i], square);
        square = simd_sum(square);
        if (lane == 0) room.squares[sg] = square;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (KEYS == WIDE) {
        if (sg < n) wide_walk(to, x + sg * stride, deviation_of(room.squares[sg], to.d), room_of(room, sg), lane);
    } else {
        if (bits == 4) walks<4>(to, n, x, stride, room, tid);
        if (bits == 3) walks<3>(to, n, x, stride, room, tid);
        if (bits == 2) walks<2>(to, n, x, stride, room, tid);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (sg < n) {
        const uint tried = KEYS == WIDE ? 1 : bits == 4 ? 5 : 3;
        const float gamma = put_best(to, token + sg, room.squares[sg], tried, room_of(room, sg), lane);
        if (lane == 0) room.gammas[sg] = gamma;
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    if (sg == 0) put_scales(to, token, n, room.gammas, lane);
}

// Turns the rows of a young block into codes about their mean, which is shrunk towards zero where the
// rows show none (James & Stein 1961). All threads.
template <int KEYS>
void mature(Writer to, Room room, uint tid, uint sg, uint lane) {
    const uint d = to.d, n = to.young;
    device const uchar* region = to.region;
    for (uint i = tid; i < n * d; i += 256) room.scratch[i] = half_at(region + 2 * i);
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    float mean = 0.0f, squares = 0.0f;
    for (uint r = 0; r < n && tid < d; ++r) {
        const float x = room.scratch[r * d + tid];
        mean += x / float(n), squares = fma(x, x, squares);
    }
    const float length = sum_of_all(mean * mean, room.partial, sg, lane);
    const float all = sum_of_all(squares, room.partial, sg, lane);
    const float by_chance = (all - float(n) * length) / max(float(n) - 1.0f, 1.0f) / float(n);
    const float keep = n > 1 && length > 0.0f ? max(1.0f - by_chance / length, 0.0f) : 0.0f;
    mean *= keep;
    const float most = max_of_all(abs(mean), room.partial, sg, lane);
    const ushort stored = as_type<ushort>(half(clamped(most / 63.0f)));
    const float scale = half_of(stored), inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    const float code = min(max(round(mean * inverse), -63.0f), 63.0f);
    room.centre[tid] = code;
    const uint before = code_bytes(to.rings, bits_of(to.format)) + BLOCK + 2;
    for (uint i = tid; i < before / 2; i += 256) ((device ushort*)to.region)[i] = 0;
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    device uchar* centre = to.region + before;
    if (tid == 0) *(device ushort*)centre = 1, *(device ushort*)(centre + 2) = stored;
    if (tid < (7 * d + 7) / 8) {
        // The bits of byte tid: of element e those from 7 e on.
        uint byte = 0;
        for (uint e = 8 * tid / 7; e < d && 7 * e < 8 * tid + 8; ++e) {
            const uint bits = uint(int(room.centre[e]) + 63);
            byte |= 7 * e >= 8 * tid ? bits << (7 * e - 8 * tid) : bits >> (8 * tid - 7 * e);
        }
        centre[4 + tid] = uchar(byte);
    }
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    room.centre[tid] = code * scale;
    for (uint r = 0; r < n; ++r) {
        if (tid < d) room.scratch[r * d + tid] -= code * scale;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint r = 0; r < n; r += AT_ONCE) {
        put_trellis<KEYS>(to, r, min(n - r, uint(AT_ONCE)), room.scratch + r * d, d, room, tid, sg, lane);
    }
}

// Writes rotated rows of consecutive tokens as a block's codes want them. All threads.
template <int KEYS>
void write_trellis(Writer to, uint token, uint n, Room room, uint tid, uint sg, uint lane) {
    const uint before = code_bytes(to.rings, bits_of(to.format)) + BLOCK + 2;
    const uint centre = to.young ? 4 + (7 * to.d + 7) / 8 : 0;
    threadgroup float* own = room.rows + sg * MAX_DIM;
    uint skip = 0;
    if (token == 0) {
        for (uint i = tid; i < (before + centre + 1) / 2; i += 256) ((device ushort*)to.region)[i] = 0;
        threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    }
    if (to.young) {
        if (to.region[before] == 0) {
            skip = token < to.young ? min(n, to.young - token) : 0;
            for (uint i = lane; sg < skip && i < to.d; i += 32) put_half(to.region + 2 * ((token + sg) * to.d + i), own[i]);
            threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
            if (skip == n) return;
            mature<KEYS>(to, room, tid, sg, lane);
            threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
        }
        device const uchar* from = to.region + before;
        for (uint i = lane; sg >= skip && sg < n && i < to.d; i += 32) own[i] -= centre_at(from, i);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    put_trellis<KEYS>(to, token + skip, n - skip, room.rows + skip * MAX_DIM, MAX_DIM, room, tid, sg, lane);
}
