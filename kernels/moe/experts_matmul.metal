// Experts' products of many pairs: each expert's weights are read once for some of its pairs.
//
// experts_begin: what their products read. Pairs by ascending expert, and those of an expert in their own order:
//   order[place] is the pair there, places[pair] where it went, and tiles cut the places into runs of one expert, of
//   `tile` pairs at most. After the last tile there are empty ones, `most` in all. Pairs of experts that have no matrix
//   get no place. And x [tokens, cols] f32, normed (if PREPARE_NORM), as halves in prepared.h's order.
//   Grid: x experts, then blocks of 2048 columns of each token. Threads: 256.
// experts_matmul_*: y[place] = x W^T with W the `rows` rows of the place's expert, and what experts.metal's experts_*
//   do beside. x [tokens, cols] or [places, cols] f16; weights are rounded to f16, sums are in f32, and y is f32 or f16.
//   Tiles of T places, whose grid has surplus ones. Grid: x tiles, y over 64 rows (with a gate, over 32 columns of y).
//   Threads: 128, a simdgroup 16 rows. Weights and activations of 64 columns at a time go through threadgroup memory
//   while the next ones are being loaded.
// Reference: as experts', within the rounding of f16.
#include "taper/common.h"
#include "taper/experts.h"
#include "taper/prepare.h"
#include "taper/tile.h"
#include "taper/weights.h"

enum { MAX_EXPERTS = 1024, BEGIN_THREADS = PREPARE_THREADS, BEGIN_SIMDS = BEGIN_THREADS / 32 };

struct BeginParams {
    uint pairs;
    uint experts;   // at most MAX_EXPERTS; from this id on there are no matrices
    uint tile;
    uint most;
    uint cols;
    uint bits;      // of the weights that the halves are for
    uint flags;
    float eps;
};

INLINE uint runs_of(uint pairs, uint tile) { return (pairs + tile - 1) / tile; }

// Sums over all lanes up to one's own.
INLINE uint running_sum(uint v, uint lane) {
    for (uint d = 1; d < 32; d *= 2) {
        const uint before = simd_shuffle(v, ushort((lane - d) % 32));
        v += lane >= d ? before : 0u;
    }
    return v;
}

// An expert's share of the list.
INLINE void order_pairs(
    device const uint* ids, device uint* order, device uint* places, device ExpertTile* tiles, BeginParams p, uint expert,
    uint tid, uint sg, uint lane, threadgroup atomic_uint* counts, threadgroup float* before, threadgroup uint* own)
{
    for (uint e = tid; e < p.experts; e += BEGIN_THREADS) atomic_store_explicit(&counts[e], 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < p.pairs; i += BEGIN_THREADS) {
        const uint id = ids[i];
        if (id < p.experts) atomic_fetch_add_explicit(&counts[id], 1u, memory_order_relaxed);
    }
    // A simdgroup's share of the pairs, and how many of them are the expert's.
    const uint share = runs_of(p.pairs, BEGIN_THREADS) * 32;
    const uint begin = min(sg * share, p.pairs), end = min(begin + share, p.pairs);
    float mine = 0.0f;
    for (uint i = begin + lane; i < end; i += 32) mine += ids[i] == expert ? 1.0f : 0.0f;
    mine = simd_sum(mine);
    if (lane == 0) own[sg] = uint(mine);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // Whole numbers this small are exact.
    float pairs = 0.0f, runs = 0.0f;
    for (uint e = tid; e < expert; e += BEGIN_THREADS) {
        const uint count = atomic_load_explicit(&counts[e], memory_order_relaxed);
        pairs += float(count), runs += float(runs_of(count, p.tile));
    }
    pairs = simd_sum(pairs), runs = simd_sum(runs);
    if (lane == 0) before[sg] = pairs, before[BEGIN_SIMDS + sg] = runs;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint first = 0, run = 0;
    for (uint i = 0; i < BEGIN_SIMDS; ++i) first += uint(before[i]), run += uint(before[BEGIN_SIMDS + i]);

    uint place = first;
    for (uint i = 0; i < sg; ++i) place += own[i];
    for (uint i = begin; i < end; i += 32) {
        const uint pair = i + lane;
        const uint here = pair < end && ids[min(pair, p.pairs - 1)] == expert ? 1u : 0u;
        const uint sum = running_sum(here, lane);
        if (here) {
            order[place + sum - 1] = pair;
            places[pair] = place + sum - 1;
        }
        place += simd_shuffle(sum, 31);
    }

    const uint count = atomic_load_explicit(&counts[expert], memory_order_relaxed), whole = runs_of(count, p.tile);
    const uint until = expert + 1 == p.experts ? p.most : run + whole;
    for (uint i = run + tid; i < until; i += BEGIN_THREADS) {
        const uint done = (i - run) * p.tile;
        const ExpertTile tile = {expert, first + done, done < count ? min(p.tile, count - done) : 0u};
        tiles[i] = tile;
    }
}

kernel void experts_begin(
    device const uint* ids [[buffer(0)]],
    device const float* x [[buffer(1)]],
    device const float* gains [[buffer(2)]],
    device uint* order [[buffer(3)]],
    device uint* places [[buffer(4)]],
    device ExpertTile* tiles [[buffer(5)]],
    device uint* halves_out [[buffer(6)]],
    constant BeginParams& p [[buffer(7)]],
    uint at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup atomic_uint counts[MAX_EXPERTS];
    threadgroup float partial[2 * BEGIN_SIMDS];
    threadgroup uint own[BEGIN_SIMDS];
    if (at < p.experts) {
        order_pairs(ids, order, places, tiles, p, at, tid, sg, lane, counts, partial, own);
        return;
    }
    const uint blocks = (p.cols + PREPARE_COLS - 1) / PREPARE_COLS, token = (at - p.experts) / blocks;
    prepare_row(
        x + size_t(token) * p.cols, gains, halves_out + size_t(token) * p.cols / 2, p.cols, p.bits, p.flags, p.eps,
        (at - p.experts) % blocks, tid, sg, lane, partial);
}

enum { TN = 64, TK = 64, STRIDE = TK + 8, THREADS = 128 };

template <typename W, int T>
INLINE void multiply(
    device const uint* data, device const uint* scales, device const half* x, device const ExpertTile* tiles,
    device const uint* order, device const float* bias, device const float* weights, device uint* out,
    ExpertTileParams p, uint2 at, uint tid, uint sg, uint lane, threadgroup half* ws, threadgroup half* xs)
{
    enum { CHUNKS = TK / CHUNK, X_LOADS = (T * TK / 8 + THREADS - 1) / THREADS };
    const ExpertRows rows = {p, tiles[at.x], order, at.y * TN};
    if (rows.tile.count == 0) return;
    const WeightRows w = {data, scales, p.cols / CHUNK, p.group_shift, p.scale_type, p.packed};
    // A thread's shares: a chunk of a row, and eight columns of some rows of x.
    const uint w_row = tid / CHUNKS, w_chunk = tid % CHUNKS, row = ExpertRows::weight(rows, w_row);
    threadgroup half* w_to = ws + w_row * STRIDE + w_chunk * CHUNK;
    device const half* x_from[X_LOADS];
    UNROLL for (int l = 0; l < X_LOADS; ++l) {
        const uint i = min(tid / 8 + uint(l) * (THREADS / 8), uint(T) - 1);
        x_from[l] = x + size_t(ExpertRows::input(rows, i)) * p.cols;
    }
    TileC c[T / 8];
    UNROLL for (int j = 0; j < T / 8; ++j) tile_zero(c[j]);
    uint raw[W::RAW];
    float s = 0.0f, b = 0.0f;
    uint4 xr[X_LOADS];
    for (uint k = 0; k < p.cols + TK; k += TK) {
        // Store what was loaded for the step before this one; multiply it while this one loads.
        if (k > 0) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            UNROLL for (int e = 0; e < CHUNK; e += 8) {
                uint two[4];
                UNROLL for (int f = 0; f < 4; ++f) {
                    const float low = W::exact(W::quant(raw, e + 2 * f), s, b);
                    const float high = W::exact(W::quant(raw, e + 2 * f + 1), s, b);
                    two[f] = halves(low, high);
                }
                uint4 v;
                v.x = two[0], v.y = two[1], v.z = two[2], v.w = two[3];
                *(threadgroup uint4*)(w_to + e) = v;
            }
            UNROLL for (int l = 0; l < X_LOADS; ++l) {
                const uint i = tid + uint(l) * THREADS;
                if (i < T * TK / 8) *(threadgroup uint4*)(xs + i / 8 * STRIDE + i % 8 * 8) = xr[l];
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        // Past the row's end its last weights are multiplied with zeros.
        if (k < p.cols) {
            const uint chunk = min(k / CHUNK + w_chunk, w.chunks - 1), column = k + tid % 8 * 8;
            W::load(raw, w, row, chunk);
            W::affine(w, row, chunk, s, b);
            const uint keep = column < p.cols ? 0xffffffffu : 0u;
            UNROLL for (int l = 0; l < X_LOADS; ++l) {
                const uint4 v = *(device const uint4*)(x_from[l] + (keep ? column : 0u));
                xr[l].x = v.x & keep, xr[l].y = v.y & keep, xr[l].z = v.z & keep, xr[l].w = v.w & keep;
            }
        }
        if (k > 0) {
            for (uint kk = 0; kk < TK; kk += 16) {
                TileA a;
                tile_load(a, ws + sg * 16 * STRIDE + kk, STRIDE);
                UNROLL for (int j = 0; j < T / 8; ++j) {
                    TileB bt;
                    tile_load(bt, xs + j * 8 * STRIDE + kk, STRIDE);
                    tile_multiply(c[j], a, bt);
                }
            }
        }
    }
    // All have read what was multiplied.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup float* sums = (threadgroup float*)ws;
    UNROLL for (int j = 0; j < T / 8; ++j) {
        float sum[4];
        tile_to_lanes(c[j], lane, sum);
        keep_sums(sums, SUMS_STRIDE(TN), sg * 16, uint(j) * 8, lane, sum);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    expert_outputs<TN, THREADS>(rows, bias, weights, out, tid, sums);
}

// 16 bytes are stored at a time, so the arrays are of these.
#define MATMUL(FORMAT, NAME, T) \
kernel void experts_matmul_##NAME##_t##T( \
    device const uint* data [[buffer(0)]], \
    device const uint* scales [[buffer(1)]], \
    device const half* x [[buffer(2)]], \
    device const ExpertTile* tiles [[buffer(3)]], \
    device const uint* order [[buffer(4)]], \
    device const float* bias [[buffer(5)]], \
    device const float* weights [[buffer(6)]], \
    device uint* out [[buffer(7)]], \
    constant ExpertTileParams& p [[buffer(8)]], \
    uint2 at [[threadgroup_position_in_grid]], \
    uint tid [[thread_index_in_threadgroup]], \
    uint sg [[simdgroup_index_in_threadgroup]], \
    uint lane [[thread_index_in_simdgroup]]) \
{ \
    threadgroup uint4 ws[TN * STRIDE / 8]; \
    threadgroup uint4 xs[T * STRIDE / 8]; \
    multiply<FORMAT, T>(data, scales, x, tiles, order, bias, weights, out, p, at, tid, sg, lane, (threadgroup half*)ws, (threadgroup half*)xs); \
}
#define MATMULS(FORMAT, NAME) MATMUL(FORMAT, NAME, 8) MATMUL(FORMAT, NAME, 32)
FOR_EACH_FORMAT(MATMULS)
