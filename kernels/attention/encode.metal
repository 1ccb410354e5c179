// Writing rows into a paged cache of compressed rows (see coded.metal for the pages).
//
// encode_*: k, v [t, kv_heads, head_dim] f32 into head regions. A run is consecutive rows that go to
//   consecutive slots of one block; no block has two runs in a launch. `sketched`: keys with a sketch.
//   Grid: x runs, y KV heads, z keys and values. Threads: 256; rows are rotated eight at a time and
//   written in their order, as a block's scales and centre depend on what it holds.
//   Trellis codes: Viterbi's algorithm over closed walks, a thread for each first state of each ring
//   and each factor that is tried. `wide`: keys and values in trellis codes of nine bits of state.
// encode_exact: rows into the exact pages, rotated. Grid: x over blocks of 4 heads of all rows, z keys
//   and values. Threads: 128.
// Reference: PagedCodec::encode, PagedCodec::encode_exact.
#include "taper/common.h"
#include "taper/codes.h"
#include "taper/encoding.h"
#include "taper/rotation.h"
#include "taper/wide_walk.h"

enum { LEVELS = 64, THRESHOLDS = 32, AT_ONCE = 8, MAX_RINGS = 16, MAX_SCALES = 5 };
// Steps of an octave of a trellis row's scale, and where the first one of a block lies.
constant float STEPS = 24.0f;
enum { FIRST = 192 };
// Factors on the direction that are tried.
constant float FEW[5] = {1.0f, 0.92f, 1.08f, 0.0f, 0.0f};
constant float MANY[5] = {0.99f, 0.93f, 0.87f, 1.05f, 1.11f};

struct EncodeRun {
    uint block;
    uint offset;
    uint row;
    uint count;
};

struct EncodeParams {
    uint kv_heads;
    uint head_dim;
    uint order;
    uint k_format;
    uint k_region;
    uint k_group;
    uint k_rounds;
    uint young;     // first rows of a block of keys that stay halves; 0: keys have no centre
    uint v_format;
    uint v_region;
    uint v_group;
    uint v_rounds;
};

// A row's length, and that of its direction along the levels of its codes.
struct Fit {
    float norm;
    float along;
};

// Scalar codes of a row in `bits` bits, by one simdgroup.
inline Fit scalar_codes(Writer to, uint bits, threadgroup const float* x, threadgroup const float* levels, threadgroup uchar* codes, uint lane) {
    float square = 0.0f, along = 0.0f;
    for (uint i = lane; i < to.d; i += 32) square = fma(x[i], x[i], square);
    const float norm = sqrt(simd_sum(square));
    const bool some = norm > 0.0f && finite(norm);
    const float inverse = some ? 1.0f / norm : 0.0f;
    const uint thresholds = (1u << bits) - 1u;
    for (uint i = lane; i < to.rings * RING; i += 32) {
        const float u = i < to.d ? x[i] * inverse : 0.0f;
        uint code = 0;
        for (uint t = 0; t < thresholds; ++t) code += u > levels[LEVELS + t] ? 1u : 0u;
        if (i >= to.d) code = 0;
        codes[i] = uchar(code);
        along = i < to.d ? fma(u, levels[code], along) : along;
    }
    along = simd_sum(along);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    return {some ? norm : 0.0f, along};
}

inline void put_scalar(Writer to, uint token, bool keys, threadgroup const uchar* codes, float gamma, uint lane) {
    const uint bits = bits_of(to.format);
    if (lane == 0) put_half(to.region + code_bytes(to.rings, bits) + 2 * token, gamma);
    if (bits != 4) {
        if (lane < to.rings) {
            uint w[3] = {0, 0, 0};
            for (uint i = 0; i < RING; ++i) {
                const uint at = i * bits, code = codes[lane * RING + i];
                w[at / 32] |= code << at % 32;
                if (at % 32 + bits > 32) w[at / 32 + 1] |= code >> (32 - at % 32);
            }
            put_ring(to, token, lane, bits, w[0], w[1], w[2]);
        }
        return;
    }
    const uint t = token % 4;
    for (uint i = lane; i < to.rings * RING; i += 32) {
        device uchar* tile = to.region + (token / 4 * to.rings + i / RING) * 32;
        const uint e = i % RING;
        if (keys) {
            device uchar* byte = tile + t % 2 * 16 + e;
            const uint shift = t / 2 * 4;
            *byte = uchar((uint(*byte) & ~(15u << shift)) | uint(codes[i]) << shift);
        } else if (e < 8) {
            tile[4 * e + t] = uchar(uint(codes[i]) | uint(codes[i + 8]) << 4);
        }
    }
}

// Codes of a row, the signs of what they leave in the sketch's space, and both lengths, by one simdgroup.
// What they leave replaces the row.
inline void put_sketched(Writer to, uint token, threadgroup float* x, threadgroup float* scratch, threadgroup const float* levels, threadgroup uchar* codes, RotationOf sketch, uint lane) {
    const uint bits = bits_of(to.format) - 1, eights = to.d / 8;
    const Fit fit = scalar_codes(to, bits, x, levels, codes, lane);
    const float gamma = fit.along > 0.0f ? fit.norm : 0.0f;
    float square = 0.0f;
    for (uint i = lane; i < to.d; i += 32) {
        x[i] = fma(-gamma, levels[codes[i]], x[i]);
        square = fma(x[i], x[i], square);
    }
    const float rest = sqrt(simd_sum(square));
    simdgroup_barrier(mem_flags::mem_threadgroup);
    rotate(x, scratch, sketch, lane);
    device uchar* row = to.region + token * (eights * (bits + 1) + 4);
    device uchar* signs = row + eights * bits;
    if (lane < eights) {
        uint word = 0, negative = 0;
        for (uint i = 0; i < 8; ++i) {
            word |= uint(codes[8 * lane + i]) << i * bits;
            negative |= x[8 * lane + i] < 0.0f ? 1u << i : 0u;
        }
        for (uint i = 0; i < bits; ++i) row[lane * bits + i] = uchar(word >> 8 * i);
        signs[lane] = uchar(negative);
    }
    // A byte a lane: ptxas makes a number of a half that is stored as a byte, and so a shift comes between.
    if (lane < 4) {
        const uint length = as_type<ushort>(half(clamped(lane < 2 ? fit.norm : finite(rest) ? rest : 0.0f)));
        signs[eights + lane] = uchar(length >> lane % 2 * 8);
    }
}

// The nearest closed walks of a centred row's rings in a code of BITS bits, by all threads, with each
// factor: their symbols, and the sums that say how good they are.
template <int BITS>
void walks(Writer to, threadgroup const float* x, float deviation, Room room, uint tid, uint lane) {
    enum { MEMORIES = 1 << (6 - BITS), BRANCHES = 1 << BITS, SCALES = BITS == 4 ? 5 : 3 };
    const uint total = SCALES * to.rings * MEMORIES;
    for (uint base = 0; base < total; base += 256) {
        const uint unit = min(base + tid, total - 1);
        const uint start = unit % MEMORIES, ring = unit / MEMORIES % to.rings, tried = unit / MEMORIES / to.rings;
        const float factor = (BITS == 4 ? MANY[tried] : FEW[tried]) / deviation;
        float cost[MEMORIES];
        UNROLL for (int m = 0; m < MEMORIES; ++m) cost[m] = uint(m) == start ? 0.0f : FAR;
        uint choices[RING];
        for (uint i = 0; i < RING; ++i) {
            const uint e = ring * RING + i;
            const float at = e < to.d ? x[e] * factor : 0.0f;
            float before[MEMORIES];
            UNROLL for (int m = 0; m < MEMORIES; ++m) before[m] = cost[m];
            uint chosen = 0;
            UNROLL for (int m = 0; m < MEMORIES; ++m) {
                float next = INFINITY;
                UNROLL for (int low = 0; low < BRANCHES; ++low) {
                    const int state = m << BITS | low;
                    const float level = room.levels[state];
                    float c = fma(at, -2.0f * level, before[state & (MEMORIES - 1)] + level * level);
                    // The branch goes along in the lowest bits.
                    c = as_type<float>((as_type<uint>(c) & ~15u) | uint(low));
                    next = c < next ? c : next;
                }
                cost[m] = next;
                chosen |= (as_type<uint>(next) & uint(BRANCHES - 1)) << (m * BITS);
            }
            choices[i] = chosen;
        }
        float best = FAR;
        UNROLL for (int m = 0; m < MEMORIES; ++m) best = uint(m) == start ? cost[m] : best;
        const float own = best;
        uint first = start;
        for (uint m = 1; m < MEMORIES; m *= 2) {
            const float other = simd_shuffle_xor(best, ushort(m));
            const uint index = simd_shuffle_xor(first, ushort(m));
            if (other < best || (other == best && index < first)) best = other, first = index;
        }
        if (first == start && own == best && base + tid < total) {
            uint memory = start, w[2] = {0, 0};
            float along = 0.0f, energy = 0.0f;
            for (uint i = RING; i > 0; --i) {
                const uint e = ring * RING + i - 1;
                const uint branch = choices[i - 1] >> (memory * BITS) & uint(BRANCHES - 1);
                const uint state = memory << BITS | branch, symbol = state >> (6 - BITS), bit = (i - 1) * BITS;
                const float level = room.levels[state];
                if (e < to.d) along = fma(level, x[e], along), energy = fma(level, level, energy);
                w[bit / 32] |= symbol << bit % 32;
                if (bit % 32 + BITS > 32) w[1] |= symbol >> (32 - bit % 32);
                memory = state & uint(MEMORIES - 1);
            }
            const uint at = (tried * MAX_RINGS + ring) * 2;
            room.symbols[at] = w[0], room.symbols[at + 1] = w[1];
            room.sums[at] = along, room.sums[at + 1] = energy;
        }
    }
}

// Stores the scale of a trellis row; a larger one than the block has seen moves its base. One thread.
inline void put_scale(Writer to, uint token, float gamma) {
    device uchar* scales = to.region + code_bytes(to.rings, bits_of(to.format));
    device short* base = (device short*)(scales + BLOCK);
    const float place = round(log2(gamma) * STEPS);
    if (!(gamma > 0.0f) || !finite(place)) {
        scales[token] = 0;
        return;
    }
    const int position = int(place) + 128;
    uint any = 0;
    for (uint i = 0; i < BLOCK; ++i) any |= scales[i];
    if (any == 0) *base = short(position - int(FIRST));
    int code = position - int(*base);
    if (code > 255) {
        const int up = code - int(FIRST);
        for (uint i = 0; i < BLOCK; ++i) {
            const int old = int(scales[i]);
            scales[i] = uchar(old == 0 ? 0 : max(old - up, 1));
        }
        *base = short(int(*base) + up);
        code = int(FIRST);
    }
    scales[token] = uchar(max(code, 0));
}

// Writes a centred, rotated row in trellis codes, by all threads. No barrier ends it: what the next row
// writes over, it writes behind the barriers of its sum.
template <int KEYS>
void put_trellis(Writer to, uint token, threadgroup const float* x, Room room, uint tid, uint sg, uint lane) {
    const uint bits = bits_of(to.format);
    const float element = tid < to.d ? x[tid] : 0.0f;
    const float square = sum_of_all(element * element, room.partial, sg, lane), norm = sqrt(square);
    const bool some = norm > 0.0f && finite(norm);
    const float deviation = some ? norm / sqrt(float(to.d)) : 1.0f;
    if (KEYS == WIDE) {
        if (sg == 0) wide_walk(to, x, deviation, room, lane);
    } else {
        if (bits == 4) walks<4>(to, x, deviation, room, tid, lane);
        if (bits == 3) walks<3>(to, x, deviation, room, tid, lane);
        if (bits == 2) walks<2>(to, x, deviation, room, tid, lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float least = INFINITY, gamma = 0.0f;
    uint best = MAX_SCALES;
    const uint tried = KEYS == WIDE ? 1 : bits == 4 ? 5 : 3;
    for (uint s = 0; some && s < tried; ++s) {
        float along = 0.0f, energy = 0.0f;
        for (uint ring = 0; ring < to.rings; ++ring) {
            along += room.sums[(s * MAX_RINGS + ring) * 2], energy += room.sums[(s * MAX_RINGS + ring) * 2 + 1];
        }
        const float error = energy * square / (along * along) - 1.0f;
        if (along > 0.0f && error < least) least = error, gamma = square / along, best = s;
    }
    if (tid < to.rings) {
        const uint at = (best * MAX_RINGS + tid) * 2;
        const bool any = best < MAX_SCALES;
        put_ring(to, token, tid, bits, any ? room.symbols[at] : 0u, any ? room.symbols[at + 1] : 0u, 0u);
    }
    if (tid == 0) put_scale(to, token, gamma);
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
    for (uint r = 0; r < n; ++r) put_trellis<KEYS>(to, r, room.scratch + r * d, room, tid, sg, lane);
}

// Writes a rotated row as a block's codes want it. All threads.
template <int KEYS>
void write_trellis(Writer to, uint token, threadgroup float* x, Room room, uint tid, uint sg, uint lane) {
    const uint before = code_bytes(to.rings, bits_of(to.format)) + BLOCK + 2;
    const uint centre = to.young ? 4 + (7 * to.d + 7) / 8 : 0;
    if (token == 0) {
        for (uint i = tid; i < (before + centre + 1) / 2; i += 256) ((device ushort*)to.region)[i] = 0;
        threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
    }
    if (to.young) {
        if (to.region[before] == 0) {
            if (token < to.young) {
                if (tid < to.d) put_half(to.region + 2 * (token * to.d + tid), x[tid]);
                threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
                return;
            }
            mature<KEYS>(to, room, tid, sg, lane);
        }
        device const uchar* from = to.region + before;
        if (tid < to.d) x[tid] -= centre_at(from, tid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    put_trellis<KEYS>(to, token, x, room, tid, sg, lane);
}

template <int KEYS>
INLINE void encode(
    device const float* k, device const float* v, device const EncodeRun* runs, device const float* constants,
    device const float* thresholds, device uchar* k_pages, device uchar* v_pages, EncodeParams p, Room room,
    uint3 at, uint tid, uint sg, uint lane)
{
    const bool keys = at.z == 0;
    const EncodeRun run = runs[at.x];
    const uint d = p.head_dim;
    const size_t head = size_t(run.block) * p.kv_heads + at.y;
    const RotationOf rotation = {constants + 2 * LEVELS, d, keys ? p.k_rounds : p.v_rounds, p.order};
    device uchar* region = keys ? k_pages + head * p.k_region : v_pages + head * p.v_region;
    const Writer to = {region, keys ? p.k_format : p.v_format, d, (d + RING - 1) / RING, keys ? p.k_group : p.v_group, keys ? p.young : 0u, constants_after(rotation)};
    const bool sketched = KEYS == SKETCHED && keys;
    threadgroup float* row = room.rows + sg * MAX_DIM;
    threadgroup float* scratch = room.scratch + sg * MAX_DIM;
    threadgroup uchar* codes = room.codes + sg * MAX_DIM;
    if (tid < LEVELS) room.levels[tid] = constants[keys ? tid : LEVELS + tid];
    if (tid < THRESHOLDS) room.levels[LEVELS + tid] = thresholds[keys ? tid : THRESHOLDS + tid];
    for (uint first = 0; first < run.count; first += AT_ONCE) {
        const uint n = min(run.count - first, uint(AT_ONCE));
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (sg < n) {
            device const float* x = (keys ? k : v) + (size_t(run.row + first + sg) * p.kv_heads + at.y) * d;
            for (uint i = lane; i < d; i += 32) row[i] = x[i];
            simdgroup_barrier(mem_flags::mem_threadgroup);
            rotate(row, scratch, rotation, lane);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (KEYS != SKETCHED && is_trellis(to.format)) {
            for (uint i = 0; i < n; ++i) write_trellis<KEYS>(to, run.offset + first + i, room.rows + i * MAX_DIM, room, tid, sg, lane);
            continue;
        }
        const uint token = run.offset + first + sg;
        if (sketched) {
            if (sg < n) put_sketched(to, token, row, scratch, room.levels, codes, sketch_after(rotation), lane);
            continue;
        }
        float gamma = 0.0f;
        if (sg < n && is_scalar(to.format)) {
            const Fit fit = scalar_codes(to, bits_of(to.format), row, room.levels, codes, lane);
            gamma = fit.along > 0.0f ? fit.norm / fit.along : 0.0f;
        }
        // Two rows may share bytes.
        for (uint i = 0; i < n; ++i) {
            if (sg == i) {
                if (is_scalar(to.format)) {
                    put_scalar(to, token, keys, codes, gamma, lane);
                } else if (to.format == HALF_ROWS) {
                    for (uint e = lane; e < d; e += 32) put_half(to.region + 2 * (token * d + e), row[e]);
                } else {
                    put_affine(to, token, row, lane);
                }
            }
            threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
        }
    }
}

#define ENCODE(KEYS, NAME) \
kernel void encode_##NAME( \
    device const float* k [[buffer(0)]], \
    device const float* v [[buffer(1)]], \
    device const EncodeRun* runs [[buffer(2)]], \
    device const float* constants [[buffer(3)]], \
    device const float* thresholds [[buffer(4)]], \
    device uchar* k_pages [[buffer(5)]], \
    device uchar* v_pages [[buffer(6)]], \
    constant EncodeParams& p [[buffer(7)]], \
    uint3 at [[threadgroup_position_in_grid]], \
    uint tid [[thread_index_in_threadgroup]], \
    uint sg [[simdgroup_index_in_threadgroup]], \
    uint lane [[thread_index_in_simdgroup]]) \
{ \
    threadgroup float rows[AT_ONCE * MAX_DIM]; \
    threadgroup float scratch[AT_ONCE * MAX_DIM]; \
    threadgroup float levels[LEVELS + THRESHOLDS]; \
    threadgroup float centre[MAX_DIM]; \
    threadgroup float partial[8]; \
    threadgroup uchar codes[AT_ONCE * MAX_DIM]; \
    threadgroup uint symbols[MAX_SCALES * MAX_RINGS * 2]; \
    threadgroup float sums[MAX_SCALES * MAX_RINGS * 2]; \
    threadgroup float costs[KEYS == WIDE ? 64 : 1]; \
    const Room room = {rows, scratch, levels, centre, partial, codes, symbols, sums, costs}; \
    encode<KEYS>(k, v, runs, constants, thresholds, k_pages, v_pages, p, room, at, tid, sg, lane); \
}
ENCODE(ANY, coded)
ENCODE(SKETCHED, sketched)
ENCODE(WIDE, wide)

struct ExactParams {
    uint rows;
    uint kv_heads;
    uint head_dim;
    uint order;
    uint k_rounds;
    uint v_rounds;
};

kernel void encode_exact(
    device const float* k [[buffer(0)]],
    device const float* v [[buffer(1)]],
    device const uint2* slots [[buffer(2)]],
    device const float* constants [[buffer(3)]],
    device half* k_pages [[buffer(4)]],
    device half* v_pages [[buffer(5)]],
    constant ExactParams& p [[buffer(6)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float rows[4 * MAX_DIM];
    threadgroup float scratch[4 * MAX_DIM];
    const bool keys = at.z == 0;
    const uint d = p.head_dim, index = at.x * 4 + sg;
    if (index >= p.rows * p.kv_heads) return;
    const uint2 slot = slots[index / p.kv_heads];
    const uint head = index % p.kv_heads, token = slot.y % BLOCK;
    threadgroup float* row = rows + sg * MAX_DIM;
    device const float* x = (keys ? k : v) + (size_t(slot.x) * p.kv_heads + head) * d;
    for (uint i = lane; i < d; i += 32) row[i] = x[i];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    const RotationOf rotation = {constants + 2 * LEVELS, d, keys ? p.k_rounds : p.v_rounds, p.order};
    rotate(row, scratch + sg * MAX_DIM, rotation, lane);
    device half* page = (keys ? k_pages : v_pages) + (size_t(slot.y / BLOCK) * p.kv_heads + head) * BLOCK * d;
    for (uint i = lane; i < d; i += 32) page[keys ? (i / 8 * BLOCK + token) * 8 + i % 8 : token * d + i] = half(clamped(row[i]));
}
