// Causal attention of query rows over a paged cache of compressed rows, as they lie.
//
// A page is a block of 32 tokens: [kv_head] head regions, each at a multiple of 16 bytes (codes.h).
// Exact pages, read instead of codes for the first and the recent tokens of a sequence, are halves in
// the codes' space: keys [kv_head][head_dim / 8][32 tokens][8], values [kv_head][32 tokens][head_dim].
// `blocks` has a pair a block: where its codes are, and where its exact rows are or NONE.
// `constants`: levels of the keys' codes [64], of the values' [64], the rotation (rotation.h), and then that of a
// sketch, or the levels of a wide trellis [512], which keys and values share.
//
// attend_coded_*: q [t, q_heads, head_dim] f32; tiles, parts, spans and threads as in attend.metal. The
//   rows of q are rotated, and each span leaves its sum [rings * 16], its maximum and its weight.
//   Levels, which halves hold exactly, are multiplied on the matrix units; an operand that halves do
//   not hold is two of them, within 2^-21. A tile's eight columns are four rows of q, or of weights.
//   Keys with a sketch add <S R q, signs>, so q is rotated a second time.
// coded_merge: adds the spans and rotates back: out [t, q_heads, head_dim] f32. coded_merge_sinks: the same with each
//   head's sink, a score without a value.
//   Grid: x over rows of all heads. Threads: 256.
// Reference: PagedCodec::decode, then softmax(q k^T) v in f64.
#include "taper/coded_attend.h"

ATTEND(8, ANY, ANY, 8)
ATTEND(16, ANY, ANY, 16)
// For one format of keys and one of values.
ATTEND(8, AFFINE4, AFFINE4, 8_of_2_2)
ATTEND(8, AFFINE8, AFFINE8, 8_of_3_3)
ATTEND(8, AFFINE8, NIBBLES, 8_of_3_14)
ATTEND(8, SCALAR + 3, SCALAR + 3, 8_of_13_13)
ATTEND(8, NIBBLES, NIBBLES, 8_of_14_14)
ATTEND(8, TRELLIS + 3, TRELLIS + 3, 8_of_23_23)
ATTEND(8, TRELLIS + 4, TRELLIS + 4, 8_of_24_24)

struct CodedMergeParams {
    uint head_dim;
    uint spans;
    uint rounds;
    uint order;
    uint q_heads;
};

// SINKS: a score for each head joins its rows' softmax, in the last place.
template <bool SINKS>
INLINE void merge_spans(
    device const float* sums, device const float* weights, device const float* constants, device const float* sinks,
    device float* out, CodedMergeParams p, uint row, uint tid, uint sg, uint lane, threadgroup float* fades,
    threadgroup float* tops, threadgroup float* totals, threadgroup float* x, threadgroup float* scratch)
{
    const uint wide = (p.head_dim + RING - 1) / RING * RING;
    device const float* w = weights + size_t(row) * p.spans * 2;
    float top = NOTHING;
    for (uint s = tid; s < p.spans; s += 256) top = w[s * 2 + 1] != 0.0f ? max(top, w[s * 2]) : top;
    top = simd_max(top);
    if (lane == 0) tops[sg] = top;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < 8; ++i) top = max(top, tops[i]);
    const float sink = SINKS ? sinks[row % p.q_heads] : 0.0f;
    if (SINKS) top = max(top, sink);
    float total = 0.0f, sum = 0.0f;
    for (uint first = 0; first < p.spans; first += 256) {
        const uint n = min(p.spans - first, 256u), s = first + tid;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const bool any = tid < n && w[s * 2 + 1] != 0.0f;
        const float fade = any ? exp(w[s * 2] - top) : 0.0f;
        fades[tid] = fade;
        total += any ? w[s * 2 + 1] * fade : 0.0f;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (tid < wide) {
            device const float* own = sums + (size_t(row) * p.spans + first) * wide + tid;
            UNROLL_BY(8) for (uint i = 0; i < n; ++i) {
                // A span that saw nothing left no sum.
                const float part = own[size_t(i) * wide];
                sum = fma(fades[i] > 0.0f ? part : 0.0f, fades[i], sum);
            }
        }
    }
    total = simd_sum(total);
    if (lane == 0) totals[sg] = total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    total = 0.0f;
    for (uint i = 0; i < 8; ++i) total += totals[i];
    if (SINKS) total += exp(sink - top);
    x[tid] = sum / total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (sg == 0) {
        const RotationOf rotation = {constants + 2 * LEVELS, p.head_dim, p.rounds, p.order};
        rotate_back(x, scratch, rotation, lane);
        for (uint i = lane; i < p.head_dim; i += 32) out[size_t(row) * p.head_dim + i] = x[i];
    }
}

#define MERGE_MEMORY \
    threadgroup float fades[256]; \
    threadgroup float tops[8]; \
    threadgroup float totals[8]; \
    threadgroup float x[256]; \
    threadgroup float scratch[256];

kernel void coded_merge(
    device const float* sums [[buffer(0)]],
    device const float* weights [[buffer(1)]],
    device const float* constants [[buffer(2)]],
    device float* out [[buffer(3)]],
    constant CodedMergeParams& p [[buffer(4)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    MERGE_MEMORY
    merge_spans<false>(
        sums, weights, constants, weights, out, p, row, tid, sg, lane, fades, tops, totals, x, scratch);
}

kernel void coded_merge_sinks(
    device const float* sums [[buffer(0)]],
    device const float* weights [[buffer(1)]],
    device const float* constants [[buffer(2)]],
    device const float* sinks [[buffer(3)]],
    device float* out [[buffer(4)]],
    constant CodedMergeParams& p [[buffer(5)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    MERGE_MEMORY
    merge_spans<true>(sums, weights, constants, sinks, out, p, row, tid, sg, lane, fades, tops, totals, x, scratch);
}
