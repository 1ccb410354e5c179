// Recurrences whose state is a matrix a head: Gated DeltaNet (arXiv 2412.06464), Kimi Delta Attention (arXiv
// 2510.26692) and Mamba 2 (arXiv 2405.21060).
//
// mix_heads: what a token's heads are made of. x [t, width] is convolved channel by channel, with a SiLU, into
//   mixed [t, channels]; where `delta`, queries and keys are divided by their lengths, and queries by the root of
//   their size. Also what stays of a head's state (keep [t, decays]), what is written of a value (write
//   [t, value_heads]), and each query times its key (dots [t, key_heads]). Mamba 2's readers are the queries, its
//   inputs the keys, its channels the values. Grid: x over heads of queries and keys, then heads of values; y over
//   runs. Threads: 32 for each of `rows` rows at a time, which are more than the run has where it is short.
// walk_delta_<n>, walk_plain_<n>: the recurrence over each run, of heads of up to 32 n key elements: with key k,
//   query q, value v, S = diag(keep) S, d = write (v - S'k) or write v, S += k d', out = S'q (+ skip v). A
//   simdgroup has 8 columns of S in registers, a lane each 32nd key. S lies as [value_dim, key_dim] a head. Grid: x
//   over heads of values and `splits` parts of their columns; y over runs. Threads: 32 for each 8 columns of a
//   part. With `norm`, of one part, the head's rows are then normed and gated as by gated_heads.
// gated_heads: out's rows of a head in place: `x / rms(x) * gains * gate(z)`. Grid: x over 8 rows. Threads: 256.
// gated_rows: rows of groups in place, `x * silu(z f)` and its norm, or its norm times `silu(z f)`, with gains of each
//   group's own. Grid: x over groups, y over tokens. Threads: 256.
// Reference: GatedDelta::forward, Mamba2::forward.
#include "taper/recurrent.h"

enum { COLUMNS = 8, MOST_KEYS = 8 };

struct MixParams {
    uint key_heads;
    uint value_heads;
    uint key_dim;      // at most 256
    uint value_dim;
    uint channels;
    uint kept;         // rows before a token that the convolution reads
    uint width;        // of a row of x
    uint query_at;     // channels
    uint key_at;
    uint value_at;
    uint a_width;      // of a row of a
    uint decays;       // of a token: one a head, or one a key element of a head
    uint delta;
    uint stride;       // elements of a slot
    uint rows;         // at a time
    float write;       // at most
    float least;       // time step
    float most;
    float time_factor;
};

kernel void mix_heads(
    device const float* x [[buffer(0)]],
    device const float* a [[buffer(1)]],
    device const float* b [[buffer(2)]],
    device const float* weights [[buffer(3)]],
    device const float* bias [[buffer(4)]],
    device const float* rates [[buffer(5)]],
    device const float* dt_bias [[buffer(6)]],
    device const StateRun* runs [[buffer(7)]],
    device const StateCut* cuts [[buffer(8)]],
    device float* states [[buffer(9)]],
    device float* mixed [[buffer(10)]],
    device float* keep [[buffer(11)]],
    device float* write [[buffer(12)]],
    device float* dots [[buffer(13)]],
    constant MixParams& p [[buffer(14)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    const StateRun run = runs[at.y];
    ConvInput in;
    in.x = x + size_t(run.row) * p.width, in.gate = in.x;
    in.fresh = run.from == NO_SLOT;
    in.old = states + (in.fresh ? 0 : size_t(run.from) * p.stride);
    in.width = p.width, in.channels = p.channels, in.kept = p.kept, in.gated = 0;
    const bool is_key = at.x < p.key_heads;
    const uint head = is_key ? at.x : at.x - p.key_heads;
    if (is_key) {
        const uint query = p.query_at + head * p.key_dim, key = p.key_at + head * p.key_dim;
        for (uint row = sg; row < run.rows; row += p.rows) {
            float qs[MOST_KEYS], ks[MOST_KEYS], q2 = 0.0f, k2 = 0.0f, dot = 0.0f;
            UNROLL for (uint n = 0; n < MOST_KEYS; ++n) {
                qs[n] = ks[n] = 0.0f;
                if (32 * n < p.key_dim) {
                    const bool there = lane + 32 * n < p.key_dim;
                    const uint e = min(lane + 32 * n, p.key_dim - 1);
                    const float q = convolved(in, weights, bias[query + e], int(row), query + e);
                    const float k = convolved(in, weights, bias[key + e], int(row), key + e);
                    qs[n] = there ? silu_of(q) : 0.0f, ks[n] = there ? silu_of(k) : 0.0f;
                }
                q2 = fma(qs[n], qs[n], q2), k2 = fma(ks[n], ks[n], k2);
            }
            const float q_scale = p.delta ? rsqrt(simd_sum(q2) + 1e-6f) * rsqrt(float(p.key_dim)) : 1.0f;
            const float k_scale = p.delta ? rsqrt(simd_sum(k2) + 1e-6f) : 1.0f;
            device float* to = mixed + size_t(run.row + row) * p.channels;
            UNROLL for (uint n = 0; n < MOST_KEYS; ++n) {
                const uint e = lane + 32 * n;
                const float q = qs[n] * q_scale, k = ks[n] * k_scale;
                dot = fma(q, k, dot);
                if (e < p.key_dim) to[query + e] = q, to[key + e] = k;
            }
            dot = simd_sum(dot);
            if (lane == 0) dots[size_t(run.row + row) * p.key_heads + head] = dot;
        }
    } else {
        const uint value = p.value_at + head * p.value_dim, each = p.decays / p.value_heads;
        const float rate = rates[head];
        for (uint row = sg; row < run.rows; row += p.rows) {
            const size_t token = run.row + row;
            for (uint e = lane; e < p.value_dim; e += 32) {
                const uint channel = value + e;
                mixed[token * p.channels + channel] = silu_of(convolved(in, weights, bias[channel], int(row), channel));
            }
            for (uint e = lane; e < each; e += 32) {
                const uint own = head * each + e;
                float time = softplus_of(fma(a[token * p.a_width + own], p.time_factor, dt_bias[own]));
                if (!p.delta) time = min(max(time, p.least), p.most);
                keep[token * p.decays + own] = exp(-rate * time);
                if (!p.delta) write[token * p.value_heads + own] = time;
            }
            if (p.delta && lane == 0)
                write[token * p.value_heads + head] = p.write * sigmoid_of(b[token * p.value_heads + head]);
        }
    }
    threadgroup_barrier(mem_flags::mem_device);
    const uint first = sg * 32 + lane, step = p.rows * 32;
    if (is_key) {
        for (uint e = first; e < p.key_dim; e += step) {
            keep_inputs(in, run, cuts, states, p.stride, p.query_at + head * p.key_dim + e);
            keep_inputs(in, run, cuts, states, p.stride, p.key_at + head * p.key_dim + e);
        }
    } else {
        for (uint e = first; e < p.value_dim; e += step)
            keep_inputs(in, run, cuts, states, p.stride, p.value_at + head * p.value_dim + e);
    }
}

struct WalkParams {
    uint key_heads;
    uint value_heads;
    uint key_dim;
    uint value_dim;
    uint channels;
    uint query_at;    // channels
    uint key_at;
    uint value_at;
    uint decays;      // of a token
    uint stride;      // elements of a slot
    uint splits;      // parts of a head's columns
    uint simdgroups;  // of a part
    uint norm;
    uint gate;
    float eps;
};

// What a lane has of a token.
template <int KEYS> struct WalkToken {
    float q[KEYS];
    float k[KEYS];
    float keep[KEYS];
    float v;  // of the lane's column
    float write;
    float dot;
};

// The sums over all lanes of N numbers that each has: a lane gets that of number lane / (32 / N).
template <int N> INLINE float spread_sum(thread float (&x)[N], uint lane) {
    uint m = 16;
    UNROLL for (int n = N / 2; n > 0; n /= 2) {
        const bool high = lane & m;
        UNROLL for (int i = 0; i < n; ++i) {
            // Not a choice of addresses, which would put the array into memory.
            const float first = x[i], second = x[i + n];
            const float give = high ? first : second, own = high ? second : first;
            x[i] = own + simd_shuffle_xor(give, ushort(m));
        }
        m /= 2;
    }
    float sum = x[0];
    for (; m > 0; m /= 2) sum += simd_shuffle_xor(sum, ushort(m));
    return sum;
}

template <int KEYS>
INLINE void load_token(thread WalkToken<KEYS>& to, device const float* mixed, device const float* keep,
                       device const float* write, device const float* dots, WalkParams p, size_t token,
                       uint head, uint column, uint lane) {
    const uint key_head = head / (p.value_heads / p.key_heads), each = p.decays / p.value_heads;
    device const float* row = mixed + token * p.channels;
    device const float* stays = keep + token * p.decays + head * each;
    UNROLL for (int n = 0; n < KEYS; ++n) {
        const uint e = lane + 32 * uint(n);
        const bool there = e < p.key_dim;
        to.q[n] = there ? row[p.query_at + key_head * p.key_dim + e] : 0.0f;
        to.k[n] = there ? row[p.key_at + key_head * p.key_dim + e] : 0.0f;
        to.keep[n] = each == 1 ? stays[0] : there ? stays[e] : 0.0f;
    }
    to.v = column < p.value_dim ? row[p.value_at + head * p.value_dim + column] : 0.0f;
    to.write = write[token * p.value_heads + head];
    to.dot = dots[token * p.key_heads + key_head];
}

template <int KEYS, bool DELTA>
INLINE void walk(device const float* mixed, device const float* keep, device const float* write,
                 device const float* dots, device const float* skips, device const StateCut* cuts,
                 device float* states, device float* out, WalkParams p, StateRun run, uint head, uint first,
                 uint lane) {
    // The lane's column, of which it has the sums.
    const uint column = first + (DELTA ? lane / 2 % COLUMNS : lane / 4);
    const float skip = DELTA ? 0.0f : skips[head];
    const size_t own = (size_t(head) * p.value_dim + first) * p.key_dim + lane;
    float s[COLUMNS][KEYS];
    UNROLL for (uint c = 0; c < COLUMNS; ++c)
        UNROLL for (uint n = 0; n < uint(KEYS); ++n) {
            const bool there = run.from != NO_SLOT && first + c < p.value_dim && lane + 32 * n < p.key_dim;
            s[c][n] = there ? states[size_t(run.from) * p.stride + own + c * p.key_dim + 32 * n] : 0.0f;
        }
    uint cut = run.cut, due = cuts[cut].rows;
    WalkToken<KEYS> next;
    load_token<KEYS>(next, mixed, keep, write, dots, p, run.row, head, column, lane);
    for (uint i = 0; i < run.rows; ++i) {
        const WalkToken<KEYS> now = next;
        const size_t token = run.row + i;
        if (i + 1 < run.rows) load_token<KEYS>(next, mixed, keep, write, dots, p, token + 1, head, column, lane);
        // Both reads are of the state before the token: what it writes is read by q'k alone.
        float sums[DELTA ? 2 * COLUMNS : COLUMNS];
        UNROLL for (uint c = 0; c < COLUMNS; ++c) {
            float read = 0.0f, by_key = 0.0f;
            UNROLL for (int n = 0; n < KEYS; ++n) {
                s[c][n] = s[c][n] * now.keep[n];
                read = fma(now.q[n], s[c][n], read);
                if (DELTA) by_key = fma(now.k[n], s[c][n], by_key);
            }
            if (DELTA) sums[c] = by_key;
            sums[DELTA ? COLUMNS + c : c] = read;
        }
        float read = spread_sum(sums, lane), by_key = 0.0f;
        if (DELTA) {
            const float other = simd_shuffle_xor(read, 16);
            by_key = lane < 16 ? read : other, read = lane < 16 ? other : read;
        }
        const float written = DELTA ? now.write * (now.v - by_key) : now.write * now.v;
        float y = fma(now.dot, written, read);
        if (!DELTA) y = fma(skip, now.v, y);
        const bool writes = DELTA ? lane < 16 && lane % 2 == 0 : lane % 4 == 0;
        if (writes && column < p.value_dim)
            out[(token * p.value_heads + head) * p.value_dim + column] = y;
        UNROLL for (uint c = 0; c < COLUMNS; ++c) {
            const float d = simd_shuffle(written, ushort(DELTA ? 2 * c : 4 * c));
            UNROLL for (int n = 0; n < KEYS; ++n) s[c][n] = fma(now.k[n], d, s[c][n]);
        }
        while (due == i + 1) {
            device float* to = states + size_t(cuts[cut].slot) * p.stride + own;
            UNROLL for (uint c = 0; c < COLUMNS; ++c)
                UNROLL for (uint n = 0; n < uint(KEYS); ++n)
                    if (first + c < p.value_dim && lane + 32 * n < p.key_dim) to[c * p.key_dim + 32 * n] = s[c][n];
            ++cut;
            due = cut < run.cut + run.cuts ? cuts[cut].rows : 0;
        }
    }
}

#define WALK(NAME, KEYS, DELTA) \
kernel void NAME( \
    device const float* mixed [[buffer(0)]], \
    device const float* keep [[buffer(1)]], \
    device const float* write [[buffer(2)]], \
    device const float* dots [[buffer(3)]], \
    device const float* skips [[buffer(4)]], \
    device const float* z [[buffer(5)]], \
    device const float* gains [[buffer(6)]], \
    device const StateRun* runs [[buffer(7)]], \
    device const StateCut* cuts [[buffer(8)]], \
    device float* states [[buffer(9)]], \
    device float* out [[buffer(10)]], \
    constant WalkParams& p [[buffer(11)]], \
    uint2 at [[threadgroup_position_in_grid]], \
    uint sg [[simdgroup_index_in_threadgroup]], \
    uint lane [[thread_index_in_simdgroup]]) \
{ \
    const StateRun run = runs[at.y]; \
    const uint head = at.x / p.splits, first = (at.x % p.splits * p.simdgroups + sg) * COLUMNS; \
    if (first < p.value_dim) \
        walk<KEYS, DELTA>(mixed, keep, write, dots, skips, cuts, states, out, p, run, head, first, lane); \
    if (!p.norm) return; \
    threadgroup_barrier(mem_flags::mem_device); \
    for (uint row = sg; row < run.rows; row += p.simdgroups) { \
        const size_t from = (size_t(run.row + row) * p.value_heads + head) * p.value_dim; \
        gated_norm_row(out + from, z + from, gains, p.value_dim, p.eps, p.gate, lane); \
    } \
}
WALK(walk_delta_1, 1, true)
WALK(walk_delta_4, 4, true)
WALK(walk_delta_8, 8, true)
WALK(walk_plain_1, 1, false)
WALK(walk_plain_4, 4, false)
WALK(walk_plain_8, 8, false)

struct GatedHeadsParams {
    uint rows;  // of heads
    uint cols;
    uint gate;
    float eps;
};

kernel void gated_heads(
    device float* out [[buffer(0)]],
    device const float* z [[buffer(1)]],
    device const float* gains [[buffer(2)]],
    constant GatedHeadsParams& p [[buffer(3)]],
    uint at [[threadgroup_position_in_grid]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    const uint row = at * 8 + sg;
    if (row >= p.rows) return;
    const size_t from = size_t(row) * p.cols;
    gated_norm_row(out + from, z + from, gains, p.cols, p.eps, p.gate, lane);
}

struct GatedRowsParams {
    uint groups;
    uint cols;         // of a group
    uint width;        // of a row of z
    uint norm;         // 0: the gate alone; 1: after the gate; 2: before it
    float eps;
    float factor;      // of z
};

kernel void gated_rows(
    device float* out [[buffer(0)]],
    device const float* z [[buffer(1)]],
    device const float* gains [[buffer(2)]],
    constant GatedRowsParams& p [[buffer(3)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float partial[8];
    device float* x = out + (size_t(at.y) * p.groups + at.x) * p.cols;
    device const float* gates = z + size_t(at.y) * p.width + at.x * p.cols;
    float squares = 0.0f;
    for (uint i = tid; i < p.cols; i += 256) {
        const float v = p.norm == 1 ? x[i] * silu_of(gates[i] * p.factor) : x[i];
        squares = fma(v, v, squares);
    }
    squares = simd_sum(squares);
    if (lane == 0) partial[sg] = squares;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (uint i = 0; i < 8; ++i) total += partial[i];
    const float inverse = p.norm == 0 ? 1.0f : rsqrt(total / float(p.cols) + p.eps);
    for (uint i = tid; i < p.cols; i += 256) {
        const float gain = p.norm == 0 ? 1.0f : gains[at.x * p.cols + i];
        x[i] = x[i] * inverse * gain * silu_of(gates[i] * p.factor);
    }
}
