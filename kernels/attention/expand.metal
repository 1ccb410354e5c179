// Rows of a compressed cache as pages of halves in the codes' space, for attention whose tiles have many rows of queries.
//
// expand_*: a block's rows of one head, as attend.metal has pages of f16. A job is where a block's codes are, or, with
//   a 1 beside it, its exact rows; its number is the page that it makes. Codes and constants are coded.metal's; `wide`:
//   keys and values in trellis codes of nine bits of state. Not for keys with a sketch.
//   Grid: x jobs, y KV heads, z keys and values. Threads: 128.
// rotate_rows: x [rows, d] f32 into the codes' space, or back. A simdgroup has a row.
//   Grid: x over 4 rows. Threads: 128.
// Reference: PagedCodec::decode, Rotation.
#include "taper/coded_keys.h"
#include "taper/codes.h"
#include "taper/common.h"
#include "taper/rotation.h"

enum { LEVELS = 64, WIDE_LEVELS = 512, MAX_DIM = 256 };

struct ExpandParams {
    uint kv_heads;
    uint head_dim;
    uint order;
    uint rounds;    // of the rotation, among the constants
    uint k_format;
    uint k_region;  // bytes of a head region
    uint k_group;
    uint v_format;
    uint v_region;
    uint v_group;
};

// A ring of a row's codes, or of its halves, before the row's scale. Past the row's end it is any.
template <int KIND>
INLINE void ring_of(Rows of, uint token, uint ring, bool keys, threadgroup const float* levels, thread float* x) {
    uint words[5];
    if (KIND == HALVES) {
        UNROLL for (int e = 0; e < RING; e += 4) {
            uint halves[4];
            four_halves_at(of, token, ring * RING + uint(e), halves);
            UNROLL for (int i = 0; i < 4; ++i) x[e + i] = half_of(halves[i]);
        }
    } else if (KIND == AFFINE4 || KIND == AFFINE8) {
        enum { BITS = KIND == AFFINE4 ? 4 : 8 };
        load_affine<BITS>(of, token, ring, words);
        UNROLL for (int e = 0; e < RING; ++e) x[e] = affine_value<BITS>(words, e);
    } else if (KIND == NIBBLES) {
        device const uint4* tile = (device const uint4*)(of.region + (token / 4 * of.rings + ring) * 32);
        if (keys) {
            const uint4 v = tile[token % 2];
            const uint own[4] = {v.x, v.y, v.z, v.w}, shift = token % 4 / 2 * 4;
            UNROLL for (int e = 0; e < RING; ++e) x[e] = levels[own[e / 4] >> (uint(e % 4 * 8) + shift) & 15u];
        } else {
            const uint4 a = tile[0], b = tile[1];
            const uint own[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, shift = token % 4 * 8;
            UNROLL for (int e = 0; e < RING; ++e) x[e] = levels[own[e % 8] >> (shift + uint(e / 8 * 4)) & 15u];
        }
    } else {
        load_codes<KIND>(of, token, ring, words);
        UNROLL for (int e = 0; e < RING; ++e) x[e] = levels[code_at<KIND>(words, e) / 2];
    }
}

template <int ONLY>
INLINE void expand(
    device const uchar* k_pages, device const uchar* v_pages, device const uchar* exact_k,
    device const uchar* exact_v, device const uint2* jobs, device const float* constants, device half* k_out,
    device half* v_out, ExpandParams p, uint3 at, uint tid, threadgroup float* levels, threadgroup float* centre)
{
    const bool keys = at.z == 0;
    const uint d = p.head_dim, rings = (d + RING - 1) / RING;
    const uint2 job = jobs[at.x];
    const size_t from = size_t(job.x) * p.kv_heads + at.y;
    device uint4* out = (device uint4*)((keys ? k_out : v_out) + (size_t(at.x) * p.kv_heads + at.y) * BLOCK * d);
    if (job.y != 0) {
        device const uint4* exact = (device const uint4*)((keys ? exact_k : exact_v) + from * 2 * BLOCK * d);
        for (uint i = tid; i < BLOCK * d / 8; i += 128) out[i] = exact[i];
        return;
    }
    const RotationOf rotation = {constants + 2 * LEVELS, d, p.rounds, p.order};
    device const float* table = IS_WIDE(ONLY) ? constants_after(rotation) : constants + (keys ? 0 : LEVELS);
    for (uint i = tid; i < uint(IS_WIDE(ONLY) ? WIDE_LEVELS : LEVELS); i += 128) levels[i] = table[i];
    Rows of = {keys ? k_pages + from * p.k_region : v_pages + from * p.v_region, keys ? p.k_format : p.v_format, d, rings, keys ? p.k_group : p.v_group};
    bool centred = keys && is_trellis(of.format);
    if (centred && centre_of(of)[0] == 0) centred = false, of.format = HALF_ROWS;
    for (uint i = tid; i < d; i += 128) centre[i] = centred ? centre_at(centre_of(of), i) : 0.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint kind = kind_of(of.format);
    // A block without a centre has room for its first rows only; nobody looks at others.
    const uint last = kind == HALVES ? min((keys ? p.k_region : p.v_region) / (2 * d), uint(BLOCK)) - 1 : BLOCK - 1;
    for (uint unit = tid; unit < BLOCK * rings; unit += 128) {
        // Neighbours write what lies together.
        const uint place = keys ? unit % BLOCK : unit / rings, ring = keys ? unit / BLOCK : unit % rings;
        const uint token = min(place, last);
        const float scale = row_scale(of, token);
        float x[RING];
#define RING_OF(KIND) ring_of<KIND>(of, token, ring, keys, levels, x)
        WITH_KIND(ONLY, kind, RING_OF)
        UNROLL for (int h = 0; h < 2; ++h) {
            const uint piece = 2 * ring + uint(h);
            if (8 * piece >= d) continue;
            uint w[4];
            UNROLL for (int i = 0; i < 4; ++i) {
                const int e = h * 8 + 2 * i;
                const uint in_row = ring * RING + uint(e);
                const float low = fma(x[e], scale, centre[in_row]), high = fma(x[e + 1], scale, centre[in_row + 1]);
                w[i] = packed(bits_of_half(clamped(low)), bits_of_half(clamped(high)));
            }
            uint4 both;
            both.x = w[0], both.y = w[1], both.z = w[2], both.w = w[3];
            out[keys ? piece * BLOCK + place : place * (d / 8) + piece] = both;
        }
    }
}

#define EXPAND(ONLY, NAME) \
kernel void expand_##NAME( \
    device const uchar* k_pages [[buffer(0)]], \
    device const uchar* v_pages [[buffer(1)]], \
    device const uchar* exact_k [[buffer(2)]], \
    device const uchar* exact_v [[buffer(3)]], \
    device const uint2* jobs [[buffer(4)]], \
    device const float* constants [[buffer(5)]], \
    device half* k_out [[buffer(6)]], \
    device half* v_out [[buffer(7)]], \
    constant ExpandParams& p [[buffer(8)]], \
    uint3 at [[threadgroup_position_in_grid]], \
    uint tid [[thread_index_in_threadgroup]]) \
{ \
    threadgroup float levels[IS_WIDE(ONLY) ? WIDE_LEVELS : LEVELS]; \
    threadgroup float centre[MAX_DIM]; \
    expand<ONLY>(k_pages, v_pages, exact_k, exact_v, jobs, constants, k_out, v_out, p, at, tid, levels, centre); \
}
EXPAND(ANY, coded)
EXPAND(WIDE + 3, wide)

struct RotateParams {
    uint rows;
    uint head_dim;
    uint order;
    uint rounds;
    uint back;
};

template <int N>
INLINE void rotate_from(device const float* in, device float* out, RotationOf of, bool back, uint lane) {
    float x[N];
    UNROLL for (int j = 0; j < N; ++j) x[j] = in[lane + 32 * uint(j)];
    rotate_lanes<N>(x, of, back, lane);
    UNROLL for (int j = 0; j < N; ++j) out[lane + 32 * uint(j)] = x[j];
}

kernel void rotate_rows(
    device const float* in [[buffer(0)]],
    device const float* constants [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant RotateParams& p [[buffer(3)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float rows[4 * MAX_DIM];
    threadgroup float scratch[4 * MAX_DIM];
    const uint d = p.head_dim, row = at.x * 4 + sg;
    if (row >= p.rows) return;
    const RotationOf rotation = {constants + 2 * LEVELS, d, p.rounds, p.order};
    device const float* from = in + size_t(row) * d;
    device float* to = out + size_t(row) * d;
    const bool back = p.back != 0;
    if (is_of_lanes(rotation) && d == 128) return rotate_from<4>(from, to, rotation, back, lane);
    if (is_of_lanes(rotation) && d == 64) return rotate_from<2>(from, to, rotation, back, lane);
    if (is_of_lanes(rotation)) return rotate_from<8>(from, to, rotation, back, lane);
    threadgroup float* x = rows + sg * MAX_DIM;
    for (uint i = lane; i < d; i += 32) x[i] = from[i];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (back) {
        rotate_back(x, scratch + sg * MAX_DIM, rotation, lane);
    } else {
        rotate(x, scratch + sg * MAX_DIM, rotation, lane);
    }
    for (uint i = lane; i < d; i += 32) to[i] = x[i];
}
