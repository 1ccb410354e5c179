// Slots of recurrent states.
//
// copy_state: one slot's elements into another. Grid: x over 256 elements. Threads: 256.
// watch_state: 0 for each threadgroup whose part of a slot is finite, and NaN for others. Grid: x
//   threadgroups, which share the elements out. Threads: 256. Reference: f32::is_finite.
#include "taper/recurrent.h"

struct CopyStateParams {
    uint from;  // slots
    uint to;
    uint n;     // elements of a slot
};

kernel void copy_state(
    device float* states [[buffer(0)]],
    constant CopyStateParams& p [[buffer(1)]],
    uint i [[thread_position_in_grid]])
{
    if (i < p.n) states[size_t(p.to) * p.n + i] = states[size_t(p.from) * p.n + i];
}

struct WatchStateParams {
    uint slot;
    uint n;
    uint threads;  // of the grid
};

kernel void watch_state(
    device const float* states [[buffer(0)]],
    device float* out [[buffer(1)]],
    constant WatchStateParams& p [[buffer(2)]],
    uint group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float partial[8];
    device const float* x = states + size_t(p.slot) * p.n;
    float sum = 0.0f;
    // Zero times what is not finite is NaN.
    for (uint i = group * 256 + tid; i < p.n; i += p.threads) sum = fma(x[i], 0.0f, sum);
    sum = simd_sum(sum);
    if (lane == 0) partial[sg] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid == 0) {
        float total = 0.0f;
        for (uint i = 0; i < 8; ++i) total += partial[i];
        out[group] = total;
    }
}
