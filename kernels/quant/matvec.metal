// Products of a few rows of activations with a weight matrix in any format: decoding.
//
// y[m][n] = act(norm(x)[m] . w[n]) ...: out = x W^T (+ bias) (+ residual), x [tokens, cols] f32.
// With NORM, x is RMS-normed on the way: the gains multiply x, and 1 / rms the finished sum.
// Rows of `w` may be several matrices one below the other (`end0`, `end1`): each gets an output
// [tokens, its rows] of its own, one after the other. With a gate, `w` is [gate; up] and the output
// is activation(gate) * up, [tokens, rows / 2].
//
// Grid: x over blocks of ROWS rows, y over blocks of M tokens. Threads: 128. A threadgroup computes
// ROWS rows for M tokens. It walks over slabs of 128 chunks, a thread a chunk of each row; a single
// token's slab goes through threadgroup memory, normed, so that all rows share the work. A row's order
// of additions depends on nothing but its length.
// Reference: Linear::forward_add, LinearGroup::forward_normed, LinearGroup::forward_gated.
#include "taper/common.h"
#include "taper/weights.h"
#include "taper/activation.h"

enum { MATVEC_NORM = 1, MATVEC_BIAS = 2, MATVEC_RESIDUAL = 4, THREADS = 128 };

// Where chunk i of a slab lies in threadgroup memory: apart from its neighbours' banks.
enum { SLAB_STRIDE = CHUNK + 4 };

struct MatvecParams {
    uint tokens;
    uint rows;
    uint cols;
    uint end0;
    uint end1;
    uint group_shift;
    uint scale_type;
    uint packed;
    uint flags;
    uint gate;
    uint groups;  // threadgroups of matvec_tile_*
    float eps;
};

template <typename W, int M, int ROWS>
void matvec(
    device const uint* data, device const uint* scales, device const float* x,
    device const float* gains, device const float* bias, device const float* residual,
    device float* out, MatvecParams p, uint2 at, uint tid, uint sg, uint lane,
    threadgroup float* xs, threadgroup float* partial)
{
    const uint chunks = p.cols / CHUNK;
    const WeightRows w = {data, scales, chunks, p.group_shift, p.scale_type, p.packed};
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
    for (uint slab = 0; slab < chunks; slab += THREADS) {
        const uint chunk = slab + tid;
        const bool there = chunk < chunks;
        uint raw[ROWS][W::RAW];
        float s[ROWS], b[ROWS];
        UNROLL for (int r = 0; r < ROWS; ++r) W::load(raw[r], w, row[r], min(chunk, chunks - 1));
        UNROLL for (int r = 0; r < ROWS; ++r) W::affine(w, row[r], min(chunk, chunks - 1), s[r], b[r]);
        const uint n = min(chunks - slab, uint(THREADS)) * CHUNK;
        if (M == 1) threadgroup_barrier(mem_flags::mem_threadgroup);
        UNROLL for (int m = 0; m < M; ++m) {
            if (M > 1 && !(p.flags & MATVEC_NORM)) continue;
            const size_t token = min(at.y * M + uint(m), p.tokens - 1);
            UNROLL_BY(4) for (uint i = tid * 4; i < n; i += THREADS * 4) {
                float4 v = *(device const float4*)(x + token * p.cols + slab * CHUNK + i);
                if (p.flags & MATVEC_NORM) {
                    const float4 g = *(device const float4*)(gains + slab * CHUNK + i);
                    squares[m] = fma(v.x, v.x, squares[m]);
                    squares[m] = fma(v.y, v.y, squares[m]);
                    squares[m] = fma(v.z, v.z, squares[m]);
                    squares[m] = fma(v.w, v.w, squares[m]);
                    v.x *= g.x, v.y *= g.y, v.z *= g.z, v.w *= g.w;
                }
                if (M == 1) *(threadgroup float4*)(xs + i / CHUNK * SLAB_STRIDE + i % CHUNK) = v;
            }
        }
        if (M == 1) threadgroup_barrier(mem_flags::mem_threadgroup);
        if (there) {
            UNROLL for (int m = 0; m < M; ++m) {
                const size_t token = min(at.y * M + uint(m), p.tokens - 1);
                float dot[ROWS], sum = 0.0f;
                UNROLL for (int r = 0; r < ROWS; ++r) dot[r] = 0.0f;
                UNROLL for (int i = 0; i < CHUNK; i += 4) {
                    float4 v;
                    if (M == 1) {
                        v = *(threadgroup const float4*)(xs + tid * SLAB_STRIDE + i);
                    } else {
                        v = *(device const float4*)(x + token * p.cols + chunk * CHUNK + i);
                        if (p.flags & MATVEC_NORM) {
                            const float4 g = *(device const float4*)(gains + chunk * CHUNK + i);
                            v.x *= g.x, v.y *= g.y, v.z *= g.z, v.w *= g.w;
                        }
                    }
                    sum += v.x, sum += v.y, sum += v.z, sum += v.w;
                    UNROLL for (int r = 0; r < ROWS; ++r) {
                        dot[r] = fma(v.x, W::quant(raw[r], i), dot[r]);
                        dot[r] = fma(v.y, W::quant(raw[r], i + 1), dot[r]);
                        dot[r] = fma(v.z, W::quant(raw[r], i + 2), dot[r]);
                        dot[r] = fma(v.w, W::quant(raw[r], i + 3), dot[r]);
                    }
                }
                UNROLL for (int r = 0; r < ROWS; ++r) acc[r][m] += fma(s[r], dot[r], b[r] * sum);
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

#define MATVEC(FORMAT, NAME, M, ROWS) \
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
    threadgroup float xs[M == 1 ? THREADS * SLAB_STRIDE : 4]; \
    threadgroup float partial[4 * M * (ROWS + 1)]; \
    matvec<FORMAT, M, ROWS>(data, scales, x, gains, bias, residual, out, p, at, tid, sg, lane, xs, partial); \
}
// Rows of a threadgroup: an even number, of about 32 words a thread. The host counts with the same.
#define MATVECS(FORMAT, NAME, ROWS) MATVEC(FORMAT, NAME, 1, ROWS) MATVEC(FORMAT, NAME, 4, ROWS)
MATVECS(Q2, q2, 8)
MATVECS(Q3, q3, 8)
MATVECS(Q4, q4, 8)
MATVECS(Q5, q5, 4)
MATVECS(Q6, q6, 4)
MATVECS(Q8, q8, 4)
MATVECS(DenseF32, f32, 2)
MATVECS(DenseF16, f16, 2)
MATVECS(DenseBf16, bf16, 2)
MATVECS(Mxfp4, mxfp4, 8)
