// Attention over a paged cache of compressed rows, as they lie: what coded.metal says, for a format of keys
// and one of values.
#pragma once
#include "coded_keys.h"
#include "codes.h"
#include "common.h"
#include "rotation.h"
#include "tile.h"

enum { LEVELS = 64, WIDE_LEVELS = 512, ROWS = 4 };
constant float NOTHING = -3.0e38f;
constant uint NONE = 0xffffffffu;

struct CodedTile {
    uint row;     // its first token in the batch
    uint count;   // tokens
    uint end;     // tokens of the sequence that the first one sees, itself included
    uint table;   // where the sequence's blocks begin in `blocks`
    uint recent;  // from this block on rows are read exactly
    uint sinks;   // blocks before this one are read exactly too
};

struct CodedParams {
    uint q_heads;
    uint kv_heads;
    uint head_dim;
    uint spans;
    uint window;      // 0: none
    float scale;
    float soft_cap;   // 0: none
    uint k_format;
    uint k_region;    // bytes of a head region
    uint k_group;
    uint k_rounds;    // of the rotation; 0: none
    uint v_format;
    uint v_region;
    uint v_group;
    uint order;
    float k_step;     // levels are whole multiples of it
    float v_step;
    uint span_blocks;
    uint turned;      // q is in the codes' space
};

// Values: rows of a tile are elements, and lane 4 g + t has those in rows g and g + 8, of RINGS / 8
// consecutive rings; columns are four tokens a lane. Which elements of its rings tile j has follows from the
// codes' format; which tokens, from how a block is stored.
template <int RINGS> INLINE uint value_element(bool nibbles, uint g, uint j, uint upper) {
    return (g * (RINGS / 8) + j / 8) * RING + (nibbles ? j % 8 + 8 * upper : j % 8 * 2 + upper);
}
INLINE uint value_token(uint kind, uint t, uint i) { return kind == NIBBLES ? 4 * t + i : 4 * i + t; }
// Where the weight of a token stands, so that a lane's four are neighbours.
INLINE uint weight_place(uint kind, uint token) {
    return kind == NIBBLES ? token : token / 16 * 16 + token % 4 * 4 + token % 16 / 4;
}

// A ring of four tokens, as they lie. Rows of halves and affine ones may hold anything where nobody looks: of
// tokens outside of `seen`, first and last, the nearest inside is taken, whose product with zero is zero.
template <int KIND>
INLINE void load_values(Rows v, uint ring, uint first, uint2 seen, uint t, thread uint (*words)[5]) {
    if (KIND == NIBBLES) {
        device const uint4* from = (device const uint4*)(v.region + (first / 4 + t) * v.rings * 32 + ring * 32);
        const uint4 a = from[0], b = from[1];
        words[0][0] = a.x, words[0][1] = a.y, words[1][0] = a.z, words[1][1] = a.w;
        words[2][0] = b.x, words[2][1] = b.y, words[3][0] = b.z, words[3][1] = b.w;
    } else if (KIND > SCALAR) {
        UNROLL for (int i = 0; i < 4; ++i) load_codes<KIND>(v, first + value_token(KIND, t, uint(i)), ring, words[i]);
    } else if (IS_SPLIT(KIND)) {
        UNROLL for (int i = 0; i < 4; ++i) {
            const uint token = min(max(first + value_token(KIND, t, uint(i)), seen.x), seen.y);
            load_affine<KIND == AFFINE4 ? 4 : 8>(v, token, ring, words[i]);
        }
    }
}

// Its elements of tile j.
template <int KIND>
INLINE void value_pairs(Rows v, uint ring, int j, uint first, uint2 seen, bool nibbles, uint t, threadgroup const ushort* lut, thread const uint (*words)[5], thread uint* a, thread uint* rest) {
    uint x[2][4], left[2][4];
    UNROLL for (int i = 0; i < 4; ++i) {
        if (KIND == NIBBLES) {
            const uint word = words[j / 2][j % 2];
            x[0][i] = code_level(lut, (i > 0 ? word >> (8 * i - 1) : word << 1) & 30u);
            x[1][i] = code_level(lut, word >> (8 * i + 3) & 30u);
        } else if (KIND > SCALAR) {
            UNROLL for (int r = 0; r < 2; ++r) x[r][i] = code_level(lut, code_at<KIND>(words[i], 2 * j + r));
        } else if (IS_SPLIT(KIND)) {
            UNROLL for (int r = 0; r < 2; ++r) {
                const float value = affine_value<KIND == AFFINE4 ? 4 : 8>(words[i], 2 * j + r);
                x[r][i] = bits_of_half(value), left[r][i] = rest_of_half(value);
            }
        } else {
            const uint token = min(max(first + value_token(KIND, t, uint(i)), seen.x), seen.y);
            UNROLL for (int r = 0; r < 2; ++r) {
                x[r][i] = half_bits_at(v, token, ring * RING + (nibbles ? uint(j + 8 * r) : uint(2 * j + r)));
            }
        }
    }
    UNROLL for (int r = 0; r < 2; ++r) {
        a[r] = packed(x[r][0], x[r][1]), a[r + 2] = packed(x[r][2], x[r][3]);
        if (IS_SPLIT(KIND)) rest[r] = packed(left[r][0], left[r][1]), rest[r + 2] = packed(left[r][2], left[r][3]);
    }
}

// acc = acc * fade + unit * sum over tokens of weights and values: of row t, elements in rows g and g + 8 of
// each tile; only if it is the lane's `own_row`. What is added past the last ring is never read.
template <int KIND, int RINGS>
INLINE void add_rows(Rows v, bool nibbles, uint2 seen, bool own_row, uint lane, threadgroup const ushort* lut, threadgroup const ushort* weights, float fade, float unit, thread float (*acc)[2]) {
    enum { OWN = RINGS / 8 };
    const uint g = lane / 4, t = lane % 4;
    TileB b[2];
    UNROLL for (int h = 0; h < 2; ++h) {
        const uint2 own = *(threadgroup const uint2*)(weights + g * BLOCK + 16 * h + 4 * t);
        tile_of_lanes(b[h], lane, own.x, own.y);
    }
    UNROLL for (int o = 0; o < OWN; ++o) {
        const uint ring = min(g * OWN + uint(o), v.rings - 1);
        uint words[2][4][5];
        UNROLL for (int h = 0; h < 2; ++h) load_values<KIND>(v, ring, uint(16 * h), seen, t, words[h]);
        UNROLL for (int j = 0; j < 8; ++j) {
            TileC c;
            tile_zero(c);
            UNROLL for (int h = 0; h < 2; ++h) {
                uint a[4], rest[4];
                value_pairs<KIND>(v, ring, j, uint(16 * h), seen, nibbles, t, lut, words[h], a, rest);
                multiply_pairs<KIND>(c, a, rest, b[h], lane);
            }
            float sum[4];
            tile_to_lanes(c, lane, sum);
            thread float* to = acc[8 * o + j];
            UNROLL for (int r = 0; r < 2; ++r) {
                const float with = fma(to[r], fade, unit * (sum[2 * r] + sum[2 * r + 1]));
                to[r] = KIND > SCALAR || own_row ? with : to[r];
            }
        }
    }
}

// The same of all rows of the tile, in the block that begins at token `first`. Codes are finite whoever sees
// them; of others that some row does not see all of, each token's rows are added on their own.
template <int KIND, int RINGS>
INLINE void add_block(Rows v, bool nibbles, CodedTile tile, uint window, uint first, uint tokens, uint own_token, uint lane, threadgroup const ushort* lut, threadgroup const ushort* weights, float fade, float unit, thread float (*acc)[2]) {
    const uint last_end = tile.end + tile.count - 1;
    const bool all = tile.end >= first + tokens && (!window || first + window >= last_end);
    const uint turns = KIND > SCALAR || all ? 1 : tile.count;
    for (uint turn = 0; turn < turns; ++turn) {
        const uint end = turns > 1 ? tile.end + turn : last_end;
        const uint behind = window && end > first + window ? end - window - first : 0;
        // This token sees nothing of the block; of all together, one does.
        if (turns > 1 && (end <= first || behind >= tokens)) continue;
        uint2 seen;
        seen.x = behind, seen.y = min(end - first, tokens) - 1;
        add_rows<KIND, RINGS>(v, nibbles, seen, turns == 1 || own_token == turn, lane, lut, weights, fade, unit, acc);
    }
}

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

// Sums of four values over the simdgroup, one a lane of four.
INLINE float sum_of_four(thread const float* x, uint lane) {
    const bool odd = lane & 1, upper = lane & 2;
    const float low = (odd ? x[1] : x[0]) + simd_shuffle_xor(odd ? x[0] : x[1], 1);
    const float high = (odd ? x[3] : x[2]) + simd_shuffle_xor(odd ? x[2] : x[3], 1);
    return row_sum((upper ? high : low) + simd_shuffle_xor(upper ? low : high, 2));
}

template <int RINGS, int K_ONLY, int V_ONLY>
INLINE void attend(
    device const float* q, device const uchar* k_pages, device const uchar* v_pages,
    device const uchar* exact_k, device const uchar* exact_v, device const uint2* blocks,
    device const CodedTile* tiles, device const float* constants, device float* sums,
    device float* weights, CodedParams p, uint3 at, uint tid, uint sg, uint lane,
    threadgroup float* qs, threadgroup float* scratch, threadgroup ushort* ps,
    threadgroup float* merge, threadgroup ushort* luts)
{
    enum { SIZE = 16 * RINGS, SKETCH = K_ONLY >= SKETCHED, SHARED = IS_WIDE(K_ONLY) };
    const uint d = p.head_dim, rings = (d + RING - 1) / RING, g = lane / 4, t = lane % 4;
    const uint group = p.q_heads / p.kv_heads, heads = min(group, uint(ROWS));
    const uint parts = (group + ROWS - 1) / ROWS;
    const uint kv_head = at.y / parts, part = at.y % parts;
    const CodedTile tile = tiles[at.x];
    const uint rows = min(tile.count * heads, uint(ROWS));

    // What any row of the tile sees of this span, in blocks.
    const uint last_end = tile.end + tile.count - 1;
    const uint start = p.window && tile.end > p.window ? tile.end - p.window : 0;
    const uint from = max(start / BLOCK, at.z * p.span_blocks);
    const uint to = min((last_end + BLOCK - 1) / BLOCK, (at.z + 1) * p.span_blocks);

    const RotationOf rotation = {constants + 2 * LEVELS, d, p.k_rounds, p.order};
    // Levels are whole multiples of a step; those of sketched keys are not.
    if (SHARED) {
        device const float* levels = constants_after(rotation);
        for (uint i = tid; i < WIDE_LEVELS; i += 128) luts[i] = ushort(bits_of_half(round(levels[i] / p.k_step)));
    } else if (SKETCH && tid < LEVELS) {
        const float own = constants[tid % REST] / p.k_step;
        luts[tid] = ushort(tid < REST ? bits_of_half(own) : rest_of_half(own));
    } else {
        luts[tid] = ushort(bits_of_half(round(constants[tid] / (tid < LEVELS ? p.k_step : p.v_step))));
    }
    for (uint i = tid; i < ROWS * SIZE; i += 128) {
        const uint r = i / SIZE, e = i % SIZE, head = part * ROWS + r % heads;
        const bool there = r < rows && head < group && e < d;
        const uint token = tile.row + r / heads;
        qs[i] = there ? q[(size_t(token) * p.q_heads + kv_head * group + head) * d + e] * p.scale : 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (!p.turned) {
        rotate(qs + sg * SIZE, scratch + sg * SIZE, rotation, lane);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    TileB columns[RINGS], sketched[RINGS];
    const float q_unit = columns_of<RINGS>(qs, lane, columns);
    float sketch_unit = 0.0f;
    if (SKETCH) {
        // (All have read q by now.)
        threadgroup_barrier(mem_flags::mem_threadgroup);
        rotate(qs + sg * SIZE, scratch + sg * SIZE, sketch_after(rotation), lane);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        sketch_unit = columns_of<RINGS>(qs, lane, sketched);
    }

    float top = NOTHING, weight = 0.0f, acc[RINGS][2];
    UNROLL for (int ring = 0; ring < RINGS; ++ring) acc[ring][0] = 0.0f, acc[ring][1] = 0.0f;
    const uint k_format = K_ONLY == ANY || K_ONLY == SKETCHED ? p.k_format : uint(K_ONLY), v_format = V_ONLY == ANY ? p.v_format : uint(V_ONLY);
    const bool nibbles = v_format == NIBBLES;
    const uint end = tile.end + t / heads;
    threadgroup ushort* mine = ps + sg * 2 * ROWS * BLOCK;
    const uint begin = from + (sg + 4 - from % 4) % 4;
    uint2 next_block = blocks[tile.table + min(begin, to - 1)];
    for (uint b = begin; b < to; b += 4) {
        const uint2 block = next_block;
        next_block = blocks[tile.table + min(b + 4, to - 1)];
        const bool exact = (b < tile.sinks || b >= tile.recent) && block.y != NONE;
        const size_t head = size_t(exact ? block.y : block.x) * p.kv_heads + kv_head;
        Rows k = {exact ? exact_k + head * 2 * BLOCK * d : k_pages + head * p.k_region, exact ? uint(HALF_TILED) : k_format, d, rings, p.k_group};
        const Rows v = {exact ? exact_v + head * 2 * BLOCK * d : v_pages + head * p.v_region, exact ? uint(HALF_ROWS) : v_format, d, rings, p.v_group};
        const uint tokens = min(uint(BLOCK), last_end - b * BLOCK), last = tokens - 1;
        bool centred = is_trellis(k.format);
        if (centred && centre_of(k)[0] == 0) centred = false, k.format = HALF_ROWS;
        const uint k_kind = kind_of(k.format), v_kind = kind_of(v.format);
        // A lane a token.
        const float k_scale = row_scale(k, min(lane, last)) * (k.format > SCALAR ? p.k_step : 1.0f);
        const float v_scale = lane < tokens ? row_scale(v, lane) * (v.format > SCALAR ? p.v_step : 1.0f) : 0.0f;
        float scores[4], signs[4], sketch_part = 0.0f, offset = 0.0f;
#define SCORE(KIND) score<KIND, RINGS>(k, last, lane, luts, columns, scores)
        WITH_KIND(K_ONLY, k_kind, SCORE)
        if (SKETCH) {
            UNROLL for (int i = 0; i < 4; ++i) signs[i] = 0.0f;
            if (!exact) {
                score<SIGNS, RINGS>(k, last, lane, luts, sketched, signs);
                sketch_part = sketch_scale(k, min(lane, last));
            }
        }
        if (centred) {
            float dot[ROWS];
            UNROLL for (int r = 0; r < ROWS; ++r) dot[r] = 0.0f;
            device const uchar* centre = centre_of(k);
            for (uint i = lane; i < d; i += 32) {
                const float c = centre_at(centre, i);
                UNROLL for (int r = 0; r < ROWS; ++r) dot[r] = fma(qs[r * SIZE + i], c, dot[r]);
            }
            offset = sum_of_four(dot, lane);
        }
        float best = NOTHING;
        bool seen[4];
        UNROLL for (int i = 0; i < 4; ++i) {
            const uint own = uint(i / 2 * 16) + key_token(k_kind, g, uint(i % 2)), token = b * BLOCK + own;
            seen[i] = own < tokens && token < end && (!p.window || token + p.window >= end);
            float s = fma(scores[i] * q_unit, simd_shuffle(k_scale, ushort(own)), offset);
            if (SKETCH) s = fma(signs[i] * sketch_unit, simd_shuffle(sketch_part, ushort(own)), s);
            if (p.soft_cap > 0.0f) s = p.soft_cap * tanh(s / p.soft_cap);
            scores[i] = s;
            best = seen[i] ? max(best, s) : best;
        }
        const float next = max(top, row_max(best)), fade = exp(top - next);
        // Weights are halves: the largest scale of what the row sees becomes one.
        float parts[4], largest = 0.0f, total = 0.0f;
        UNROLL for (int i = 0; i < 4; ++i) {
            parts[i] = simd_shuffle(v_scale, ushort(uint(i / 2 * 16) + key_token(k_kind, g, uint(i % 2))));
            largest = seen[i] ? max(largest, parts[i]) : largest;
        }
        largest = row_max(largest);
        const float unit = largest > 0.0f ? largest : 1.0f, inverse = 1.0f / unit;
        UNROLL for (int i = 0; i < 4; ++i) {
            const uint own = uint(i / 2 * 16) + key_token(k_kind, g, uint(i % 2));
            const float e = seen[i] ? exp(scores[i] - next) : 0.0f;
            const float x = seen[i] ? e * (parts[i] * inverse) : 0.0f;
            const uint place = weight_place(v_kind, own);
            mine[2 * t * BLOCK + place] = ushort(bits_of_half(x));
            mine[(2 * t + 1) * BLOCK + place] = ushort(rest_of_half(x));
            total += e;
        }
        weight = fma(weight, fade, row_sum(total));
        top = next;
        simdgroup_barrier(mem_flags::mem_threadgroup);
#define ADD(KIND) add_block<KIND, RINGS>(v, nibbles, tile, p.window, b * BLOCK, tokens, t / heads, lane, luts + (SHARED ? 0 : LEVELS), mine, fade, unit, acc)
        WITH_KIND(V_ONLY, v_kind, ADD)
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }

    // The simdgroups' shares, one after the other, through the memory of q.
    for (uint s = 1; s < 4; ++s) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (sg == s) {
            if (g == 0) merge[2 * t] = top, merge[2 * t + 1] = weight;
            UNROLL for (int i = 0; i < 2 * RINGS; ++i) {
                qs[t * SIZE + value_element<RINGS>(nibbles, g, uint(i / 2), uint(i % 2))] = acc[i / 2][i % 2];
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (sg == 0) {
            const float next = max(top, merge[2 * t]);
            const float ours = exp(top - next), its = exp(merge[2 * t] - next);
            weight = weight * ours + merge[2 * t + 1] * its;
            top = next;
            UNROLL for (int i = 0; i < 2 * RINGS; ++i) {
                const float other = qs[t * SIZE + value_element<RINGS>(nibbles, g, uint(i / 2), uint(i % 2))];
                acc[i / 2][i % 2] = acc[i / 2][i % 2] * ours + other * its;
            }
        }
    }
    const uint own_head = part * ROWS + t % heads;
    if (sg != 0 || t >= rows || own_head >= group) return;
    const size_t row = size_t(tile.row + t / heads) * p.q_heads + kv_head * group + own_head;
    const size_t to_span = row * p.spans + at.z;
    if (g == 0) weights[to_span * 2] = top, weights[to_span * 2 + 1] = weight;
    if (weight == 0.0f) return;
    UNROLL for (int i = 0; i < 2 * RINGS; ++i) {
        const uint e = value_element<RINGS>(nibbles, g, uint(i / 2), uint(i % 2));
        if (e < rings * RING) sums[to_span * rings * RING + e] = acc[i / 2][i % 2];
    }
}

#define ATTEND(RINGS, K_ONLY, V_ONLY, NAME) \
kernel void attend_coded_##NAME( \
    device const float* q [[buffer(0)]], \
    device const uchar* k_pages [[buffer(1)]], \
    device const uchar* v_pages [[buffer(2)]], \
    device const uchar* exact_k [[buffer(3)]], \
    device const uchar* exact_v [[buffer(4)]], \
    device const uint2* blocks [[buffer(5)]], \
    device const CodedTile* tiles [[buffer(6)]], \
    device const float* constants [[buffer(7)]], \
    device float* sums [[buffer(8)]], \
    device float* weights [[buffer(9)]], \
    constant CodedParams& p [[buffer(10)]], \
    uint3 at [[threadgroup_position_in_grid]], \
    uint tid [[thread_index_in_threadgroup]], \
    uint sg [[simdgroup_index_in_threadgroup]], \
    uint lane [[thread_index_in_simdgroup]]) \
{ \
    threadgroup float qs[ROWS * RINGS * 16]; \
    threadgroup float scratch[ROWS * RINGS * 16]; \
    threadgroup uint2 ps[2 * ROWS * BLOCK]; \
    threadgroup float merge[2 * ROWS]; \
    threadgroup ushort luts[IS_WIDE(K_ONLY) ? WIDE_LEVELS : 2 * LEVELS]; \
    attend<RINGS, K_ONLY, V_ONLY>(q, k_pages, v_pages, exact_k, exact_v, blocks, tiles, constants, sums, weights, p, at, tid, sg, lane, \
        qs, scratch, (threadgroup ushort*)ps, merge, luts); \
}
