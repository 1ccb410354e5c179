// Whole numbers of 64 bits: products and sums.
#pragma once
#include "common.h"

// The high word of a product.
INLINE ulong high(ulong a, ulong b) {
    const ulong a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
    const ulong low = a0 * b0, one = a1 * b0 + (low >> 32), other = a0 * b1 + (one & 0xffffffffu);
    return a1 * b1 + (one >> 32) + (other >> 32);
}

INLINE ulong from_lane(ulong v, uint lane) {
    return ulong(simd_shuffle(uint(v >> 32), ushort(lane))) << 32 | simd_shuffle(uint(v), ushort(lane));
}

// Sums over this thread and those before it, and over all, of 1024 threads.
INLINE ulong prefix(ulong v, threadgroup ulong* sums, uint tid, thread ulong& total) {
    const uint lane = tid % 32;
    for (uint m = 1; m < 32; m *= 2) {
        const ulong other = from_lane(v, (lane - m) & 31u);
        if (lane >= m) v += other;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 31) sums[tid / 32] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    total = 0;
    ulong before = 0;
    for (uint i = 0; i < 32; ++i) {
        if (i == tid / 32) before = total;
        total += sums[i];
    }
    return before + v;
}
