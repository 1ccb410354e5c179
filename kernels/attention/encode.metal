// Writing rows into a paged cache of compressed rows (see coded.metal for the pages).
//
// encode_*: k, v [t, kv_heads, head_dim] f32 into head regions. A run is consecutive rows that go to
//   consecutive slots of one block; no block has two runs in a launch. `sketched`: keys with a sketch.
//   Grid: x runs, y KV heads, z keys and values. Threads: 256; rows are rotated eight at a time and
//   written in their order, as a block's scales and centre depend on what it holds.
//   Trellis codes: Viterbi's algorithm over closed walks (walks.h), eight rows at a time. `wide`: keys and values in
//   trellis codes of nine bits of state.
// encode_exact: rows into the exact pages, rotated. Grid: x over blocks of 4 heads of all rows, z keys
//   and values. Threads: 128.
// new_rows: queries, keys and values of one token a sequence, normed and turned as norm_rope has them. Queries and what
//   goes into the exact pages are rotated; keys and values for encode_* are not. Of a token without a slot, ~0, no
//   exact row is written. Grid: x over blocks of 4 heads of all tokens: queries, keys, values. Threads: 128.
// Reference: PagedCodec::encode, PagedCodec::encode_exact.
#include "taper/common.h"
#include "taper/codes.h"
#include "taper/encoding.h"
#include "taper/rotation.h"
#include "taper/rows.h"
#include "taper/trellis_rows.h"

enum { LEVELS = 64, THRESHOLDS = 32 };

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
    for (uint i = lane; i < to.rings * RING; i += 32) {
        const float u = i < to.d ? x[i] * inverse : 0.0f;
        // As many as there are lower thresholds, which ascend.
        uint code = 0;
        for (uint half_of_rest = 1u << bits >> 1; half_of_rest > 0; half_of_rest /= 2) {
            code += u > levels[LEVELS + code + half_of_rest - 1] ? half_of_rest : 0u;
        }
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

// Four-bit codes of eight rows from a multiple of four on, by all threads: words of four bytes.
inline void put_nibbles(Writer to, uint token, bool keys, threadgroup const uchar* codes, uint tid) {
    device uint* out = (device uint*)(to.region + token / 4 * to.rings * 32);
    for (uint i = tid; i < 2 * to.rings * 8; i += 256) {
        const uint quad = i / (to.rings * 8), ring = i / 8 % to.rings, w = i % 8;
        threadgroup const uchar* from = codes + quad * 4 * MAX_DIM + ring * RING;
        uint word = 0;
        for (uint b = 0; b < 4; ++b) {
            // Keys: an element of two tokens. Values: two elements of a token.
            const uint low = keys ? w / 4 * MAX_DIM + w % 4 * 4 + b : b * MAX_DIM + w;
            const uint high = keys ? low + 2 * MAX_DIM : low + 8;
            word |= (uint(from[low]) | uint(from[high]) << 4) << 8 * b;
        }
        out[i] = word;
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
    if (KEYS == ANY && to.format == TRELLIS + 4) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint bin = tid; bin < BINS; bin += 256) fill_nearest(room, bin);
    }
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
            write_trellis<KEYS>(to, run.offset + first, n, room, tid, sg, lane);
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
        if (to.format == SCALAR + 4 && n == AT_ONCE && (run.offset + first) % 4 == 0) {
            device uchar* after = to.region + code_bytes(to.rings, 4);
            if (lane == 0) put_half(after + 2 * token, gamma);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            put_nibbles(to, run.offset + first, keys, room.codes, tid);
            continue;
        }
        // Nibbles of keys share bytes with those of the token two places on.
        const uint turns = keys && to.format == SCALAR + 4 ? 2 : 1;
        for (uint turn = 0; turn < turns; ++turn) {
            if (sg < n && (turns == 1 || token % 4 / 2 == turn)) {
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
    threadgroup float partial[24]; \
    threadgroup uchar codes[KEYS == WIDE ? 1 : AT_ONCE * MAX_DIM]; \
    threadgroup uint symbols[AT_ONCE * ROOM]; \
    threadgroup float sums[AT_ONCE * ROOM]; \
    threadgroup float costs[KEYS == WIDE ? AT_ONCE * 64 : 1]; \
    threadgroup float2 by_pair[KEYS == ANY ? LEVELS : 1]; \
    threadgroup uint nearest[KEYS == ANY ? BINS : 1]; \
    const Room room = {rows, scratch, levels, centre, partial, partial + 8, partial + 16, codes, symbols, sums, costs, by_pair, nearest}; \
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

struct NewRowsParams {
    uint rows;      // heads of all tokens, three sides
    uint q_heads;
    uint kv_heads;
    uint head_dim;
    uint order;
    uint k_rounds;
    uint v_rounds;
    uint pairs;     // elements that turn, by two; 0: none
    float q_eps;    // below 0: no norm
    float k_eps;
};

kernel void new_rows(
    device const float* q [[buffer(0)]],
    device const float* k [[buffer(1)]],
    device const float* v [[buffer(2)]],
    device const float* q_gains [[buffer(3)]],
    device const float* k_gains [[buffer(4)]],
    device const float* cosines [[buffer(5)]],
    device const float* sines [[buffer(6)]],
    device const uint* slots [[buffer(7)]],
    device const float* constants [[buffer(8)]],
    device float* q_out [[buffer(9)]],
    device float* k_out [[buffer(10)]],
    device float* v_out [[buffer(11)]],
    device half* k_pages [[buffer(12)]],
    device half* v_pages [[buffer(13)]],
    constant NewRowsParams& p [[buffer(14)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float rows[4 * MAX_DIM];
    threadgroup float scratch[4 * MAX_DIM];
    const uint index = at.x * 4 + sg, all = p.q_heads + 2 * p.kv_heads, d = p.head_dim;
    if (index >= p.rows) return;
    const uint token = index / all, place = index % all;
    const bool query = place < p.q_heads, value = place >= p.q_heads + p.kv_heads;
    const uint head = query ? place : (place - p.q_heads) % p.kv_heads;
    const size_t own = (size_t(token) * (query ? p.q_heads : p.kv_heads) + head) * d;
    device const float* from = (query ? q : value ? v : k) + own;
    device const float* gains = query ? q_gains : k_gains;
    const float eps = query ? p.q_eps : value ? -1.0f : p.k_eps;
    threadgroup float* row = rows + sg * MAX_DIM;
    float squares = 0.0f;
    for (uint i = lane; i < d; i += 32) {
        const float x = from[i];
        squares = fma(x, x, squares);
        row[i] = eps >= 0.0f ? x * gains[i] : x;
    }
    const float inverse = eps >= 0.0f ? rsqrt(simd_sum(squares) / float(d) + eps) : 1.0f;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    const uint pairs = value ? 0 : p.pairs;
    for (uint i = lane; i < pairs; i += 32) {
        const uint angle = token * pairs + i;
        const float2 turned = turn(row[i] * inverse, row[i + pairs] * inverse, cosines[angle], sines[angle]);
        row[i] = turned.x, row[i + pairs] = turned.y;
    }
    for (uint i = 2 * pairs + lane; i < d; i += 32) row[i] *= inverse;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (!query) {
        device float* to = (value ? v_out : k_out) + own;
        for (uint i = lane; i < d; i += 32) to[i] = row[i];
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    const RotationOf rotation = {constants + 2 * LEVELS, d, value ? p.v_rounds : p.k_rounds, p.order};
    rotate(row, scratch + sg * MAX_DIM, rotation, lane);
    if (query) {
        for (uint i = lane; i < d; i += 32) q_out[own + i] = row[i];
        return;
    }
    const uint slot = slots[token], at_token = slot % BLOCK;
    if (slot == 0xffffffffu) return;
    device half* page = (value ? v_pages : k_pages) + (size_t(slot / BLOCK) * p.kv_heads + head) * BLOCK * d;
    for (uint i = lane; i < d; i += 32) page[value ? at_token * d + i : (i / 8 * BLOCK + at_token) * 8 + i % 8] = half(clamped(row[i]));
}
