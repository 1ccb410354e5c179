// taper/copies.h on an NVIDIA GPU: cp.async. Of weights and activations whole lines are asked for.
#pragma once
INLINE void copy_4(threadgroup uint* to, device const uint* from) {
    __asm__ volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "l"(to), "l"(from) : "memory");
}
INLINE void copy_16(threadgroup uint4* to, device const uint4* from) {
    __asm__ volatile("cp.async.cg.shared.global/*sm_90 .L2::128B*/ [%0], [%1], 16;" :: "l"(to), "l"(from) : "memory");
}
INLINE void copies_end() { __asm__ volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> INLINE void copies_wait() { __asm__ volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }
template <typename T> INLINE void prefetch_line(device const T* at) { __asm__ volatile("prefetch.global.L2 [%0];" :: "l"(at)); }
