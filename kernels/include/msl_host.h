// What the stand-in for <metal_stdlib> takes from the host runner (kernels/runner).
#pragma once
extern "C" {
uint msl_group(uint dimension);
uint msl_thread(void);
uint msl_threads(void);
void msl_barrier(void);
// Every lane of the simdgroup gives up to 16 bytes and sees what all 32 gave.
const __private void* msl_exchange(const __private void* mine, uint bytes);
// Fills threadgroup memory with garbage before the first thread of a threadgroup sees it.
void msl_poison(__local void* memory, uint bytes);
float sqrtf(float);
float expf(float);
}
static inline float msl_shuffle(float v, uint lane) {
    return ((const __private float*)msl_exchange(&v, 4))[(lane & 31u) * 4];
}
static inline void msl_simd_barrier() { float v = 0; msl_exchange(&v, 4); }
static inline float msl_shuffle_xor(float v, uint m) { return msl_shuffle(v, (msl_thread() & 31u) ^ m); }
// The butterfly's order of additions, in one exchange.
static inline float msl_simd_sum(float v) {
    const __private float* all = (const __private float*)msl_exchange(&v, 4);
    float part[32];
    for (uint i = 0; i < 32; ++i) part[i] = all[i * 4];
    for (uint m = 16; m > 0; m >>= 1)
        for (uint i = 0; i < m; ++i) part[i] += part[i + m];
    return part[0];
}
static inline float msl_simd_max(float v) {
    const __private float* all = (const __private float*)msl_exchange(&v, 4);
    for (uint i = 0; i < 32; ++i) v = __builtin_fmaxf(v, all[i * 4]);
    return v;
}
static inline float msl_sqrt(float x) { return sqrtf(x); }
static inline float msl_rsqrt(float x) { return 1.0f / sqrtf(x); }
static inline float msl_exp(float x) { return expf(x); }
