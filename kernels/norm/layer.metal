// What is made of a row's mean and spread. Grid: x over rows. Threads: 256.
//
// layer_norm: (x - mean) / sqrt(variance + eps) * gains + bias (Ba et al. 2016). Reference: LayerNorm::forward.
// sparse_gates: what elements are beyond `deviations` standard deviations above the mean, and 0 elsewhere (Gemma 3n).
//   Reference: taper_tensor::sparse_gates.
// match_rows: rows of x with the root of the mean square of those of `like`. Reference: taper_tensor::match_rows.
#include "taper/common.h"

struct LayerParams {
    uint cols;
    uint bias;         // whether there is one
    float eps;         // the least mean square of match_rows
    float deviations;
};

// The sum over a threadgroup's threads. `partial` is used for nothing else.
INLINE float sum_of_threads(float v, threadgroup float* partial, uint sg, uint lane) {
    v = simd_sum(v);
    if (lane == 0) partial[sg] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (uint i = 0; i < 8; ++i) total += partial[i];
    return total;
}

kernel void layer_norm(
    device const float* x [[buffer(0)]],
    device const float* gains [[buffer(1)]],
    device const float* bias [[buffer(2)]],
    device float* out [[buffer(3)]],
    constant LayerParams& p [[buffer(4)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float sums[8];
    threadgroup float squares[8];
    device const float* from = x + size_t(row) * p.cols;
    device float* to = out + size_t(row) * p.cols;
    float sum = 0.0f, square = 0.0f;
    for (uint i = tid; i < p.cols; i += 256) sum += from[i];
    const float mean = sum_of_threads(sum, sums, sg, lane) / float(p.cols);
    for (uint i = tid; i < p.cols; i += 256) square = fma(from[i] - mean, from[i] - mean, square);
    const float inverse = rsqrt(sum_of_threads(square, squares, sg, lane) / float(p.cols) + p.eps);
    for (uint i = tid; i < p.cols; i += 256) {
        to[i] = (from[i] - mean) * inverse * gains[i] + (p.bias ? bias[i] : 0.0f);
    }
}

kernel void sparse_gates(
    device const float* x [[buffer(0)]],
    device float* out [[buffer(1)]],
    constant LayerParams& p [[buffer(2)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float sums[8];
    threadgroup float squares[8];
    device const float* from = x + size_t(row) * p.cols;
    device float* to = out + size_t(row) * p.cols;
    float sum = 0.0f, square = 0.0f;
    for (uint i = tid; i < p.cols; i += 256) sum += from[i];
    const float mean = sum_of_threads(sum, sums, sg, lane) / float(p.cols);
    for (uint i = tid; i < p.cols; i += 256) square = fma(from[i] - mean, from[i] - mean, square);
    const float deviation = sqrt(sum_of_threads(square, squares, sg, lane) / float(p.cols));
    const float least = fma(deviation, p.deviations, mean);
    for (uint i = tid; i < p.cols; i += 256) to[i] = max(from[i] - least, 0.0f);
}

kernel void match_rows(
    device const float* x [[buffer(0)]],
    device const float* like [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant LayerParams& p [[buffer(3)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float of_x[8];
    threadgroup float of_like[8];
    device const float* from = x + size_t(row) * p.cols;
    device const float* other = like + size_t(row) * p.cols;
    device float* to = out + size_t(row) * p.cols;
    float mine = 0.0f, theirs = 0.0f;
    for (uint i = tid; i < p.cols; i += 256) {
        mine = fma(from[i], from[i], mine);
        theirs = fma(other[i], other[i], theirs);
    }
    mine = sum_of_threads(mine, of_x, sg, lane) / float(p.cols);
    theirs = sum_of_threads(theirs, of_like, sg, lane) / float(p.cols);
    const float factor = sqrt(theirs) * rsqrt(max(mine, p.eps));
    for (uint i = tid; i < p.cols; i += 256) to[i] = from[i] * factor;
}
