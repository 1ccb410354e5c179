// Causal depthwise convolutions with the last inputs as their state.
//
// causal_conv: some columns of x [t, width] -> out [t, channels], each channel alone:
//   y_i = sum_j w[j] x_{i - kept + j} + bias, with a SiLU or not. `gated` multiplies the input with columns at
//   `in_gate` first and the output with those at `out_gate` (LFM2). Grid: x over 32 channels, y over runs.
//   Threads: 32 for each of `rows` rows at a time. Reference: CausalConv::forward, ShortConv::forward.
#include "taper/recurrent.h"

struct ConvParams {
    uint channels;
    uint kept;      // rows before a token that it reads
    uint width;     // of a row of x
    uint column;    // the first that is convolved
    uint in_gate;   // columns; only where `gated`
    uint out_gate;
    uint gated;
    uint silu;
    uint stride;    // elements of a slot
    uint rows;      // at a time
};

kernel void causal_conv(
    device const float* x [[buffer(0)]],
    device const float* weights [[buffer(1)]],
    device const float* bias [[buffer(2)]],
    device const StateRun* runs [[buffer(3)]],
    device const StateCut* cuts [[buffer(4)]],
    device float* states [[buffer(5)]],
    device float* out [[buffer(6)]],
    constant ConvParams& p [[buffer(7)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    const StateRun run = runs[at.y];
    const uint channel = at.x * 32 + lane;
    const bool there = channel < p.channels;
    device const float* rows = x + size_t(run.row) * p.width;
    ConvInput in;
    in.x = rows + p.column, in.gate = rows + p.in_gate;
    in.fresh = run.from == NO_SLOT;
    in.old = states + (in.fresh ? 0 : size_t(run.from) * p.stride);
    in.width = p.width, in.channels = p.channels, in.kept = p.kept, in.gated = p.gated;
    if (there) {
        const float first = bias[channel];
        for (uint row = sg; row < run.rows; row += p.rows) {
            float y = convolved(in, weights, first, int(row), channel);
            if (p.silu) y = silu_of(y);
            if (p.gated) y = y * rows[size_t(row) * p.width + p.out_gate + channel];
            out[size_t(run.row + row) * p.channels + channel] = y;
        }
    }
    threadgroup_barrier(mem_flags::mem_device);
    if (there && sg == 0) keep_inputs(in, run, cuts, states, p.stride, channel);
}
