// Products of a few rows of activations with a weight matrix in any format: decoding.
//
// y[m][n] = act(norm(x)[m] . w[n]) ...: out = x W^T (+ bias) (+ residual), x [tokens, cols] f32.
// With NORM, x is RMS-normed on the way: the gains multiply x, and 1 / rms the finished sum.
// Rows of `w` may be several matrices one below the other (`end0`, `end1`): each gets an output
// [tokens, its rows] of its own, one after the other. With a gate, `w` is [gate; up] and the output
// is activation(gate) * up, [tokens, rows / 2].
//
// Grid: x over blocks of SIMDGROUPS * ROWS rows, y over blocks of M tokens. Threads: 32 * SIMDGROUPS.
// Each simdgroup computes ROWS rows for M tokens; a lane reads every 32nd chunk of a row. A row's
// order of additions depends on nothing but its length.
// Reference: Linear::forward_add, LinearGroup::forward_normed, LinearGroup::forward_gated.
#include "taper/common.h"
#include "taper/weights.h"
#include "taper/activation.h"

enum { MATVEC_NORM = 1, MATVEC_BIAS = 2, MATVEC_RESIDUAL = 4, SIMDGROUPS = 4 };

struct MatvecParams {
    uint tokens;
    uint rows;
    uint cols;
    uint end0;
    uint end1;
    uint group_shift;
    uint scale_type;
    uint flags;
    uint gate;
    float eps;
};

template <typename W, int M, int ROWS>
void matvec(
    device const uint* data, device const uchar* scales, device const uchar* biases,
    device const float* x, device const float* gains, device const float* bias,
    device const float* residual, device float* out, MatvecParams p, uint2 at, uint sg, uint lane)
{
    const uint chunks = p.cols / W::CHUNK;
    const WeightRows w = {data, scales, biases, chunks, p.group_shift, p.scale_type};
    const bool gated = p.gate != 0;
    const uint half_rows = p.rows / 2;
    // With a gate a simdgroup takes ROWS / 2 rows of each matrix.
    const uint first = (at.x * SIMDGROUPS + sg) * uint(gated ? ROWS / 2 : ROWS);
    const uint limit = gated ? half_rows : p.rows;
    if (first >= limit) return;
    uint row[ROWS];
    UNROLL for (int r = 0; r < ROWS; ++r) {
        const uint n = gated ? first + uint(r / 2) : first + uint(r);
        row[r] = min(n, limit - 1) + (gated && r % 2 ? half_rows : 0u);
    }
    device const float* xs[M];
    UNROLL for (int m = 0; m < M; ++m) xs[m] = x + size_t(min(at.y * M + uint(m), p.tokens - 1)) * p.cols;

    float acc[ROWS][M], squares[M];
    UNROLL for (int m = 0; m < M; ++m) {
        squares[m] = 0.0f;
        UNROLL for (int r = 0; r < ROWS; ++r) acc[r][m] = 0.0f;
    }
    for (uint c = lane; c < chunks; c += 32) {
        uint raw[ROWS][W::RAW];
        UNROLL for (int r = 0; r < ROWS; ++r) W::load(raw[r], w, row[r], c);
        float s[ROWS], b[ROWS];
        UNROLL for (int r = 0; r < ROWS; ++r) W::affine(w, row[r], c, s[r], b[r]);
        UNROLL for (int m = 0; m < M; ++m) {
            float v[W::CHUNK], sum = 0.0f;
            UNROLL for (int i = 0; i < W::CHUNK; i += 4) {
                const float4 part = *(device const float4*)(xs[m] + c * W::CHUNK + i);
                v[i] = part.x, v[i + 1] = part.y, v[i + 2] = part.z, v[i + 3] = part.w;
            }
            if (p.flags & MATVEC_NORM) {
                UNROLL for (int i = 0; i < W::CHUNK; ++i) {
                    squares[m] = fma(v[i], v[i], squares[m]);
                    v[i] *= gains[c * W::CHUNK + i];
                }
            }
            UNROLL for (int i = 0; i < W::CHUNK; ++i) sum += v[i];
            UNROLL for (int r = 0; r < ROWS; ++r) {
                float dot = 0.0f;
                UNROLL for (int i = 0; i < W::CHUNK; ++i) dot = fma(v[i], W::quant(raw[r], i), dot);
                acc[r][m] += fma(s[r], dot, b[r] * sum);
            }
        }
    }
    UNROLL for (int m = 0; m < M; ++m) {
        const uint token = at.y * M + uint(m);
        float inverse = 1.0f;
        if (p.flags & MATVEC_NORM) inverse = rsqrt(simd_sum(squares[m]) / float(p.cols) + p.eps);
        UNROLL for (int r = 0; r < ROWS; ++r) acc[r][m] = simd_sum(acc[r][m]) * inverse;
        if (token >= p.tokens || lane >= uint(gated ? ROWS / 2 : ROWS)) continue;
        // One lane a row writes.
        float y = 0.0f, up = 0.0f;
        UNROLL for (int r = 0; r < ROWS; ++r) {
            if (!gated && uint(r) == lane) y = acc[r][m];
            if (gated && uint(r / 2) == lane) { if (r % 2) up = acc[r][m]; else y = acc[r][m]; }
        }
        const uint n = first + lane;
        if (n >= limit) continue;
        if (p.flags & MATVEC_BIAS) {
            y += bias[n];
            if (gated) up += bias[n + half_rows];
        }
        if (gated) {
            out[size_t(token) * half_rows + n] = activate(p.gate, y) * up;
            continue;
        }
        const uint start = n < p.end0 ? 0u : n < p.end1 ? p.end0 : p.end1;
        const uint end = n < p.end0 ? p.end0 : n < p.end1 ? p.end1 : p.rows;
        const size_t to = size_t(p.tokens) * start + size_t(token) * (end - start) + (n - start);
        if (p.flags & MATVEC_RESIDUAL) y += residual[to];
        out[to] = y;
    }
}

#define MATVEC(FORMAT, NAME, M, ROWS) \
kernel void matvec_##NAME##_m##M( \
    device const uint* data [[buffer(0)]], \
    device const uchar* scales [[buffer(1)]], \
    device const uchar* biases [[buffer(2)]], \
    device const float* x [[buffer(3)]], \
    device const float* gains [[buffer(4)]], \
    device const float* bias [[buffer(5)]], \
    device const float* residual [[buffer(6)]], \
    device float* out [[buffer(7)]], \
    constant MatvecParams& p [[buffer(8)]], \
    uint2 at [[threadgroup_position_in_grid]], \
    uint sg [[simdgroup_index_in_threadgroup]], \
    uint lane [[thread_index_in_simdgroup]]) \
{ \
    matvec<FORMAT, M, ROWS>(data, scales, biases, x, gains, bias, residual, out, p, at, sg, lane); \
}
#define MATVECS(FORMAT, NAME) MATVEC(FORMAT, NAME, 1, 4) MATVEC(FORMAT, NAME, 4, 4)
FOR_EACH_FORMAT(MATVECS)
