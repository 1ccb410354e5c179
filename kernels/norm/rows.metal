// Norms and rotations of rows.
//
// rms_norm: out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * gains (Zhang & Sennrich 2019).
//   Grid: x over rows. Threads: 256. Reference: RmsNorm::forward.
// latent_norm: the first `cols` elements of a row as rms_norm has them, after the `rest` others as they are.
//   Grid and threads likewise. Reference: RmsNorm::forward_latent.
// norm_rope: each head of each token of x and then of y, normed (if NORM) and rotated (if pairs > 0):
//   element i of the first `pairs` and element pairs + i turn by the token's angle i (Su et al. 2021,
//   half-split). Grid: x over blocks of 4 heads of all tokens. Threads: 128. Reference: norm_rope.
// norm_rope_wide: the same of larger heads.
#include "taper/common.h"
#include "taper/rows.h"

struct NormParams {
    uint cols;
    float eps;
};

kernel void rms_norm(
    device const float* x [[buffer(0)]],
    device const float* gains [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant NormParams& p [[buffer(3)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float partial[8];
    device const float* from = x + size_t(row) * p.cols;
    device float* to = out + size_t(row) * p.cols;
    float squares = 0.0f;
    for (uint i = tid; i < p.cols; i += 256) squares = fma(from[i], from[i], squares);
    squares = simd_sum(squares);
    if (lane == 0) partial[sg] = squares;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (uint i = 0; i < 8; ++i) total += partial[i];
    const float inverse = rsqrt(total / float(p.cols) + p.eps);
    for (uint i = tid; i < p.cols; i += 256) to[i] = from[i] * inverse * gains[i];
}

struct LatentParams {
    uint cols;
    uint rest;
    float eps;
};

kernel void latent_norm(
    device const float* x [[buffer(0)]],
    device const float* gains [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant LatentParams& p [[buffer(3)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float partial[8];
    device const float* from = x + size_t(row) * (p.cols + p.rest);
    device float* to = out + size_t(row) * (p.cols + p.rest);
    float squares = 0.0f;
    for (uint i = tid; i < p.cols; i += 256) squares = fma(from[i], from[i], squares);
    squares = simd_sum(squares);
    if (lane == 0) partial[sg] = squares;
    for (uint i = tid; i < p.rest; i += 256) to[i] = from[p.cols + i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (uint i = 0; i < 8; ++i) total += partial[i];
    const float inverse = rsqrt(total / float(p.cols) + p.eps);
    for (uint i = tid; i < p.cols; i += 256) to[p.rest + i] = from[i] * inverse * gains[i];
}

struct RopeParams {
    uint x_heads;   // of a token
    uint y_heads;
    uint all_x;     // of all tokens
    uint all;       // of both
    uint head_dim;
    uint pairs;
    uint x_norm;
    uint y_norm;
    float x_eps;
    float y_eps;
};

INLINE void norm_rope_of(
    device const float* x, device const float* y, device const float* x_gains, device const float* y_gains,
    device const float* cosines, device const float* sines, device float* out, RopeParams p, uint at, uint lane,
    threadgroup float* rows)
{
    if (at < p.all) {
        const bool second = at >= p.all_x;
        const uint head = second ? at - p.all_x : at, heads = second ? p.y_heads : p.x_heads;
        const uint norm = second ? p.y_norm : p.x_norm;
        device const float* from = (second ? y : x) + size_t(head) * p.head_dim;
        device const float* gains = second ? y_gains : x_gains;
        float squares = 0.0f;
        for (uint i = lane; i < p.head_dim; i += 32) {
            const float v = from[i];
            squares = fma(v, v, squares);
            rows[i] = norm ? v * gains[i] : v;
        }
        const float eps = second ? p.y_eps : p.x_eps;
        const float inverse = norm ? rsqrt(simd_sum(squares) / float(p.head_dim) + eps) : 1.0f;
        simdgroup_barrier(mem_flags::mem_threadgroup);
        device float* to = out + size_t(at) * p.head_dim;
        const uint angle = head / heads * p.pairs;
        for (uint i = lane; i < p.head_dim; i += 32) {
            const float v = rows[i] * inverse;
            if (i < p.pairs) {
                const float other = rows[i + p.pairs] * inverse;
                to[i] = turn(v, other, cosines[angle + i], sines[angle + i]).x;
            } else if (i < 2 * p.pairs) {
                const float other = rows[i - p.pairs] * inverse;
                to[i] = turn(other, v, cosines[angle + i - p.pairs], sines[angle + i - p.pairs]).y;
            } else {
                to[i] = v;
            }
        }
    }
}

#define NORM_ROPE(NAME, MOST) \
kernel void NAME( \
    device const float* x [[buffer(0)]], \
    device const float* y [[buffer(1)]], \
    device const float* x_gains [[buffer(2)]], \
    device const float* y_gains [[buffer(3)]], \
    device const float* cosines [[buffer(4)]], \
    device const float* sines [[buffer(5)]], \
    device float* out [[buffer(6)]], \
    constant RopeParams& p [[buffer(7)]], \
    uint block [[threadgroup_position_in_grid]], \
    uint sg [[simdgroup_index_in_threadgroup]], \
    uint lane [[thread_index_in_simdgroup]]) \
{ \
    threadgroup float rows[4][MOST]; \
    norm_rope_of(x, y, x_gains, y_gains, cosines, sines, out, p, block * 4 + sg, lane, rows[sg]); \
}
NORM_ROPE(norm_rope, 256)
NORM_ROPE(norm_rope_wide, 576)
