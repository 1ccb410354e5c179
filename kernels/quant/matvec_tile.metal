// Products of one row of activations with quantized weights on the matrix units: decoding where these
// are fast.
//
// What is computed, and how outputs stand, is matvec.metal's. A code's bits are a half, the code times
// 2^-24, without any work: halves below the normal ones are exact on the matrix units. An activation is
// two halves whose sum is it within 2^-21, in two of a tile's columns, so that products are as good as in
// floats. Each part of a group of weights has two columns of its own, in which the tile gives its sum(code
// * x); scale and bias follow in floats.
//
// Grid: x `groups`, y over tokens. Threads: 256. A threadgroup takes every `groups`th tile of 16 rows (with a
// gate: of 8 rows of each matrix). Of a tile a simdgroup takes every eighth block, 16 bytes a lane of two
// rows; four lanes share a row. Lanes copy what lies together where weights are packed, and find their own
// 16 bytes in different banks. x goes through threadgroup memory,
// normed; where a row fits, it stays there for all tiles. Copies of STAGES - 1 blocks are under way at a
// time, across tiles; the first ones begin before the launch before this one is done. A row's order of
// additions depends on nothing but its length and group.
// Reference: as matvec's.
#include "taper/common.h"
#include "taper/activation.h"
#include "taper/copies.h"
#include "taper/packed.h"
#include "taper/tile.h"

enum { MATVEC_NORM = 1, MATVEC_BIAS = 2, MATVEC_RESIDUAL = 4, THREADS = 256 };
// Columns of x in threadgroup memory at a time, and halves from one tile column to the next.
enum { SLAB = 4096, STRIDE = SLAB + 8, ROUNDS = SLAB / 8 / THREADS };
enum { STAGES = 3 };

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
    uint groups;  // threadgroups
    float eps;
};

// What a simdgroup multiplies at a time of each of 16 rows: a BLOCK of columns, of PARTS parts that each
// lie in one group.
template <int BITS, int GROUP> struct Blocks {
    enum { BLOCK = 512 / BITS, PARTS = BLOCK > GROUP ? BLOCK / GROUP : 1, PART = BLOCK / PARTS };
};

INLINE uint halves(float a, float b) { return uint(as_type<ushort>(half(a))) | uint(as_type<ushort>(half(b))) << 16; }
// NaN becomes finite here, and comes back by the sum of what is multiplied.
INLINE float limited(float x) { return min(max(x, -65504.0f), 65504.0f); }

// Codes of a word as pairs of halves, in the order that `order_of` gives x. The last two of four bits
// are 16 times too large.
template <int BITS> INLINE void pairs_of(uint word, thread uint* out) {
    if (BITS == 4) {
        out[0] = word & 0x000f000fu, out[2] = word & 0x00f000f0u;
        word >>= 8;
        out[1] = word & 0x000f000fu, out[3] = word & 0x00f000f0u;
    } else {
        out[0] = word & 0x00ff00ffu, out[1] = word >> 8 & 0x00ff00ffu;
    }
}

// Eight consecutive activations as words of two halves: those that meet in a tile stand together.
template <int BITS> INLINE uint4 order_of(thread const float* x) {
    uint4 out;
    if (BITS == 4) {
        out.x = halves(x[0], x[4]), out.y = halves(x[2], x[6]), out.z = halves(x[1], x[5]), out.w = halves(x[3], x[7]);
    } else {
        out.x = halves(x[0], x[2]), out.y = halves(x[1], x[3]), out.z = halves(x[4], x[6]), out.w = halves(x[5], x[7]);
    }
    return out;
}

INLINE float scale_half(uint bits, bool bf16) {
    return bf16 ? as_type<float>(bits << 16) : float(as_type<half>(ushort(bits)));
}

// Rows r and r + 8 of a tile, as rows of the weights.
INLINE void rows_of(MatvecParams p, uint tile, uint r, thread uint* row) {
    const bool gated = p.gate != 0;
    const uint half_rows = p.rows / 2, limit = gated ? half_rows : p.rows;
    const uint first = tile * (gated ? 8u : 16u) + r;
    row[0] = min(first, limit - 1);
    row[1] = gated ? row[0] + half_rows : min(first + 8, limit - 1);
}

// Where two rows' codes and scales begin.
struct TwoRows {
    device const uint4* codes[2];
    device const uint* scales[2];
};

template <int BITS, int GROUP>
INLINE TwoRows begins_of(device const uint4* data, device const uint* scales, MatvecParams p, uint tile, uint r) {
    uint row[2];
    rows_of(p, tile, r, row);
    TwoRows out;
    UNROLL for (int h = 0; h < 2; ++h) {
        out.codes[h] = data + row_at(row[h], p.cols * BITS / 128, p.packed);
        out.scales[h] = scales + scales_at(row[h], p.cols / GROUP, p.packed);
    }
    return out;
}

// What a lane copies of eight rows: 16 bytes of row `copied_row`, of a block's four those numbered `copied_piece`.
INLINE uint copied_row(uint lane) { return lane % 16 / 2; }
INLINE uint copied_piece(uint lane) { return lane / 16 * 2 + lane % 2; }
// Where it puts them, and where lane 4 r + t finds those of its row.
INLINE uint copied_place(uint lane) { return lane ^ lane / 16 * 4; }
INLINE uint own_place(uint r, uint t) { return copied_place(t / 2 * 16 + r * 2 + t % 2); }

// 16 bytes and scales of a block of two rows. Past the row's end it copies anything.
template <int BITS, int GROUP>
INLINE void copy_block(
    thread const TwoRows& from, uint cols, uint packed, uint block, uint t, threadgroup uint4* codes, threadgroup uint* pairs)
{
    enum { BLOCK = Blocks<BITS, GROUP>::BLOCK, PARTS = Blocks<BITS, GROUP>::PARTS, PART = Blocks<BITS, GROUP>::PART };
    const uint chunks = cols * BITS / 128, groups = cols / GROUP;
    const uint chunk = piece_in_row(min(block * 4 + t, chunks - 1), packed);
    const uint group = min((block * BLOCK + t * PART) / GROUP, groups - 1);
    UNROLL for (int h = 0; h < 2; ++h) {
        copy_16(codes + h * 32, from.codes[h] + chunk);
        if (t < PARTS) copy_4(pairs + h * 8 * PARTS, from.scales[h] + scale_in_row(group, packed));
    }
}

// Adds a block's products to rows r and r + 8. `x` is where the block begins.
template <int BITS, int GROUP>
INLINE void multiply_block(
    threadgroup const uint4* codes, threadgroup const uint* pairs, threadgroup const half* x,
    threadgroup const float* sums, bool bf16, uint lane, thread float* y)
{
    enum { BLOCK = Blocks<BITS, GROUP>::BLOCK, PARTS = Blocks<BITS, GROUP>::PARTS };
    const uint r = lane / 4, t = lane % 4;
    const uint4 low = codes[0], high = codes[32];
    const uint words[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
    // Of column r, only what belongs to its part is not zero.
    const bool own = r / 2 == t * PARTS / 4;
    threadgroup const half* from = x + r % 2 * STRIDE + t * (BLOCK / 4);
    TileC c[2];
    tile_zero(c[0]), tile_zero(c[1]);
    UNROLL for (int w = 0; w < 4; ++w) {
        uint b[4] = {0, 0, 0, 0}, first[4], second[4];
        if (own) {
            if (BITS == 4) {
                const uint4 v = *(threadgroup const uint4*)(from + 8 * w);
                b[0] = v.x, b[1] = v.y, b[2] = v.z, b[3] = v.w;
            } else {
                const uint2 v = *(threadgroup const uint2*)(from + 4 * w);
                b[0] = v.x, b[1] = v.y;
            }
        }
        pairs_of<BITS>(words[0][w], first);
        pairs_of<BITS>(words[1][w], second);
        UNROLL for (int i = 0; i < (BITS == 4 ? 2 : 1); ++i) {
            TileA ta;
            TileB tb;
            tile_of_lanes(ta, lane, first[2 * i], second[2 * i], first[2 * i + 1], second[2 * i + 1]);
            tile_of_lanes(tb, lane, b[2 * i], b[2 * i + 1]);
            tile_multiply(c[i], ta, tb);
        }
    }
    float sum[4], more[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    tile_to_lanes(c[0], lane, sum);
    if (BITS == 4) tile_to_lanes(c[1], lane, more);
    if (t >= PARTS) return;
    const float whole = sums[t];
    UNROLL for (int j = 0; j < 2; ++j) {
        const uint pair = pairs[j * 8 * PARTS];
        const float scale = scale_half(pair, bf16), bias_of = scale_half(pair >> 16, bf16);
        const float dot = fma(more[2 * j] + more[2 * j + 1], 1048576.0f, (sum[2 * j] + sum[2 * j + 1]) * 16777216.0f);
        y[j] += fma(scale, dot, bias_of * whole);
    }
}

// A thread's activations of a slab, eight at a time; zeros past the row's end.
INLINE void load_x(device const float* x, uint cols, uint slab, uint tid, thread float4* out) {
    UNROLL for (int i = 0; i < ROUNDS; ++i) {
        const uint column = slab + (uint(i) * THREADS + tid) * 8;
        const bool there = column < cols;
        device const float* from = x + (there ? column : 0);
        const float4 low = *(device const float4*)from, high = *(device const float4*)(from + 4);
        const float4 none = {0.0f, 0.0f, 0.0f, 0.0f};
        out[2 * i] = there ? low : none, out[2 * i + 1] = there ? high : none;
    }
}

INLINE float squares_of(float4 v, float sum) {
    return fma(v.w, v.w, fma(v.z, v.z, fma(v.y, v.y, fma(v.x, v.x, sum))));
}

template <int BITS, int GROUP>
INLINE void matvec(
    device const uint4* data, device const uint* scales, device const float* x,
    device const float* gains, device const float* bias, device const float* residual,
    device float* out, MatvecParams p, uint2 at, uint tid, uint sg, uint lane,
    threadgroup half* xs, threadgroup float* sums, threadgroup uint4* codes, threadgroup uint* pairs,
    threadgroup float* squares, threadgroup float* partial)
{
    enum {
        BLOCK = Blocks<BITS, GROUP>::BLOCK, PARTS = Blocks<BITS, GROUP>::PARTS, PART = Blocks<BITS, GROUP>::PART,
        CODES = 64, PAIRS = 16 * PARTS     // of a stage, a simdgroup
    };
    const bool gated = p.gate != 0, bf16 = p.scale_type == 2;
    const uint half_rows = p.rows / 2, limit = gated ? half_rows : p.rows, outputs = gated ? 8 : 16;
    const uint tiles = (limit + outputs - 1) / outputs;
    const uint r = lane / 4, t = lane % 4, token = at.y;
    const uint blocks = (p.cols + BLOCK - 1) / BLOCK, steps = (blocks + 7 - sg) / 8;
    x += size_t(token) * p.cols;
    codes += sg * STAGES * CODES;
    pairs += sg * STAGES * PAIRS;
    const uint copy_r = copied_row(lane), copy_t = copied_piece(lane);
    threadgroup uint4* codes_to = codes + copied_place(lane);
    threadgroup uint* pairs_to = pairs + copy_r * PARTS + copy_t;
    codes += own_place(r, t);
    pairs += r * PARTS + t;

    uint next_tile = at.x, next_step = 0, stage = 0;
    TwoRows rows = begins_of<BITS, GROUP>(data, scales, p, next_tile, copy_r);
#define COPY_NEXT(STAGE) { \
        if (next_tile < tiles && steps > 0) { \
            copy_block<BITS, GROUP>(rows, p.cols, p.packed, next_step * 8 + sg, copy_t, codes_to + (STAGE) * CODES, pairs_to + (STAGE) * PAIRS); \
            if (++next_step == steps) next_step = 0, next_tile += p.groups, rows = begins_of<BITS, GROUP>(data, scales, p, next_tile, copy_r); \
        } \
        copies_end(); \
    }
    UNROLL for (int s = 0; s < STAGES - 1; ++s) COPY_NEXT(uint(s))
    if (at.x == 0 && p.flags & MATVEC_NORM) {
        for (uint i = tid * 32; i < p.cols; i += THREADS * 32) prefetch_line(gains + i);
    }
    previous_launch_done();
    float4 next[2 * ROUNDS];
    load_x(x, p.cols, 0, tid, next);
    float inverse = 1.0f;
    if (p.flags & MATVEC_NORM) {
        float sum = 0.0f;
        UNROLL for (int i = 0; i < 2 * ROUNDS; ++i) sum = squares_of(next[i], sum);
        for (uint i = SLAB + tid * 4; i < p.cols; i += THREADS * 4) sum = squares_of(*(device const float4*)(x + i), sum);
        sum = simd_sum(sum);
        if (lane == 0) squares[sg] = sum;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float total = 0.0f;
        for (uint i = 0; i < 8; ++i) total += squares[i];
        inverse = rsqrt(total / float(p.cols) + p.eps);
    }
    for (uint tile = at.x, turn = 0; tile < tiles; tile += p.groups, turn ^= 1) {
        const uint n = tile * outputs + tid;
        const bool writes = tid < outputs && n < limit;
        const uint start = n < p.end0 ? 0u : n < p.end1 ? p.end0 : p.end1;
        const uint end = n < p.end0 ? p.end0 : n < p.end1 ? p.end1 : p.rows;
        const size_t to = gated ? size_t(token) * half_rows + n : size_t(p.tokens) * start + size_t(token) * (end - start) + (n - start);
        float value = 0.0f, up = 0.0f;
        if (writes && p.flags & MATVEC_BIAS) {
            value = bias[n];
            if (gated) up = bias[n + half_rows];
        }
        if (writes && p.flags & MATVEC_RESIDUAL) value += residual[to];
        float y[2] = {0.0f, 0.0f};
        for (uint slab = 0, step = 0; slab < p.cols; slab += SLAB) {
            if (tile == at.x || p.cols > SLAB) {
                threadgroup_barrier(mem_flags::mem_threadgroup);
                UNROLL for (int i = 0; i < ROUNDS; ++i) {
                    const uint column = (uint(i) * THREADS + tid) * 8;
                    const float4 low = next[2 * i], high = next[2 * i + 1];
                    float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, rest[8];
                    if (p.flags & MATVEC_NORM) {
                        device const float* from = gains + (slab + column < p.cols ? slab + column : 0);
                        const float4 g = *(device const float4*)from, h = *(device const float4*)(from + 4);
                        const float gain[8] = {g.x, g.y, g.z, g.w, h.x, h.y, h.z, h.w};
                        UNROLL for (int j = 0; j < 8; ++j) v[j] *= inverse * gain[j];
                    }
                    float sum = 0.0f;
                    UNROLL for (int j = 0; j < 8; ++j) {
                        sum += v[j];
                        rest[j] = limited(v[j] - float(half(limited(v[j]))));
                        v[j] = limited(v[j]);
                    }
                    *(threadgroup uint4*)(xs + column) = order_of<BITS>(v);
                    *(threadgroup uint4*)(xs + STRIDE + column) = order_of<BITS>(rest);
                    for (uint j = 1; j < PART / 8; j *= 2) sum += simd_shuffle_xor(sum, ushort(j));
                    if (tid % (PART / 8) == 0) sums[column / PART] = sum;
                }
                threadgroup_barrier(mem_flags::mem_threadgroup);
                load_x(x, p.cols, slab + SLAB < p.cols ? slab + SLAB : 0, tid, next);
            }
            const uint until = min(steps, (slab + SLAB) / (8 * BLOCK));
            for (; step < until; ++step) {
                COPY_NEXT((stage == 0 ? STAGES : stage) - 1)
                copies_wait<STAGES - 1>();
                simdgroup_barrier(mem_flags::mem_threadgroup);
                const uint begin = (step * 8 + sg) * BLOCK - slab;
                multiply_block<BITS, GROUP>(codes + stage * CODES, pairs + stage * PAIRS, xs + begin, sums + begin / PART, bf16, lane, y);
                simdgroup_barrier(mem_flags::mem_threadgroup);
                stage = stage + 1 == STAGES ? 0 : stage + 1;
            }
        }
        UNROLL for (int j = 0; j < 2; ++j) {
            y[j] += simd_shuffle_xor(y[j], 1);
            y[j] += simd_shuffle_xor(y[j], 2);
        }
        // Those of a tile stay until all have come to the next one's barrier.
        threadgroup float* shares = partial + turn * 128;
        if (t == 0) shares[sg * 16 + r] = y[0], shares[sg * 16 + 8 + r] = y[1];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (!writes) continue;
        for (uint i = 0; i < 8; ++i) {
            value += shares[i * 16 + tid];
            if (gated) up += shares[i * 16 + 8 + tid];
        }
        out[to] = gated ? activate(p.gate, value) * up : value;
    }
}

#define MATVEC(BITS, GROUP) \
kernel void matvec_tile_q##BITS##_g##GROUP##_m1( \
    device const uint4* data [[buffer(0)]], \
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
    EARLY_LAUNCH; \
    threadgroup uint4 xs[2 * STRIDE / 8]; \
    threadgroup float sums[SLAB / 32]; \
    threadgroup uint4 codes[8 * STAGES * 64]; \
    threadgroup uint pairs[8 * STAGES * 16 * Blocks<BITS, GROUP>::PARTS]; \
    threadgroup float squares[8]; \
    threadgroup float partial[2 * 8 * 16]; \
    matvec<BITS, GROUP>(data, scales, x, gains, bias, residual, out, p, at, tid, sg, lane, (threadgroup half*)xs, sums, codes, pairs, squares, partial); \
}
MATVEC(4, 32)
MATVEC(4, 64)
MATVEC(4, 128)
MATVEC(8, 32)
MATVEC(8, 64)
MATVEC(8, 128)
