// Causal attention of query rows over a paged cache of f16, on the matrix units: for GPUs where these
// are fast.
//
// What is computed, pages, tiles, parts, spans and threads are attend.metal's, and so is the kernel that
// adds the spans. Keys and values are halves as they lie; rows of q, relative to their largest element,
// and the softmax's weights are two halves each, within 2^-21. A tile's eight columns are four rows.
// Lanes load 16 bytes at a time: the order of a sum's terms is whatever suits that, the same for any
// row and any number of rows.
//
// Grid: x tiles, y KV heads * parts (a part is ROWS of the heads when one KV head has more), z spans of
// 512 tokens. Threads: 128. Reference: softmax(q k^T) v in f64.
#include "taper/common.h"
#include "taper/tile.h"

enum { BLOCK = 32, SPAN_BLOCKS = 16 };
constant float NOTHING = -3.0e38f;

struct AttendTile {
    uint row;    // its first token in the batch
    uint count;  // tokens
    uint end;    // tokens of the sequence that the first one sees, itself included
    uint table;  // where the sequence's blocks begin in `blocks`
};

struct AttendParams {
    uint q_heads;
    uint kv_heads;
    uint head_dim;
    uint spans;
    uint window;  // 0: none
    float scale;
    float soft_cap;  // 0: none
};

INLINE uint packed(uint low, uint high) { return low | high << 16; }
INLINE uint bits_of_half(float x) { return as_type<ushort>(half(x)); }
INLINE uint rest_of_half(float x) { return bits_of_half(x - float(half(x))); }

// Over the lanes that have the same row of q.
INLINE float row_max(float x) {
    x = max(x, simd_shuffle_xor(x, 4));
    x = max(x, simd_shuffle_xor(x, 8));
    return max(x, simd_shuffle_xor(x, 16));
}
INLINE float row_sum(float x) {
    x += simd_shuffle_xor(x, 4);
    x += simd_shuffle_xor(x, 8);
    return x + simd_shuffle_xor(x, 16);
}

// Elements 16 B apart: lane 4 g + t has, of 16 tokens, elements 8 (4 j + t) .. of tokens g and g + 8, for
// each j. scores[n][2 h + upper]: of row 4 n + t with token 16 h + g + 8 upper.
template <int D, int SETS>
INLINE void score(
    device const half* keys, uint last, uint lane, thread const TileB (*q)[D / 16], thread float (*scores)[4])
{
    const uint g = lane / 4, t = lane % 4;
    UNROLL for (int h = 0; h < 2; ++h) {
        uint raw[2][D / 8];
        UNROLL for (int u = 0; u < 2; ++u) {
            const uint token = min(uint(16 * h + 8 * u) + g, last);
            UNROLL for (int j = 0; j < D / 32; ++j) {
                const uint4 v = *(device const uint4*)(keys + ((uint(4 * j) + t) * BLOCK + token) * 8);
                raw[u][4 * j] = v.x, raw[u][4 * j + 1] = v.y, raw[u][4 * j + 2] = v.z, raw[u][4 * j + 3] = v.w;
            }
        }
        TileC c[SETS];
        UNROLL for (int n = 0; n < SETS; ++n) tile_zero(c[n]);
        UNROLL for (int k = 0; k < D / 16; ++k) {
            TileA a;
            tile_of_lanes(a, lane, raw[0][2 * k], raw[1][2 * k], raw[0][2 * k + 1], raw[1][2 * k + 1]);
            UNROLL for (int n = 0; n < SETS; ++n) tile_multiply(c[n], a, q[n][k]);
        }
        UNROLL for (int n = 0; n < SETS; ++n) {
            float sum[4];
            tile_to_lanes(c[n], lane, sum);
            scores[n][2 * h] = sum[0] + sum[1], scores[n][2 * h + 1] = sum[2] + sum[3];
        }
    }
}

// acc[n][m] = acc[n][m] * fade[n] + the sum over tokens of weights and values: of row 4 n + t, element
// `element_of(m)`.
INLINE uint element_of(uint g, int m) { return (uint(m / 8) * 8 + g) * 8 + uint(m % 8); }

template <int D, int SETS>
INLINE void add_values(
    device const half* values, uint last, uint lane, threadgroup const ushort* weights,
    thread const float* fade, thread float (*acc)[D / 8])
{
    const uint g = lane / 4, t = lane % 4;
    TileB b[SETS][2];
    UNROLL for (int n = 0; n < SETS; ++n) {
        UNROLL for (int h = 0; h < 2; ++h) {
            const uint2 own = *(threadgroup const uint2*)(weights + (uint(8 * n) + g) * BLOCK + 16 * h + 4 * t);
            tile_of_lanes(b[n][h], lane, own.x, own.y);
        }
    }
    UNROLL for (int i = 0; i < D / 64; ++i) {
        uint raw[2][4][4];
        UNROLL for (int h = 0; h < 2; ++h) {
            UNROLL for (int k = 0; k < 4; ++k) {
                const uint token = min(uint(16 * h + k) + 4 * t, last);
                const uint4 v = *(device const uint4*)(values + token * D + element_of(g, 8 * i));
                raw[h][k][0] = v.x, raw[h][k][1] = v.y, raw[h][k][2] = v.z, raw[h][k][3] = v.w;
            }
        }
        UNROLL for (int m = 0; m < 4; ++m) {
            TileC c[SETS];
            UNROLL for (int n = 0; n < SETS; ++n) tile_zero(c[n]);
            UNROLL for (int h = 0; h < 2; ++h) {
                const uint w0 = raw[h][0][m], w1 = raw[h][1][m], w2 = raw[h][2][m], w3 = raw[h][3][m];
                TileA a;
                tile_of_lanes(a, lane, (w0 & 0xffffu) | w1 << 16, w0 >> 16 | (w1 & 0xffff0000u),
                    (w2 & 0xffffu) | w3 << 16, w2 >> 16 | (w3 & 0xffff0000u));
                UNROLL for (int n = 0; n < SETS; ++n) tile_multiply(c[n], a, b[n][h]);
            }
            UNROLL for (int n = 0; n < SETS; ++n) {
                float sum[4];
                tile_to_lanes(c[n], lane, sum);
                UNROLL for (int u = 0; u < 2; ++u) {
                    thread float& to = acc[n][8 * i + 2 * m + u];
                    to = fma(to, fade[n], sum[2 * u] + sum[2 * u + 1]);
                }
            }
        }
    }
}

template <int D, int SETS>
INLINE void attend(
    device const float* q, device const half* k_pages, device const half* v_pages,
    device const uint* blocks, device const AttendTile* tiles, device float* out,
    device float* sums, device float* weights, AttendParams p, uint3 at, uint tid, uint sg,
    uint lane, threadgroup float* qs, threadgroup ushort* ps, threadgroup float* merge)
{
    enum { ROWS = 4 * SETS };
    const uint g = lane / 4, t = lane % 4;
    const uint group = p.q_heads / p.kv_heads, heads = min(group, uint(ROWS));
    const uint parts = (group + ROWS - 1) / ROWS;
    const uint kv_head = at.y / parts, part = at.y % parts;
    const uint tile_row = tiles[at.x].row, count = tiles[at.x].count;
    const uint first_end = tiles[at.x].end, table = tiles[at.x].table;
    const uint rows = min(count * heads, uint(ROWS));

    // What any row of the tile sees of this span, in blocks.
    const uint last_end = first_end + count - 1;
    const uint start = p.window && first_end > p.window ? first_end - p.window : 0;
    const uint from = max(start / BLOCK, at.z * SPAN_BLOCKS);
    const uint to = min((last_end + BLOCK - 1) / BLOCK, (at.z + 1) * SPAN_BLOCKS);

    for (uint i = tid; i < ROWS * D; i += 128) {
        const uint r = i / D, head = part * ROWS + r % heads;
        const bool there = r < rows && head < group;
        const uint token = tile_row + r / heads;
        qs[i] = there ? q[(size_t(token) * p.q_heads + kv_head * group + head) * D + i % D] * p.scale : 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // Rows of q as columns: each as halves relative to its largest element, and what they leave.
    TileB columns[SETS][D / 16];
    float q_unit[SETS];
    UNROLL for (int n = 0; n < SETS; ++n) {
        threadgroup const float* set = qs + 4 * n * D;
        float largest = 0.0f;
        for (uint i = lane % 8; i < D; i += 8) largest = max(largest, abs(set[lane / 8 * D + i]));
        UNROLL for (int m = 1; m < 8; m *= 2) largest = max(largest, simd_shuffle_xor(largest, ushort(m)));
        largest = largest > 0.0f ? largest : 1.0f;
        q_unit[n] = simd_shuffle(largest, ushort(t * 8));
        // Lane 4 g + t has column g, which is row g / 2.
        const float inverse = 1.0f / simd_shuffle(largest, ushort(g / 2 * 8));
        UNROLL for (int k = 0; k < D / 16; ++k) {
            threadgroup const float* own = set + g / 2 * D + (uint(k / 2 * 4) + t) * 8 + uint(k % 2 * 4);
            uint x[4];
            UNROLL for (int i = 0; i < 4; ++i) x[i] = g % 2 ? rest_of_half(own[i] * inverse) : bits_of_half(own[i] * inverse);
            tile_of_lanes(columns[n][k], lane, packed(x[0], x[1]), packed(x[2], x[3]));
        }
    }

    float top[SETS], weight[SETS], acc[SETS][D / 8];
    UNROLL for (int n = 0; n < SETS; ++n) {
        top[n] = NOTHING, weight[n] = 0.0f;
        UNROLL for (int m = 0; m < D / 8; ++m) acc[n][m] = 0.0f;
    }
    threadgroup ushort* mine = ps + sg * 2 * ROWS * BLOCK;
    for (uint b = from + (sg + 4 - from % 4) % 4; b < to; b += 4) {
        const size_t base = (size_t(blocks[table + b]) * p.kv_heads + kv_head) * BLOCK * D;
        const uint tokens = min(uint(BLOCK), last_end - b * BLOCK), last = tokens - 1;
        float scores[SETS][4], fade[SETS];
        score<D, SETS>(k_pages + base, last, lane, columns, scores);
        UNROLL for (int n = 0; n < SETS; ++n) {
            const uint end = first_end + (uint(4 * n) + t) / heads;
            float best = NOTHING;
            bool seen[4];
            UNROLL for (int i = 0; i < 4; ++i) {
                const uint own = uint(8 * i) + g, token = b * BLOCK + own;
                seen[i] = own < tokens && token < end && (!p.window || token + p.window >= end);
                float s = scores[n][i] * q_unit[n];
                if (p.soft_cap > 0.0f) s = p.soft_cap * tanh(s / p.soft_cap);
                scores[n][i] = s;
                best = seen[i] ? max(best, s) : best;
            }
            const float next = max(top[n], row_max(best));
            fade[n] = exp(top[n] - next);
            float total = 0.0f;
            UNROLL for (int i = 0; i < 4; ++i) {
                const float e = seen[i] ? exp(scores[n][i] - next) : 0.0f;
                threadgroup ushort* own = mine + (uint(8 * n) + 2 * t) * BLOCK + uint(8 * i) + g;
                own[0] = ushort(bits_of_half(e));
                own[BLOCK] = ushort(rest_of_half(e));
                total += e;
            }
            weight[n] = fma(weight[n], fade[n], row_sum(total));
            top[n] = next;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        add_values<D, SETS>(v_pages + base, last, lane, mine, fade, acc);
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }

    // The simdgroups' shares, one after the other, through the memory of q.
    for (uint s = 1; s < 4; ++s) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (sg == s) {
            UNROLL for (int n = 0; n < SETS; ++n) {
                const uint r = uint(4 * n) + t;
                if (g == 0) merge[2 * r] = top[n], merge[2 * r + 1] = weight[n];
                UNROLL for (int m = 0; m < D / 8; ++m) qs[r * D + element_of(g, m)] = acc[n][m];
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (sg == 0) {
            UNROLL for (int n = 0; n < SETS; ++n) {
                const uint r = uint(4 * n) + t;
                const float next = max(top[n], merge[2 * r]);
                const float ours = exp(top[n] - next), its = exp(merge[2 * r] - next);
                weight[n] = weight[n] * ours + merge[2 * r + 1] * its;
                top[n] = next;
                UNROLL for (int m = 0; m < D / 8; ++m) acc[n][m] = acc[n][m] * ours + qs[r * D + element_of(g, m)] * its;
            }
        }
    }
    if (sg != 0) return;
    UNROLL for (int n = 0; n < SETS; ++n) {
        const uint r = uint(4 * n) + t, head = part * ROWS + r % heads;
        if (r >= rows || head >= group) continue;
        const size_t row = size_t(tile_row + r / heads) * p.q_heads + kv_head * group + head;
        if (p.spans == 1) {
            const float inverse = 1.0f / weight[n];
            UNROLL for (int m = 0; m < D / 8; ++m) out[row * D + element_of(g, m)] = acc[n][m] * inverse;
            continue;
        }
        const size_t to_span = row * p.spans + at.z;
        if (g == 0) weights[to_span * 2] = top[n], weights[to_span * 2 + 1] = weight[n];
        if (weight[n] == 0.0f) continue;
        UNROLL for (int m = 0; m < D / 8; ++m) sums[to_span * D + element_of(g, m)] = acc[n][m];
    }
}

#define ATTEND(D, SETS, ROWS) \
kernel void attend_tile_d##D##_r##ROWS( \
    device const float* q [[buffer(0)]], \
    device const half* k_pages [[buffer(1)]], \
    device const half* v_pages [[buffer(2)]], \
    device const uint* blocks [[buffer(3)]], \
    device const AttendTile* tiles [[buffer(4)]], \
    device float* out [[buffer(5)]], \
    device float* sums [[buffer(6)]], \
    device float* weights [[buffer(7)]], \
    constant AttendParams& p [[buffer(8)]], \
    uint3 at [[threadgroup_position_in_grid]], \
    uint tid [[thread_index_in_threadgroup]], \
    uint sg [[simdgroup_index_in_threadgroup]], \
    uint lane [[thread_index_in_simdgroup]]) \
{ \
    threadgroup float qs[ROWS * D]; \
    threadgroup uint2 ps[2 * ROWS * BLOCK]; \
    threadgroup float merge[2 * ROWS]; \
    attend<D, SETS>(q, k_pages, v_pages, blocks, tiles, out, sums, weights, p, at, tid, sg, lane, qs, (threadgroup ushort*)ps, merge); \
}
ATTEND(64, 1, 4)
ATTEND(64, 2, 8)
ATTEND(128, 1, 4)
ATTEND(128, 2, 8)
ATTEND(256, 1, 4)
ATTEND(256, 2, 8)
