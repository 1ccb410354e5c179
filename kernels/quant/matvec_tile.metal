// Products of one to four rows of activations with quantized weights on the matrix units: decoding
// where these are fast.
//
// What is computed, and how outputs stand, is matvec.metal's. Codes become halves exactly, and an
// activation two halves whose sum is it within 2^-21; a tile's columns are the halves of four tokens,
// so that products are as good as in floats. Of each group of weights the tile gives sum(code * x);
// scale and bias follow in floats.
//
// Grid: x over 16 rows (with a gate: 8 of each matrix), y over M tokens. Threads: 256. A simdgroup
// takes every eighth group of the rows; four lanes share a row. x goes through threadgroup memory,
// normed, in slabs. A row's order of additions depends on nothing but its length and group.
// Reference: as matvec's.
#include "taper/common.h"
#include "taper/activation.h"
#include "taper/tile.h"

enum { MATVEC_NORM = 1, MATVEC_BIAS = 2, MATVEC_RESIDUAL = 4, THREADS = 256 };
// Columns of x in threadgroup memory at a time, and halves from one tile column to the next.
enum { SLAB_OF_1 = 2048, SLAB_OF_4 = 1024, PADDING = 8 };

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

// Codes of a word as pairs of halves, in the order that `order_of` gives x: 1024 + c has c in its
// lowest bits.
INLINE uint shifted(uint bits) { return as_type<uint>(as_type<half2>(bits | 0x64006400u) - half2(1024.0f)); }
INLINE uint scaled(uint bits) { return as_type<uint>(as_type<half2>(bits | 0x64006400u) * half2(0.0625f) - half2(64.0f)); }
template <int BITS> INLINE void pairs_of(uint word, thread uint* out) {
    if (BITS == 4) {
        out[0] = shifted(word & 0x000f000fu), out[1] = scaled(word & 0x00f000f0u);
        word >>= 8;
        out[2] = shifted(word & 0x000f000fu), out[3] = scaled(word & 0x00f000f0u);
    } else {
        out[0] = shifted(word & 0x00ff00ffu), out[1] = shifted(word >> 8 & 0x00ff00ffu);
    }
}

// Eight consecutive activations as words of two halves: those that meet in a tile stand together.
template <int BITS> INLINE uint4 order_of(thread const float* x) {
    uint4 out;
    if (BITS == 4) {
        out.x = halves(x[0], x[4]), out.y = halves(x[1], x[5]), out.z = halves(x[2], x[6]), out.w = halves(x[3], x[7]);
    } else {
        out.x = halves(x[0], x[2]), out.y = halves(x[1], x[3]), out.z = halves(x[4], x[6]), out.w = halves(x[5], x[7]);
    }
    return out;
}

INLINE float scale_half(uint bits, bool bf16) {
    return bf16 ? as_type<float>(bits << 16) : float(as_type<half>(ushort(bits)));
}

template <int BITS, int GROUP, int M>
INLINE void matvec(
    device const uint* data, device const uint* scales, device const float* x,
    device const float* gains, device const float* bias, device const float* residual,
    device float* out, MatvecParams p, uint2 at, uint tid, uint sg, uint lane,
    threadgroup half* xs, threadgroup float* sums, threadgroup float* partial)
{
    enum {
        SLAB = M == 1 ? SLAB_OF_1 : SLAB_OF_4,
        STRIDE = SLAB + PADDING,
        WORDS = GROUP * BITS / 128,        // of a group, a lane
        UNITS = SLAB / GROUP / 8,          // groups of a slab, a simdgroup
        PAIRS = BITS == 4 ? 4 : 2
    };
    const uint groups = p.cols / GROUP;
    const bool gated = p.gate != 0, bf16 = p.scale_type == 2;
    const uint half_rows = p.rows / 2, limit = gated ? half_rows : p.rows;
    const uint first = at.x * uint(gated ? 8 : 16), r = lane / 4, t = lane % 4;
    const uint low = min(first + r, limit - 1);
    const uint high = gated ? low + half_rows : min(first + r + 8, limit - 1);
    const uint token0 = at.y * M;

    uint raw[UNITS][2][WORDS], affine[UNITS][2];
    float y[2] = {0.0f, 0.0f};
    float inverse[M];
    for (uint slab = 0; slab < p.cols; slab += SLAB) {
        // The weights are under way while x is made ready.
        UNROLL for (int u = 0; u < UNITS; ++u) {
            const uint group = min(slab / GROUP + sg + uint(u) * 8, groups - 1);
            UNROLL for (int i = 0; i < 2; ++i) {
                const uint row = i ? high : low;
                device const uint* from = data + (size_t(row) * groups + group) * (4 * WORDS) + t * WORDS;
                if (WORDS == 4) {
                    const uint4 v = *(device const uint4*)from;
                    raw[u][i][0] = v.x, raw[u][i][WORDS > 1 ? 1 : 0] = v.y, raw[u][i][WORDS > 2 ? 2 : 0] = v.z, raw[u][i][WORDS > 3 ? 3 : 0] = v.w;
                } else if (WORDS == 2) {
                    const uint2 v = *(device const uint2*)from;
                    raw[u][i][0] = v.x, raw[u][i][WORDS > 1 ? 1 : 0] = v.y;
                } else {
                    UNROLL for (int w = 0; w < WORDS; ++w) raw[u][i][w] = from[w];
                }
                affine[u][i] = scales[row * groups + group];
            }
        }
        if (slab == 0 && p.flags & MATVEC_NORM) {
            UNROLL for (int m = 0; m < M; ++m) {
                device const float* from = x + size_t(min(token0 + uint(m), p.tokens - 1)) * p.cols;
                float squares = 0.0f;
                UNROLL_BY(4) for (uint i = tid * 4; i < p.cols; i += THREADS * 4) {
                    const float4 v = *(device const float4*)(from + i);
                    squares = fma(v.x, v.x, squares), squares = fma(v.y, v.y, squares);
                    squares = fma(v.z, v.z, squares), squares = fma(v.w, v.w, squares);
                }
                squares = simd_sum(squares);
                if (lane == 0) partial[sg * M + uint(m)] = squares;
            }
            threadgroup_barrier(mem_flags::mem_threadgroup);
            UNROLL for (int m = 0; m < M; ++m) {
                float total = 0.0f;
                for (uint i = 0; i < 8; ++i) total += partial[i * M + uint(m)];
                inverse[m] = rsqrt(total / float(p.cols) + p.eps);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        UNROLL for (int m = 0; m < M; ++m) {
            const uint column = slab + tid * 8;
            const bool there = column < p.cols;
            device const float* from = x + size_t(min(token0 + uint(m), p.tokens - 1)) * p.cols + (there ? column : 0);
            const float4 a = *(device const float4*)from, b = *(device const float4*)(from + 4);
            float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, rest[8];
            if (p.flags & MATVEC_NORM) {
                device const float* gain = gains + (there ? column : 0);
                UNROLL for (int i = 0; i < 8; ++i) v[i] *= inverse[m] * gain[i];
            }
            float sum = 0.0f;
            UNROLL for (int i = 0; i < 8; ++i) {
                v[i] = there ? v[i] : 0.0f;
                sum += v[i];
                rest[i] = clamped(v[i] - float(half(clamped(v[i]))));
                v[i] = clamped(v[i]);
            }
            if (tid < SLAB / 8) {
                *(threadgroup uint4*)(xs + (2 * m) * STRIDE + tid * 8) = order_of<BITS>(v);
                *(threadgroup uint4*)(xs + (2 * m + 1) * STRIDE + tid * 8) = order_of<BITS>(rest);
            }
            for (uint i = 1; i < GROUP / 8; i *= 2) sum += simd_shuffle_xor(sum, ushort(i));
            if (tid < SLAB / 8 && tid % (GROUP / 8) == 0) sums[uint(m) * (SLAB / 32) + tid / (GROUP / 8)] = sum;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        UNROLL for (int u = 0; u < UNITS; ++u) {
            const uint own = sg + uint(u) * 8;
            if (slab / GROUP + own < groups) {
                TileC c;
                tile_zero(c);
                UNROLL for (int w = 0; w < WORDS; ++w) {
                    uint a[2][PAIRS], b[PAIRS];
                    pairs_of<BITS>(raw[u][0][w], a[0]);
                    pairs_of<BITS>(raw[u][1][w], a[1]);
                    UNROLL for (int i = 0; i < PAIRS; ++i) b[i] = 0;
                    if (r < 2 * M) {
                        threadgroup const half* from = xs + r * STRIDE + own * GROUP + (t * WORDS + uint(w)) * (32 / BITS);
                        UNROLL for (int i = 0; i < PAIRS; i += 2) {
                            const uint2 two = *(threadgroup const uint2*)(from + 2 * i);
                            b[i] = two.x, b[i + 1] = two.y;
                        }
                    }
                    UNROLL for (int i = 0; i < PAIRS; i += 2) {
                        TileA ta;
                        TileB tb;
                        tile_of_lanes(ta, lane, a[0][i], a[1][i], a[0][i + 1], a[1][i + 1]);
                        tile_of_lanes(tb, lane, b[i], b[i + 1]);
                        tile_multiply(c, ta, tb);
                    }
                }
                float sum[4];
                tile_to_lanes(c, lane, sum);
                const float whole = sums[min(t, uint(M - 1)) * (SLAB / 32) + own];
                UNROLL for (int i = 0; i < 2; ++i) {
                    const float s = scale_half(affine[u][i], bf16), b = scale_half(affine[u][i] >> 16, bf16);
                    y[i] += fma(s, sum[2 * i] + sum[2 * i + 1], b * whole);
                }
            }
        }
    }
    // Lane 4 r + t has rows r and r + 8 of token t.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (t < M) {
        partial[(sg * 16 + r) * M + t] = y[0];
        partial[(sg * 16 + r + 8) * M + t] = y[1];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint outputs = gated ? 8 : 16;
    if (tid >= outputs * M) return;
    const uint m = tid / outputs, row = tid % outputs, n = first + row, token = token0 + m;
    if (token >= p.tokens || n >= limit) return;
    float value = 0.0f, up = 0.0f;
    for (uint i = 0; i < 8; ++i) {
        value += partial[(i * 16 + row) * M + m];
        if (gated) up += partial[(i * 16 + row + 8) * M + m];
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

#define MATVEC(BITS, GROUP, M) \
kernel void matvec_tile_q##BITS##_g##GROUP##_m##M( \
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
    threadgroup uint4 xs[2 * M * ((M == 1 ? SLAB_OF_1 : SLAB_OF_4) + PADDING) / 8]; \
    threadgroup float sums[M * (M == 1 ? SLAB_OF_1 : SLAB_OF_4) / 32]; \
    threadgroup float partial[8 * 16 * M]; \
    matvec<BITS, GROUP, M>(data, scales, x, gains, bias, residual, out, p, at, tid, sg, lane, (threadgroup half*)xs, sums, partial); \
}
#define MATVECS(BITS, GROUP) MATVEC(BITS, GROUP, 1) MATVEC(BITS, GROUP, 4)
MATVECS(4, 32)
MATVECS(4, 64)
MATVECS(4, 128)
MATVECS(8, 32)
MATVECS(8, 64)
MATVECS(8, 128)
