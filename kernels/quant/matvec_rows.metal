// Products of a few rows of activations with a weight matrix in any format, for GPUs that have few registers
// and little threadgroup memory: Apple's.
//
// Computes what matvec.metal does, with the parameters described there.
//
// Grid: x over blocks of 2 * ROWS rows, y over blocks of M tokens. Threads: 64. A simdgroup computes ROWS
// rows for M tokens, and its lanes go over the columns side by side, so that a load of all lanes is one
// piece of memory. There is no threadgroup memory and no barrier; activations come from the cache. A row's
// order of additions depends on nothing but its length.
// Reference: Linear::forward_add, LinearGroup::forward_normed, LinearGroup::forward_gated; MLX's qmv_fast
// (mlx/backend/metal/kernels/quantized.h) goes over rows and columns in this way.
#include "taper/common.h"
#include "taper/weights.h"
#include "taper/activation.h"

enum { MATVEC_NORM = 1, MATVEC_BIAS = 2, MATVEC_RESIDUAL = 4, ROWS = 4, SIMDGROUPS = 2 };

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

// A format's weights that a lane takes at a time.
template <typename W> struct Piece : W {
    enum { COLUMNS = CHUNK };
};
// 16 bytes of floats, so that lanes stand next to each other.
template <typename W, int WORDS, int WEIGHTS> struct FloatPiece : W {
    enum { RAW = WORDS, COLUMNS = WEIGHTS };
    static void load(thread uint* raw, thread const WeightRows& w, uint row, uint piece) {
        load_words<WORDS>(w.data + (size_t(row) * w.chunks + piece) * WORDS, raw);
    }
};
template <> struct Piece<DenseF32> : FloatPiece<DenseF32, 4, 4> {};
template <> struct Piece<DenseF16> : FloatPiece<DenseF16, 4, 8> {};
template <> struct Piece<DenseBf16> : FloatPiece<DenseBf16, 4, 8> {};

template <typename W, int M>
void matvec_rows(
    device const uint* data, device const uint* scales, device const float* x,
    device const float* gains, device const float* bias, device const float* residual,
    device float* out, MatvecParams p, uint2 at, uint sg, uint lane)
{
    const uint pieces = p.cols / W::COLUMNS;
    const WeightRows w = {data, scales, pieces, p.group_shift, p.scale_type, p.packed};
    const bool gated = p.gate != 0, normed = p.flags & MATVEC_NORM;
    const uint half_rows = p.rows / 2, limit = gated ? half_rows : p.rows;
    // With a gate a simdgroup takes ROWS / 2 rows of each matrix.
    const uint first = (at.x * SIMDGROUPS + sg) * uint(gated ? ROWS / 2 : ROWS);
    uint row[ROWS];
    UNROLL for (int r = 0; r < ROWS; ++r) {
        const uint n = gated ? first + uint(r / 2) : first + uint(r);
        row[r] = min(n, limit - 1) + (gated && r % 2 ? half_rows : 0u);
    }
    size_t from[M];
    float acc[ROWS][M], squares[M];
    UNROLL for (int m = 0; m < M; ++m) {
        from[m] = size_t(min(at.y * M + uint(m), p.tokens - 1)) * p.cols;
        squares[m] = 0.0f;
        UNROLL for (int r = 0; r < ROWS; ++r) acc[r][m] = 0.0f;
    }
    for (uint piece = lane; piece < pieces; piece += 32u) {
        uint raw[ROWS][W::RAW];
        float dot[ROWS][M], sum[M];
        UNROLL for (int r = 0; r < ROWS; ++r) W::load(raw[r], w, row[r], piece);
        UNROLL for (int m = 0; m < M; ++m) {
            sum[m] = 0.0f;
            UNROLL for (int r = 0; r < ROWS; ++r) dot[r][m] = 0.0f;
        }
        UNROLL for (int i = 0; i < W::COLUMNS; i += 4) {
            const uint column = piece * W::COLUMNS + uint(i);
            float4 g = float4(1.0f);
            if (normed) g = *(device const float4*)(gains + column);
            UNROLL for (int m = 0; m < M; ++m) {
                float4 v = *(device const float4*)(x + from[m] + column);
                if (normed) {
                    squares[m] = fma(v.x, v.x, squares[m]);
                    squares[m] = fma(v.y, v.y, squares[m]);
                    squares[m] = fma(v.z, v.z, squares[m]);
                    squares[m] = fma(v.w, v.w, squares[m]);
                    v.x *= g.x, v.y *= g.y, v.z *= g.z, v.w *= g.w;
                }
                sum[m] += v.x, sum[m] += v.y, sum[m] += v.z, sum[m] += v.w;
                UNROLL for (int r = 0; r < ROWS; ++r) {
                    dot[r][m] = fma(v.x, W::quant(raw[r], i), dot[r][m]);
                    dot[r][m] = fma(v.y, W::quant(raw[r], i + 1), dot[r][m]);
                    dot[r][m] = fma(v.z, W::quant(raw[r], i + 2), dot[r][m]);
                    dot[r][m] = fma(v.w, W::quant(raw[r], i + 3), dot[r][m]);
                }
            }
        }
        UNROLL for (int r = 0; r < ROWS; ++r) {
            float s, b;
            W::affine(w, row[r], piece, s, b);
            UNROLL for (int m = 0; m < M; ++m) acc[r][m] += fma(s, dot[r][m], b * sum[m]);
        }
    }
    // Each output is one lane's.
    const uint outputs = gated ? ROWS / 2 : ROWS, m_of_lane = lane / outputs, r_of_lane = lane % outputs;
    float y = 0.0f, up = 0.0f, square = 0.0f;
    UNROLL for (int m = 0; m < M; ++m) {
        const float all = simd_sum(squares[m]);
        if (m_of_lane == uint(m)) square = all;
        UNROLL for (int r = 0; r < ROWS; ++r) {
            const float total = simd_sum(acc[r][m]);
            if (m_of_lane != uint(m)) continue;
            if (!gated && r_of_lane == uint(r)) y = total;
            if (gated && r_of_lane == uint(r / 2)) {
                if (r % 2) up = total; else y = total;
            }
        }
    }
    const uint n = first + r_of_lane, token = at.y * M + m_of_lane;
    if (m_of_lane >= uint(M) || token >= p.tokens || n >= limit) return;
    if (normed) {
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
kernel void matvec_rows_##NAME##_m##M( \
    device const uint* data [[buffer(0)]], \
    device const uint* scales [[buffer(1)]], \
    device const float* x [[buffer(2)]], \
    device const float* gains [[buffer(3)]], \
    device const float* bias [[buffer(4)]], \
    device const float* residual [[buffer(5)]], \
    device float* out [[buffer(6)]], \
    constant MatvecParams& p [[buffer(7)]], \
    uint2 at [[threadgroup_position_in_grid]], \
    uint sg [[simdgroup_index_in_threadgroup]], \
    uint lane [[thread_index_in_simdgroup]]) \
{ \
    matvec_rows<Piece<FORMAT>, M>(data, scales, x, gains, bias, residual, out, p, at, sg, lane); \
}
#define MATVECS(FORMAT, NAME) MATVEC(FORMAT, NAME, 1) MATVEC(FORMAT, NAME, 2) MATVEC(FORMAT, NAME, 4)
FOR_EACH_FORMAT(MATVECS)
