// Causal attention of query rows over a paged cache of plain floats, and writing into that cache.
//
// Pages of a layer, for blocks of 32 tokens, element type KV:
//   keys    [block][kv_head][head_dim / 8][32 tokens][8]   a lane a token reads them coalesced
//   values  [block][kv_head][32 tokens][head_dim]
// head_dim is a multiple of 8, up to 256.
//
// kv_write_*: k, v [t, kv_heads, head_dim] f32 into slots[t] = block * 32 + offset.
//   Grid: x over blocks of 256 elements of k. Threads: 256. Reference: DenseCodec::encode.
//
// attend_*: q [t, q_heads, head_dim] f32 -> out, the same. A tile is up to ROWS rows of one sequence:
//   its tokens and the query heads of one KV head. Grid: x tiles, y KV heads * parts (a part is ROWS
//   of the heads when one KV head has more), z spans of 512 tokens. Threads: 128; each simdgroup
//   walks over every fourth block of the span, a lane a token for the scores and head_dim / 32
//   elements a lane for the values, with a running softmax (Milakov & Gimelshein 2018).
//   With one span the output is final; else each span leaves its sum, its maximum and its weight for
//   attend_merge (grid: x rows of all heads; threads: 512). The cut into spans does not depend on the
//   batch, so neither does the result. Reference: softmax(q k^T) v in f64.
#include "taper/common.h"

enum { BLOCK = 32, SPAN_BLOCKS = 16, MAX_DIM = 256 };
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

#define KV_WRITE(NAME, KV) \
kernel void kv_write_##NAME( \
    device const float* k [[buffer(0)]], \
    device const float* v [[buffer(1)]], \
    device const uint* slots [[buffer(2)]], \
    device KV* k_pages [[buffer(3)]], \
    device KV* v_pages [[buffer(4)]], \
    constant WriteParams& p [[buffer(5)]], \
    uint i [[thread_position_in_grid]]) \
{ \
    if (i < p.n) { \
        const uint d = i % p.head_dim, head = i / p.head_dim % p.kv_heads; \
        const uint slot = slots[i / p.head_dim / p.kv_heads]; \
        const uint token = slot % BLOCK; \
        const size_t base = (size_t(slot / BLOCK) * p.kv_heads + head) * BLOCK * p.head_dim; \
        store_kv(k_pages, base + (d / 8 * BLOCK + token) * 8 + d % 8, k[i]); \
        store_kv(v_pages, base + token * p.head_dim + d, v[i]); \
    } \
}
KV_WRITE(f16, half)
KV_WRITE(bf16, bf16)
KV_WRITE(f32, float)

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

// A lane's share of a row of values: element lane * PER_LANE + i, or lane + 32 * i if the size of a
// head is not known at compile time.
template <int D, int PER_LANE> inline uint element(uint lane, int i) {
    return D ? lane * PER_LANE + uint(i) : lane + 32u * uint(i);
}
template <int D, int PER_LANE, typename KV>
inline void load_values(device const KV* row, uint lane, uint d, thread float* out) {
    UNROLL for (int i = 0; i < PER_LANE; ++i) {
        const uint at = element<D, PER_LANE>(lane, i);
        out[i] = at < d ? load1(row + at) : 0.0f;
    }
}
template <> inline void load_values<128, 4, half>(device const half* row, uint lane, uint, thread float* out) {
    const uint2 v = *(device const uint2*)(row + lane * 4);
    out[0] = float(as_type<half>(ushort(v.x))), out[1] = float(as_type<half>(ushort(v.x >> 16)));
    out[2] = float(as_type<half>(ushort(v.y))), out[3] = float(as_type<half>(ushort(v.y >> 16)));
}

// acc += weights and values of a block's first tokens. SOME: some row does not see all of them. Then its
// weight is zero, and the value may be anything, for which zero times it is not zero.
template <typename KV, int D, int ROWS, bool SOME>
INLINE void add_values(
    device const KV* values, uint tokens, uint lane, uint d, threadgroup const float* weights,
    thread float (*acc)[(D ? D : MAX_DIM) / 32])
{
    enum { PER_LANE = (D ? D : MAX_DIM) / 32 };
    UNROLL_BY(ROWS == 4 ? 16 : 8) for (uint j = 0; j < tokens; ++j) {
        float v[PER_LANE];
        load_values<D, PER_LANE>(values + j * d, lane, d, v);
        UNROLL for (int r = 0; r < ROWS; ++r) {
            const float e = weights[r * BLOCK + j];
            const bool left = SOME && e == 0.0f;
            UNROLL for (int i = 0; i < PER_LANE; ++i) acc[r][i] = left ? acc[r][i] : fma(e, v[i], acc[r][i]);
        }
    }
}

template <typename KV, int D, int ROWS>
void attend(
    device const float* q, device const KV* k_pages, device const KV* v_pages,
    device const uint* blocks, device const AttendTile* tiles, device float* out,
    device float* sums, device float* weights, AttendParams p, uint3 at, uint tid, uint sg,
    uint lane, threadgroup float* qs, threadgroup float* ps, threadgroup float* merge)
{
    enum { PER_LANE = (D ? D : MAX_DIM) / 32 };
    const uint d = D ? uint(D) : p.head_dim;
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
        // The first row does not see the last token, or the last row not the first one.
        const bool some = first_end < b * BLOCK + tokens || (p.window && b * BLOCK + p.window < last_end);
        if (some) add_values<KV, D, ROWS, true>(values, tokens, lane, d, mine, acc);
        else add_values<KV, D, ROWS, false>(values, tokens, lane, d, mine, acc);
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }

    // The simdgroups' shares, one after the other, through the memory of q.
    for (uint s = 1; s < 4; ++s) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (sg == s) {
            UNROLL for (int r = 0; r < ROWS; ++r) {
                if (lane == 0) merge[r * 2] = top[r], merge[r * 2 + 1] = weight[r];
                UNROLL for (int i = 0; i < PER_LANE; ++i) {
                    const uint e = element<D, PER_LANE>(lane, i);
                    if (e < d) qs[uint(r) * d + e] = acc[r][i];
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
                    const uint e = element<D, PER_LANE>(lane, i);
                    const float other = e < d ? qs[uint(r) * d + e] : 0.0f;
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
        if (p.spans == 1) {
            const float inverse = 1.0f / weight[r];
            UNROLL for (int i = 0; i < PER_LANE; ++i) {
                const uint e = element<D, PER_LANE>(lane, i);
                if (e < d) out[row * d + e] = acc[r][i] * inverse;
            }
            continue;
        }
        const size_t to_span = row * p.spans + at.z;
        if (lane == 0) weights[to_span * 2] = top[r], weights[to_span * 2 + 1] = weight[r];
        if (weight[r] == 0.0f) continue;
        UNROLL for (int i = 0; i < PER_LANE; ++i) {
            const uint e = element<D, PER_LANE>(lane, i);
            if (e < d) sums[to_span * d + e] = acc[r][i];
        }
    }
}

#define ATTEND(NAME, KV, D, SIZE, ROWS) \
kernel void attend_##NAME##_d##D##_r##ROWS( \
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
    attend<KV, D, ROWS>(q, k_pages, v_pages, blocks, tiles, out, sums, weights, p, at, tid, sg, lane, qs, ps, merge); \
}
// Rows share what is read of keys and values; more than 8 would not fit an Apple GPU's registers.
#define ATTENDS(NAME, KV, D, SIZE) ATTEND(NAME, KV, D, SIZE, 4) ATTEND(NAME, KV, D, SIZE, 8)
// d0 takes any size of a head.
ATTENDS(f16, half, 64, 64)
ATTENDS(f16, half, 128, 128)
ATTENDS(f16, half, 256, 256)
ATTEND(f16, half, 0, 256, 4)
ATTEND(bf16, bf16, 0, 256, 4)
ATTEND(f32, float, 0, 256, 4)

struct MergeParams {
    uint head_dim;
    uint spans;
};

enum { MERGE_THREADS = 512 };

kernel void attend_merge(
    device const float* sums [[buffer(0)]],
    device const float* weights [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant MergeParams& p [[buffer(3)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float fades[MERGE_THREADS];
    threadgroup float shares[MERGE_THREADS];
    threadgroup float tops[MERGE_THREADS / 32];
    threadgroup float totals[MERGE_THREADS / 32];
    device const float* w = weights + size_t(row) * p.spans * 2;
    float top = NOTHING;
    for (uint s = tid; s < p.spans; s += MERGE_THREADS) top = w[s * 2 + 1] != 0.0f ? max(top, w[s * 2]) : top;
    top = simd_max(top);
    if (lane == 0) tops[sg] = top;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < MERGE_THREADS / 32; ++i) top = max(top, tops[i]);
    // Threads of an element each take a share of the spans.
    const uint width = (p.head_dim + 31) / 32 * 32, n_shares = MERGE_THREADS / width;
    const uint e = tid % width, share = tid / width;
    float total = 0.0f, sum = 0.0f;
    for (uint first = 0; first < p.spans; first += MERGE_THREADS) {
        const uint n = min(p.spans - first, uint(MERGE_THREADS)), s = first + tid;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const bool any = tid < n && w[s * 2 + 1] != 0.0f;
        const float fade = any ? exp(w[s * 2] - top) : 0.0f;
        fades[tid] = fade;
        total += any ? w[s * 2 + 1] * fade : 0.0f;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (e < p.head_dim && share < n_shares) {
            device const float* own = sums + (size_t(row) * p.spans + first) * p.head_dim + e;
            UNROLL_BY(8) for (uint i = share; i < n; i += n_shares) {
                // A span that saw nothing left no sum.
                const float part = own[size_t(i) * p.head_dim];
                sum = fma(fades[i] > 0.0f ? part : 0.0f, fades[i], sum);
            }
        }
    }
    total = simd_sum(total);
    if (lane == 0) totals[sg] = total;
    shares[tid] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid < p.head_dim) {
        total = 0.0f, sum = 0.0f;
        for (uint i = 0; i < MERGE_THREADS / 32; ++i) total += totals[i];
        for (uint i = 0; i < n_shares; ++i) sum += shares[i * width + tid];
        out[size_t(row) * p.head_dim + tid] = sum / total;
    }
}
