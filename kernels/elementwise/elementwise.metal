// Element by element. Threads: 256, one an element. Reference: taper_tensor::ops.
//
// sum_words: sums of a buffer's words modulo 2^32, one a thread: whoever asks how fast memory can be read takes
//   it. Grid: x `threads` / 256. Threads: 256. A threadgroup takes every so many-th run of AHEAD * 256 pieces of
//   16 bytes. Reference: the words' sum.
#include "taper/common.h"
#include "taper/activation.h"

struct ElementParams {
    uint n;
    uint kind;    // of the activation
    float value;  // the factor, or the cap
};

#define ELEMENTWISE(NAME, EXPRESSION) \
kernel void NAME( \
    device const float* x [[buffer(0)]], \
    device const float* y [[buffer(1)]], \
    device float* out [[buffer(2)]], \
    constant ElementParams& p [[buffer(3)]], \
    uint i [[thread_position_in_grid]]) \
{ \
    if (i < p.n) out[i] = EXPRESSION; \
}
ELEMENTWISE(add, x[i] + y[i])
ELEMENTWISE(gated, activate(p.kind, x[i]) * y[i])
ELEMENTWISE(scale, x[i] * p.value)
ELEMENTWISE(soft_cap, p.value * tanh(x[i] / p.value))

kernel void to_half(
    device const float* x [[buffer(0)]],
    device half* out [[buffer(1)]],
    constant ElementParams& p [[buffer(2)]],
    uint i [[thread_position_in_grid]])
{
    // What f16 cannot hold becomes its largest number. With `kind`, four at a time.
    if (i >= p.n) return;
    if (p.kind == 0) {
        out[i] = half(clamped(x[i]));
        return;
    }
    const float4 v = ((device const float4*)x)[i];
    half4 four;
    four.x = half(clamped(v.x)), four.y = half(clamped(v.y)), four.z = half(clamped(v.z)), four.w = half(clamped(v.w));
    ((device half4*)out)[i] = four;
}

struct RowsParams {
    uint n;     // elements of the output
    uint cols;
};

// out[r] = x[r] + y. Only after a library's product, which Metal's backend has not.
#ifndef __METAL_VERSION__
kernel void add_bias(
    device const float* x [[buffer(0)]],
    device const float* y [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant RowsParams& p [[buffer(3)]],
    uint i [[thread_position_in_grid]])
{
    if (i < p.n) out[i] = x[i] + y[i % p.cols];
}
#endif

// out[r] = x[ids[r]].
kernel void take_rows(
    device const float* x [[buffer(0)]],
    device const uint* ids [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant RowsParams& p [[buffer(3)]],
    uint i [[thread_position_in_grid]])
{
    if (i < p.n) out[i] = x[size_t(ids[i / p.cols]) * p.cols + i % p.cols];
}

// out[ids[r]] = x[r].
kernel void put_rows(
    device const float* x [[buffer(0)]],
    device const uint* ids [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant RowsParams& p [[buffer(3)]],
    uint i [[thread_position_in_grid]])
{
    if (i < p.n) out[size_t(ids[i / p.cols]) * p.cols + i % p.cols] = x[i];
}

struct SumParams {
    uint pieces;   // of 16 bytes
    uint threads;  // of the grid
};

enum { AHEAD = 8 };

kernel void sum_words(
    device const uint4* x [[buffer(0)]],
    device uint* out [[buffer(1)]],
    constant SumParams& p [[buffer(2)]],
    uint i [[thread_position_in_grid]])
{
    uint sum = 0;
    for (uint first = i / 256 * 256 * AHEAD + i % 256; first < p.pieces; first += p.threads * AHEAD) {
        uint4 v[AHEAD];
        UNROLL for (int k = 0; k < AHEAD; ++k) v[k] = x[min(first + uint(k) * 256, p.pieces - 1)];
        UNROLL for (int k = 0; k < AHEAD; ++k) {
            const uint all = v[k].x + v[k].y + v[k].z + v[k].w;
            sum += first + uint(k) * 256 < p.pieces ? all : 0u;
        }
    }
    out[i] = sum;
}
