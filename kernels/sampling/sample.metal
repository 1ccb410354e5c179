// The next token of each row: temperature, min_p, top_k, top_p and a seeded draw, or the likeliest; and
// what log probabilities are made of. Four bytes a row come back to the host, and more where log
// probabilities are wanted.
//
// logits [*, vocab] f32, rows [n] SampleRow -> out: tokens [n], then a record of DETAILS words a row:
// logit of the token, largest logit, mass of the softmax (low and high word), tokens listed, and their
// ids and logits, likeliest first. A record is written where its row asks for one. A token is NONE
// where the row has a NaN or positive infinity, has nothing finite, or has more than CANDIDATES equal
// logits where a filter ends: the host chooses then.
//
// A token's mass is a whole number of 2^-40 of the likeliest's, so that sums do not depend on their
// order and the same token comes out as on the host. Tokens are ranked by logit, then by id; every
// filter keeps the first of that order. A histogram over the logits finds the narrow range in which a
// filter ends, and what lies there is put in order.
// Grid: x rows. Threads: 1024. Reference: taper_sampler::Sampler.
#include "taper/common.h"

constant uint NONE = 0xffffffffu;
enum { THREADS = 1024, CANDIDATES = 1024, LISTED = 20, DETAILS = 5 + 2 * LISTED };
// Logits that a thread reads before it looks at the first: else it would mostly wait.
enum { AHEAD = 8 };

struct SampleRow {
    uint row;        // of the logits
    float inv_t;     // 1 / temperature; 0 takes the likeliest
    float min_d;     // least scaled logit below the likeliest's
    uint top_k;      // 0 keeps all
    uint top_p;      // in 2^-32; 0 keeps all
    uint bits_low;   // of the draw
    uint bits_high;
    uint listed;     // 0 wants no log probabilities, n + 1 those of the n likeliest
};

struct SampleParams {
    uint vocab;
    uint rows;
};

// e^x for -87 <= x <= 0, rounded after each operation as the host's.
INLINE float exponential(float x) {
#pragma clang fp contract(off)
    const float scaled = x * 1.44269504088896341f;
    const float shifted = scaled + 12582912.0f;
    const float n = shifted - 12582912.0f;
    const float n_high = n * 0.6933594f, n_low = n * -2.1219444e-4f;
    const float r = (x - n_high) - n_low;
    float p = 1.9875691e-4f * r;
    p = p + 1.3982e-3f, p = p * r;
    p = p + 8.333452e-3f, p = p * r;
    p = p + 4.1665796e-2f, p = p * r;
    p = p + 1.6666665e-1f, p = p * r;
    p = p + 0.5f;
    const float square = r * r;
    p = p * square, p = p + r;
    const float y = p + 1.0f;
    return y * as_type<float>((as_type<uint>(shifted) + 127u) << 23);
}

// e^d in units of 2^-40, to nearest and even.
INLINE ulong mass(float d) {
    if (!(d > -28.5f)) return 0;
    const uint bits = as_type<uint>(exponential(d));
    const uint whole = (bits & 0x7fffffu) | 0x800000u, exponent = bits >> 23;
    if (exponent >= 110) return ulong(whole) << (exponent - 110);
    const uint down = 110 - exponent, half_unit = 1u << (down - 1);
    const uint rest = whole & (2 * half_unit - 1), quotient = whole >> down;
    return quotient + (rest > half_unit || (rest == half_unit && (quotient & 1)) ? 1u : 0u);
}

// The high word of a product.
INLINE ulong high(ulong a, ulong b) {
    const ulong a0 = a & NONE, a1 = a >> 32, b0 = b & NONE, b1 = b >> 32;
    const ulong low = a0 * b0, one = a1 * b0 + (low >> 32), other = a0 * b1 + (one & NONE);
    return a1 * b1 + (one >> 32) + (other >> 32);
}

INLINE ulong from_lane(ulong v, uint lane) {
    return ulong(simd_shuffle(uint(v >> 32), ushort(lane))) << 32 | simd_shuffle(uint(v), ushort(lane));
}

// Sums over this thread and those before it, and over all.
INLINE ulong prefix(ulong v, threadgroup ulong* sums, uint tid, thread ulong& total) {
    const uint lane = tid % 32;
    for (uint m = 1; m < 32; m *= 2) {
        const ulong other = from_lane(v, (lane - m) & 31u);
        if (lane >= m) v += other;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 31) sums[tid / 32] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    total = 0;
    ulong before = 0;
    for (uint i = 0; i < 32; ++i) {
        if (i == tid / 32) before = total;
        total += sums[i];
    }
    return before + v;
}

// AHEAD logits from `id` on, `step` apart; -INFINITY, which no filter keeps, from `limit` on.
INLINE void read_ahead(device const float* x, uint id, uint step, uint limit, thread float* v) {
    UNROLL for (int i = 0; i < AHEAD; ++i) v[i] = x[min(id + uint(i) * step, limit - 1)];
    UNROLL for (int i = 0; i < AHEAD; ++i) v[i] = id + uint(i) * step < limit ? v[i] : -INFINITY;
}

// Whether a token comes before another, or is it.
INLINE bool ranks(float x, uint id, float other, uint other_id) {
    return x > other || (x == other && id <= other_id);
}

// Which tokens: those of one bucket of the logits, of one bucket within it, and of a rank. NONE is any.
struct Part {
    uint coarse;
    uint fine;
    float last;
    uint last_id;
};

struct Row {
    device const float* x;
    uint vocab;
    float largest;
    float inv_t;
    float min_d;
};

INLINE ulong mass_of(thread const Row& row, float v) {
    const float d = (v - row.largest) * row.inv_t;
    return d >= row.min_d ? mass(d) : 0;
}

// Buckets of 1/16: the last one is open. They never fall as logits fall.
INLINE uint coarse(thread const Row& row, float v) {
    return uint(min((row.largest - v) * 16.0f, 1023.0f));
}

// A bucket's 1024 parts.
INLINE uint fine(thread const Row& row, float v, uint bucket) {
#pragma clang fp contract(off)
    const float at = (row.largest - v) * 16.0f;
    const float within = at - float(bucket);
    return uint(min(within * 1024.0f, 1023.0f));
}

INLINE bool has(thread const Row& row, float v, uint id, thread const Part& part) {
    if (!(v > -INFINITY)) return false;
    if (part.coarse != NONE && coarse(row, v) != part.coarse) return false;
    if (part.fine != NONE && fine(row, v, part.coarse) != part.fine) return false;
    return ranks(v, id, part.last, part.last_id);
}

struct Shared {
    threadgroup atomic_uint* counts;
    threadgroup atomic_uint* lows;
    threadgroup atomic_uint* highs;
    threadgroup float* values;
    threadgroup uint* ids;
    threadgroup ulong* sums;
    threadgroup ulong* found;  // bucket or place, and what comes before
};

// A thread's bucket of a histogram.
struct Bin {
    ulong count;
    ulong mass;
    ulong count_before;
    ulong mass_before;
    ulong mass_total;
};

// Of a coarse bucket, or with NONE of all tokens.
INLINE Bin histogram(thread const Row& row, uint bucket, thread const Shared& at, uint tid) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    atomic_store_explicit(at.counts + tid, 0u, memory_order_relaxed);
    atomic_store_explicit(at.lows + tid, 0u, memory_order_relaxed);
    atomic_store_explicit(at.highs + tid, 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const Part part = {bucket, NONE, -INFINITY, NONE};
    for (uint first = tid; first < row.vocab; first += AHEAD * THREADS) {
        float v[AHEAD];
        read_ahead(row.x, first, THREADS, row.vocab, v);
        UNROLL for (int i = 0; i < AHEAD; ++i) {
            if (!has(row, v[i], first + uint(i) * THREADS, part)) continue;
            const uint to = bucket == NONE ? coarse(row, v[i]) : fine(row, v[i], bucket);
            atomic_fetch_add_explicit(at.counts + to, 1u, memory_order_relaxed);
            const ulong m = mass_of(row, v[i]);
            if (m == 0) continue;
            const uint old = atomic_fetch_add_explicit(at.lows + to, uint(m), memory_order_relaxed);
            const uint carry = old + uint(m) < old ? 1u : 0u;
            if (carry + uint(m >> 32) > 0) {
                atomic_fetch_add_explicit(at.highs + to, uint(m >> 32) + carry, memory_order_relaxed);
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Bin bin;
    bin.count = atomic_load_explicit(at.counts + tid, memory_order_relaxed);
    bin.mass = ulong(atomic_load_explicit(at.highs + tid, memory_order_relaxed)) << 32
        | atomic_load_explicit(at.lows + tid, memory_order_relaxed);
    ulong all;
    bin.count_before = prefix(bin.count, at.sums, tid, all) - bin.count;
    bin.mass_before = prefix(bin.mass, at.sums, tid, bin.mass_total) - bin.mass;
    return bin;
}

// The tokens of a part, at most CANDIDATES, in order; returns how many.
INLINE uint gather(thread const Row& row, thread const Part& part, thread const Shared& at, uint tid) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid == 0) atomic_store_explicit(at.counts, 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint first = tid; first < row.vocab; first += AHEAD * THREADS) {
        float v[AHEAD];
        read_ahead(row.x, first, THREADS, row.vocab, v);
        UNROLL for (int i = 0; i < AHEAD; ++i) {
            const uint id = first + uint(i) * THREADS;
            if (!has(row, v[i], id, part)) continue;
            const uint to = atomic_fetch_add_explicit(at.counts, 1u, memory_order_relaxed);
            at.values[to] = v[i], at.ids[to] = id;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint n = atomic_load_explicit(at.counts, memory_order_relaxed);
    const float v = tid < n ? at.values[tid] : 0.0f;
    const uint id = tid < n ? at.ids[tid] : 0u;
    uint before = 0;
    for (uint i = 0; tid < n && i < n; ++i) before += ranks(at.values[i], at.ids[i], v, id) ? 1 : 0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid < n) at.values[before - 1] = v, at.ids[before - 1] = id;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return n;
}

// Where in the order of all tokens a filter ends, and the mass up to there.
struct End {
    bool known;
    float last;
    uint last_id;
    ulong mass;
};

// Whether a bucket has the token at which `goal` tokens, or as much mass, are reached.
INLINE bool reaches(thread const Bin& bin, bool by_mass, ulong goal) {
    return by_mass ? bin.mass_before < goal && goal <= bin.mass_before + bin.mass
                   : bin.count_before < goal && goal <= bin.count_before + bin.count;
}

// The bucket that reaches the goal: its index, its count, and the count and mass before it.
INLINE bool find(
    thread const Bin& bin, bool by_mass, ulong goal, thread const Shared& at, uint tid, thread ulong* out)
{
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid == 0) at.found[0] = NONE;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (reaches(bin, by_mass, goal)) {
        at.found[0] = tid, at.found[1] = bin.count, at.found[2] = bin.count_before, at.found[3] = bin.mass_before;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (at.found[0] == NONE) return false;
    for (uint i = 0; i < 4; ++i) out[i] = at.found[i];
    return true;
}

// The last of the first `goal` tokens, or of those that have as much mass; all where there are not so
// many. Unknown where too many are equal.
INLINE End filter_end(
    thread const Row& row, thread const Bin& all, bool by_mass, ulong goal, thread const Shared& at, uint tid)
{
    End end = {true, -INFINITY, NONE, all.mass_total};
    ulong bucket[4];
    if (!find(all, by_mass, goal, at, tid, bucket)) return end;
    Part part = {uint(bucket[0]), NONE, -INFINITY, NONE};
    ulong mass_before = bucket[3];
    goal -= by_mass ? bucket[3] : bucket[2];
    if (bucket[1] > CANDIDATES) {
        const Bin bin = histogram(row, part.coarse, at, tid);
        find(bin, by_mass, goal, at, tid, bucket);
        part.fine = uint(bucket[0]), mass_before += bucket[3];
        goal -= by_mass ? bucket[3] : bucket[2];
        end.known = bucket[1] <= CANDIDATES;
        if (!end.known) return end;
    }
    const uint n = gather(row, part, at, tid);
    const ulong own = tid < n ? mass_of(row, at.values[tid]) : 0;
    Bin bin;
    bin.count = tid < n ? 1 : 0, bin.count_before = tid;
    bin.mass = own, bin.mass_before = prefix(own, at.sums, tid, bin.mass_total) - own;
    find(bin, by_mass, goal, at, tid, bucket);
    end.last = at.values[bucket[0]], end.last_id = at.ids[bucket[0]];
    end.mass = mass_before + bucket[3] + mass_of(row, end.last);
    return end;
}

// The mass of the tokens up to `end`, in 32 parts of the ids from `first` on, each of `each` ids: one
// a simdgroup.
INLINE void part_masses(
    thread const Row& row, thread const End& end, uint first, uint each, uint limit,
    thread const Shared& at, uint tid)
{
    const uint from = first + tid / 32 * each, to = min(from + each, limit);
    ulong sum = 0;
    for (uint id = from + tid % 32; id < to; id += AHEAD * 32) {
        float v[AHEAD];
        read_ahead(row.x, id, 32, to, v);
        UNROLL for (int i = 0; i < AHEAD; ++i) {
            if (ranks(v[i], id + uint(i) * 32, end.last, end.last_id)) sum += mass_of(row, v[i]);
        }
    }
    for (uint m = 16; m > 0; m /= 2) sum += from_lane(sum, (tid % 32) ^ m);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid % 32 == 0) at.sums[tid / 32] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

INLINE ulong sum_of_parts(thread const Shared& at) {
    ulong total = 0;
    for (uint i = 0; i < 32; ++i) total += at.sums[i];
    return total;
}

// The token up to `end` in whose mass the fraction `bits` / 2^64 of the total falls, by ascending id.
INLINE uint draw(thread const Row& row, thread const End& end, ulong bits, thread const Shared& at, uint tid) {
    uint first = 0, limit = row.vocab, each = row.vocab;
    ulong left = 0;
    do {
        each = (each + 31) / 32;
        part_masses(row, end, first, each, limit, at, tid);
        if (limit - first == row.vocab) left = high(bits, sum_of_parts(at));
        uint part = 0;
        while (part < 31 && left >= at.sums[part]) left -= at.sums[part++];
        first += part * each, limit = min(first + each, limit);
    } while (each > 1);
    return first;
}

kernel void sample(
    device const float* logits [[buffer(0)]],
    device const SampleRow* rows [[buffer(1)]],
    device uint* out [[buffer(2)]],
    constant SampleParams& p [[buffer(3)]],
    uint at_row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]])
{
    threadgroup atomic_uint counts[THREADS];
    threadgroup atomic_uint lows[THREADS];
    threadgroup atomic_uint highs[THREADS];
    threadgroup float values[CANDIDATES];
    threadgroup uint ids[CANDIDATES];
    threadgroup ulong sums[32];
    threadgroup ulong found[4];
    const Shared at = {counts, lows, highs, values, ids, sums, found};
    const SampleRow want = rows[at_row];
    Row row = {logits + size_t(want.row) * p.vocab, p.vocab, -INFINITY, want.inv_t, want.min_d};

    uint best = NONE;
    float refused = 0.0f;
    for (uint id = tid; id < p.vocab; id += AHEAD * THREADS) {
        float v[AHEAD];
        read_ahead(row.x, id, THREADS, p.vocab, v);
        UNROLL for (int i = 0; i < AHEAD; ++i) {
            if (!(v[i] < INFINITY)) refused = 1.0f;
            if (v[i] > row.largest) row.largest = v[i], best = id + uint(i) * THREADS;
        }
    }
    for (uint pass = 0; pass < 2; ++pass) {
        refused = simd_max(refused);
        for (uint m = 16; m > 0; m /= 2) {
            const float other = simd_shuffle_xor(row.largest, m);
            const uint index = simd_shuffle_xor(best, m);
            if (other > row.largest || (other == row.largest && index < best)) row.largest = other, best = index;
        }
        // Once more, over what the simdgroups have found.
        if (pass == 0) {
            if (tid % 32 == 0) values[tid / 32] = row.largest, ids[tid / 32] = best, values[32 + tid / 32] = refused;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            row.largest = values[tid % 32], best = ids[tid % 32], refused = values[32 + tid % 32];
        }
    }
    if (refused > 0.0f || best == NONE) {
        if (tid == 0) out[at_row] = NONE;
        return;
    }

    device uint* record = out + p.rows + at_row * DETAILS;
    const bool draws = want.inv_t > 0.0f;
    Bin all;
    all.mass_total = 0;
    if (want.top_k > 0 || want.top_p > 0 || want.listed > 1) all = histogram(row, NONE, at, tid);
    End end = {true, -INFINITY, NONE, all.mass_total};
    uint listed = 0;
    // The tokens to be listed, then the filters: the last end is where they end.
    for (uint pass = 0; pass < 3 && end.known; ++pass) {
        ulong goal = want.top_k;
        if (pass == 0) goal = max(want.listed, 1u) - 1;
        if (pass == 2) {
            const ulong low = want.top_p * (end.mass & NONE);
            goal = want.top_p * (end.mass >> 32) + ((low + NONE) >> 32);
            if (want.top_p > 0) goal = max(goal, ulong(1));
        }
        if (goal == 0 || (pass > 0 && !draws)) continue;
        const End found_end = filter_end(row, all, pass == 2, goal, at, tid);
        if (pass > 0 || !found_end.known) {
            end = found_end;
            continue;
        }
        const Part part = {NONE, NONE, found_end.last, found_end.last_id};
        listed = gather(row, part, at, tid);
        if (tid < listed) record[5 + 2 * tid] = ids[tid], record[6 + 2 * tid] = as_type<uint>(values[tid]);
    }
    if (!end.known) {
        if (tid == 0) out[at_row] = NONE;
        return;
    }
    const ulong bits = ulong(want.bits_high) << 32 | want.bits_low;
    const uint token = draws ? draw(row, end, bits, at, tid) : best;
    if (want.listed > 0) {
        row.inv_t = 1.0f, row.min_d = -INFINITY;
        const End last = {true, -INFINITY, NONE, 0};
        part_masses(row, last, 0, (p.vocab + 31) / 32, p.vocab, at, tid);
        const ulong total = sum_of_parts(at);
        if (tid == 0) {
            record[0] = as_type<uint>(row.x[token]), record[1] = as_type<uint>(row.largest);
            record[2] = uint(total), record[3] = uint(total >> 32), record[4] = listed;
        }
    }
    if (tid == 0) out[at_row] = token;
}
