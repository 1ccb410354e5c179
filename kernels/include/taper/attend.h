// Attention over a paged cache of plain floats: what attend.metal says, for a type of keys and values and a size of
// heads.
#pragma once
#include "common.h"

enum { BLOCK = 32, SPAN_BLOCKS = 16, MAX_DIM = 256, MAX_WIDE = 512, MAX_LATENT_KEY = 576 };
constant float NOTHING = -3.0e38f;

struct WriteParams {
    uint n;  // elements of k
    uint kv_heads;
    uint head_dim;
};

struct bf16 { ushort bits; };
inline void store_kv(device half* p, size_t i, float x) { p[i] = half(clamped(x)); }
inline void store_kv(device float* p, size_t i, float x) { p[i] = x; }
inline void store_kv(device bf16* p, size_t i, float x) {
    const uint u = as_type<uint>(x);
    // To nearest, ties to even; a NaN stays one.
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    p[i].bits = ushort((nan ? u | 0x400000u : u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

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
    uint few;        // of attend_tile.metal, as what follows
    float q_eps;
    float k_eps;
    uint bits;
    uint flags;
    uint value_dim;
    uint last;       // one span, whose sum is the result
    uint sinks;      // whether there are any; of attend_prompt.metal
};

// Eight consecutive elements.
inline void load8(device const half* p, thread float* out) {
    const uint4 v = *(device const uint4*)p;
    const uint raw[4] = {v.x, v.y, v.z, v.w};
    UNROLL for (int i = 0; i < 8; ++i) out[i] = float(as_type<half>(ushort(raw[i / 2] >> (16 * (i % 2)))));
}
inline void load8(device const bf16* p, thread float* out) {
    const uint4 v = *(device const uint4*)p;
    const uint raw[4] = {v.x, v.y, v.z, v.w};
    UNROLL for (int i = 0; i < 8; ++i) out[i] = as_type<float>(i % 2 ? raw[i / 2] & 0xffff0000u : raw[i / 2] << 16);
}
inline void load8(device const float* p, thread float* out) {
    const float4 a = *(device const float4*)p, b = *(device const float4*)(p + 4);
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}
inline float load1(device const half* p) { return float(*p); }
inline float load1(device const float* p) { return *p; }
inline float load1(device const bf16* p) { return as_type<float>(uint(p->bits) << 16); }

// A lane's share of a row of values: element lane * PER_LANE + i, or lane + 32 * i if the size of a head, at most MAX, is
// not known at compile time; of latents, eight elements at a time, every 32nd such.
template <int D, int MAX, bool LATENT> struct Share {
    enum { PER_LANE = (D ? D : MAX) / 32 };
    static uint element(uint lane, int i) {
        if (LATENT) return (lane + 32u * uint(i / 8)) * 8u + uint(i % 8);
        return D ? lane * PER_LANE + uint(i) : lane + 32u * uint(i);
    }
};
template <int D, int PER_LANE, typename KV>
inline void load_values(device const KV* row, uint lane, uint d, thread float* out) {
    UNROLL for (int i = 0; i < PER_LANE; ++i) {
        const uint at = D ? lane * PER_LANE + uint(i) : lane + 32u * uint(i);
        out[i] = at < d ? load1(row + at) : 0.0f;
    }
}
template <> inline void load_values<128, 4, half>(device const half* row, uint lane, uint, thread float* out) {
    const uint2 v = *(device const uint2*)(row + lane * 4);
    out[0] = float(as_type<half>(ushort(v.x))), out[1] = float(as_type<half>(ushort(v.x >> 16)));
    out[2] = float(as_type<half>(ushort(v.y))), out[3] = float(as_type<half>(ushort(v.y >> 16)));
}
template <int PER_LANE, typename KV>
inline void load_latent(device const KV* token, uint lane, uint d, thread float* out) {
    UNROLL for (int i = 0; i < PER_LANE; i += 8) {
        const uint part = lane + 4u * uint(i);
        UNROLL for (int j = 0; j < 8; ++j) out[i + j] = 0.0f;
        if (part * 8 < d) load8(token + part * BLOCK * 8, out + i);
    }
}

// acc += weights and values of a block's first tokens. SOME: some row does not see all of them. Then its
// weight is zero, and the value may be anything, for which zero times it is not zero.
template <typename KV, int D, int MAX, int ROWS, bool LATENT, bool SOME>
INLINE void add_values(
    device const KV* values, uint tokens, uint lane, uint d, threadgroup const float* weights,
    thread float (*acc)[Share<D, MAX, LATENT>::PER_LANE])
{
    enum { PER_LANE = Share<D, MAX, LATENT>::PER_LANE };
    UNROLL_BY(ROWS == 4 && PER_LANE <= 8 ? 16 : 8) for (uint j = 0; j < tokens; ++j) {
        float v[PER_LANE];
        if (LATENT) load_latent<PER_LANE>(values + j * 8, lane, d, v);
        else load_values<D, PER_LANE>(values + j * d, lane, d, v);
        UNROLL for (int r = 0; r < ROWS; ++r) {
            const float e = weights[r * BLOCK + j];
            const bool left = SOME && e == 0.0f;
            UNROLL for (int i = 0; i < PER_LANE; ++i) acc[r][i] = left ? acc[r][i] : fma(e, v[i], acc[r][i]);
        }
    }
}

template <typename KV, int D, int MAX, int ROWS, bool LATENT>
void attend(
    device const float* q, device const KV* k_pages, device const KV* v_pages,
    device const uint* blocks, device const AttendTile* tiles, device float* out,
    device float* sums, device float* weights, AttendParams p, uint3 at, uint tid, uint sg,
    uint lane, threadgroup float* qs, threadgroup float* ps, threadgroup float* merge)
{
    typedef Share<D, MAX, LATENT> Own;
    enum { PER_LANE = Own::PER_LANE };
    const uint d = D ? uint(D) : p.head_dim, value_dim = LATENT ? p.value_dim : d;
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

    for (uint i = tid; i < ROWS * d; i += 128) {
        const uint r = i / d, head = part * ROWS + r % heads;
        const bool there = r < rows && head < group;
        const uint token = tile_row + r / heads;
        qs[i] = there ? q[(size_t(token) * p.q_heads + kv_head * group + head) * d + i % d] * p.scale : 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float top[ROWS], weight[ROWS], acc[ROWS][PER_LANE];
    UNROLL for (int r = 0; r < ROWS; ++r) {
        top[r] = NOTHING, weight[r] = 0.0f;
        UNROLL for (int i = 0; i < PER_LANE; ++i) acc[r][i] = 0.0f;
    }
    threadgroup float* mine = ps + sg * ROWS * BLOCK;
    for (uint b = from + (sg + 4 - from % 4) % 4; b < to; b += 4) {
        const size_t base = (size_t(blocks[table + b]) * p.kv_heads + kv_head) * BLOCK * d;
        const uint tokens = min(uint(BLOCK), last_end - b * BLOCK), token = b * BLOCK + lane;
        float score[ROWS];
        UNROLL for (int r = 0; r < ROWS; ++r) score[r] = 0.0f;
        if (lane < tokens) {
            device const KV* key = k_pages + base + lane * 8;
            UNROLL_BY(ROWS == 4 ? 16 : 8) for (uint c = 0; c < d; c += 8) {
                float k[8];
                load8(key + c * BLOCK, k);
                UNROLL for (int r = 0; r < ROWS; ++r) {
                    UNROLL for (int i = 0; i < 8; ++i) score[r] = fma(qs[uint(r) * d + c + i], k[i], score[r]);
                }
            }
        }
        UNROLL for (int r = 0; r < ROWS; ++r) {
            const uint end = first_end + uint(r) / heads;
            const bool seen = token < end && (!p.window || token + p.window >= end);
            float s = score[r];
            if (p.soft_cap > 0.0f) s = p.soft_cap * tanh(s / p.soft_cap);
            const float next = max(top[r], simd_max(seen ? s : NOTHING));
            const float e = seen ? exp(s - next) : 0.0f, fade = exp(top[r] - next);
            mine[r * BLOCK + lane] = e;
            weight[r] = fma(weight[r], fade, simd_sum(e));
            top[r] = next;
            UNROLL for (int i = 0; i < PER_LANE; ++i) acc[r][i] *= fade;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        device const KV* values = v_pages + base;
        if (LATENT) values = k_pages + base + (d - value_dim) * BLOCK;
        // The first row does not see the last token, or the last row not the first one.
        const bool some = first_end < b * BLOCK + tokens || (p.window && b * BLOCK + p.window < last_end);
        if (some) add_values<KV, D, MAX, ROWS, LATENT, true>(values, tokens, lane, value_dim, mine, acc);
        else add_values<KV, D, MAX, ROWS, LATENT, false>(values, tokens, lane, value_dim, mine, acc);
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }

    // The simdgroups' shares, one after the other, through the memory of q.
    for (uint s = 1; s < 4; ++s) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (sg == s) {
            UNROLL for (int r = 0; r < ROWS; ++r) {
                if (lane == 0) merge[r * 2] = top[r], merge[r * 2 + 1] = weight[r];
                UNROLL for (int i = 0; i < PER_LANE; ++i) {
                    const uint e = Own::element(lane, i);
                    if (e < value_dim) qs[uint(r) * value_dim + e] = acc[r][i];
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (sg == 0) {
            UNROLL for (int r = 0; r < ROWS; ++r) {
                const float next = max(top[r], merge[r * 2]);
                const float own = exp(top[r] - next), its = exp(merge[r * 2] - next);
                weight[r] = weight[r] * own + merge[r * 2 + 1] * its;
                top[r] = next;
                UNROLL for (int i = 0; i < PER_LANE; ++i) {
                    const uint e = Own::element(lane, i);
                    const float other = e < value_dim ? qs[uint(r) * value_dim + e] : 0.0f;
                    acc[r][i] = acc[r][i] * own + other * its;
                }
            }
        }
    }
    if (sg != 0) return;
    UNROLL for (int r = 0; r < ROWS; ++r) {
        const uint head = part * ROWS + uint(r) % heads;
        if (uint(r) >= rows || head >= group) continue;
        const size_t row = size_t(tile_row + uint(r) / heads) * p.q_heads + kv_head * group + head;
        if (p.last) {
            const float inverse = 1.0f / weight[r];
            UNROLL for (int i = 0; i < PER_LANE; ++i) {
                const uint e = Own::element(lane, i);
                if (e < value_dim) out[row * value_dim + e] = acc[r][i] * inverse;
            }
            continue;
        }
        const size_t to_span = row * p.spans + at.z;
        if (lane == 0) weights[to_span * 2] = top[r], weights[to_span * 2 + 1] = weight[r];
        if (weight[r] == 0.0f) continue;
        UNROLL for (int i = 0; i < PER_LANE; ++i) {
            const uint e = Own::element(lane, i);
            if (e < value_dim) sums[to_span * value_dim + e] = acc[r][i];
        }
    }
}

#define ATTEND(NAME, KV, D, SIZE, MAX, ROWS, LATENT) \
kernel void attend_##NAME##_r##ROWS( \
    device const float* q [[buffer(0)]], \
    device const KV* k_pages [[buffer(1)]], \
    device const KV* v_pages [[buffer(2)]], \
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
    threadgroup float qs[ROWS * SIZE]; \
    threadgroup float ps[4 * ROWS * BLOCK]; \
    threadgroup float merge[2 * ROWS]; \
    attend<KV, D, MAX, ROWS, LATENT>( \
        q, k_pages, v_pages, blocks, tiles, out, sums, weights, p, at, tid, sg, lane, qs, ps, merge); \
}
