// Products of some rows of activations with weights of 4 or 8 bits on the matrix units: batched decoding
// where these are fast.
//
// matmul_prepare: x [tokens, cols] f32, normed (if NORM), as halves in prepared.h's order. Grid: x over tokens,
//   y over 2048 columns. Threads: 256.
// matmul_next: what matmul.metal's matmul_finish and then matmul_prepare do, where a product's outputs are the
//   next one's inputs: adds the shares, bias, gate and residual, and gives halves; with NORM the outputs too, and
//   the halves of what the norm makes of them. Widths are multiples of 64. Grid: x over tokens, y over 4096
//   outputs, or 1 with NORM. Threads: 512.
// matmul_tile_*: sums[s][m][n] = x[m] . w[n] over the s-th share of the columns, from such halves and
//   weights rounded to f16; sums in f32, added by matmul.metal's matmul_finish. A weight is its code, exact
//   in a half, times scale plus bias.
//   Grid: x over T tokens, y over 128 rows, z over shares of the columns. Threads: 128. A simdgroup has 32
//   rows, and all T tokens. Weights, scales and activations of 64 columns at a time go through threadgroup
//   memory, STAGES of them under way; the first weights before the launch before this one is done.
// Reference: as matvec's, within the rounding of f16.
#include "taper/common.h"
#include "taper/activation.h"
#include "taper/prepare.h"
#include "taper/tile_product.h"

enum { NEXT_THREADS = 512 };
enum { NEXT_BIAS = 4, NEXT_RESIDUAL = 8 };

struct PrepareParams {
    uint cols;
    uint bits;
    uint flags;
    float eps;
};

kernel void matmul_prepare(
    device const float* x [[buffer(0)]],
    device const float* gains [[buffer(1)]],
    device uint* out [[buffer(2)]],
    constant PrepareParams& p [[buffer(3)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float partial[PREPARE_THREADS / 32];
    prepare_row(
        x + size_t(at.x) * p.cols, gains, out + size_t(at.x) * p.cols / 2, p.cols, p.bits, p.flags, p.eps, at.y, tid, sg, lane, partial);
}

struct NextParams {
    uint width;   // outputs of a token
    uint bits;
    uint flags;
    uint gate;
    uint shares;
    uint wide;    // as in MatmulParams
    uint tall;
    float eps;
};

INLINE void load_8(device const float* from, thread float* to) {
    const float4 a = *(device const float4*)from, b = *(device const float4*)(from + 4);
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}
INLINE void add_8(device const float* from, thread float* to) {
    float x[8];
    load_8(from, x);
    UNROLL for (int e = 0; e < 8; ++e) to[e] += x[e];
}

kernel void matmul_next(
    device const float* sums [[buffer(0)]],
    device const float* bias [[buffer(1)]],
    device const float* residual [[buffer(2)]],
    device const float* gains [[buffer(3)]],
    device float* out [[buffer(4)]],
    device uint* halves_out [[buffer(5)]],
    constant NextParams& p [[buffer(6)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float partial[NEXT_THREADS / 32];
    const bool norm = p.flags & PREPARE_NORM;
    const uint begin = (at.y * NEXT_THREADS + tid) * 8, stride = norm ? NEXT_THREADS * 8 : p.width;
    const size_t row = size_t(at.x) * p.width;
    device uint* to = halves_out + row / 2;
    float y[8], squares = 0.0f;
    for (uint i = begin; i < p.width; i += stride) {
        float up[8];
        UNROLL for (int e = 0; e < 8; ++e) y[e] = 0.0f, up[e] = 0.0f;
        UNROLL_BY(4) for (uint s = 0; s < p.shares; ++s) {
            device const float* from = sums + (size_t(s) * p.tall + at.x) * p.wide + i;
            add_8(from, y);
            if (p.gate) add_8(from + p.width, up);
        }
        if (p.flags & NEXT_BIAS) {
            add_8(bias + i, y);
            if (p.gate) add_8(bias + p.width + i, up);
        }
        if (p.gate) {
            UNROLL for (int e = 0; e < 8; ++e) y[e] = activate(p.gate, y[e]) * up[e];
        }
        if (p.flags & NEXT_RESIDUAL) add_8(residual + row + i, y);
        if (!norm) {
            store_halves(y, to, i, p.bits, p.flags);
            continue;
        }
        float4 low, high;
        low.x = y[0], low.y = y[1], low.z = y[2], low.w = y[3], high.x = y[4], high.y = y[5], high.z = y[6], high.w = y[7];
        *(device float4*)(out + row + i) = low, *(device float4*)(out + row + i + 4) = high;
        UNROLL for (int e = 0; e < 8; ++e) squares = fma(y[e], y[e], squares);
    }
    if (!norm) return;
    squares = simd_sum(squares);
    if (lane == 0) partial[sg] = squares;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (uint k = 0; k < NEXT_THREADS / 32; ++k) total += partial[k];
    const float inverse = rsqrt(total / float(p.width) + p.eps);
    for (uint i = begin; i < p.width; i += stride) {
        float v[8], gain[8];
        // The last ones are still here.
        if (i + stride < p.width) {
            load_8(out + row + i, v);
        } else {
            UNROLL for (int e = 0; e < 8; ++e) v[e] = y[e];
        }
        load_8(gains + i, gain);
        UNROLL for (int e = 0; e < 8; ++e) v[e] = v[e] * inverse * gain[e];
        store_halves(v, to, i, p.bits, p.flags);
    }
}

struct MatmulParams {
    uint tokens;
    uint rows;
    uint cols;
    uint group_shift;
    uint scale_type;
    uint packed;
    uint share;  // columns of a share, a multiple of 64
    uint wide;   // rows of the weights as `sums` counts them, a multiple of 128
    uint tall;   // tokens as `sums` counts them, a multiple of T
};

template <int BITS, int GROUP, int T, int STAGES>
INLINE void multiply(
    device const uint* data, device const uint* scales, device const half* x, device float* sums,
    MatmulParams p, uint3 at, uint tid, uint sg, uint lane, threadgroup uint4* memory)
{
    const MatmulRows rows = {at.y * TN, p.rows, at.x * T, p.tokens};
    const uint begin = at.z * p.share, end = min(begin + p.share, p.cols), g = lane / 4, t = lane % 4;
    const Columns of = {data, scales, x, p.cols, begin, (end - begin) / TK, p.packed, p.scale_type};
    TileC c[TILES * T / 8];
    tile_product<BITS, GROUP, T, STAGES>(of, rows, tid, sg, lane, memory, c);
    UNROLL for (int i = 0; i < TILES; ++i) {
        const uint row = rows.row0 + sg * 32 + uint(i) * 16 + g;
        UNROLL for (int j = 0; j < T / 8; ++j) {
            float sum[4];
            tile_to_lanes(c[i * T / 8 + j], lane, sum);
            UNROLL for (int u = 0; u < 2; ++u) {
                const uint token = rows.token0 + uint(j) * 8 + 2 * t + uint(u);
                device float* to = sums + (size_t(at.z) * p.tall + token) * p.wide + row;
                if (token < p.tokens) to[0] = sum[u], to[8] = sum[2 + u];
            }
        }
    }
}

#define MATMUL(BITS, GROUP, T, STAGES) \
kernel void matmul_tile_q##BITS##_g##GROUP##_t##T( \
    device const uint* data [[buffer(0)]], \
    device const uint* scales [[buffer(1)]], \
    device const half* x [[buffer(2)]], \
    device float* sums [[buffer(3)]], \
    constant MatmulParams& p [[buffer(4)]], \
    uint3 at [[threadgroup_position_in_grid]], \
    uint tid [[thread_index_in_threadgroup]], \
    uint sg [[simdgroup_index_in_threadgroup]], \
    uint lane [[thread_index_in_simdgroup]]) \
{ \
    EARLY_LAUNCH; \
    threadgroup uint4 memory[TILE_MEMORY(BITS, GROUP, T, STAGES)]; \
    multiply<BITS, GROUP, T, STAGES>(data, scales, x, sums, p, at, tid, sg, lane, memory); \
}
#define MATMULS(BITS, GROUP, STAGES) \
    MATMUL(BITS, GROUP, 8, 4) MATMUL(BITS, GROUP, 16, 4) MATMUL(BITS, GROUP, 32, 3) MATMUL(BITS, GROUP, 64, STAGES)
MATMULS(4, 32, 3)
MATMULS(4, 64, 3)
MATMULS(4, 128, 3)
MATMULS(8, 32, 2)
MATMULS(8, 64, 2)
MATMULS(8, 128, 2)
