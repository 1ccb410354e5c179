// Products of one row of activations with quantized weights on the matrix units: decoding where these
// are fast.
//
// What is computed, and how outputs stand, is matvec.metal's. A code's bits are a half, the code times
// 2^-24, without any work: halves below the normal ones are exact on the matrix units. An activation is
// two halves whose sum is it within 2^-21, in two of a tile's columns, so that products are as good as in
// floats. Of each group of weights the tile gives sum(code * x); scale and bias follow in floats.
//
// Grid: x over 16 TILES rows (with a gate: half as many of each matrix), y over tokens. Threads: 256.
// A simdgroup takes every eighth group of the rows; four lanes share a row. x goes through threadgroup
// memory, normed, in slabs. Weights of STAGES slabs are under way at a time, the first ones before the
// launch before this one is done. A row's order of additions depends on nothing but its length and
// group.
// Reference: as matvec's.
#include "taper/common.h"
#include "taper/activation.h"
#include "taper/tile.h"

enum { MATVEC_NORM = 1, MATVEC_BIAS = 2, MATVEC_RESIDUAL = 4, THREADS = 256 };
// Columns of x in threadgroup memory at a time, and halves from one tile column to the next.
enum { SLAB = 2048, STRIDE = SLAB + 8 };

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

INLINE uint halves(float a, float b) { return uint(as_type<ushort>(half(a))) | uint(as_type<ushort>(half(b))) << 16; }
INLINE float clamped(float x) { return min(max(x, -65504.0f), 65504.0f); }

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

// A lane's words of one slab: of UNITS groups from `group` on, every eighth, of ROWS rows.
template <int BITS, int GROUP, int ROWS, int UNITS>
INLINE void load_slab(
    device const uint* data, device const uint* scales, thread const uint* row, uint groups, uint group,
    uint t, thread uint* raw, thread uint* affine)
{
    enum { WORDS = GROUP * BITS / 128 };
    UNROLL for (int u = 0; u < UNITS; ++u) {
        const uint own = min(group + uint(u) * 8, groups - 1);
        UNROLL for (int i = 0; i < ROWS; ++i) {
            thread uint* to = raw + (u * ROWS + i) * WORDS;
            device const uint* from = data + (size_t(row[i]) * groups + own) * (4 * WORDS) + t * WORDS;
            if (WORDS == 4) {
                const uint4 v = *(device const uint4*)from;
                to[0] = v.x, to[WORDS > 1 ? 1 : 0] = v.y, to[WORDS > 2 ? 2 : 0] = v.z, to[WORDS > 3 ? 3 : 0] = v.w;
            } else if (WORDS == 2) {
                const uint2 v = *(device const uint2*)from;
                to[0] = v.x, to[WORDS > 1 ? 1 : 0] = v.y;
            } else {
                UNROLL for (int w = 0; w < WORDS; ++w) to[w] = from[w];
            }
            affine[u * ROWS + i] = scales[row[i] * groups + own];
        }
    }
}

// Eight activations; any, past the row's end.
INLINE void load_x(device const float* x, MatvecParams p, uint column, thread float4* out) {
    device const float* from = x + (column < p.cols ? column : 0);
    out[0] = *(device const float4*)from, out[1] = *(device const float4*)(from + 4);
}

template <int BITS, int GROUP, int TILES>
INLINE void matvec(
    device const uint* data, device const uint* scales, device const float* x,
    device const float* gains, device const float* bias, device const float* residual,
    device float* out, MatvecParams p, uint2 at, uint tid, uint sg, uint lane,
    threadgroup half* xs, threadgroup float* sums, threadgroup float* partial)
{
    enum {
        WORDS = GROUP * BITS / 128,        // of a group, a lane
        UNITS = SLAB / GROUP / 8,          // groups of a slab, a simdgroup
        STAGES = BITS == 4 && TILES == 1 ? 2 : 1,
        ROWS = 2 * TILES,                  // of a lane
        OUTPUTS = 16 * TILES
    };
    const uint groups = p.cols / GROUP;
    const bool gated = p.gate != 0, bf16 = p.scale_type == 2;
    const uint half_rows = p.rows / 2, limit = gated ? half_rows : p.rows;
    const uint outputs = gated ? OUTPUTS / 2 : OUTPUTS;
    const uint first = at.x * outputs, r = lane / 4, t = lane % 4, token = at.y;
    x += size_t(token) * p.cols;
    uint row[ROWS];
    UNROLL for (int i = 0; i < ROWS; ++i) {
        row[i] = min(first + r + 8 * uint(gated ? i / 2 : i), limit - 1) + (gated && i % 2 ? half_rows : 0u);
    }

    uint raw[STAGES][UNITS * ROWS * WORDS], affine[STAGES][UNITS * ROWS];
    float y[ROWS], inverse = 1.0f;
    UNROLL for (int i = 0; i < ROWS; ++i) y[i] = 0.0f;
    UNROLL for (int s = 0; s < STAGES; ++s) {
        if (uint(s) * SLAB < p.cols) {
            load_slab<BITS, GROUP, ROWS, UNITS>(data, scales, row, groups, uint(s) * (SLAB / GROUP) + sg, t, raw[s], affine[s]);
        }
    }
    previous_launch_done();
    float4 next[2];
    load_x(x, p, tid * 8, next);
    if (p.flags & MATVEC_NORM) {
        float squares = 0.0f;
        UNROLL_BY(4) for (uint i = tid * 4; i < p.cols; i += THREADS * 4) {
            const float4 v = *(device const float4*)(x + i);
            squares = fma(v.x, v.x, squares), squares = fma(v.y, v.y, squares);
            squares = fma(v.z, v.z, squares), squares = fma(v.w, v.w, squares);
        }
        squares = simd_sum(squares);
        if (lane == 0) partial[sg] = squares;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float total = 0.0f;
        for (uint i = 0; i < 8; ++i) total += partial[i];
        inverse = rsqrt(total / float(p.cols) + p.eps);
    }
    for (uint begin = 0; begin < p.cols; begin += STAGES * SLAB) {
        UNROLL for (int s = 0; s < STAGES; ++s) {
            const uint slab = begin + uint(s) * SLAB;
            if (slab >= p.cols) continue;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            const bool there = slab + tid * 8 < p.cols;
            const float4 low = next[0], high = next[1];
            float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, rest[8];
            if (p.flags & MATVEC_NORM) {
                device const float* from = gains + (there ? slab + tid * 8 : 0);
                const float4 g = *(device const float4*)from, h = *(device const float4*)(from + 4);
                const float gain[8] = {g.x, g.y, g.z, g.w, h.x, h.y, h.z, h.w};
                UNROLL for (int i = 0; i < 8; ++i) v[i] *= inverse * gain[i];
            }
            float sum = 0.0f;
            UNROLL for (int i = 0; i < 8; ++i) {
                v[i] = there ? v[i] : 0.0f;
                sum += v[i];
                rest[i] = clamped(v[i] - float(half(clamped(v[i]))));
                v[i] = clamped(v[i]);
            }
            *(threadgroup uint4*)(xs + tid * 8) = order_of<BITS>(v);
            *(threadgroup uint4*)(xs + STRIDE + tid * 8) = order_of<BITS>(rest);
            for (uint i = 1; i < GROUP / 8; i *= 2) sum += simd_shuffle_xor(sum, ushort(i));
            if (tid % (GROUP / 8) == 0) sums[tid / (GROUP / 8)] = sum;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            load_x(x, p, slab + SLAB + tid * 8, next);
            // Of groups past the row's end x is nothing but zeros.
            UNROLL for (int u = 0; u < UNITS; ++u) {
                const uint own = sg + uint(u) * 8;
                TileC c[TILES][2];
                UNROLL for (int i = 0; i < TILES; ++i) tile_zero(c[i][0]), tile_zero(c[i][1]);
                UNROLL for (int w = 0; w < WORDS; ++w) {
                    // Of 8 codes of 4 bits: what meets the first and the last two pairs of words.
                    uint b[4] = {0, 0, 0, 0};
                    if (r < 2) {
                        threadgroup const half* from = xs + r * STRIDE + own * GROUP + (t * WORDS + uint(w)) * (32 / BITS);
                        UNROLL for (int i = 0; i < (BITS == 4 ? 4 : 2); i += 2) {
                            const uint2 two = *(threadgroup const uint2*)(from + 2 * i);
                            b[i] = two.x, b[i + 1] = two.y;
                        }
                    }
                    TileB tb[2];
                    tile_of_lanes(tb[0], lane, b[0], b[1]);
                    if (BITS == 4) tile_of_lanes(tb[1], lane, b[2], b[3]);
                    UNROLL for (int i = 0; i < TILES; ++i) {
                        uint low[4], high[4];
                        pairs_of<BITS>(raw[s][(u * ROWS + 2 * i) * WORDS + w], low);
                        pairs_of<BITS>(raw[s][(u * ROWS + 2 * i + 1) * WORDS + w], high);
                        TileA ta;
                        tile_of_lanes(ta, lane, low[0], high[0], low[1], high[1]);
                        tile_multiply(c[i][0], ta, tb[0]);
                        if (BITS == 4) {
                            tile_of_lanes(ta, lane, low[2], high[2], low[3], high[3]);
                            tile_multiply(c[i][1], ta, tb[1]);
                        }
                    }
                }
                const float whole = sums[own];
                UNROLL for (int i = 0; i < TILES; ++i) {
                    float sum[4], more[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                    tile_to_lanes(c[i][0], lane, sum);
                    if (BITS == 4) tile_to_lanes(c[i][1], lane, more);
                    UNROLL for (int j = 0; j < 2; ++j) {
                        const uint pair = affine[s][u * ROWS + 2 * i + j];
                        const float scale = scale_half(pair, bf16), bias_of = scale_half(pair >> 16, bf16);
                        const float dot = fma(more[2 * j] + more[2 * j + 1], 1048576.0f, (sum[2 * j] + sum[2 * j + 1]) * 16777216.0f);
                        y[2 * i + j] += fma(scale, dot, bias_of * whole);
                    }
                }
            }
            if (slab + STAGES * SLAB < p.cols) {
                load_slab<BITS, GROUP, ROWS, UNITS>(data, scales, row, groups, (slab + STAGES * SLAB) / GROUP + sg, t, raw[s], affine[s]);
            }
        }
    }
    // Lane 4 r has rows r, r + 8 ....
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (t == 0) {
        UNROLL for (int i = 0; i < ROWS; ++i) partial[sg * OUTPUTS + uint(i) * 8 + r] = y[i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // With a gate, eight rows of one matrix are followed by those of the other.
    const uint n = first + tid, from = gated ? tid / 8 * 16 + tid % 8 : tid;
    if (tid >= outputs || n >= limit) return;
    float value = 0.0f, up = 0.0f;
    for (uint i = 0; i < 8; ++i) {
        value += partial[i * OUTPUTS + from];
        if (gated) up += partial[i * OUTPUTS + from + 8];
    }
    if (p.flags & MATVEC_BIAS) {
        value += bias[n];
        if (gated) up += bias[n + half_rows];
    }
    if (gated) {
        out[size_t(token) * half_rows + n] = activate(p.gate, value) * up;
        return;
    }
    const uint start = n < p.end0 ? 0u : n < p.end1 ? p.end0 : p.end1;
    const uint end = n < p.end0 ? p.end0 : n < p.end1 ? p.end1 : p.rows;
    const size_t to = size_t(p.tokens) * start + size_t(token) * (end - start) + (n - start);
    if (p.flags & MATVEC_RESIDUAL) value += residual[to];
    out[to] = value;
}

#define MATVEC(BITS, GROUP, TILES, NAME) \
kernel void matvec_tile_q##BITS##_g##GROUP##_##NAME( \
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
    EARLY_LAUNCH; \
    threadgroup uint4 xs[2 * STRIDE / 8]; \
    threadgroup float sums[SLAB / 32]; \
    threadgroup float partial[8 * 16 * TILES]; \
    matvec<BITS, GROUP, TILES>(data, scales, x, gains, bias, residual, out, p, at, tid, sg, lane, (threadgroup half*)xs, sums, partial); \
}
MATVEC(4, 32, 1, m1)
MATVEC(4, 64, 1, m1)
MATVEC(4, 128, 1, m1)
MATVEC(8, 32, 1, m1)
MATVEC(8, 64, 1, m1)
MATVEC(8, 128, 1, m1)
// For matrices of many rows: x is made ready half as often.
MATVEC(4, 32, 2, m1_wide)
MATVEC(4, 64, 2, m1_wide)
MATVEC(4, 128, 2, m1_wide)
