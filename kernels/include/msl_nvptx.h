// What the stand-in for <metal_stdlib> takes from an NVIDIA GPU.
#pragma once
static inline uint msl_group(uint d) { return d == 0 ? __nvvm_read_ptx_sreg_ctaid_x() : d == 1 ? __nvvm_read_ptx_sreg_ctaid_y() : __nvvm_read_ptx_sreg_ctaid_z(); }
static inline uint msl_thread() { return __nvvm_read_ptx_sreg_tid_x(); }
static inline uint msl_threads() { return __nvvm_read_ptx_sreg_ntid_x(); }
static inline void msl_barrier() { __nvvm_bar_sync(0); }
static inline void msl_simd_barrier() { __nvvm_bar_warp_sync(0xffffffff); }
static inline float msl_shuffle_xor(float v, uint m) { return __nvvm_shfl_sync_bfly_f32(0xffffffff, v, m, 31); }
static inline float msl_shuffle(float v, uint lane) { return __nvvm_shfl_sync_idx_f32(0xffffffff, v, lane, 31); }
static inline float msl_simd_sum(float v) {
    for (uint m = 16; m > 0; m >>= 1) v += msl_shuffle_xor(v, m);
    return v;
}
static inline float msl_simd_max(float v) {
    for (uint m = 16; m > 0; m >>= 1) v = __builtin_fmaxf(v, msl_shuffle_xor(v, m));
    return v;
}
static inline float msl_sqrt(float x) { return __nvvm_sqrt_rn_f(x); }
static inline float msl_rsqrt(float x) { return 1.0f / __nvvm_sqrt_rn_f(x); }
static inline float msl_exp(float x) { return __nvvm_ex2_approx_f(x * 1.44269504088896341f); }
static inline float msl_exp2(float x) { return __nvvm_ex2_approx_f(x); }
static inline float msl_log2(float x) { return __nvvm_lg2_approx_f(x); }
static inline uint msl_atomic_add(__local uint* at, uint v) { return __scoped_atomic_fetch_add(at, v, __ATOMIC_RELAXED, __MEMORY_SCOPE_WRKGRP); }

// Programmatic dependent launch, as PTX comments that cuda/overlap.rs takes for instructions where the GPU
// has them: that the next launch may start, and that the one before is done. (taper/common.h)
#define EARLY_LAUNCH msl_early_launch()
static inline void msl_early_launch() { __asm__ volatile("/*sm_90 griddepcontrol.launch_dependents;*/"); }
static inline void previous_launch_done() { __asm__ volatile("/*sm_90 griddepcontrol.wait;*/" ::: "memory"); }
