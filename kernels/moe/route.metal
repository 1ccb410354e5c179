// Which experts each token goes through, and how much each counts.
//
// route: logits [tokens, experts] -> ids and weights [tokens, chosen], by ascending id. The experts of
//   the largest logits are chosen, of equals the first; a weight is the softmax over all, or over the
//   chosen ones. What is not a number counts as larger than any. Grid: x tokens. Threads: 128.
// route_scored: the same of any other router: logits [tokens, experts], bias and factors [experts]. The choice and
//   the weights have the host's bits: every sum is in one order, and exponentials are the host's.
//   Grid: x tokens. Threads: 128.
// Reference: taper_tensor::routing.
#include "taper/common.h"
#include "taper/exponential.h"

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

enum { SOFTMAX = 0, SIGMOID = 1, SPARSE_MIXER = 2 };

struct ScoredParams {
    uint experts;   // at most MAX_EXPERTS
    uint chosen;
    uint score;
    uint normalise; // whether weights are divided by the sum of the chosen
    uint biased;
    uint groups;    // 0: all experts are to be chosen from
    uint kept;      // groups to choose from
    uint best;      // experts whose scores are a group's
    uint factored;
    float more;     // added to the sum that divides
    float least;    // and this is the least it is
    float scale;
    float spread;   // of SparseMixer
    float soft_cap; // 0: logits as they are
};

// A number's place in the order of all, what is not a number included, and the number of a place.
INLINE uint key_of(float x) {
    const uint bits = as_type<uint>(x);
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
INLINE float of_key(uint key) { return as_type<float>(key >> 31 ? key ^ 0x80000000u : ~key); }

// e^x of x <= 0 or what is not a number.
INLINE float exponential_of(float x) { return x != x ? x : exponential(x > -87.0f ? x : -87.0f); }

INLINE float sigmoid(float x) {
#pragma clang fp contract(off)
    const float e = exponential_of(x < 0.0f ? x : -x);
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

// cap * tanh(x / cap).
INLINE float capped(float x, float cap) {
#pragma clang fp contract(off)
    return cap * (2.0f * sigmoid(2.0f * x / cap) - 1.0f);
}

INLINE float sum_of(threadgroup const float* x, uint n) {
    float sum = 0.0f;
    for (uint i = 0; i < n; ++i) sum += x[i];
    return sum;
}

// The sum of the best experts of a group.
INLINE float best_of(threadgroup const uint* keys, uint first, uint size, uint best) {
    float sum = 0.0f;
    uint last = first;
    for (uint b = 0; b < best; ++b) {
        uint next = first + size;
        for (uint e = first; e < first + size; ++e) {
            const bool later = b == 0 || keys[e] < keys[last] || (keys[e] == keys[last] && e > last);
            if (later && (next == first + size || keys[e] > keys[next])) next = e;
        }
        last = next;
        sum += of_key(keys[next]);
    }
    return sum;
}

// Of so many keys, how many come before one.
INLINE uint before(threadgroup const uint* keys, uint n, uint e) {
    uint count = 0;
    for (uint j = 0; j < n; ++j) count += keys[j] > keys[e] || (keys[j] == keys[e] && j < e) ? 1u : 0u;
    return count;
}

// One over the sum of the scores that are not much worse than the best of those from `at` on.
INLINE float mixed(threadgroup const float* logits, threadgroup const uint* order, uint at, ScoredParams p) {
#pragma clang fp contract(off)
    const float most = logits[order[at]];
    float sum = 0.0f;
    for (uint i = at; i < p.experts; ++i) {
        const float x = logits[order[i]];
        const bool far = (most - x) / max(abs(x), most) > p.spread;
        if (!far) sum += exponential_of(x - most);
    }
    return 1.0f / sum;
}

kernel void route_scored(
    device const float* logits [[buffer(0)]],
    device const float* bias [[buffer(1)]],
    device const float* factors [[buffer(2)]],
    device uint* ids [[buffer(3)]],
    device float* weights [[buffer(4)]],
    constant ScoredParams& p [[buffer(5)]],
    uint token [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float scores[MAX_EXPERTS];
    threadgroup uint keys[MAX_EXPERTS];
    threadgroup uint order[MAX_EXPERTS];
    threadgroup float partial[4];
    device const float* x = logits + size_t(token) * p.experts;
    float largest = -INFINITY;
    for (uint e = tid; e < p.experts; e += ROUTE_THREADS) {
        float v = x[e];
        if (p.soft_cap != 0.0f) v = capped(v, p.soft_cap);
        scores[e] = v;
        keys[e] = key_of(v);
        largest = max(largest, v);
    }
    largest = simd_max(largest);
    if (lane == 0) partial[sg] = largest;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < 4; ++i) largest = max(largest, partial[i]);
    for (uint e = tid; e < p.experts; e += ROUTE_THREADS) {
        if (p.score == SOFTMAX) scores[e] = exponential_of(scores[e] - largest);
        if (p.score == SIGMOID) scores[e] = sigmoid(scores[e]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (p.biased || p.groups) {
        const float total = p.biased && p.score == SOFTMAX ? sum_of(scores, p.experts) : 1.0f;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint e = tid; e < p.experts; e += ROUTE_THREADS) {
            scores[e] = scores[e] / total;
            keys[e] = key_of(p.biased ? scores[e] + bias[e] : scores[e]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (p.groups) {
        const uint size = p.experts / p.groups;
        for (uint g = tid; g < p.groups; g += ROUTE_THREADS) order[g] = key_of(best_of(keys, g * size, size, p.best));
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint e = tid; e < p.experts; e += ROUTE_THREADS) {
            if (before(order, p.groups, e / size) >= p.kept) keys[e] = key_of(-INFINITY);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint e = tid; e < p.experts; e += ROUTE_THREADS) order[before(keys, p.experts, e)] = e;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 1.0f;
    if (p.normalise) {
        float sum = 0.0f;
        for (uint i = 0; i < p.chosen; ++i) sum += scores[order[i]];
        total = max(sum, p.least) + p.more;
    } else if (p.score == SOFTMAX) {
        total = sum_of(scores, p.experts);
    }
    for (uint i = tid; i < p.chosen; i += ROUTE_THREADS) {
        const uint e = order[i];
        float w = p.score == SPARSE_MIXER ? mixed(scores, order, i, p) : scores[e] / total * p.scale;
        if (p.factored) w *= factors[e];
        uint place = token * p.chosen;
        for (uint j = 0; j < p.chosen; ++j) place += order[j] < e ? 1u : 0u;
        ids[place] = e;
        weights[place] = w;
    }
}
