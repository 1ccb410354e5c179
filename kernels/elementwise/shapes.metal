// Rows taken apart and put together. Threads: 256, one an element. Reference: taper_tensor::parts.
//
// take_parts: out[r][j] = x[r][first + j] of parts of `from` elements, and 0 past their end.
// join_parts: out[r] = x[r] and y[r], side by side.
// mix_streams: out[t][o] = x[t][o] + sum of (coefs[t][o][i] + plus) * y[t][i] over i: rows of `outs` and of `ins` streams.
//   Reference: taper_tensor::mix_streams.
#include "taper/common.h"

struct TakeParams {
    uint n;      // elements of the output
    uint from;
    uint first;
    uint to;     // elements of a part of the output
};

kernel void take_parts(
    device const float* x [[buffer(0)]],
    device float* out [[buffer(1)]],
    constant TakeParams& p [[buffer(2)]],
    uint i [[thread_position_in_grid]])
{
    if (i < p.n) {
        const uint j = p.first + i % p.to;
        out[i] = j < p.from ? x[size_t(i / p.to) * p.from + j] : 0.0f;
    }
}

struct JoinParams {
    uint n;
    uint left;   // elements of a row of x
    uint right;
};

kernel void join_parts(
    device const float* x [[buffer(0)]],
    device const float* y [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant JoinParams& p [[buffer(3)]],
    uint i [[thread_position_in_grid]])
{
    if (i < p.n) {
        const uint both = p.left + p.right, r = i / both, j = i % both;
        out[i] = j < p.left ? x[size_t(r) * p.left + j] : y[size_t(r) * p.right + j - p.left];
    }
}

struct MixParams {
    uint n;
    uint width;  // of a stream
    uint outs;
    uint ins;
    uint alike;  // all rows have the coefficients of the first
    float plus;
};

kernel void mix_streams(
    device const float* x [[buffer(0)]],
    device const float* y [[buffer(1)]],
    device const float* coefs [[buffer(2)]],
    device float* out [[buffer(3)]],
    constant MixParams& p [[buffer(4)]],
    uint i [[thread_position_in_grid]])
{
    if (i < p.n) {
        const uint at = i / p.width, row = at / p.outs;
        device const float* c = coefs + size_t(p.alike ? at % p.outs : at) * p.ins;
        device const float* from = y + size_t(row) * p.ins * p.width + i % p.width;
        float sum = x[i];
        for (uint k = 0; k < p.ins; ++k) sum = fma(c[k] + p.plus, from[size_t(k) * p.width], sum);
        out[i] = sum;
    }
}
