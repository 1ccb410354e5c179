// Products of many rows of activations with a weight matrix in any format: batched decoding and
// prefill.
//
// matmul_*: sums[s][m][n] = x[m] . w[n] over the s-th share of the columns; x [tokens, cols] f16, w
//   widened to f16, sums in f32. Tiles of TM tokens and 128 rows; `sums` has whole tiles.
//   Grid: x over 128 rows, y over TM tokens, z over shares of the columns. Threads: 256. A simdgroup
//   has a part of the tile; weights and activations of 64 columns at a time go through threadgroup
//   memory while the next ones are being loaded.
// matmul_finish: adds the shares, and does what the end of matvec does (see there).
//   Grid: x over blocks of 256 outputs, one a thread or four. Threads: 256.
// Reference: as matvec's, within the rounding of f16.
#include "taper/common.h"
#include "taper/activation.h"
#include "taper/tile.h"
#include "taper/weights.h"

enum { TN = 128, TK = 64, STRIDE = TK + 8, THREADS = 256 };

struct MatmulParams {
    uint tokens;
    uint rows;
    uint cols;
    uint group_shift;
    uint scale_type;
    uint packed;
    uint share;  // columns of a share, a multiple of 64
    uint wide;   // rows of the weights as `sums` counts them, a multiple of 128
    uint tall;   // tokens as `sums` counts them, a multiple of TM
};

template <typename W, int TM>
void matmul(
    device const uint* data, device const uint* scales, device const half* x, device float* sums,
    MatmulParams p, uint3 at, uint tid, uint sg, threadgroup half* ws, threadgroup half* xs)
{
    enum {
        SG_M = TM == 64 ? 2 : 1,
        SG_N = 8 / SG_M,
        TILES_M = TM / 16 / SG_M,
        TILES_N = TN / 8 / SG_N,
        CHUNKS = TK / CHUNK,                                  // of a row
        LOADS = (TN * CHUNKS + THREADS - 1) / THREADS,           // a thread
        X_LOADS = (TM * TK / 8 + THREADS - 1) / THREADS
    };
    const WeightRows w = {data, scales, p.cols / CHUNK, p.group_shift, p.scale_type, p.packed};
    const uint begin = at.z * p.share, end = min(begin + p.share, p.cols);
    const uint row0 = at.x * TN, token0 = at.y * TM;
    const uint sg_m = sg / SG_N, sg_n = sg % SG_N;

    TileC c[TILES_M][TILES_N];
    UNROLL for (int i = 0; i < TILES_M; ++i) {
        UNROLL for (int j = 0; j < TILES_N; ++j) tile_zero(c[i][j]);
    }
    uint raw[LOADS][W::RAW];
    float s[LOADS], b[LOADS];
    uint4 xr[X_LOADS];
    for (uint k = begin; k < end + TK; k += TK) {
        // Store what was loaded for the step before this one; multiply it while this one loads.
        if (k > begin) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            UNROLL for (int l = 0; l < LOADS; ++l) {
                const uint i = tid + l * THREADS, column = k - TK + i % CHUNKS * CHUNK;
                threadgroup half* to = ws + i / CHUNKS * STRIDE + i % CHUNKS * CHUNK;
                if (i < TN * CHUNKS) {
                    const bool there = column < end;
                    const uint keep = there ? 0xffffffffu : 0u;
                    UNROLL for (int e = 0; e < CHUNK; e += 8) {
                        uint packed[4];
                        UNROLL for (int f = 0; f < 4; ++f) {
                            const float low = W::exact(W::quant(raw[l], e + 2 * f), s[l], b[l]);
                            const float high = W::exact(W::quant(raw[l], e + 2 * f + 1), s[l], b[l]);
                            packed[f] = (uint(as_type<ushort>(half(low))) | uint(as_type<ushort>(half(high))) << 16) & keep;
                        }
                        uint4 v;
                        v.x = packed[0], v.y = packed[1], v.z = packed[2], v.w = packed[3];
                        *(threadgroup uint4*)(to + e) = v;
                    }
                }
            }
            UNROLL for (int l = 0; l < X_LOADS; ++l) {
                const uint i = tid + l * THREADS;
                if (i < TM * TK / 8) *(threadgroup uint4*)(xs + i / 8 * STRIDE + i % 8 * 8) = xr[l];
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        if (k < end) {
            UNROLL for (int l = 0; l < LOADS; ++l) {
                const uint i = min(tid + l * THREADS, uint(TN * CHUNKS - 1));
                const uint row = min(row0 + i / CHUNKS, p.rows - 1);
                const uint chunk = min(k / CHUNK + i % CHUNKS, w.chunks - 1);
                W::load(raw[l], w, row, chunk);
                W::affine(w, row, chunk, s[l], b[l]);
            }
            UNROLL for (int l = 0; l < X_LOADS; ++l) {
                const uint i = tid + l * THREADS, token = token0 + i / 8, column = k + i % 8 * 8;
                const bool there = i < TM * TK / 8 && token < p.tokens && column < end;
                const size_t from = there ? size_t(token) * p.cols + column : 0;
                const uint4 v = *(device const uint4*)(x + from);
                const uint keep = there ? 0xffffffffu : 0u;
                xr[l].x = v.x & keep, xr[l].y = v.y & keep, xr[l].z = v.z & keep, xr[l].w = v.w & keep;
            }
        }
        if (k > begin) {
            for (uint kk = 0; kk < TK; kk += 16) {
                TileA a[TILES_M];
                UNROLL for (int i = 0; i < TILES_M; ++i) {
                    tile_load(a[i], xs + (sg_m * TILES_M + i) * 16 * STRIDE + kk, STRIDE);
                }
                UNROLL for (int j = 0; j < TILES_N; ++j) {
                    TileB bt;
                    tile_load(bt, ws + (sg_n * TILES_N + j) * 8 * STRIDE + kk, STRIDE);
                    UNROLL for (int i = 0; i < TILES_M; ++i) tile_multiply(c[i][j], a[i], bt);
                }
            }
        }
    }
    UNROLL for (int i = 0; i < TILES_M; ++i) {
        UNROLL for (int j = 0; j < TILES_N; ++j) {
            const uint token = token0 + (sg_m * TILES_M + i) * 16, row = row0 + (sg_n * TILES_N + j) * 8;
            tile_store(c[i][j], sums + (size_t(at.z) * p.tall + token) * p.wide + row, p.wide);
        }
    }
}

// 16 bytes are stored at a time, so the arrays are of these.
#define MATMUL(FORMAT, NAME, TM) \
kernel void matmul_##NAME##_t##TM( \
    device const uint* data [[buffer(0)]], \
    device const uint* scales [[buffer(1)]], \
    device const half* x [[buffer(2)]], \
    device float* sums [[buffer(3)]], \
    constant MatmulParams& p [[buffer(4)]], \
    uint3 at [[threadgroup_position_in_grid]], \
    uint tid [[thread_index_in_threadgroup]], \
    uint sg [[simdgroup_index_in_threadgroup]]) \
{ \
    threadgroup uint4 ws[TN * STRIDE / 8]; \
    threadgroup uint4 xs[TM * STRIDE / 8]; \
    matmul<FORMAT, TM>(data, scales, x, sums, p, at, tid, sg, (threadgroup half*)ws, (threadgroup half*)xs); \
}
#define MATMULS(FORMAT, NAME) MATMUL(FORMAT, NAME, 16) MATMUL(FORMAT, NAME, 64)
FOR_EACH_FORMAT(MATMULS)

enum { FINISH_BIAS = 2, FINISH_RESIDUAL = 4 };

struct FinishParams {
    uint tokens;
    uint rows;
    uint end0;
    uint end1;
    uint flags;
    uint gate;
    uint shares;
    uint wide;
    uint tall;
};

// N neighbours.
template <int N> INLINE void load(device const float* p, thread float* out) {
    if (N == 4) {
        const float4 v = *(device const float4*)p;
        out[0] = v.x, out[N > 1 ? 1 : 0] = v.y, out[N > 2 ? 2 : 0] = v.z, out[N > 3 ? 3 : 0] = v.w;
    } else {
        out[0] = p[0];
    }
}
template <int N> INLINE void add(device const float* p, thread float* to) {
    float x[N];
    load<N>(p, x);
    UNROLL for (int e = 0; e < N; ++e) to[e] += x[e];
}

template <int N>
INLINE void finish(
    device const float* sums, device const float* bias, device const float* residual, device float* out, FinishParams p, uint i)
{
    const uint width = p.gate ? p.rows / 2 : p.rows;
    if (i >= p.tokens * width) return;
    const uint token = i / width, n = i % width;
    float y[N], up[N];
    UNROLL for (int e = 0; e < N; ++e) y[e] = 0.0f, up[e] = 0.0f;
    UNROLL_BY(4) for (uint s = 0; s < p.shares; ++s) {
        device const float* from = sums + (size_t(s) * p.tall + token) * p.wide + n;
        add<N>(from, y);
        if (p.gate) add<N>(from + width, up);
    }
    if (p.flags & FINISH_BIAS) {
        add<N>(bias + n, y);
        if (p.gate) add<N>(bias + n + width, up);
    }
    device float* to = out + i;
    if (p.gate) {
        UNROLL for (int e = 0; e < N; ++e) y[e] = activate(p.gate, y[e]) * up[e];
    } else {
        const uint start = n < p.end0 ? 0u : n < p.end1 ? p.end0 : p.end1;
        const uint end = n < p.end0 ? p.end0 : n < p.end1 ? p.end1 : p.rows;
        const size_t at = size_t(p.tokens) * start + size_t(token) * (end - start) + (n - start);
        if (p.flags & FINISH_RESIDUAL) add<N>(residual + at, y);
        to = out + at;
    }
    if (N == 4) {
        float4 v;
        v.x = y[0], v.y = y[N > 1 ? 1 : 0], v.z = y[N > 2 ? 2 : 0], v.w = y[N > 3 ? 3 : 0];
        *(device float4*)to = v;
    } else {
        to[0] = y[0];
    }
}

#define FINISH(NAME, N) \
kernel void NAME( \
    device const float* sums [[buffer(0)]], \
    device const float* bias [[buffer(1)]], \
    device const float* residual [[buffer(2)]], \
    device float* out [[buffer(3)]], \
    constant FinishParams& p [[buffer(4)]], \
    uint i [[thread_position_in_grid]]) \
{ \
    finish<N>(sums, bias, residual, out, p, i * N); \
}
FINISH(matmul_finish, 1)
// Where parts of the output are multiples of four.
FINISH(matmul_finish_4, 4)
