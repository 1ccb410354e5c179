// Mixtures of experts: which experts each token goes through, products with their weights, and the sum.
//
// route: logits [tokens, experts] -> ids and weights [tokens, chosen], by ascending id. The experts of
//   the largest logits are chosen, of equals the first; a weight is the softmax over all, or over the
//   chosen ones. What is not a number counts as larger than any. Grid: x tokens. Threads: 128.
// experts_*: y[pair] = x W^T with W the `rows` rows of expert ids[pair]; pairs are tokens with each of
//   their experts, x [tokens, cols] f32, or of each pair. With a gate, W is [gate; up] and y is
//   activation(gate) * up, [pairs, rows / 2]. A row's order of additions depends on nothing but its
//   length. Grid: x pairs, y blocks of 4 * ROWS rows. Threads: 128, a simdgroup ROWS rows.
// add_experts: out[t] = x[t] + sum over its pairs i of weights[i] * y[places[i]].
//   Grid: x elements. Threads: 256.
// Reference: taper_models' choice, Linear::forward, LinearGroup::forward_gated, add_weighted_rows.
#include "taper/common.h"
#include "taper/weights.h"
#include "taper/activation.h"

enum { MAX_EXPERTS = 1024, ROUTE_THREADS = 128 };

struct RouteParams {
    uint experts;   // at most MAX_EXPERTS
    uint chosen;
    uint normalise;
};

kernel void route(
    device const float* logits [[buffer(0)]],
    device uint* ids [[buffer(1)]],
    device float* weights [[buffer(2)]],
    constant RouteParams& p [[buffer(3)]],
    uint token [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup uint keys[MAX_EXPERTS];
    threadgroup uint taken[MAX_EXPERTS];
    threadgroup float partial[8];
    device const float* x = logits + size_t(token) * p.experts;
    float largest = -INFINITY;
    for (uint e = tid; e < p.experts; e += ROUTE_THREADS) {
        const uint bits = as_type<uint>(x[e]);
        keys[e] = bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
        largest = max(largest, x[e]);
    }
    largest = simd_max(largest);
    if (lane == 0) partial[sg] = largest;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < 4; ++i) largest = max(largest, partial[i]);
    float sum = 0.0f;
    for (uint e = tid; e < p.experts; e += ROUTE_THREADS) {
        uint before = 0;
        for (uint j = 0; j < p.experts; ++j) {
            before += keys[j] > keys[e] || (keys[j] == keys[e] && j < e) ? 1u : 0u;
        }
        taken[e] = before < p.chosen ? 1u : 0u;
        if (taken[e] || !p.normalise) sum += exp(x[e] - largest);
    }
    sum = simd_sum(sum);
    if (lane == 0) partial[4 + sg] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float total = partial[4] + partial[5] + partial[6] + partial[7];
    for (uint e = tid; e < p.experts; e += ROUTE_THREADS) {
        if (!taken[e]) continue;
        uint place = token * p.chosen;
        for (uint j = 0; j < e; ++j) place += taken[j];
        ids[place] = e;
        weights[place] = exp(x[e] - largest) / total;
    }
}

struct ExpertParams {
    uint rows;      // of one expert
    uint cols;
    uint chosen;    // pairs that share a row of x
    uint group_shift;
    uint scale_type;
    uint packed;
    uint gate;
};

template <typename W, int ROWS>
INLINE void expert_rows(
    device const uint* data, device const uint* scales, device const float* x, device const uint* ids,
    device float* out, ExpertParams p, uint2 at, uint sg, uint lane)
{
    const uint chunks = p.cols / CHUNK, half_rows = p.rows / 2;
    const WeightRows w = {data, scales, chunks, p.group_shift, p.scale_type, p.packed};
    const bool gated = p.gate != 0;
    const uint outputs = gated ? ROWS / 2 : ROWS, limit = gated ? half_rows : p.rows;
    const uint first = (at.y * 4 + sg) * outputs, base = ids[at.x] * p.rows;
    device const float* from = x + size_t(at.x / p.chosen) * p.cols;
    uint row[ROWS];
    float acc[ROWS];
    UNROLL for (int r = 0; r < ROWS; ++r) {
        const uint n = first + uint(gated ? r / 2 : r);
        row[r] = base + min(n, limit - 1) + (gated && r % 2 ? half_rows : 0u);
        acc[r] = 0.0f;
    }
    for (uint chunk = lane; chunk < chunks; chunk += 32) {
        uint raw[ROWS][W::RAW];
        float s[ROWS], b[ROWS], dot[ROWS], sum = 0.0f;
        UNROLL for (int r = 0; r < ROWS; ++r) W::load(raw[r], w, row[r], chunk);
        UNROLL for (int r = 0; r < ROWS; ++r) W::affine(w, row[r], chunk, s[r], b[r]);
        UNROLL for (int r = 0; r < ROWS; ++r) dot[r] = 0.0f;
        UNROLL for (int i = 0; i < CHUNK; i += 4) {
            const float4 v = *(device const float4*)(from + chunk * CHUNK + i);
            sum += v.x, sum += v.y, sum += v.z, sum += v.w;
            UNROLL for (int r = 0; r < ROWS; ++r) {
                dot[r] = fma(v.x, W::quant(raw[r], i), dot[r]);
                dot[r] = fma(v.y, W::quant(raw[r], i + 1), dot[r]);
                dot[r] = fma(v.z, W::quant(raw[r], i + 2), dot[r]);
                dot[r] = fma(v.w, W::quant(raw[r], i + 3), dot[r]);
            }
        }
        UNROLL for (int r = 0; r < ROWS; ++r) acc[r] += fma(s[r], dot[r], b[r] * sum);
    }
    float mine = 0.0f, up = 0.0f;
    UNROLL for (int r = 0; r < ROWS; ++r) {
        const float sum = simd_sum(acc[r]);
        if (lane == uint(gated ? r / 2 : r)) {
            if (gated && r % 2) {
                up = sum;
            } else {
                mine = sum;
            }
        }
    }
    const uint n = first + lane;
    if (lane >= outputs || n >= limit) return;
    out[size_t(at.x) * limit + n] = gated ? activate(p.gate, mine) * up : mine;
}

#define EXPERTS(FORMAT, NAME) \
kernel void experts_##NAME( \
    device const uint* data [[buffer(0)]], \
    device const uint* scales [[buffer(1)]], \
    device const float* x [[buffer(2)]], \
    device const uint* ids [[buffer(3)]], \
    device float* out [[buffer(4)]], \
    constant ExpertParams& p [[buffer(5)]], \
    uint2 at [[threadgroup_position_in_grid]], \
    uint sg [[simdgroup_index_in_threadgroup]], \
    uint lane [[thread_index_in_simdgroup]]) \
{ \
    expert_rows<FORMAT, 4>(data, scales, x, ids, out, p, at, sg, lane); \
}
FOR_EACH_FORMAT(EXPERTS)

struct AddExpertsParams {
    uint n;         // elements of the output
    uint cols;
    uint chosen;
    uint placed;    // whether `places` is there: row i of y is pair i's otherwise
};

kernel void add_experts(
    device const float* x [[buffer(0)]],
    device const float* y [[buffer(1)]],
    device const float* weights [[buffer(2)]],
    device const uint* places [[buffer(3)]],
    device float* out [[buffer(4)]],
    constant AddExpertsParams& p [[buffer(5)]],
    uint i [[thread_position_in_grid]])
{
    if (i >= p.n) return;
    const uint first = i / p.cols * p.chosen;
    float sum = 0.0f;
    for (uint pair = first; pair < first + p.chosen; ++pair) {
        const size_t row = p.placed ? places[pair] : pair;
        sum = fma(weights[pair], y[row * p.cols + i % p.cols], sum);
    }
    out[i] = x[i] + sum;
}
