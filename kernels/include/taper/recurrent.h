// What kernels of recurrent layers share: the states of sequences, and the convolution before most recurrences.
#pragma once
#include "common.h"

// A token's result must not depend on which kernel computes it.
#pragma clang fp contract(off)

constant uint NO_SLOT = 0xffffffffu;

// Consecutive rows of a step, which are tokens of one sequence.
struct StateRun {
    uint row;   // the first
    uint rows;
    uint from;  // slot of the state before them; NO_SLOT: zeros
    uint cut;   // first of its cuts
    uint cuts;
};

// The state after so many rows of a run goes to a slot. The last cut of a run is its end, in the slot that it
// began with, if it did with one.
struct StateCut {
    uint rows;
    uint slot;
};

INLINE float sigmoid_of(float x) { return 1.0f / (1.0f + exp(-x)); }
INLINE float silu_of(float x) { return x / (1.0f + exp(-x)); }

// ln(1 + exp(x)). What is added to the larger part is ln(1 + e) for e up to 1, by the series of artanh(e / (2 + e)).
INLINE float softplus_of(float x) {
    const float e = exp(-abs(x)), s = e / (2.0f + e), q = s * s;
    float sum = 1.0f / 15.0f;
    sum = fma(sum, q, 1.0f / 13.0f);
    sum = fma(sum, q, 1.0f / 11.0f);
    sum = fma(sum, q, 1.0f / 9.0f);
    sum = fma(sum, q, 1.0f / 7.0f);
    sum = fma(sum, q, 1.0f / 5.0f);
    sum = fma(sum, q, 1.0f / 3.0f);
    sum = fma(sum, q, 1.0f);
    return max(x, 0.0f) + 2.0f * s * sum;
}

// What a causal convolution reads of a run: its own rows, and those before, which the state keeps.
struct ConvInput {
    device const float* x;     // first row of the run
    device const float* gate;  // what it is multiplied with; x itself without
    device const float* old;   // [kept, channels]
    uint width;                // of a row of x
    uint channels;
    uint kept;                 // rows before a token that it reads
    uint gated;
    uint fresh;                // there is nothing before
};

// A row counted from the run's first one, from -kept on. One load from either place: loads of several rows need not wait
// for one another.
INLINE float conv_input(ConvInput in, int row, uint channel) {
    const bool before = row < 0;
    const size_t at = before ? size_t(row + int(in.kept)) * in.channels + channel : size_t(row) * in.width + channel;
    const float x = (before ? in.old : in.x)[at];
    if (in.gated && !before) return x * in.gate[at];
    return before && in.fresh ? 0.0f : x;
}

// weights [kept + 1, channels].
INLINE float convolved(ConvInput in, device const float* weights, float bias, int row, uint channel) {
    float sum = bias;
    for (uint first = 0; first <= in.kept; first += 4) {
        float x[4], w[4];
        UNROLL for (uint n = 0; n < 4; ++n) {
            const uint j = min(first + n, in.kept);
            w[n] = weights[j * in.channels + channel], x[n] = conv_input(in, row - int(in.kept) + int(j), channel);
        }
        UNROLL for (uint n = 0; n < 4; ++n) sum = first + n <= in.kept ? fma(w[n], x[n], sum) : sum;
    }
    return sum;
}

// Leaves the last inputs of a channel at every cut, `states` being where a layer's are in the first slot. One
// thread does it for a channel, after all threads have read what was there.
INLINE void keep_inputs(ConvInput in, StateRun run, device const StateCut* cuts, device float* states, uint stride,
                        uint channel) {
    for (uint n = 0; n < run.cuts; ++n) {
        const StateCut cut = cuts[run.cut + n];
        device float* to = states + size_t(cut.slot) * stride + channel;
        for (uint first = 0; first < in.kept; first += 4) {
            float x[4];
            UNROLL for (uint j = 0; j < 4; ++j)
                x[j] = conv_input(in, int(cut.rows) - int(in.kept) + int(min(first + j, in.kept - 1)), channel);
            UNROLL for (uint j = 0; j < 4; ++j) {
                if (first + j < in.kept) to[(first + j) * in.channels] = x[j];
            }
        }
    }
}

// A row in place: `x / rms(x) * gains * gate(z)`, by the lanes of a simdgroup. gate: 0 SiLU, 1 sigmoid.
INLINE void gated_norm_row(device float* x, device const float* z, device const float* gains, uint cols, float eps,
                           uint gate, uint lane) {
    float squares = 0.0f;
    for (uint i = lane; i < cols; i += 32) squares = fma(x[i], x[i], squares);
    const float inverse = rsqrt(simd_sum(squares) / float(cols) + eps);
    for (uint i = lane; i < cols; i += 32) {
        const float open = gate == 0 ? silu_of(z[i]) : sigmoid_of(z[i]);
        x[i] = x[i] * inverse * gains[i] * open;
    }
}
