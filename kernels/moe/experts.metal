// Mixtures of experts: products with their weights, and the sum.
//
// experts_*: y[pair] = x W^T with W the `rows` rows of expert ids[pair]; pairs are tokens with each of
//   their experts, x [tokens, cols] f32, RMS-normed if NORM: the gains multiply x, and 1 / rms the finished sum. y may be
//   multiplied by its weight, as if x were, and a bias of the expert [experts, rows] added. With a gate, W is [gate; up]
//   and y is curve(gate) * up, [pairs, rows / 2]; a curve without a gate is that of y. A pair of an expert that has no
//   matrix is left out. A row's order of additions depends on nothing but its length.
//   Grid: x pairs, y blocks of 4 * ROWS rows. Threads: 128, a simdgroup ROWS rows.
// add_experts: out[t] = x[t] + scale * (sum over its pairs i of weights[i] * y[places[i]] + gate[t] * shared[t]).
//   Of experts that have no matrix y is what they read. Grid: x elements. Threads: 256.
// experts_sum_*: the same of what y[i] = inner[i] W^T is, with W the `rows` rows of expert ids[i].
//   Grid: x blocks of ROWS rows, or of half as many of f32, whose words would take all registers of a thread of an
//   Apple GPU; y tokens. Threads: 256, a simdgroup every eighth pair.
// Reference: taper_models' experts, Linear::forward, LinearGroup::forward_gated, add_weighted_rows.
#include "taper/common.h"
#include "taper/experts.h"
#include "taper/weights.h"

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
    float eps;
};

enum { NORM = 16, ROWS = 4, SUM_SIMDS = 8 };

// Rows of a matrix with a row of x: a lane's shares of the products, and with gains of x's sum of squares.
template <typename W, int ROWS>
INLINE void dots(
    WeightRows w, thread const uint* row, device const float* x, device const float* gains, bool norm, uint lane,
    thread float* acc, thread float& squares)
{
    UNROLL for (int r = 0; r < ROWS; ++r) acc[r] = 0.0f;
    for (uint chunk = lane; chunk < w.chunks; chunk += 32) {
        uint raw[ROWS][W::RAW];
        float s[ROWS], b[ROWS], dot[ROWS], sum = 0.0f;
        UNROLL for (int r = 0; r < ROWS; ++r) W::load(raw[r], w, row[r], chunk);
        UNROLL for (int r = 0; r < ROWS; ++r) W::affine(w, row[r], chunk, s[r], b[r]);
        UNROLL for (int r = 0; r < ROWS; ++r) dot[r] = 0.0f;
        float4 own[CHUNK / 4];
        UNROLL for (int i = 0; i < CHUNK / 4; ++i) own[i] = *(device const float4*)(x + chunk * CHUNK + 4 * i);
        if (norm) {
            UNROLL for (int i = 0; i < CHUNK / 4; ++i) {
                const float4 g = *(device const float4*)(gains + chunk * CHUNK + 4 * i);
                float4 v = own[i];
                squares = fma(v.x, v.x, squares), squares = fma(v.y, v.y, squares);
                squares = fma(v.z, v.z, squares), squares = fma(v.w, v.w, squares);
                v.x *= g.x, v.y *= g.y, v.z *= g.z, v.w *= g.w;
                own[i] = v;
            }
        }
        UNROLL for (int i = 0; i < CHUNK; i += 4) {
            const float4 v = own[i / 4];
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
}

template <typename W>
INLINE void expert_rows(
    device const uint* data, device const uint* scales, device const float* x, device const float* gains,
    device const uint* ids, device const float* bias, device const float* weights, device float* out, ExpertParams p,
    uint2 at, uint sg, uint lane)
{
    const uint id = ids[at.x];
    if (id >= p.experts) return;
    const uint half_rows = p.rows / 2;
    const WeightRows w = {data, scales, p.cols / CHUNK, p.group_shift, p.scale_type, p.packed};
    const bool gated = p.flags & GATED, norm = p.flags & NORM;
    const uint outputs = gated ? ROWS / 2 : ROWS, limit = gated ? half_rows : p.rows;
    const uint first = (at.y * 4 + sg) * outputs, base = id * p.rows;
    uint row[ROWS];
    UNROLL for (int r = 0; r < ROWS; ++r) {
        const uint n = first + uint(gated ? r / 2 : r);
        row[r] = base + min(n, limit - 1) + (gated && r % 2 ? half_rows : 0u);
    }
    float acc[ROWS], squares = 0.0f;
    dots<W, ROWS>(w, row, x + size_t(at.x / p.chosen) * p.cols, gains, norm, lane, acc, squares);
    const float inverse = norm ? rsqrt(simd_sum(squares) / float(p.cols) + p.eps) : 1.0f;
    float mine = 0.0f, up = 0.0f;
    UNROLL for (int r = 0; r < ROWS; ++r) {
        const float sum = simd_sum(acc[r]) * inverse;
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
    device const float* gains [[buffer(3)]], \
    device const uint* ids [[buffer(4)]], \
    device const float* bias [[buffer(5)]], \
    device const float* weights [[buffer(6)]], \
    device float* out [[buffer(7)]], \
    constant ExpertParams& p [[buffer(8)]], \
    uint2 at [[threadgroup_position_in_grid]], \
    uint sg [[simdgroup_index_in_threadgroup]], \
    uint lane [[thread_index_in_simdgroup]]) \
{ \
    expert_rows<FORMAT>(data, scales, x, gains, ids, bias, weights, out, p, at, sg, lane); \
}
FOR_EACH_FORMAT(EXPERTS)

enum { ADD_BASE = 1, ADD_IDS = 2, ADD_BIAS = 4, ADD_WHOLE = 8, ADD_SHARED = 16, ADD_GATE = 32 };

struct AddExpertsParams {
    uint n;         // elements of the output
    uint cols;
    uint chosen;
    uint experts;   // from this id on y is what was read
    uint flags;     // what is there; WHOLE: y is weighted already
    float scale;
};

// What is added, and what it is weighted with.
struct Added {
    device const float* x;
    device const float* weights;
    device const uint* ids;
    device const float* read;
    device const float* bias;
    device const float* shared;
    device const float* gate;
};

INLINE uint id_of(thread const Added& from, AddExpertsParams p, uint pair) {
    return p.flags & ADD_IDS ? from.ids[pair] : 0u;
}

// The sum with element i of a pair's result, of which it is the n-th. `y` is that of an expert with a matrix.
INLINE float with_pair(thread const Added& from, AddExpertsParams p, uint pair, uint i, uint n, float y, float sum) {
    const uint id = id_of(from, p, pair);
    if (id >= p.experts) return fma(from.weights[pair], from.read[i], sum);
    if (p.flags & ADD_BIAS) y += from.bias[size_t(id) * p.cols + n];
    return fma(p.flags & ADD_WHOLE ? 1.0f : from.weights[pair], y, sum);
}

// Element i of a token's result, from the sum over its pairs.
INLINE float with_rest(thread const Added& from, AddExpertsParams p, uint token, uint i, float sum) {
    if (p.flags & ADD_SHARED) {
        const float weight = p.flags & ADD_GATE ? 1.0f / (1.0f + exp(-from.gate[token])) : 1.0f;
        sum = fma(weight, from.shared[i], sum);
    }
    sum *= p.scale;
    return p.flags & ADD_BASE ? from.x[i] + sum : sum;
}

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
    const Added from = {x, weights, ids, read, bias, shared, gate};
    const uint token = i / p.cols, n = i % p.cols, first = token * p.chosen;
    float sum = 0.0f;
    for (uint pair = first; pair < first + p.chosen; ++pair) {
        const bool there = id_of(from, p, pair) < p.experts;
        const float v = there ? y[size_t(places[pair]) * p.cols + n] : 0.0f;
        sum = with_pair(from, p, pair, i, n, v, sum);
    }
    out[i] = with_rest(from, p, token, i, sum);
}

struct ExpertSumParams {
    uint rows;      // of one expert
    uint cols;      // of its matrix
    uint chosen;
    uint experts;
    uint group_shift;
    uint scale_type;
    uint packed;
    uint flags;     // as of add_experts
    float scale;
};

template <typename W>
INLINE void expert_sum(
    device const uint* data, device const uint* scales, device const float* inner, Added from, device float* out,
    ExpertSumParams p, uint2 at, uint tid, uint sg, uint lane, threadgroup float* y)
{
    constexpr int OWN = int(W::RAW) * ROWS > 64 ? ROWS / 2 : ROWS;
    const AddExpertsParams add = {0, p.rows, p.chosen, p.experts, p.flags, p.scale};
    const WeightRows w = {data, scales, p.cols / CHUNK, p.group_shift, p.scale_type, p.packed};
    const uint token = at.y, row0 = at.x * OWN, first = token * p.chosen, n = row0 + tid, i = token * p.rows + n;
    const bool writes = tid < OWN && n < p.rows;
    float sum = 0.0f;
    for (uint begin = 0; begin < p.chosen; begin += SUM_SIMDS) {
        const uint pair = first + begin + sg, id = begin + sg < p.chosen ? from.ids[pair] : p.experts;
        if (id < p.experts) {
            uint row[OWN];
            float acc[OWN], squares = 0.0f;
            UNROLL for (int r = 0; r < OWN; ++r) row[r] = id * p.rows + min(row0 + uint(r), p.rows - 1);
            dots<W, OWN>(w, row, inner + size_t(pair) * p.cols, inner, false, lane, acc, squares);
            UNROLL for (int r = 0; r < OWN; ++r) {
                const float whole = simd_sum(acc[r]);
                if (lane == uint(r)) y[sg * ROWS + uint(r)] = whole;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint end = min(p.chosen - begin, uint(SUM_SIMDS));
        for (uint k = 0; writes && k < end; ++k) {
            const uint own = first + begin + k;
            const float v = id_of(from, add, own) < p.experts ? y[k * ROWS + tid] : 0.0f;
            sum = with_pair(from, add, own, i, n, v, sum);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (writes) out[i] = with_rest(from, add, token, i, sum);
}

#define EXPERT_SUM(FORMAT, NAME) \
kernel void experts_sum_##NAME( \
    device const uint* data [[buffer(0)]], \
    device const uint* scales [[buffer(1)]], \
    device const float* inner [[buffer(2)]], \
    device const float* x [[buffer(3)]], \
    device const float* weights [[buffer(4)]], \
    device const uint* ids [[buffer(5)]], \
    device const float* read [[buffer(6)]], \
    device const float* bias [[buffer(7)]], \
    device const float* shared [[buffer(8)]], \
    device const float* gate [[buffer(9)]], \
    device float* out [[buffer(10)]], \
    constant ExpertSumParams& p [[buffer(11)]], \
    uint2 at [[threadgroup_position_in_grid]], \
    uint tid [[thread_index_in_threadgroup]], \
    uint sg [[simdgroup_index_in_threadgroup]], \
    uint lane [[thread_index_in_simdgroup]]) \
{ \
    threadgroup float y[SUM_SIMDS * ROWS]; \
    const Added from = {x, weights, ids, read, bias, shared, gate}; \
    expert_sum<FORMAT>(data, scales, inner, from, out, p, at, tid, sg, lane, y); \
}
FOR_EACH_FORMAT(EXPERT_SUM)
