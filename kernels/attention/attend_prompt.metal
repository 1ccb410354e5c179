// Causal attention of prompts over a paged cache of f16, on matrix units that four simdgroups use together: many rows
// of queries share what is read of the cache (FlashAttention, arXiv 2205.14135).
//
// attend_prompt_*: pages, tiles and what is computed are attend.metal's. A tile has as many tokens as ROWS rows allow,
//   with all heads of a KV head. Keys and values of 64 tokens at a time lie in threadgroup memory; each copy goes on
//   while the other one is multiplied with. Rows of q, relative to their largest element, and the softmax's weights are
//   halves, so results are within the rounding of f16. Tokens are cut into 64s by their place in the sequence. Few tiles
//   share out what they see among spans, which leave sums and weights for attend_merge. Grid: x tiles, y KV heads, z
//   spans. Threads: 2 ROWS.
// Reference: softmax(q k^T) v in f64.
#include "taper/attend.h"
#include "taper/copies.h"
#include "taper/wide.h"

// How matrix units find their operands; only NVIDIA's look.
#ifdef __METAL_VERSION__
#define SWIZZLED
#else
#define SWIZZLED __attribute__((aligned(1024)))
#endif

// Tokens of a step; pieces of 16 bytes of 64 elements of them.
enum { STEP = 64, PIECES = STEP * 8 };
constant float LOG2_E = 1.44269504088896341f;

INLINE uint2 pair_of(uint x, uint y) {
    uint2 pair;
    pair.x = x, pair.y = y;
    return pair;
}
INLINE uint4 nothing() {
    uint4 zero;
    zero.x = 0, zero.y = 0, zero.z = 0, zero.w = 0;
    return zero;
}
INLINE uint two_halves(float low, float high) {
    return uint(as_type<ushort>(half(low))) | uint(as_type<ushort>(half(high))) << 16;
}

// Over the four lanes that have a row.
INLINE float of_row_max(float x) {
    x = max(x, simd_shuffle_xor(x, 1));
    return max(x, simd_shuffle_xor(x, 2));
}
INLINE float of_row_sum(float x) {
    x += simd_shuffle_xor(x, 1);
    return x + simd_shuffle_xor(x, 2);
}

// What a threadgroup reads of the cache.
struct Reach {
    device const uint* blocks;  // of the sequence
    size_t block_elements;
    size_t head_at;
    uint from;                  // tokens that some row sees
    uint to;
};

// The 64 tokens from `first` on, as eight or sixteen pieces of each; those that no row sees are zero.
template <int D, bool KEYS>
INLINE void bring(device const half* pages, Reach reach, uint first, uint tid, uint threads, threadgroup uint4* to) {
    for (uint i = tid; i < STEP * D / 8; i += threads) {
        const uint token = KEYS ? i % STEP : i / (D / 8), piece = KEYS ? i / STEP : i % (D / 8), at = first + token;
        threadgroup uint4* place = to + piece / 8 * PIECES + wide_place(token, piece % 8);
        if (at < reach.from || at >= reach.to) {
            *place = nothing();
            continue;
        }
        const size_t block = reach.blocks[at / BLOCK] * reach.block_elements + reach.head_at;
        const uint within = at % BLOCK;
        copy_16(place, (device const uint4*)(pages + block + (KEYS ? (piece * BLOCK + within) * 8 : within * D + piece * 8)));
    }
}

// Which tokens of a step have a value that is not finite, a bit each; each simdgroup looks at all.
template <int D> INLINE uint2 broken_tokens(threadgroup const uint4* values, uint lane) {
    uint found[2] = {0, 0};
    for (uint i = lane; i < STEP * D / 8; i += 32) {
        const uint4 v = values[i];
        const uint words[4] = {v.x, v.y, v.z, v.w};
        bool broken = false;
        UNROLL for (int w = 0; w < 4; ++w)
            broken = broken || (words[w] & 0x7c00u) == 0x7c00u || (words[w] & 0x7c000000u) == 0x7c000000u;
        const uint token = i % PIECES / 8;
        if (broken) found[token / 32] |= 1u << token % 32;
    }
    for (uint m = 1; m < 32; m *= 2) {
        UNROLL for (int i = 0; i < 2; ++i) found[i] |= simd_shuffle_xor(found[i], ushort(m));
    }
    return pair_of(found[0], found[1]);
}

// The bits of a step's tokens below one of them.
INLINE uint2 bits_below(uint n) {
    return pair_of(n < 32 ? (1u << n) - 1 : ~0u, n < 32 ? 0u : n < 64 ? (1u << (n - 32)) - 1 : ~0u);
}

// A row's elements at columns 16 k + 2 t and 16 k + 8 + 2 t, as halves relative to the largest, whose value is returned.
template <int D> INLINE float load_query(device const float* row, bool there, float scale, uint t, thread uint (*to)[2]) {
    float x[D / 4], largest = 0.0f;
    UNROLL for (int i = 0; i < D / 8; ++i) {
        x[2 * i] = there ? row[8 * i + 2 * t] * scale : 0.0f;
        x[2 * i + 1] = there ? row[8 * i + 2 * t + 1] * scale : 0.0f;
        largest = max(largest, max(abs(x[2 * i]), abs(x[2 * i + 1])));
    }
    largest = of_row_max(largest);
    largest = largest > 0.0f ? largest : 1.0f;
    const float inverse = 1.0f / largest;
    UNROLL for (int i = 0; i < D / 8; ++i) to[i / 2][i % 2] = two_halves(x[2 * i] * inverse, x[2 * i + 1] * inverse);
    return largest;
}

template <int D, int ROWS>
INLINE void prompt(
    device const float* q, device const half* k_pages, device const half* v_pages, device const uint* blocks,
    device const AttendTile* tiles, device const float* sinks, device float* out, device float* span_sums,
    device float* span_weights, AttendParams p, uint3 at, uint tid, uint sg, uint lane, threadgroup uint4* keys, threadgroup uint4* values)
{
    enum { THREADS = 2 * ROWS, PARTS = D / 64 };
    const uint g = lane / 4, t = lane % 4;
    const uint heads = p.q_heads / p.kv_heads;
    const AttendTile tile = tiles[at.x];
    const uint last_end = tile.end + tile.count - 1;
    Reach reach;
    reach.blocks = blocks + tile.table;
    reach.block_elements = size_t(p.kv_heads) * BLOCK * D, reach.head_at = size_t(at.y) * BLOCK * D;
    reach.from = p.window && tile.end > p.window ? tile.end - p.window : 0, reach.to = last_end;
    // The tokens of this span.
    const uint seen = reach.from / STEP * STEP, steps = (last_end - seen + STEP - 1) / STEP;
    const uint each = (steps + p.spans - 1) / p.spans * STEP;
    const uint first = seen + at.z * each, stop = min(last_end, first + each);
    bring<D, true>(k_pages, reach, first, tid, THREADS, keys);
    copies_end();
    bring<D, false>(v_pages, reach, first, tid, THREADS, values);
    copies_end();

    // The lane's rows, and what each sees.
    const uint row[2] = {sg * 16 + g, sg * 16 + g + 8};
    uint query[2][D / 16][2], end[2];
    float unit[2], top[2], weight[2];
    size_t place[2];
    bool there[2];
    UNROLL for (int r = 0; r < 2; ++r) {
        const uint token = row[r] / heads, head = at.y * heads + row[r] % heads;
        there[r] = token < tile.count;
        end[r] = tile.end + min(token, tile.count - 1);
        place[r] = (size_t(tile.row + min(token, tile.count - 1)) * p.q_heads + head) * D;
        unit[r] = load_query<D>(q + place[r], there[r], p.scale, t, query[r]) * LOG2_E;
        // A sink is a token without a value that one of the row's lanes has seen.
        top[r] = p.sinks ? sinks[head] * LOG2_E : NOTHING;
        weight[r] = p.sinks && t == 0 ? 1.0f : 0.0f;
    }
    WideC acc[PARTS];
    UNROLL for (int i = 0; i < PARTS; ++i) wide_zero(acc[i]);

    for (uint from = first; from < stop; from += STEP) {
        copies_wait<1>();
        wide_publish();
        threadgroup_barrier(mem_flags::mem_threadgroup);
        WideC products;
        wide_zero(products);
        wide_begin();
        UNROLL for (int i = 0; i < D / 16; ++i)
            wide_multiply(products, lane, query[0][i][0], query[1][i][0], query[0][i][1], query[1][i][1], keys + i / 4 * PIECES, i % 4);
        wide_end();
        wide_wait<0>();
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (from + STEP < stop) bring<D, true>(k_pages, reach, from + STEP, tid, THREADS, keys);
        copies_end();

        // Some row does not see all of them.
        const bool some = from + STEP > tile.end || (p.window && from + p.window < last_end);
        float scores[32], fade[2];
        UNROLL for (int j = 0; j < 8; ++j) wide_to_lanes(products, j, lane, scores + 4 * j);
        UNROLL for (int r = 0; r < 2; ++r) {
            float best = top[r];
            UNROLL for (int i = 0; i < 16; ++i) {
                const int n = i / 2 * 4 + 2 * r + i % 2;
                float s = scores[n] * unit[r];
                if (p.soft_cap > 0.0f) s = p.soft_cap * LOG2_E * tanh(s / (p.soft_cap * LOG2_E));
                const uint token = from + uint(i / 2 * 8) + 2 * t + uint(i % 2);
                if (some) s = token < end[r] && (!p.window || token + p.window >= end[r]) ? s : NOTHING;
                scores[n] = s;
                best = max(best, s);
            }
            best = of_row_max(best);
            fade[r] = exp2(top[r] - best);
            top[r] = best;
            // A row that has seen nothing yet: what it does not see has no weight, either.
            const float less = best == NOTHING ? 0.0f : best;
            float sum = 0.0f;
            UNROLL for (int i = 0; i < 16; ++i) {
                const int n = i / 2 * 4 + 2 * r + i % 2;
                scores[n] = exp2(scores[n] - less);
                sum += scores[n];
            }
            weight[r] = fma(weight[r], fade[r], sum);
        }
        UNROLL for (int i = 0; i < PARTS; ++i) wide_scale(acc[i], lane, fade[0], fade[1]);

        copies_wait<1>();
        wide_publish();
        threadgroup_barrier(mem_flags::mem_threadgroup);
        // Zero times what is not a number is none: where a row may not see it, it goes, and rows that do are none.
        uint2 broken = pair_of(0, 0);
        if (some) broken = broken_tokens<D>(values, lane);
        if (broken.x || broken.y) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            for (uint i = tid; i < STEP * D / 8; i += THREADS) {
                const uint token = i % PIECES / 8;
                if ((token < 32 ? broken.x : broken.y) >> token % 32 & 1) values[i] = nothing();
            }
            wide_publish();
            threadgroup_barrier(mem_flags::mem_threadgroup);
            UNROLL for (int r = 0; r < 2; ++r) {
                const uint start = p.window && end[r] > p.window ? end[r] - p.window : 0;
                const uint2 seen = bits_below(end[r] > from ? end[r] - from : 0), not_seen = bits_below(start > from ? start - from : 0);
                if ((broken.x & seen.x & ~not_seen.x) || (broken.y & seen.y & ~not_seen.y)) weight[r] = as_type<float>(0x7fc00000u);
            }
        }
        uint halves[16];
        UNROLL for (int i = 0; i < 16; ++i) halves[i] = two_halves(scores[2 * i], scores[2 * i + 1]);
        wide_begin();
        UNROLL for (int k = 0; k < 4; ++k) {
            UNROLL for (int i = 0; i < PARTS; ++i)
                wide_multiply_rows(acc[i], lane, halves[4 * k], halves[4 * k + 1], halves[4 * k + 2], halves[4 * k + 3], values + i * PIECES, k);
        }
        wide_end();
        wide_wait<0>();
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (from + STEP < stop) bring<D, false>(v_pages, reach, from + STEP, tid, THREADS, values);
        copies_end();
    }

    UNROLL for (int r = 0; r < 2; ++r) weight[r] = of_row_sum(weight[r]);
    if (p.spans > 1) {
        UNROLL for (int r = 0; r < 2; ++r) {
            place[r] = (place[r] / D * p.spans + at.z) * D;
            if (!there[r] || t != 0) continue;
            span_weights[place[r] / D * 2] = top[r] / LOG2_E, span_weights[place[r] / D * 2 + 1] = weight[r];
        }
        out = span_sums;
    }
    UNROLL for (int m = 0; m < D / 8; ++m) {
        float sums[4];
        wide_to_lanes(acc[m / 8], m % 8, lane, sums);
        UNROLL for (int r = 0; r < 2; ++r) {
            if (!there[r]) continue;
            device float* to = out + place[r] + 8 * m + 2 * t;
            const float by = p.spans > 1 ? 1.0f : weight[r];
            to[0] = sums[2 * r] / by, to[1] = sums[2 * r + 1] / by;
        }
    }
}

#define ATTEND(D, ROWS) \
kernel void attend_prompt_d##D##_r##ROWS( \
    device const float* q [[buffer(0)]], \
    device const half* k_pages [[buffer(1)]], \
    device const half* v_pages [[buffer(2)]], \
    device const uint* blocks [[buffer(3)]], \
    device const AttendTile* tiles [[buffer(4)]], \
    device const float* sinks [[buffer(5)]], \
    device float* out [[buffer(6)]], \
    device float* sums [[buffer(7)]], \
    device float* weights [[buffer(8)]], \
    constant AttendParams& p [[buffer(9)]], \
    uint3 at [[threadgroup_position_in_grid]], \
    uint tid [[thread_index_in_threadgroup]], \
    uint sg [[simdgroup_index_in_threadgroup]], \
    uint lane [[thread_index_in_simdgroup]]) \
{ \
    threadgroup uint4 keys[STEP * D / 8] SWIZZLED; \
    threadgroup uint4 values[STEP * D / 8] SWIZZLED; \
    prompt<D, ROWS>( \
        q, k_pages, v_pages, blocks, tiles, sinks, out, sums, weights, p, at, tid, sg, lane, keys, values); \
}
ATTEND(128, 128)
