// Causal attention of query rows over a paged cache of compressed rows, as they lie.
//
// A page is a block of 32 tokens: [kv_head] head regions, each at a multiple of 16 bytes (codes.h).
// Exact pages, read instead of codes for the first and the recent tokens of a sequence, are halves in
// the codes' space: keys [kv_head][head_dim / 8][32 tokens][8], values [kv_head][32 tokens][head_dim].
// `blocks` has a pair a block: where its codes are, and where its exact rows are or NONE.
// `constants`: levels of the keys' codes [64], of the values' [64], and the rotation (rotation.h).
//
// attend_coded_*: q [t, q_heads, head_dim] f32; tiles, parts, spans and threads as in attend.metal. The
//   rows of q are rotated, and each span leaves its sum [rings * 16], its maximum and its weight. A
//   lane has a token for the scores; for the values it has 16 elements of every fourth token.
// coded_merge: adds the spans and rotates back: out [t, q_heads, head_dim] f32.
//   Grid: x over rows of all heads. Threads: 256.
// Reference: PagedCodec::decode, then softmax(q k^T) v in f64.
#include "taper/common.h"
#include "taper/codes.h"
#include "taper/rotation.h"

enum { SPAN_BLOCKS = 16, LEVELS = 64 };
constant float NOTHING = -3.0e38f;
constant uint NONE = 0xffffffffu;

struct CodedTile {
    uint row;     // its first token in the batch
    uint count;   // tokens
    uint end;     // tokens of the sequence that the first one sees, itself included
    uint table;   // where the sequence's blocks begin in `blocks`
    uint recent;  // from this block on rows are read exactly
};

struct CodedParams {
    uint q_heads;
    uint kv_heads;
    uint head_dim;
    uint spans;
    uint window;      // 0: none
    float scale;
    float soft_cap;   // 0: none
    uint sinks;       // blocks before this one are read exactly too
    uint k_format;
    uint k_region;    // bytes of a head region
    uint k_group;
    uint k_rounds;    // of the rotation; 0: none
    uint v_format;
    uint v_region;
    uint v_group;
    uint order;
};

// scores[r] = q[r] . levels of a token. Rows of q are SIZE elements apart.
template <int FORMAT, int ROWS, int SIZE>
void score(Rows k, uint token, threadgroup const float* q, threadgroup const float* levels, thread float* scores) {
    UNROLL_BY(4) for (uint ring = 0; ring < k.rings; ++ring) {
        float x[RING];
        ring_of<FORMAT>(k, token, ring, true, levels, x);
        UNROLL for (int r = 0; r < ROWS; ++r) {
            UNROLL for (int i = 0; i < RING; i += 4) {
                const float4 part = *(threadgroup const float4*)(q + r * SIZE + ring * RING + i);
                scores[r] = fma(part.x, x[i], scores[r]);
                scores[r] = fma(part.y, x[i + 1], scores[r]);
                scores[r] = fma(part.z, x[i + 2], scores[r]);
                scores[r] = fma(part.w, x[i + 3], scores[r]);
            }
        }
    }
}

// Which elements of which tokens a lane has: token 4 tile + lane % 4 of every `groups`th tile, and
// ring `ring` + 8 for each unit.
struct Share {
    uint ring;
    uint group;
    uint groups;
};

inline Share share_of(uint rings, uint lane) {
    Share own = {min(lane / 4, rings - 1), 0, 1};
    // With 1, 2 or 4 rings several tiles fit the lanes.
    if (rings == 1 || rings == 2 || rings == 4) own.ring = lane / 4 % rings, own.group = lane / 4 / rings, own.groups = 8 / rings;
    return own;
}

// acc[r] += p[r][token] * levels of the token, over the lane's share of the first `tokens`.
template <int FORMAT, int ROWS, int UNITS>
void add_rows(
    Rows v, Share own, uint tokens, uint lane, threadgroup const float* p,
    threadgroup const float* levels, thread float (*acc)[UNITS * RING])
{
    const uint steps = 8 / own.groups;
    UNROLL_BY(4) for (uint s = 0; s < steps; ++s) {
        const uint token = (s * own.groups + own.group) * 4 + lane % 4;
        // Of tokens that are not there the weights are 0; what is read must be a number.
        const uint read = min(token, tokens - 1);
        UNROLL for (int u = 0; u < UNITS; ++u) {
            float x[RING];
            ring_of<FORMAT>(v, read, min(own.ring + uint(u) * 8, v.rings - 1), false, levels, x);
            UNROLL for (int r = 0; r < ROWS; ++r) {
                const float weight = p[r * BLOCK + token];
                UNROLL for (int i = 0; i < RING; ++i) acc[r][u * RING + i] = fma(weight, x[i], acc[r][u * RING + i]);
            }
        }
    }
}

template <int ROWS, int UNITS>
void attend(
    device const float* q, device const uchar* k_pages, device const uchar* v_pages,
    device const uchar* exact_k, device const uchar* exact_v, device const uint2* blocks,
    device const CodedTile* tiles, device const float* constants, device float* sums,
    device float* weights, CodedParams p, uint3 at, uint tid, uint sg, uint lane,
    threadgroup float* qs, threadgroup float* scratch, threadgroup float* ps,
    threadgroup float* merge, threadgroup float* levels)
{
    enum { SIZE = 128 * UNITS };
    const uint d = p.head_dim, rings = (d + RING - 1) / RING;
    const uint group = p.q_heads / p.kv_heads, heads = min(group, uint(ROWS));
    const uint parts = (group + ROWS - 1) / ROWS;
    const uint kv_head = at.y / parts, part = at.y % parts;
    const CodedTile tile = tiles[at.x];
    const uint rows = min(tile.count * heads, uint(ROWS));

    // What any row of the tile sees of this span, in blocks.
    const uint last_end = tile.end + tile.count - 1;
    const uint start = p.window && tile.end > p.window ? tile.end - p.window : 0;
    const uint from = max(start / BLOCK, at.z * SPAN_BLOCKS);
    const uint to = min((last_end + BLOCK - 1) / BLOCK, (at.z + 1) * SPAN_BLOCKS);

    for (uint i = tid; i < 2 * LEVELS; i += 128) levels[i] = constants[i];
    for (uint i = tid; i < ROWS * rings * RING; i += 128) {
        const uint r = i / (rings * RING), e = i % (rings * RING), head = part * ROWS + r % heads;
        const bool there = r < rows && head < group && e < d;
        const uint token = tile.row + r / heads;
        qs[r * SIZE + e] = there ? q[(size_t(token) * p.q_heads + kv_head * group + head) * d + e] * p.scale : 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (sg < ROWS) {
        const RotationOf rotation = {constants + 2 * LEVELS, d, p.k_rounds, p.order};
        rotate(qs + sg * SIZE, scratch + sg * SIZE, rotation, lane);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float top[ROWS], weight[ROWS], acc[ROWS][UNITS * RING];
    UNROLL for (int r = 0; r < ROWS; ++r) {
        top[r] = NOTHING, weight[r] = 0.0f;
        UNROLL for (int i = 0; i < UNITS * RING; ++i) acc[r][i] = 0.0f;
    }
    const Share own = share_of(rings, lane);
    threadgroup float* mine = ps + sg * ROWS * BLOCK;
    for (uint b = from + (sg + 4 - from % 4) % 4; b < to; b += 4) {
        const uint2 block = blocks[tile.table + b];
        const bool exact = (b < p.sinks || b >= tile.recent) && block.y != NONE;
        const size_t head = size_t(exact ? block.y : block.x) * p.kv_heads + kv_head;
        Rows k = {exact ? exact_k + head * 2 * BLOCK * d : k_pages + head * p.k_region, exact ? uint(HALF_TILED) : p.k_format, d, rings, p.k_group};
        const Rows v = {exact ? exact_v + head * 2 * BLOCK * d : v_pages + head * p.v_region, exact ? uint(HALF_ROWS) : p.v_format, d, rings, p.v_group};
        const uint tokens = min(uint(BLOCK), last_end - b * BLOCK), token = b * BLOCK + lane;
        const uint read = min(lane, tokens - 1);
        bool centred = is_trellis(k.format);
        if (centred && centre_of(k)[0] == 0) centred = false, k.format = HALF_ROWS;
        float scores[ROWS];
        UNROLL for (int r = 0; r < ROWS; ++r) scores[r] = 0.0f;
#define SCORE(FORMAT) score<FORMAT, ROWS, SIZE>(k, read, qs, levels, scores)
        WITH_FORMAT(k.format, SCORE)
        const float k_scale = row_scale(k, read), v_scale = row_scale(v, read);
        UNROLL for (int r = 0; r < ROWS; ++r) scores[r] *= k_scale;
        if (centred) {
            float dot[ROWS];
            UNROLL for (int r = 0; r < ROWS; ++r) dot[r] = 0.0f;
            device const uchar* centre = centre_of(k);
            for (uint i = lane; i < d; i += 32) {
                const float c = centre_at(centre, i);
                UNROLL for (int r = 0; r < ROWS; ++r) dot[r] = fma(qs[r * SIZE + i], c, dot[r]);
            }
            UNROLL for (int r = 0; r < ROWS; ++r) scores[r] += simd_sum(dot[r]);
        }
        UNROLL for (int r = 0; r < ROWS; ++r) {
            const uint end = tile.end + uint(r) / heads;
            const bool seen = token < end && (!p.window || token + p.window >= end);
            float s = scores[r];
            if (p.soft_cap > 0.0f) s = p.soft_cap * tanh(s / p.soft_cap);
            const float next = max(top[r], simd_max(seen ? s : NOTHING));
            const float e = seen ? exp(s - next) : 0.0f, fade = exp(top[r] - next);
            mine[r * BLOCK + lane] = seen ? e * v_scale : 0.0f;
            weight[r] = fma(weight[r], fade, simd_sum(e));
            top[r] = next;
            UNROLL for (int i = 0; i < UNITS * RING; ++i) acc[r][i] *= fade;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
#define ADD(FORMAT) add_rows<FORMAT, ROWS, UNITS>(v, own, tokens, lane, mine, levels + LEVELS, acc)
        WITH_FORMAT(v.format, ADD)
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }

    // The lanes' shares of a simdgroup, and then the simdgroups' shares, one after the other, through
    // the memory of q. Lane 4 l + j keeps elements 4 j .. of its ring.
    float sum[ROWS][UNITS * 4];
    UNROLL for (int r = 0; r < ROWS; ++r) {
        UNROLL for (int i = 0; i < UNITS * RING; ++i) {
            float x = acc[r][i];
            x += simd_shuffle_xor(x, 1);
            x += simd_shuffle_xor(x, 2);
            if (own.groups > 1) {
                for (uint m = 4 * rings; m < 32; m *= 2) x += simd_shuffle_xor(x, m);
            }
            const int u = i / RING, quarter = i % RING / 4;
            if (quarter == 0 || lane % 4 == uint(quarter)) sum[r][u * 4 + i % 4] = x;
        }
    }
    const uint element = own.ring * RING + lane % 4 * 4;
    const bool keeps = lane < 4 * rings;
    for (uint s = 1; s < 4; ++s) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (sg == s) {
            UNROLL for (int r = 0; r < ROWS; ++r) {
                if (lane == 0) merge[r * 2] = top[r], merge[r * 2 + 1] = weight[r];
                UNROLL for (int i = 0; i < UNITS * 4; ++i) {
                    const uint e = element + i / 4 * 128 + i % 4;
                    if (keeps && e < rings * RING) qs[r * SIZE + e] = sum[r][i];
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (sg == 0) {
            UNROLL for (int r = 0; r < ROWS; ++r) {
                const float next = max(top[r], merge[r * 2]);
                const float ours = exp(top[r] - next), its = exp(merge[r * 2] - next);
                weight[r] = weight[r] * ours + merge[r * 2 + 1] * its;
                top[r] = next;
                UNROLL for (int i = 0; i < UNITS * 4; ++i) {
                    const uint e = element + i / 4 * 128 + i % 4;
                    const float other = keeps && e < rings * RING ? qs[r * SIZE + e] : 0.0f;
                    sum[r][i] = sum[r][i] * ours + other * its;
                }
            }
        }
    }
    if (sg != 0) return;
    UNROLL for (int r = 0; r < ROWS; ++r) {
        const uint head = part * ROWS + uint(r) % heads;
        if (uint(r) >= rows || head >= group) continue;
        const size_t row = size_t(tile.row + uint(r) / heads) * p.q_heads + kv_head * group + head;
        const size_t to_span = row * p.spans + at.z;
        if (lane == 0) weights[to_span * 2] = top[r], weights[to_span * 2 + 1] = weight[r];
        if (weight[r] == 0.0f) continue;
        UNROLL for (int i = 0; i < UNITS * 4; ++i) {
            const uint e = element + i / 4 * 128 + i % 4;
            if (keeps && e < rings * RING) sums[to_span * rings * RING + e] = sum[r][i];
        }
    }
}

#define ATTEND(ROWS, UNITS) \
kernel void attend_coded_r##ROWS##_u##UNITS( \
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
    threadgroup float4 qs[ROWS * UNITS * 32]; \
    threadgroup float scratch[ROWS * UNITS * 128]; \
    threadgroup float ps[4 * ROWS * BLOCK]; \
    threadgroup float merge[2 * ROWS]; \
    threadgroup float levels[2 * LEVELS]; \
    attend<ROWS, UNITS>(q, k_pages, v_pages, exact_k, exact_v, blocks, tiles, constants, sums, weights, p, at, tid, sg, lane, \
        (threadgroup float*)qs, scratch, ps, merge, levels); \
}
ATTEND(2, 1)
ATTEND(4, 1)
ATTEND(2, 2)

struct CodedMergeParams {
    uint head_dim;
    uint spans;
    uint rounds;
    uint order;
};

kernel void coded_merge(
    device const float* sums [[buffer(0)]],
    device const float* weights [[buffer(1)]],
    device const float* constants [[buffer(2)]],
    device float* out [[buffer(3)]],
    constant CodedMergeParams& p [[buffer(4)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float fades[256];
    threadgroup float tops[8];
    threadgroup float totals[8];
    threadgroup float x[256];
    threadgroup float scratch[256];
    const uint wide = (p.head_dim + RING - 1) / RING * RING;
    device const float* w = weights + size_t(row) * p.spans * 2;
    float top = NOTHING;
    for (uint s = tid; s < p.spans; s += 256) top = w[s * 2 + 1] > 0.0f ? max(top, w[s * 2]) : top;
    top = simd_max(top);
    if (lane == 0) tops[sg] = top;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < 8; ++i) top = max(top, tops[i]);
    float total = 0.0f, sum = 0.0f;
    for (uint first = 0; first < p.spans; first += 256) {
        const uint n = min(p.spans - first, 256u), s = first + tid;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const bool any = tid < n && w[s * 2 + 1] > 0.0f;
        const float fade = any ? exp(w[s * 2] - top) : 0.0f;
        fades[tid] = fade;
        total += any ? w[s * 2 + 1] * fade : 0.0f;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (tid < wide) {
            device const float* own = sums + (size_t(row) * p.spans + first) * wide + tid;
            UNROLL_BY(8) for (uint i = 0; i < n; ++i) {
                // A span that saw nothing left no sum.
                const float part = own[size_t(i) * wide];
                sum = fma(fades[i] > 0.0f ? part : 0.0f, fades[i], sum);
            }
        }
    }
    total = simd_sum(total);
    if (lane == 0) totals[sg] = total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    total = 0.0f;
    for (uint i = 0; i < 8; ++i) total += totals[i];
    x[tid] = sum / total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (sg == 0) {
        const RotationOf rotation = {constants + 2 * LEVELS, p.head_dim, p.rounds, p.order};
        rotate_back(x, scratch, rotation, lane);
        for (uint i = lane; i < p.head_dim; i += 32) out[size_t(row) * p.head_dim + i] = x[i];
    }
}
