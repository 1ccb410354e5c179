// What cached keys are worth to queries, for the choice of those that stay.
//
// score(head, token) = <vector, key> + sum over bands f of weight_f * |(key_f, key_{f + head_dim / 2})|
//   with a vector [head_dim] and weights [head_dim / 2] for each query head; `heads` query heads share
//   the kv_heads heads of keys in order. `blocks` are the sequence's blocks of 32 tokens.
//   out [heads, tokens]. A score depends on its key alone.
//
// key_scores_*: pages of plain floats, as in attend.metal. A lane has a token.
//   Grid: x over 4 blocks, y KV heads, z over 8 query heads of one. Threads: 128.
// coded_key_scores: pages of codes (codes.h); rows are rotated back, as modulus and rotation do not
//   commute, after what a sketch adds. A simdgroup has a token; exact rows are not looked at.
//   Grid: x blocks, y and z as above. Threads: 128.
// Reference: KeyScorer over decoded rows.
#include "taper/common.h"
#include "taper/codes.h"
#include "taper/rotation.h"

enum { MAX_DIM = 256, AT_ONCE = 8, LEVELS = 64 };

struct KeyScoreParams {
    uint heads;
    uint kv_heads;
    uint head_dim;
    uint tokens;
};

struct bf16 { ushort bits; };
inline float widen(device const half* p) { return float(*p); }
inline float widen(device const float* p) { return *p; }
inline float widen(device const bf16* p) { return as_type<float>(uint(p->bits) << 16); }

template <typename KV>
INLINE void key_scores(
    device const KV* pages, device const float* vectors, device const float* weights,
    device const uint* blocks, device float* out, KeyScoreParams p, uint3 at, uint sg, uint lane)
{
    const uint d = p.head_dim, bands = d / 2, group = p.heads / p.kv_heads;
    const uint block = at.x * 4 + sg, token = block * BLOCK + lane;
    const uint head = at.y * group + at.z * AT_ONCE, n = min(group - at.z * AT_ONCE, uint(AT_ONCE));
    if (block * BLOCK >= p.tokens) return;
    device const KV* keys = pages + (size_t(blocks[block]) * p.kv_heads + at.y) * BLOCK * d;
    const uint own = min(token, p.tokens - 1) % BLOCK;
    float sums[AT_ONCE];
    UNROLL for (int g = 0; g < AT_ONCE; ++g) sums[g] = 0.0f;
    for (uint f = 0; f < bands; ++f) {
        const uint e = f + bands;
        const float x = widen(keys + (f / 8 * BLOCK + own) * 8 + f % 8);
        const float y = widen(keys + (e / 8 * BLOCK + own) * 8 + e % 8);
        const float modulus = sqrt(fma(x, x, y * y));
        UNROLL for (int g = 0; g < AT_ONCE; ++g) {
            if (uint(g) >= n) continue;
            device const float* vector = vectors + size_t(head + uint(g)) * d;
            sums[g] = fma(vector[f], x, fma(vector[e], y, sums[g]));
            sums[g] = fma(weights[size_t(head + uint(g)) * bands + f], modulus, sums[g]);
        }
    }
    if (token >= p.tokens) return;
    UNROLL for (int g = 0; g < AT_ONCE; ++g) {
        if (uint(g) < n) out[size_t(head + uint(g)) * p.tokens + token] = sums[g];
    }
}

#define KEY_SCORES(NAME, KV) \
kernel void key_scores_##NAME( \
    device const KV* pages [[buffer(0)]], \
    device const float* vectors [[buffer(1)]], \
    device const float* weights [[buffer(2)]], \
    device const uint* blocks [[buffer(3)]], \
    device float* out [[buffer(4)]], \
    constant KeyScoreParams& p [[buffer(5)]], \
    uint3 at [[threadgroup_position_in_grid]], \
    uint sg [[simdgroup_index_in_threadgroup]], \
    uint lane [[thread_index_in_simdgroup]]) \
{ \
    key_scores<KV>(pages, vectors, weights, blocks, out, p, at, sg, lane); \
}
KEY_SCORES(f16, half)
KEY_SCORES(bf16, bf16)
KEY_SCORES(f32, float)

struct CodedKeyScoreParams {
    uint heads;
    uint kv_heads;
    uint head_dim;
    uint tokens;
    uint format;
    uint region;  // bytes of a head region
    uint group;
    uint rounds;  // of the rotation; 0: none
    uint order;
};

kernel void coded_key_scores(
    device const uchar* pages [[buffer(0)]],
    device const float* vectors [[buffer(1)]],
    device const float* weights [[buffer(2)]],
    device const uint* blocks [[buffer(3)]],
    device const float* constants [[buffer(4)]],
    device float* out [[buffer(5)]],
    constant CodedKeyScoreParams& p [[buffer(6)]],
    uint3 at [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float rows[4 * MAX_DIM];
    threadgroup float scratch[4 * MAX_DIM];
    const uint d = p.head_dim, bands = d / 2, group = p.heads / p.kv_heads;
    const uint head = at.y * group + at.z * AT_ONCE, n = min(group - at.z * AT_ONCE, uint(AT_ONCE));
    device const uchar* region = pages + (size_t(blocks[at.x]) * p.kv_heads + at.y) * p.region;
    Rows keys = {region, p.format, d, (d + RING - 1) / RING, p.group};
    const RotationOf rotation = {constants + 2 * LEVELS, d, p.rounds, p.order};
    device const float* levels = is_wide(p.format) ? constants_after(rotation) : constants;
    device const uchar* centre = centre_of(keys);
    const bool centred = is_trellis(p.format) && centre[0] != 0;
    if (is_trellis(p.format) && !centred) keys.format = HALF_ROWS;
    threadgroup float* row = rows + sg * MAX_DIM;
    for (uint token = sg; token < min(uint(BLOCK), p.tokens - at.x * BLOCK); token += 4) {
        const float scale = row_scale(keys, token);
        if (is_sketched(p.format)) {
            device const uchar* signs = signs_of(keys, token);
            const float part = sketch_scale(keys, token);
            for (uint e = lane; e < d; e += 32) row[e] = signs[e / 8] >> e % 8 & 1 ? -part : part;
            simdgroup_barrier(mem_flags::mem_threadgroup);
            rotate_back(row, scratch + sg * MAX_DIM, sketch_after(rotation), lane);
        }
        for (uint e = lane; e < d; e += 32) {
            const float x = element_of(keys, token, e, scale, levels, true) + (centred ? centre_at(centre, e) : 0.0f);
            row[e] = is_sketched(p.format) ? row[e] + x : x;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        rotate_back(row, scratch + sg * MAX_DIM, rotation, lane);
        float sums[AT_ONCE];
        UNROLL for (int g = 0; g < AT_ONCE; ++g) sums[g] = 0.0f;
        for (uint f = lane; f < bands; f += 32) {
            const float x = row[f], y = row[f + bands], modulus = sqrt(fma(x, x, y * y));
            UNROLL for (int g = 0; g < AT_ONCE; ++g) {
                if (uint(g) >= n) continue;
                device const float* vector = vectors + size_t(head + uint(g)) * d;
                sums[g] = fma(vector[f], x, fma(vector[f + bands], y, sums[g]));
                sums[g] = fma(weights[size_t(head + uint(g)) * bands + f], modulus, sums[g]);
            }
        }
        UNROLL for (int g = 0; g < AT_ONCE; ++g) {
            const float sum = simd_sum(sums[g]);
            if (lane == 0 && uint(g) < n) out[size_t(head + uint(g)) * p.tokens + at.x * BLOCK + token] = sum;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}
