// Recurrences whose channels keep a few numbers each.
//
// selective_scan: Mamba (arXiv 2312.00752). Of a channel with time step d = softplus(dt): s_n = exp(-rate_n d) s_n +
//   b_n d x, y = sum_n c_n s_n + skip x, out = y silu(z). x, z, dt [t, channels]; b, c [t, state]; rates
//   [channels, state]; the state is [state, channels]. Grid: x over 64 channels, y over runs. Threads: 64.
//   Reference: SelectiveScan::forward.
// lru_gates: Griffin's gates (arXiv 2402.19427). With maps [heads, dim, dim] of a head's x to itself and biases:
//   gated = x sigmoid(input(x)), logs = rate sigmoid(recurrent(x)). Grid: x over heads and 32 of their channels, y
//   over tokens. Threads: 32. lru: s = exp(log) s + gated sqrt(1 - exp(2 log)), where the first token of a
//   sequence is written whole; out is s. Grid: x over 64 channels, y over runs. Threads: 64. Reference: RgLru::forward.
#include "taper/recurrent.h"

enum { MOST_STATE = 16, CHANNELS = 64 };

struct ScanParams {
    uint channels;
    uint state;     // at most 16
    uint stride;    // elements of a slot
};

kernel void selective_scan(
    device const float* x [[buffer(0)]],
    device const float* z [[buffer(1)]],
    device const float* dt [[buffer(2)]],
    device const float* b [[buffer(3)]],
    device const float* c [[buffer(4)]],
    device const float* rates [[buffer(5)]],
    device const float* skips [[buffer(6)]],
    device const StateRun* runs [[buffer(7)]],
    device const StateCut* cuts [[buffer(8)]],
    device float* states [[buffer(9)]],
    device float* out [[buffer(10)]],
    constant ScanParams& p [[buffer(11)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]])
{
    const StateRun run = runs[at.y];
    const uint channel = at.x * CHANNELS + tid;
    if (channel >= p.channels) return;
    float s[MOST_STATE], rate[MOST_STATE];
    UNROLL for (uint n = 0; n < MOST_STATE; ++n) {
        const bool there = n < p.state;
        rate[n] = there ? rates[channel * p.state + n] : 0.0f;
        s[n] = there && run.from != NO_SLOT ? states[size_t(run.from) * p.stride + n * p.channels + channel] : 0.0f;
    }
    const float skip = skips[channel];
    uint cut = run.cut, due = cuts[cut].rows;
    for (uint i = 0; i < run.rows; ++i) {
        const size_t token = run.row + i, own = token * p.channels + channel;
        const float time = softplus_of(dt[own]), value = x[own], timed = time * value;
        float y = skip * value;
        UNROLL for (uint n = 0; n < MOST_STATE; ++n)
            if (n < p.state) {
                s[n] = fma(exp(-rate[n] * time), s[n], b[token * p.state + n] * timed);
                y = fma(c[token * p.state + n], s[n], y);
            }
        out[own] = y * silu_of(z[own]);
        while (due == i + 1) {
            device float* to = states + size_t(cuts[cut].slot) * p.stride + channel;
            UNROLL for (uint n = 0; n < MOST_STATE; ++n)
                if (n < p.state) to[n * p.channels] = s[n];
            ++cut;
            due = cut < run.cut + run.cuts ? cuts[cut].rows : 0;
        }
    }
}

struct LruGatesParams {
    uint width;
    uint dim;    // channels of a head
    uint parts;  // of a head, of 32 channels each
};

kernel void lru_gates(
    device const float* x [[buffer(0)]],
    device const float* input [[buffer(1)]],
    device const float* input_bias [[buffer(2)]],
    device const float* recurrent [[buffer(3)]],
    device const float* recurrent_bias [[buffer(4)]],
    device const float* rates [[buffer(5)]],
    device float* gated [[buffer(6)]],
    device float* logs [[buffer(7)]],
    constant LruGatesParams& p [[buffer(8)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]])
{
    const uint head = at.x / p.parts, own = at.x % p.parts * 32 + tid;
    if (own >= p.dim) return;
    const uint channel = head * p.dim + own;
    device const float* row = x + size_t(at.y) * p.width;
    float write = input_bias[channel], leave = recurrent_bias[channel];
    for (uint i = 0; i < p.dim; ++i) {
        const float v = row[head * p.dim + i];
        const size_t weight = (size_t(head) * p.dim + i) * p.dim + own;
        write = fma(v, input[weight], write);
        leave = fma(v, recurrent[weight], leave);
    }
    gated[size_t(at.y) * p.width + channel] = row[channel] * sigmoid_of(write);
    logs[size_t(at.y) * p.width + channel] = rates[channel] * sigmoid_of(leave);
}

struct LruParams {
    uint width;
    uint stride;  // elements of a slot
};

kernel void lru(
    device const float* gated [[buffer(0)]],
    device const float* logs [[buffer(1)]],
    device const StateRun* runs [[buffer(2)]],
    device const StateCut* cuts [[buffer(3)]],
    device float* states [[buffer(4)]],
    device float* out [[buffer(5)]],
    constant LruParams& p [[buffer(6)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]])
{
    const StateRun run = runs[at.y];
    const uint channel = at.x * CHANNELS + tid;
    if (channel >= p.width) return;
    const bool fresh = run.from == NO_SLOT;
    float s = fresh ? 0.0f : states[size_t(run.from) * p.stride + channel];
    uint cut = run.cut, due = cuts[cut].rows;
    for (uint i = 0; i < run.rows; ++i) {
        const size_t own = size_t(run.row + i) * p.width + channel;
        const float log = logs[own];
        const float scale = fresh && i == 0 ? 1.0f : sqrt(1.0f - exp(2.0f * log));
        s = fma(exp(log), s, gated[own] * scale);
        out[own] = s;
        while (due == i + 1) {
            states[size_t(cuts[cut].slot) * p.stride + channel] = s;
            ++cut;
            due = cut < run.cut + run.cuts ? cuts[cut].rows : 0;
        }
    }
}
