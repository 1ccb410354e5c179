// What the stand-in for <metal_stdlib> takes from the host runner (kernels/runner).
#pragma once
#define MSL_HOST
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
float exp2f(float);
float log2f(float);
float roundf(float);
}
static inline uint msl_atomic_add(__local uint* at, uint v) { const uint old = *at; *at = old + v; return old; }
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
static inline float msl_exp2(float x) { return exp2f(x); }
static inline float msl_log2(float x) { return log2f(x); }

// Simdgroup matrices: a lane has two neighbours of a row, spread over the lanes as Apple's GPUs do.
static inline uint msl_row() { const uint l = msl_thread() & 31u; return (l >> 1 & 3) | (l >> 4) << 2; }
static inline uint msl_column() { const uint l = msl_thread() & 31u; return 2 * ((l & 1) | (l >> 3 & 1) << 1); }
static inline uint msl_lane(uint row, uint column) {
    const uint pair = column / 2;
    return (pair & 1) | (row & 3) << 1 | (pair >> 1) << 3 | (row >> 2) << 4;
}
typedef ulong ulong2 __attribute__((ext_vector_type(2)));
#define ulong2(X, Y) ((ulong2){X, Y})
template <typename T> struct msl_matrix {
    T at[2];
    T (&thread_elements())[2] { return at; }
};
namespace metal {
typedef msl_matrix<half> simdgroup_half8x8;
typedef msl_matrix<float> simdgroup_float8x8;

template <typename T, int, int> static inline msl_matrix<T> make_filled_simdgroup_matrix(T value) {
    return {{value, value}};
}
template <typename T>
static inline void simdgroup_load(__private msl_matrix<T>& m, const __local T* p, ulong stride, ulong2 origin = {0, 0}, bool transpose = false) {
    const uint row = msl_row(), column = msl_column();
    p += origin.y * stride + origin.x;
    for (uint i = 0; i < 2; ++i)
        m.at[i] = transpose ? p[(column + i) * stride + row] : p[row * stride + column + i];
    msl_simd_barrier();
}
template <typename T>
static inline void simdgroup_store(const __private msl_matrix<T>& m, __global T* p, ulong stride) {
    const uint row = msl_row(), column = msl_column();
    for (uint i = 0; i < 2; ++i) p[row * stride + column + i] = m.at[i];
    msl_simd_barrier();
}
static inline void simdgroup_multiply_accumulate(
    __private simdgroup_float8x8& d, const __private simdgroup_half8x8& a,
    const __private simdgroup_half8x8& b, const __private simdgroup_float8x8& c)
{
    struct { half a[2], b[2]; half fill[4]; } mine = {{a.at[0], a.at[1]}, {b.at[0], b.at[1]}, {}};
    const __private half* all = (const __private half*)msl_exchange(&mine, 16);
    const uint row = msl_row(), column = msl_column();
    for (uint i = 0; i < 2; ++i) {
        float sum = c.at[i];
        for (uint k = 0; k < 8; ++k) {
            const float x = all[msl_lane(row, k) * 8 + k % 2];
            sum += x * float(all[msl_lane(k, column + i) * 8 + 2 + (column + i) % 2]);
        }
        d.at[i] = sum;
    }
}
}
