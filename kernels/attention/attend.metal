// Causal attention of query rows over a paged cache of plain floats, and writing into that cache.
//
// Pages of a layer, for blocks of 32 tokens, element type KV:
//   keys    [block][kv_head][head_dim / 8][32 tokens][8]   a lane a token reads them coalesced
//   values  [block][kv_head][32 tokens][head_dim]
// head_dim is a multiple of 8, up to 256; attend_more.metal has larger ones.
//
// kv_write_*: k, v [t, kv_heads, head_dim] f32 into slots[t] = block * 32 + offset.
//   Grid: x over blocks of 256 elements of k. Threads: 256. Reference: DenseCodec::encode.
//
// attend_*: q [t, q_heads, head_dim] f32 -> out, the same. A tile is up to ROWS rows of one sequence:
//   its tokens and the query heads of one KV head. Grid: x tiles, y KV heads * parts (a part is ROWS
//   of the heads when one KV head has more), z spans of 512 tokens. Threads: 128; each simdgroup
//   walks over every fourth block of the span, a lane a token for the scores and head_dim / 32
//   elements a lane for the values, with a running softmax (Milakov & Gimelshein 2018).
//   With one span the output is final, unless there are sinks; else each span leaves its sum, its maximum and its
//   weight for attend_merge or attend_merge_sinks (grid: x rows of all heads; threads: 512), which adds each head's
//   sink, a score without a value. The cut into spans does not depend on the batch, so neither does the result.
//   Reference: softmax(q k^T) v in f64.
#include "taper/attend.h"

#define KV_WRITE(NAME, KV) \
kernel void kv_write_##NAME( \
    device const float* k [[buffer(0)]], \
    device const float* v [[buffer(1)]], \
    device const uint* slots [[buffer(2)]], \
    device KV* k_pages [[buffer(3)]], \
    device KV* v_pages [[buffer(4)]], \
    constant WriteParams& p [[buffer(5)]], \
    uint i [[thread_position_in_grid]]) \
{ \
    if (i < p.n) { \
        const uint d = i % p.head_dim, head = i / p.head_dim % p.kv_heads; \
        const uint slot = slots[i / p.head_dim / p.kv_heads]; \
        const uint token = slot % BLOCK; \
        const size_t base = (size_t(slot / BLOCK) * p.kv_heads + head) * BLOCK * p.head_dim; \
        store_kv(k_pages, base + (d / 8 * BLOCK + token) * 8 + d % 8, k[i]); \
        store_kv(v_pages, base + token * p.head_dim + d, v[i]); \
    } \
}
KV_WRITE(f16, half)
KV_WRITE(bf16, bf16)
KV_WRITE(f32, float)

// Rows share what is read of keys and values; more than 8 would not fit an Apple GPU's registers.
#define ATTENDS(NAME, KV, D) \
    ATTEND(NAME##_d##D, KV, D, D, D, 4, false) ATTEND(NAME##_d##D, KV, D, D, D, 8, false)
ATTENDS(f16, half, 64)
ATTENDS(f16, half, 128)
ATTENDS(f16, half, 256)
// Heads of any size.
ATTEND(f16_d0, half, 0, MAX_DIM, MAX_DIM, 4, false)
ATTEND(bf16_d0, bf16, 0, MAX_DIM, MAX_DIM, 4, false)
ATTEND(f32_d0, float, 0, MAX_DIM, MAX_DIM, 4, false)

struct MergeParams {
    uint head_dim;  // of values, at most MERGE_THREADS
    uint spans;
    uint q_heads;
};

enum { MERGE_THREADS = 512 };

// SINKS: a score for each head joins its rows' softmax, in the last place.
template <bool SINKS>
INLINE void merge_spans(
    device const float* sums, device const float* weights, device const float* sinks, device float* out, MergeParams p,
    uint row, uint tid, uint sg, uint lane, threadgroup float* fades, threadgroup float* shares,
    threadgroup float* tops, threadgroup float* totals)
{
    device const float* w = weights + size_t(row) * p.spans * 2;
    float top = NOTHING;
    for (uint s = tid; s < p.spans; s += MERGE_THREADS) top = w[s * 2 + 1] != 0.0f ? max(top, w[s * 2]) : top;
    top = simd_max(top);
    if (lane == 0) tops[sg] = top;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < MERGE_THREADS / 32; ++i) top = max(top, tops[i]);
    const float sink = SINKS ? sinks[row % p.q_heads] : 0.0f;
    if (SINKS) top = max(top, sink);
    // Threads of an element each take a share of the spans.
    const uint width = (p.head_dim + 31) / 32 * 32, n_shares = MERGE_THREADS / width;
    const uint e = tid % width, share = tid / width;
    float total = 0.0f, sum = 0.0f;
    for (uint first = 0; first < p.spans; first += MERGE_THREADS) {
        const uint n = min(p.spans - first, uint(MERGE_THREADS)), s = first + tid;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const bool any = tid < n && w[s * 2 + 1] != 0.0f;
        const float fade = any ? exp(w[s * 2] - top) : 0.0f;
        fades[tid] = fade;
        total += any ? w[s * 2 + 1] * fade : 0.0f;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (e < p.head_dim && share < n_shares) {
            device const float* own = sums + (size_t(row) * p.spans + first) * p.head_dim + e;
            UNROLL_BY(8) for (uint i = share; i < n; i += n_shares) {
                // A span that saw nothing left no sum.
                const float part = own[size_t(i) * p.head_dim];
                sum = fma(fades[i] > 0.0f ? part : 0.0f, fades[i], sum);
            }
        }
    }
    total = simd_sum(total);
    if (lane == 0) totals[sg] = total;
    shares[tid] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid < p.head_dim) {
        total = 0.0f, sum = 0.0f;
        for (uint i = 0; i < MERGE_THREADS / 32; ++i) total += totals[i];
        if (SINKS) total += exp(sink - top);
        for (uint i = 0; i < n_shares; ++i) sum += shares[i * width + tid];
        out[size_t(row) * p.head_dim + tid] = sum / total;
    }
}

#define MERGE_MEMORY \
    threadgroup float fades[MERGE_THREADS]; \
    threadgroup float shares[MERGE_THREADS]; \
    threadgroup float tops[MERGE_THREADS / 32]; \
    threadgroup float totals[MERGE_THREADS / 32];

kernel void attend_merge(
    device const float* sums [[buffer(0)]],
    device const float* weights [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant MergeParams& p [[buffer(3)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    MERGE_MEMORY
    merge_spans<false>(sums, weights, weights, out, p, row, tid, sg, lane, fades, shares, tops, totals);
}

kernel void attend_merge_sinks(
    device const float* sums [[buffer(0)]],
    device const float* weights [[buffer(1)]],
    device const float* sinks [[buffer(2)]],
    device float* out [[buffer(3)]],
    constant MergeParams& p [[buffer(4)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    MERGE_MEMORY
    merge_spans<true>(sums, weights, sinks, out, p, row, tid, sg, lane, fades, shares, tops, totals);
}
