// Causal attention of query rows over a paged cache of f16, on the matrix units: for GPUs where these
// are fast.
//
// What is computed, pages, tiles, parts and spans are attend.metal's, and so is the kernel that adds the
// spans. Keys and values are halves as they lie; rows of q, relative to their largest element, and the
// softmax's weights are two halves each, within 2^-21. A tile's eight columns are four rows. Lanes load 16
// bytes at a time: the order of a sum's terms is whatever suits that, the same for any row and any number
// of rows.
//
// attend_tile_*: of rows of q as they are.
// attend_new_*: of rows as the projections give them, where each sequence has one token and a tile all heads
//   of a KV head: normed and rotated as norm_rope does, whose pairs are all of a head; the token's key and
//   value are written into its slot as kv_write does, by the threadgroup of its span, which alone reads it.
//   Where the product that reads the result takes it as halves, it is stored as these alone.
//
// attend_new_*_many: the same with fewer registers, for more threadgroups of one span than a large GPU has room for.
//
// Grid: x tiles, y KV heads * parts (a part is ROWS of the heads when one KV head has more), z spans of
// 512 tokens. Threads: 128; each simdgroup walks over every fourth block of the span with a running softmax,
// and then each thread adds what the four have for its elements. What lies in memory for sure, because the
// host put it there, is read before the launch before this one is done, and keys and values are asked for.
// Reference: softmax(q k^T) v in f64.
#include "taper/common.h"
#include "taper/copies.h"
#include "taper/prepared.h"
#include "taper/rows.h"
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
    uint few;        // threadgroups, so that keys and values are better asked for early
    float q_eps;     // of attend_new; negative: no norm
    float k_eps;
    uint bits;       // of the weights whose product takes attend_new's result as halves; 0: as floats
    uint flags;      // PREPARE_WIDE, of their order
    uint value_dim;  // of attend.metal
    uint last;       // one span, whose sum is the result
    uint sinks;      // whether there are any; of attend_prompt.metal
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

//
// SOME: of rows that are `own` alone, and of their tokens `seen`. Other values may be anything, and
// zero times what is not a number is none.
template <int D, int SETS, bool SOME>
INLINE void add_values(
    device const half* values, uint last, uint lane, threadgroup const ushort* weights,
    thread const float* fade, uint2 seen, thread const bool* own_row, thread float (*acc)[D / 8])
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
                uint4 v = *(device const uint4*)(values + token * D + element_of(g, 8 * i));
                if (SOME && (token < seen.x || token >= seen.y)) v.x = 0, v.y = 0, v.z = 0, v.w = 0;
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
                    const float with = fma(to, fade[n], sum[2 * u] + sum[2 * u + 1]);
                    to = !SOME || own_row[n] ? with : to;
                }
            }
        }
    }
}

// Whether some value of a block's first tokens is not finite.
template <int D> INLINE bool any_broken(device const half* values, uint tokens, uint lane) {
    float broken = 0.0f;
    for (uint i = lane; i < tokens * D / 8; i += 32) {
        const uint4 v = *(device const uint4*)(values + 8 * i);
        const uint words[4] = {v.x, v.y, v.z, v.w};
        UNROLL for (int w = 0; w < 4; ++w) {
            const bool low = (words[w] & 0x7c00u) == 0x7c00u, high = (words[w] & 0x7c000000u) == 0x7c000000u;
            broken = low || high ? 1.0f : broken;
        }
    }
    return simd_max(broken) > 0.0f;
}

// Where the rows of q come from, and of new keys and values.
struct Projected {
    device const float* q;
    device const float* k;
    device const float* v;
    device const float* q_gains;
    device const float* k_gains;
    device const float* cosines;
    device const float* sines;
};

// Asks for a block's keys and values, of so many tokens.
template <int D> INLINE void ask_for(device const half* keys, device const half* values, uint tokens, uint lane) {
    for (uint i = lane; i < D / 2; i += 32) prefetch_line(keys + i * 64);
    for (uint i = lane; i < tokens * D / 64; i += 32) prefetch_line(values + i * 64);
}

// A lane's elements of a row, every 32nd.
template <int D> INLINE void load_row(device const float* from, uint lane, thread float* x) {
    UNROLL for (int j = 0; j < D / 32; ++j) x[j] = from[lane + 32 * j];
}

// The same normed, unless eps is negative, and turned by the token's angles.
template <int D> INLINE void norm_and_turn(thread const float* gains, float eps, thread const float2* angles, thread float* x) {
    const bool norm = eps >= 0.0f;
    float squares = 0.0f;
    UNROLL for (int j = 0; j < D / 32; ++j) {
        squares = fma(x[j], x[j], squares);
        x[j] = norm ? x[j] * gains[j] : x[j];
    }
    const float inverse = norm ? rsqrt(simd_sum(squares) / float(D) + eps) : 1.0f;
    UNROLL for (int j = 0; j < D / 64; ++j) {
        const float2 turned = turn(x[j] * inverse, x[j + D / 64] * inverse, angles[j].x, angles[j].y);
        x[j] = turned.x, x[j + D / 64] = turned.y;
    }
}

template <int D, int SETS, bool NEW>
INLINE void attend(
    Projected from_rows, device half* k_pages, device half* v_pages, device const uint* blocks,
    device const AttendTile* tiles, device float* out, device ushort* prepared, device float* sums,
    device float* weights, AttendParams p, uint3 at, uint tid, uint sg, uint lane, threadgroup float* shares,
    threadgroup ushort* ps, threadgroup float* merge)
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
    // The simdgroup's first block, and a lane each the numbers of all of its blocks.
    const uint own = from + (sg + 4 - from % 4) % 4;
    const uint number = own + 4 * lane < to ? blocks[table + own + 4 * lane] : 0;
    const size_t head_elements = BLOCK * D, block_elements = p.kv_heads * head_elements;
    const size_t head_at = kv_head * head_elements;
    for (uint b = own; p.few && b < to; b += 4) {
        const size_t base = simd_shuffle(number, ushort((b - own) / 4)) * block_elements + head_at;
        ask_for<D>(k_pages + base, v_pages + base, min(uint(BLOCK), last_end - b * BLOCK), lane);
    }
    // Of the new token's row the simdgroup's gains and angles.
    float gains[D / 32] = {}, key_gains[D / 32] = {};
    float2 angles[D / 64];
    if (NEW) {
        if (p.q_eps >= 0.0f) load_row<D>(from_rows.q_gains, lane, gains);
        if (p.k_eps >= 0.0f) load_row<D>(from_rows.k_gains, lane, key_gains);
        UNROLL for (int j = 0; j < D / 64; ++j) {
            const uint angle = tile_row * (D / 2) + lane + 32 * uint(j);
            angles[j].x = from_rows.cosines[angle], angles[j].y = from_rows.sines[angle];
        }
    }
    previous_launch_done();

    // Rows of q as halves relative to their largest element, and what these leave.
    threadgroup ushort* qs = (threadgroup ushort*)shares;
    for (uint r = sg; r < ROWS; r += 4) {
        const uint head = kv_head * group + part * ROWS + r % heads, token = tile_row + r / heads;
        float x[D / 32];
        UNROLL for (int j = 0; j < D / 32; ++j) x[j] = 0.0f;
        if (r < rows && part * ROWS + r % heads < group) {
            load_row<D>(from_rows.q + (size_t(token) * p.q_heads + head) * D, lane, x);
            if (NEW) norm_and_turn<D>(gains, p.q_eps, angles, x);
        }
        float largest = 0.0f;
        UNROLL for (int j = 0; j < D / 32; ++j) x[j] *= p.scale, largest = max(largest, abs(x[j]));
        largest = simd_max(largest);
        largest = largest > 0.0f ? largest : 1.0f;
        if (lane == 0) merge[r] = largest;
        const float inverse = 1.0f / largest;
        UNROLL for (int j = 0; j < D / 32; ++j) {
            qs[2 * r * D + lane + 32 * j] = ushort(bits_of_half(x[j] * inverse));
            qs[(2 * r + 1) * D + lane + 32 * j] = ushort(rest_of_half(x[j] * inverse));
        }
    }
    // The new token's key and value, where they belong.
    const uint newest = last_end - 1;
    if (NEW && sg > 1 && newest / BLOCK / SPAN_BLOCKS == at.z) {
        const bool value = sg == 3;
        const uint token = newest % BLOCK;
        const size_t base = blocks[table + newest / BLOCK] * block_elements + head_at;
        float x[D / 32];
        load_row<D>((value ? from_rows.v : from_rows.k) + (size_t(tile_row) * p.kv_heads + kv_head) * D, lane, x);
        if (!value) norm_and_turn<D>(key_gains, p.k_eps, angles, x);
        UNROLL for (int j = 0; j < D / 32; ++j) {
            const uint d = lane + 32 * uint(j);
            if (value) v_pages[base + token * D + d] = half(clamped(x[j]));
            else k_pages[base + (d / 8 * BLOCK + token) * 8 + d % 8] = half(clamped(x[j]));
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);

    // Lane 4 g + t has column g, which is row g / 2.
    TileB columns[SETS][D / 16];
    float q_unit[SETS];
    UNROLL for (int n = 0; n < SETS; ++n) {
        q_unit[n] = merge[4 * n + t];
        UNROLL for (int k = 0; k < D / 16; k += 2) {
            const uint4 x = *(threadgroup const uint4*)(qs + (uint(8 * n) + g) * D + (uint(k * 2) + t) * 8);
            tile_of_lanes(columns[n][k], lane, x.x, x.y);
            tile_of_lanes(columns[n][k + 1], lane, x.z, x.w);
        }
    }

    float top[SETS], weight[SETS], acc[SETS][D / 8];
    UNROLL for (int n = 0; n < SETS; ++n) {
        top[n] = NOTHING, weight[n] = 0.0f;
        UNROLL for (int m = 0; m < D / 8; ++m) acc[n][m] = 0.0f;
    }
    threadgroup ushort* mine = ps + sg * 2 * ROWS * BLOCK;
    for (uint b = own; b < to; b += 4) {
        const size_t base = simd_shuffle(number, ushort((b - own) / 4)) * block_elements + head_at;
        const uint tokens = min(uint(BLOCK), last_end - b * BLOCK), last = tokens - 1;
        float scores[SETS][4], fade[SETS];
        score<D, SETS>(k_pages + base, last, lane, columns, scores);
        UNROLL for (int n = 0; n < SETS; ++n) {
            const uint end = first_end + (uint(4 * n) + t) / heads;
            float best = NOTHING;
            bool seen[4];
            UNROLL for (int i = 0; i < 4; ++i) {
                const uint there = uint(8 * i) + g, token = b * BLOCK + there;
                seen[i] = there < tokens && token < end && (!p.window || token + p.window >= end);
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
                threadgroup ushort* place = mine + (uint(8 * n) + 2 * t) * BLOCK + uint(8 * i) + g;
                place[0] = ushort(bits_of_half(e));
                place[BLOCK] = ushort(rest_of_half(e));
                total += e;
            }
            weight[n] = fma(weight[n], fade[n], row_sum(total));
            top[n] = next;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        // The first row does not see the last token, or the last row not the first one.
        const bool some = first_end < b * BLOCK + tokens || (p.window && b * BLOCK + p.window < last_end);
        if (some && any_broken<D>(v_pages + base, tokens, lane)) {
            for (uint own_token = 0; own_token < count; ++own_token) {
                const uint end = first_end + own_token, block = b * BLOCK;
                uint2 seen;
                seen.x = p.window && end > block + p.window ? end - p.window - block : 0;
                seen.y = end > block ? end - block : 0;
                bool own_row[SETS];
                UNROLL for (int n = 0; n < SETS; ++n) own_row[n] = (uint(4 * n) + t) / heads == own_token;
                add_values<D, SETS, true>(v_pages + base, last, lane, mine, fade, seen, own_row, acc);
            }
        } else {
            add_values<D, SETS, false>(v_pages + base, last, lane, mine, fade, uint2(), (thread const bool*)0, acc);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }

    // What the simdgroups have, relative to the largest maximum. (All have read q by now.)
    threadgroup_barrier(mem_flags::mem_threadgroup);
    UNROLL for (int n = 0; n < SETS; ++n) {
        const uint r = uint(4 * n) + t;
        if (g == 0) merge[2 * (sg * ROWS + r)] = top[n], merge[2 * (sg * ROWS + r) + 1] = weight[n];
        UNROLL for (int m = 0; m < D / 8; ++m) shares[(sg * ROWS + r) * D + element_of(g, m)] = acc[n][m];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = tid; i < rows * D; i += 128) {
        const uint r = i / D, e = i % D, head = part * ROWS + r % heads;
        if (head >= group) continue;
        float most = NOTHING, sum = 0.0f, total = 0.0f;
        UNROLL for (int s = 0; s < 4; ++s) most = max(most, merge[2 * (uint(s * ROWS) + r)]);
        UNROLL for (int s = 0; s < 4; ++s) {
            const float share = exp(merge[2 * (uint(s * ROWS) + r)] - most);
            sum = fma(shares[(uint(s * ROWS) + r) * D + e], share, sum);
            total = fma(merge[2 * (uint(s * ROWS) + r) + 1], share, total);
        }
        const size_t token_row = size_t(tile_row + r / heads) * p.q_heads;
        const size_t row = token_row + kv_head * group + head;
        if (NEW && p.bits) {
            store_half(sum / total, prepared + token_row * D, (kv_head * group + head) * D + e, p.bits, p.flags);
            continue;
        }
        if (p.last) {
            out[row * D + e] = sum / total;
            continue;
        }
        const size_t to_span = row * p.spans + at.z;
        if (e == 0) weights[to_span * 2] = most, weights[to_span * 2 + 1] = total;
        if (total != 0.0f) sums[to_span * D + e] = sum;
    }
}

#define ATTEND(D, SETS, ROWS) ATTEND_ALL(D, SETS, ROWS) ATTEND_NEW(D, SETS, ROWS, attend_new_d##D##_r##ROWS)
#define ATTEND_ALL(D, SETS, ROWS) \
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
    EARLY_LAUNCH; \
    threadgroup uint4 shares[ROWS * D]; \
    threadgroup uint2 ps[2 * ROWS * BLOCK]; \
    threadgroup float merge[8 * ROWS]; \
    const Projected rows = {q, q, q, q, q, q, q}; \
    attend<D, SETS, false>( \
        rows, (device half*)k_pages, (device half*)v_pages, blocks, tiles, out, (device ushort*)out, sums, weights, p, \
        at, tid, sg, lane, (threadgroup float*)shares, (threadgroup ushort*)ps, merge); \
}
#define ATTEND_NEW(D, SETS, ROWS, NAME) \
kernel void NAME( \
    device const float* q [[buffer(0)]], \
    device const float* k [[buffer(1)]], \
    device const float* v [[buffer(2)]], \
    device const float* q_gains [[buffer(3)]], \
    device const float* k_gains [[buffer(4)]], \
    device const float* cosines [[buffer(5)]], \
    device const float* sines [[buffer(6)]], \
    device half* k_pages [[buffer(7)]], \
    device half* v_pages [[buffer(8)]], \
    device const uint* blocks [[buffer(9)]], \
    device const AttendTile* tiles [[buffer(10)]], \
    device float* out [[buffer(11)]], \
    device float* sums [[buffer(12)]], \
    device float* weights [[buffer(13)]], \
    device ushort* prepared [[buffer(14)]], \
    constant AttendParams& p [[buffer(15)]], \
    uint3 at [[threadgroup_position_in_grid]], \
    uint tid [[thread_index_in_threadgroup]], \
    uint sg [[simdgroup_index_in_threadgroup]], \
    uint lane [[thread_index_in_simdgroup]]) \
{ \
    EARLY_LAUNCH; \
    threadgroup uint4 shares[ROWS * D]; \
    threadgroup uint2 ps[2 * ROWS * BLOCK]; \
    threadgroup float merge[8 * ROWS]; \
    const Projected rows = {q, k, v, q_gains, k_gains, cosines, sines}; \
    attend<D, SETS, true>( \
        rows, k_pages, v_pages, blocks, tiles, out, prepared, sums, weights, p, at, tid, sg, lane, \
        (threadgroup float*)shares, (threadgroup ushort*)ps, merge); \
}
ATTEND(64, 1, 4)
ATTEND(64, 2, 8)
ATTEND(128, 1, 4)
ATTEND_NEW(128, 1, 4, attend_new_d128_r4_many)
ATTEND(128, 2, 8)
ATTEND(256, 1, 4)
ATTEND(256, 2, 8)
