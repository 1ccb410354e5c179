// Mixtures of experts: products with their weights, and the sum.
//
// experts_*: y[pair] = x W^T with W the `rows` rows of expert ids[pair]; pairs are tokens with each of
//   their experts, x [tokens, cols] f32, or of each pair. y may be multiplied by its weight, as if x were, and a
//   bias of the expert [experts, rows] added. With a gate, W is [gate; up] and y is curve(gate) * up, [pairs,
//   rows / 2]; a curve without a gate is that of y. A pair of an expert that has no matrix is left out.
//   A row's order of additions depends on nothing but its length.
//   Grid: x pairs, y blocks of 4 * ROWS rows. Threads: 128, a simdgroup ROWS rows.
// between_experts: the same of what is already multiplied, x [pairs, rows] in places of their own: row i is that of
//   pair pairs[i]. Grid: x elements of y. Threads: 256.
// add_experts: out[t] = x[t] + scale * (sum over its pairs i of weights[i] * y[places[i]] + gate[t] * shared[t]).
//   Of experts that have no matrix y is what they read. Grid: x elements. Threads: 256.
// Reference: taper_models' experts, Linear::forward, LinearGroup::forward_gated, add_weighted_rows.
#include "taper/common.h"
#include "taper/weights.h"
#include "taper/curve.h"

enum { GATED = 1, BIAS = 2, WEIGHS_INPUT = 4 };

struct ExpertParams {
    uint rows;      // of one expert
    uint cols;
    uint chosen;    // pairs that share a row of x
    uint experts;   // from this id on there are no matrices
    uint stride;    // of the rows of y, zeros after what they have
    uint group_shift;
    uint scale_type;
    uint packed;
    uint curve;     // 0: none
    uint flags;
    float limit;
};

// What is between an expert's products, of what the first one gives.
INLINE float between(uint kind, float limit, bool gated, float y, float up) {
    const Numbers numbers = {limit, 0.0f, 0.0f, 0.0f};
    float other = gated ? up : 1.0f;
    const float f = curve(kind, numbers, y, other);
    return f * other;
}

template <typename W, int ROWS>
INLINE void expert_rows(
    device const uint* data, device const uint* scales, device const float* x, device const uint* ids,
    device const float* bias, device const float* weights, device float* out, ExpertParams p, uint2 at, uint sg, uint lane)
{
    const uint id = ids[at.x];
    if (id >= p.experts) return;
    const uint chunks = p.cols / CHUNK, half_rows = p.rows / 2;
    const WeightRows w = {data, scales, chunks, p.group_shift, p.scale_type, p.packed};
    const bool gated = p.flags & GATED;
    const uint outputs = gated ? ROWS / 2 : ROWS, limit = gated ? half_rows : p.rows;
    const uint first = (at.y * 4 + sg) * outputs, base = id * p.rows;
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
    if (lane >= outputs || n >= p.stride) return;
    device float* to = out + size_t(at.x) * p.stride + n;
    if (n >= limit) {
        *to = 0.0f;
        return;
    }
    if (p.flags & WEIGHS_INPUT) {
        const float weight = weights[at.x];
        mine *= weight, up *= weight;
    }
    if (p.flags & BIAS) {
        mine += bias[base + n];
        if (gated) up += bias[base + n + half_rows];
    }
    *to = p.curve ? between(p.curve, p.limit, gated, mine, up) : mine;
}

#define EXPERTS(FORMAT, NAME) \
kernel void experts_##NAME( \
    device const uint* data [[buffer(0)]], \
    device const uint* scales [[buffer(1)]], \
    device const float* x [[buffer(2)]], \
    device const uint* ids [[buffer(3)]], \
    device const float* bias [[buffer(4)]], \
    device const float* weights [[buffer(5)]], \
    device float* out [[buffer(6)]], \
    constant ExpertParams& p [[buffer(7)]], \
    uint2 at [[threadgroup_position_in_grid]], \
    uint sg [[simdgroup_index_in_threadgroup]], \
    uint lane [[thread_index_in_simdgroup]]) \
{ \
    expert_rows<FORMAT, 4>(data, scales, x, ids, bias, weights, out, p, at, sg, lane); \
}
FOR_EACH_FORMAT(EXPERTS)

struct BetweenParams {
    uint n;         // elements of y
    uint rows;      // of one expert
    uint experts;
    uint stride;
    uint curve;
    uint flags;
    float limit;
};

kernel void between_experts(
    device const float* x [[buffer(0)]],
    device const uint* pairs [[buffer(1)]],
    device const uint* ids [[buffer(2)]],
    device const float* bias [[buffer(3)]],
    device const float* weights [[buffer(4)]],
    device float* out [[buffer(5)]],
    constant BetweenParams& p [[buffer(6)]],
    uint i [[thread_position_in_grid]])
{
    if (i >= p.n) return;
    const bool gated = p.flags & GATED;
    const uint place = i / p.stride, n = i % p.stride, pair = pairs[place];
    const uint limit = gated ? p.rows / 2 : p.rows;
    if (n >= limit || ids[pair] >= p.experts) {
        out[i] = 0.0f;
        return;
    }
    device const float* from = x + size_t(place) * p.rows + n;
    float y = from[0], up = gated ? from[limit] : 0.0f;
    if (p.flags & WEIGHS_INPUT) y *= weights[pair], up *= weights[pair];
    if (p.flags & BIAS) {
        device const float* own = bias + size_t(ids[pair]) * p.rows + n;
        y += own[0];
        if (gated) up += own[limit];
    }
    out[i] = between(p.curve, p.limit, gated, y, up);
}

enum { ADD_PLACED = 1, ADD_BASE = 2, ADD_IDS = 4, ADD_BIAS = 8, ADD_WHOLE = 16, ADD_SHARED = 32, ADD_GATE = 64 };

struct AddExpertsParams {
    uint n;         // elements of the output
    uint cols;
    uint chosen;
    uint experts;   // from this id on y is what was read
    uint flags;     // what is there; PLACED: row i of y is pair i's otherwise; WHOLE: y is weighted already
    float scale;
};

kernel void add_experts(
    device const float* x [[buffer(0)]],
    device const float* y [[buffer(1)]],
    device const float* weights [[buffer(2)]],
    device const uint* places [[buffer(3)]],
    device const uint* ids [[buffer(4)]],
    device const float* read [[buffer(5)]],
    device const float* bias [[buffer(6)]],
    device const float* shared [[buffer(7)]],
    device const float* gate [[buffer(8)]],
    device float* out [[buffer(9)]],
    constant AddExpertsParams& p [[buffer(10)]],
    uint i [[thread_position_in_grid]])
{
    if (i >= p.n) return;
    const uint token = i / p.cols, n = i % p.cols, first = token * p.chosen;
    float sum = 0.0f;
    for (uint pair = first; pair < first + p.chosen; ++pair) {
        const uint id = p.flags & ADD_IDS ? ids[pair] : 0u;
        if (id >= p.experts) {
            sum = fma(weights[pair], read[i], sum);
            continue;
        }
        const size_t row = p.flags & ADD_PLACED ? places[pair] : pair;
        float v = y[row * p.cols + n];
        if (p.flags & ADD_BIAS) v += bias[size_t(id) * p.cols + n];
        sum = fma(p.flags & ADD_WHOLE ? 1.0f : weights[pair], v, sum);
    }
    if (p.flags & ADD_SHARED) {
        const float weight = p.flags & ADD_GATE ? 1.0f / (1.0f + exp(-gate[token])) : 1.0f;
        sum = fma(weight, shared[i], sum);
    }
    sum *= p.scale;
    out[i] = p.flags & ADD_BASE ? x[i] + sum : sum;
}
