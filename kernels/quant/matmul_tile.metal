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
#include "taper/copies.h"
#include "taper/packed.h"
#include "taper/prepared.h"
#include "taper/tile.h"
#include "taper/widened.h"

enum { TN = 128, TK = 64, THREADS = 128, PREPARE_THREADS = 256, NEXT_THREADS = 512 };
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
    device const float* from = x + size_t(at.x) * p.cols;
    const uint i = (at.y * PREPARE_THREADS + tid) * 8;
    const bool norm = p.flags & PREPARE_NORM;
    float inverse = 1.0f;
    if (norm) {
        float squares = 0.0f;
        UNROLL_BY(4) for (uint k = tid * 4; k < p.cols; k += PREPARE_THREADS * 4) {
            const float4 v = *(device const float4*)(from + k);
            squares = fma(v.x, v.x, squares), squares = fma(v.y, v.y, squares);
            squares = fma(v.z, v.z, squares), squares = fma(v.w, v.w, squares);
        }
        squares = simd_sum(squares);
        if (lane == 0) partial[sg] = squares;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float total = 0.0f;
        for (uint k = 0; k < PREPARE_THREADS / 32; ++k) total += partial[k];
        inverse = rsqrt(total / float(p.cols) + p.eps);
    }
    if (i >= p.cols) return;
    const float4 a = *(device const float4*)(from + i), b = *(device const float4*)(from + i + 4);
    float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    if (norm) {
        const float4 g = *(device const float4*)(gains + i), h = *(device const float4*)(gains + i + 4);
        const float gain[8] = {g.x, g.y, g.z, g.w, h.x, h.y, h.z, h.w};
        UNROLL for (int e = 0; e < 8; ++e) v[e] = v[e] * inverse * gain[e];
    }
    store_halves(v, out + size_t(at.x) * p.cols / 2, i, p.bits, p.flags);
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

INLINE uint x_place(uint row, uint c) { return c ^ (row & 1) * 4; }

template <int BITS, int GROUP, int T, int STAGES>
INLINE void multiply(
    device const uint* data, device const uint* scales, device const half* x, device float* sums,
    MatmulParams p, uint3 at, uint tid, uint sg, uint lane, threadgroup uint4* memory)
{
    enum {
        TOKENS = T / 8,                                // tiles of a simdgroup
        TILES = TN / 16 / 4,
        CHUNKS = TK * BITS / 128,                      // 16 bytes of a row, a step
        LOADS = TN * CHUNKS / THREADS,
        X_LOADS = (T * TK / 8 + THREADS - 1) / THREADS,
        WORDS = TK > GROUP ? TK / GROUP : 1,           // scales of a row
        W_SIZE = TN * CHUNKS, S_SIZE = TN * WORDS / 4, STAGE = W_SIZE + S_SIZE + T * TK / 8
    };
    const uint token0 = at.x * T, row0 = at.y * TN, groups = p.cols / GROUP;
    const uint begin = at.z * p.share, end = min(begin + p.share, p.cols), steps = (end - begin) / TK;
    const uint g = lane / 4, t = lane % 4;

    // A thread's shares of a stage.
    const uint w_row = tid / CHUNKS, w_chunk = tid % CHUNKS, x_row = tid / 8, x_chunk = tid % 8;
    const uint w_to = w_row * CHUNKS + weight_place<BITS>(w_row, w_chunk), x_to = x_row * 8 + x_place(x_row, x_chunk);
    device const uint4* w_from[LOADS];
    UNROLL for (int l = 0; l < LOADS; ++l) {
        const uint row = min(row0 + w_row + uint(l) * (THREADS / CHUNKS), p.rows - 1);
        w_from[l] = (device const uint4*)data + piece_at(row, begin * BITS / 128 + w_chunk, p.cols * BITS / 128, p.packed);
    }
    const uint w_step = p.packed ? CHUNKS * 8 : CHUNKS;
    device const uint* s_from = scales + scales_at(min(row0 + tid, p.rows - 1), groups, p.packed);
    device const uint4* x_from[X_LOADS];
    UNROLL for (int l = 0; l < X_LOADS; ++l) {
        const uint token = min(token0 + x_row + uint(l) * (THREADS / 8), p.tokens - 1);
        x_from[l] = (device const uint4*)x + (size_t(token) * p.cols + begin) / 8 + x_chunk;
    }
#define COPY_WEIGHTS(STEP) \
    if ((STEP) < steps) { \
        threadgroup uint4* to = memory + (STEP) % STAGES * STAGE; \
        UNROLL for (int l = 0; l < LOADS; ++l) copy_16(to + w_to + l * THREADS, w_from[l] + (STEP) * w_step); \
        UNROLL for (int i = 0; i < WORDS; ++i) { \
            const uint group = (begin + (STEP) * TK) / GROUP + uint(i); \
            copy_4((threadgroup uint*)(to + W_SIZE) + tid * WORDS + uint(i), s_from + scale_in_row(group, p.packed)); \
        } \
    }
#define COPY_X(STEP) \
    if ((STEP) < steps) { \
        threadgroup uint4* to = memory + (STEP) % STAGES * STAGE + W_SIZE + S_SIZE + x_to; \
        UNROLL for (int l = 0; l < X_LOADS; ++l) { \
            if (T % 16 == 0 || tid < T * TK / 8) copy_16(to + l * THREADS, x_from[l] + (STEP) * 8); \
        } \
    }
    UNROLL for (int s = 0; s < STAGES - 1; ++s) COPY_WEIGHTS(uint(s))
    previous_launch_done();
    UNROLL for (int s = 0; s < STAGES - 1; ++s) {
        COPY_X(uint(s))
        copies_end();
    }

    TileC c[TILES][TOKENS];
    UNROLL for (int i = 0; i < TILES; ++i) {
        UNROLL for (int j = 0; j < TOKENS; ++j) tile_zero(c[i][j]);
    }
    const bool bf16 = p.scale_type == 2;
    for (uint step = 0; step < steps; ++step) {
        copies_wait<STAGES - 2>();
        threadgroup_barrier(mem_flags::mem_threadgroup);
        threadgroup const uint4* stage = memory + step % STAGES * STAGE;
        threadgroup const uint* ws = (threadgroup const uint*)stage;
        threadgroup const uint* ss = (threadgroup const uint*)(stage + W_SIZE);
        threadgroup const uint4* xs = stage + W_SIZE + S_SIZE;
        half2 scale[2 * TILES], bias[2 * TILES];
        UNROLL for (int h = 0; h < TK / 32; ++h) {
            uint4 b[TOKENS];
            UNROLL for (int j = 0; j < TOKENS; ++j) b[j] = xs[(uint(j) * 8 + g) * 8 + x_place(g, uint(h) * 4 + t)];
            UNROLL for (int i = 0; i < TILES; ++i) {
                uint a[2][4];
                UNROLL for (int u = 0; u < 2; ++u) {
                    const uint row = sg * 32 + uint(i) * 16 + uint(u) * 8 + g;
                    if (h == 0 || GROUP == 32) {
                        const uint pair = ss[row * WORDS + uint(GROUP == 32 ? h : 0)];
                        scale[2 * i + u] = half_pair(pair, bf16), bias[2 * i + u] = half_pair(pair >> 16, bf16);
                    }
                    uint raw[2];
                    if (BITS == 4) {
                        raw[0] = ws[(row * CHUNKS + weight_place<BITS>(row, uint(h))) * 4 + t];
                    } else {
                        const uint place = row * CHUNKS + weight_place<BITS>(row, uint(h) * 2 + t / 2);
                        const uint2 two = *(threadgroup const uint2*)(ws + place * 4 + t % 2 * 2);
                        raw[0] = two.x, raw[1] = two.y;
                    }
                    widened<BITS>(raw, scale[2 * i + u], bias[2 * i + u], a[u]);
                }
                TileA first, second;
                tile_of_lanes(first, lane, a[0][0], a[1][0], a[0][1], a[1][1]);
                tile_of_lanes(second, lane, a[0][2], a[1][2], a[0][3], a[1][3]);
                // Products that follow each other do not wait for each other.
                UNROLL for (int j = 0; j < TOKENS; ++j) {
                    TileB tile;
                    tile_of_lanes(tile, lane, b[j].x, b[j].y);
                    tile_multiply(c[i][j], first, tile);
                }
                UNROLL for (int j = 0; j < TOKENS; ++j) {
                    TileB tile;
                    tile_of_lanes(tile, lane, b[j].z, b[j].w);
                    tile_multiply(c[i][j], second, tile);
                }
            }
            if (h == 0) {
                COPY_WEIGHTS(step + STAGES - 1)
                COPY_X(step + STAGES - 1)
                copies_end();
            }
        }
    }
    copies_wait<0>();
    UNROLL for (int i = 0; i < TILES; ++i) {
        const uint row = row0 + sg * 32 + uint(i) * 16 + g;
        UNROLL for (int j = 0; j < TOKENS; ++j) {
            float sum[4];
            tile_to_lanes(c[i][j], lane, sum);
            UNROLL for (int u = 0; u < 2; ++u) {
                const uint token = token0 + uint(j) * 8 + 2 * t + uint(u);
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
    threadgroup uint4 memory[STAGES * (TN * TK * BITS / 128 + TN * (TK > GROUP ? TK / GROUP : 1) / 4 + T * TK / 8)]; \
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
