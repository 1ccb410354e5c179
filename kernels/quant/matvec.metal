// Products of a few rows of activations with a weight matrix in any format: decoding.
//
// y[m][n] = act(norm(x)[m] . w[n]) ...: out = x W^T (+ bias) (+ residual), x [tokens, cols] f32.
// With NORM, x is RMS-normed on the way: the gains multiply x, and 1 / rms the finished sum.
// Rows of `w` may be several matrices one below the other (`end0`, `end1`): each gets an output
// [tokens, its rows] of its own, one after the other. With a gate, `w` is [gate; up] and the output
// is activation(gate) * up, [tokens, rows / 2].
//
// Grid: x over blocks of ROWS rows, y over blocks of M tokens. Threads: 128. A threadgroup computes
// ROWS rows for M tokens; its simdgroups share the chunks of a row, a lane every 128th, and read two
// of them at a time, so that enough loads are under way. A row's order of additions depends on
// nothing but its length.
// Reference: Linear::forward_add, LinearGroup::forward_normed, LinearGroup::forward_gated.
#include "taper/common.h"
#include "taper/weights.h"
#include "taper/activation.h"

enum { MATVEC_NORM = 1, MATVEC_BIAS = 2, MATVEC_RESIDUAL = 4, THREADS = 128, STEP = 2 };

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
    device const uint* data, device const uint* scales, device const float* x,
    device const float* gains, device const float* bias, device const float* residual,
    device float* out, MatvecParams p, uint2 at, uint tid, uint sg, uint lane,
    threadgroup float* partial)
{
    const uint chunks = p.cols / W::CHUNK;
    const WeightRows w = {data, scales, chunks, p.group_shift, p.scale_type};
    const bool gated = p.gate != 0;
    const uint half_rows = p.rows / 2;
    // With a gate a threadgroup takes ROWS / 2 rows of each matrix.
    const uint first = at.x * uint(gated ? ROWS / 2 : ROWS);
    const uint limit = gated ? half_rows : p.rows;
    uint row[ROWS];
    UNROLL for (int r = 0; r < ROWS; ++r) {
        const uint n = gated ? first + uint(r / 2) : first + uint(r);
        row[r] = min(n, limit - 1) + (gated && r % 2 ? half_rows : 0u);
    }

    float acc[ROWS][M], squares[M];
    UNROLL for (int m = 0; m < M; ++m) {
        squares[m] = 0.0f;
        UNROLL for (int r = 0; r < ROWS; ++r) acc[r][m] = 0.0f;
    }
    for (uint c = tid; c < chunks; c += THREADS * STEP) {
        uint raw[STEP][ROWS][W::RAW];
        float s[STEP][ROWS], b[STEP][ROWS];
        UNROLL for (int t = 0; t < STEP; ++t) {
            const uint chunk = min(c + THREADS * t, chunks - 1);
            UNROLL for (int r = 0; r < ROWS; ++r) W::load(raw[t][r], w, row[r], chunk);
            UNROLL for (int r = 0; r < ROWS; ++r) W::affine(w, row[r], chunk, s[t][r], b[t][r]);
        }
        UNROLL for (int t = 0; t < STEP; ++t) {
            const uint chunk = min(c + THREADS * t, chunks - 1);
            const float there = c + THREADS * t < chunks ? 1.0f : 0.0f;
            UNROLL for (int m = 0; m < M; ++m) {
                device const float* from = x + size_t(min(at.y * M + uint(m), p.tokens - 1)) * p.cols;
                float v[W::CHUNK], sum = 0.0f;
                UNROLL for (int i = 0; i < W::CHUNK; i += 4) {
                    const float4 part = *(device const float4*)(from + chunk * W::CHUNK + i);
                    v[i] = part.x * there, v[i + 1] = part.y * there;
                    v[i + 2] = part.z * there, v[i + 3] = part.w * there;
                }
                if (p.flags & MATVEC_NORM) {
                    UNROLL for (int i = 0; i < W::CHUNK; i += 4) {
                        const float4 g = *(device const float4*)(gains + chunk * W::CHUNK + i);
                        UNROLL for (int j = 0; j < 4; ++j) squares[m] = fma(v[i + j], v[i + j], squares[m]);
                        v[i] *= g.x, v[i + 1] *= g.y, v[i + 2] *= g.z, v[i + 3] *= g.w;
                    }
                }
                UNROLL for (int i = 0; i < W::CHUNK; ++i) sum += v[i];
                UNROLL for (int r = 0; r < ROWS; ++r) {
                    float dot = 0.0f;
                    UNROLL for (int i = 0; i < W::CHUNK; ++i) dot = fma(v[i], W::quant(raw[t][r], i), dot);
                    acc[r][m] += fma(s[t][r], dot, b[t][r] * sum);
                }
            }
        }
    }
    // Each simdgroup's sums, then one thread an output.
    UNROLL for (int m = 0; m < M; ++m) {
        UNROLL for (int r = 0; r < ROWS; ++r) {
            const float sum = simd_sum(acc[r][m]);
            if (lane == 0) partial[(sg * M + m) * (ROWS + 1) + r] = sum;
        }
        const float sum = simd_sum(squares[m]);
        if (lane == 0) partial[(sg * M + m) * (ROWS + 1) + ROWS] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint outputs = gated ? ROWS / 2 : ROWS;
    if (tid >= outputs * M) return;
    const uint m = tid / outputs, r = tid % outputs, n = first + r, token = at.y * M + m;
    if (token >= p.tokens || n >= limit) return;
    float y = 0.0f, up = 0.0f, square = 0.0f;
    for (uint i = 0; i < THREADS / 32; ++i) {
        threadgroup const float* from = partial + (i * M + m) * (ROWS + 1);
        y += from[gated ? 2 * r : r];
        if (gated) up += from[2 * r + 1];
        square += from[ROWS];
    }
    if (p.flags & MATVEC_NORM) {
        const float inverse = rsqrt(square / float(p.cols) + p.eps);
        y *= inverse, up *= inverse;
    }
    if (p.flags & MATVEC_BIAS) {
        y += bias[n];
        if (gated) up += bias[n + half_rows];
    }
    if (gated) {
        out[size_t(token) * half_rows + n] = activate(p.gate, y) * up;
        return;
    }
    const uint start = n < p.end0 ? 0u : n < p.end1 ? p.end0 : p.end1;
    const uint end = n < p.end0 ? p.end0 : n < p.end1 ? p.end1 : p.rows;
    const size_t to = size_t(p.tokens) * start + size_t(token) * (end - start) + (n - start);
    if (p.flags & MATVEC_RESIDUAL) y += residual[to];
    out[to] = y;
}

#define MATVEC(FORMAT, NAME, M) \
kernel void matvec_##NAME##_m##M( \
    device const uint* data [[buffer(0)]], \
    device const uint* scales [[buffer(1)]], \
    device const float* x [[buffer(2)]], \
    device const float* gains [[buffer(3)]], \
    device const float* bias [[buffer(4)]], \
    device const float* residual [[buffer(5)]], \
    device float* out [[buffer(6)]], \
    constant MatvecParams& p [[buffer(7)]], \
    uint2 at [[threadgroup_position_in_grid]], \
    uint tid [[thread_index_in_threadgroup]], \
    uint sg [[simdgroup_index_in_threadgroup]], \
    uint lane [[thread_index_in_simdgroup]]) \
{ \
    threadgroup float partial[4 * M * 5]; \
    matvec<FORMAT, M, 4>(data, scales, x, gains, bias, residual, out, p, at, tid, sg, lane, partial); \
}
#define MATVECS(FORMAT, NAME) MATVEC(FORMAT, NAME, 1) MATVEC(FORMAT, NAME, 4)
FOR_EACH_FORMAT(MATVECS)
