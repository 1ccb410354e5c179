// The next token of each row: temperature, min_p, top_k, top_p, typical_p and a seeded draw, or the
// likeliest; and what log probabilities are made of. Four bytes a row come back to the host, and more where
// log probabilities are wanted.
//
// logits [*, vocab] f32, copies [*, vocab] edited ones (edit.metal), rows [n] SampleRow -> out: tokens [n],
// then a record of DETAILS words a row: logit of the token, largest logit, mass of the softmax (low and high
// word), tokens listed, and their ids and logits, likeliest first. A record is written where its row asks
// for one, and is of the logits, wherever the token is chosen. A token is NONE where a row that is read has
// a NaN or positive infinity, has nothing finite, or has more than CANDIDATES equal logits where top_k ends, or
// top_p before typical_p: the host chooses then.
//
// A token's mass is a whole number of 2^-40 of the likeliest's, so that sums do not depend on their
// order and the same token comes out as on the host. Tokens are ranked by logit, or by how near they are to
// the entropy, then by id; every filter keeps the first of that order. What the last of top_p and typical_p keeps
// is drawn from without finding it: a token is refused if too much comes before it, and the next is drawn from
// that. Where other filters end, a histogram over the ranks finds the narrow range, and what lies there is put
// in order.
// Grid: x rows. Threads: 1024. Reference: taper_sampler::Sampler.
#include "taper/common.h"
#include "taper/exponential.h"
#include "taper/sums.h"

constant uint NONE = 0xffffffffu;
enum { THREADS = 1024, CANDIDATES = 1024, LISTED = 20, DETAILS = 5 + 2 * LISTED };
// Logits that a thread reads before it looks at the first: else it would mostly wait.
enum { AHEAD = 8 };

struct SampleRow {
    uint row;        // of the logits
    uint edited;     // of the copies; NONE chooses from the logits
    float inv_t;     // 1 / temperature; 0 takes the likeliest
    float min_d;     // least scaled logit below the likeliest's
    uint top_k;      // 0 keeps all
    uint top_p;      // in 2^-32; 0 keeps all
    uint typical_p;  // likewise
    uint bits_low;   // of the draw
    uint bits_high;
    uint listed;     // 0 wants no log probabilities, n + 1 those of the n likeliest
};

struct SampleParams {
    uint vocab;
    uint rows;
};

// A number from 0 to 1 in units of 2^-40, to nearest and even.
INLINE ulong units(float x) {
    if (!(x > 4.5474735088646412e-13f)) return 0;
    const uint bits = as_type<uint>(x);
    const uint whole = (bits & 0x7fffffu) | 0x800000u, exponent = bits >> 23;
    if (exponent >= 110) return ulong(whole) << (exponent - 110);
    const uint down = 110 - exponent, half_unit = 1u << (down - 1);
    const uint rest = whole & (2 * half_unit - 1), quotient = whole >> down;
    return quotient + (rest > half_unit || (rest == half_unit && (quotient & 1)) ? 1u : 0u);
}

// From this scaled distance on there is no mass.
constant float MASSLESS = -28.5f;

INLINE ulong mass(float d) { return d > MASSLESS ? units(exponential(d)) : 0; }
INLINE ulong moment(float d) { return d > MASSLESS ? units(exponential(d) * -d) : 0; }

// AHEAD logits from `id` on, `step` apart; -INFINITY, which no filter keeps, from `limit` on.
INLINE void read_ahead(device const float* x, uint id, uint step, uint limit, thread float* v) {
    UNROLL for (int i = 0; i < AHEAD; ++i) v[i] = x[min(id + uint(i) * step, limit - 1)];
    UNROLL for (int i = 0; i < AHEAD; ++i) v[i] = id + uint(i) * step < limit ? v[i] : -INFINITY;
}

// Whether a token comes before an end: equals come before it whose id is less.
INLINE bool ranks(float x, uint id, float last, uint end_id) {
    return x > last || (x == last && id < end_id);
}

// Which tokens: those of one bucket of the ranks, of one bucket within it, and before an end. NONE is any.
struct Part {
    uint coarse;
    uint fine;
    float last;
    uint end_id;
};

struct Row {
    device const float* x;
    uint vocab;
    float largest;
    float inv_t;
    float min_d;
    // Whether tokens are ranked by how far their distances from the likeliest are from the mean, of those before
    // an end by logit.
    bool typical;
    float mean;
    float last;
    uint end_id;
};

INLINE ulong mass_of(thread const Row& row, float v) {
    const float d = (v - row.largest) * row.inv_t;
    return d >= row.min_d ? mass(d) : 0;
}

INLINE ulong moment_of(thread const Row& row, float v) {
    const float d = (v - row.largest) * row.inv_t;
    return d >= row.min_d ? moment(d) : 0;
}

// What orders tokens, the largest first; -INFINITY, which no filter keeps.
INLINE float rank_of(thread const Row& row, float v, uint id) {
#pragma clang fp contract(off)
    if (!row.typical) return v;
    const float d = (v - row.largest) * row.inv_t;
    if (!(d > MASSLESS && d >= row.min_d && ranks(v, id, row.last, row.end_id))) return -INFINITY;
    const float off = d + row.mean;
    return -abs(off);
}

INLINE float behind_first(thread const Row& row, float rank) {
    return row.typical ? -rank : row.largest - rank;
}

// Buckets of 1/16: the last one is open. They never fall as ranks fall.
INLINE uint coarse(thread const Row& row, float rank) {
    return uint(min(behind_first(row, rank) * 16.0f, 1023.0f));
}

// A bucket's 1024 parts.
INLINE uint fine(thread const Row& row, float rank, uint bucket) {
#pragma clang fp contract(off)
    const float at = behind_first(row, rank) * 16.0f;
    const float within = at - float(bucket);
    return uint(min(within * 1024.0f, 1023.0f));
}

INLINE bool has(thread const Row& row, float rank, uint id, thread const Part& part) {
    if (!(rank > -INFINITY)) return false;
    if (part.coarse != NONE && coarse(row, rank) != part.coarse) return false;
    if (part.fine != NONE && fine(row, rank, part.coarse) != part.fine) return false;
    return ranks(rank, id, part.last, part.end_id);
}

struct Shared {
    threadgroup atomic_uint* counts;
    threadgroup atomic_uint* lows;
    threadgroup atomic_uint* highs;
    threadgroup float* ranks;
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
            const uint id = first + uint(i) * THREADS;
            const float rank = rank_of(row, v[i], id);
            if (!has(row, rank, id, part)) continue;
            const uint to = bucket == NONE ? coarse(row, rank) : fine(row, rank, bucket);
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
            const float rank = rank_of(row, v[i], id);
            if (!has(row, rank, id, part)) continue;
            const uint to = atomic_fetch_add_explicit(at.counts, 1u, memory_order_relaxed);
            at.ranks[to] = rank, at.ids[to] = id;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint n = atomic_load_explicit(at.counts, memory_order_relaxed);
    const float rank = tid < n ? at.ranks[tid] : 0.0f;
    const uint id = tid < n ? at.ids[tid] : 0u;
    uint before = 0;
    for (uint i = 0; tid < n && i < n; ++i) before += ranks(at.ranks[i], at.ids[i], rank, id) ? 1 : 0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid < n) at.ranks[before] = rank, at.ids[before] = id;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return n;
}

// Where in the order of all tokens a filter ends, and the mass before.
struct End {
    bool known;
    float last;
    uint end_id;
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

// The end of the first `goal` tokens, or of those that have as much mass; of all where there are not so
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
    const ulong own = tid < n ? mass_of(row, row.x[at.ids[tid]]) : 0;
    Bin bin;
    bin.count = tid < n ? 1 : 0, bin.count_before = tid;
    bin.mass = own, bin.mass_before = prefix(own, at.sums, tid, bin.mass_total) - own;
    find(bin, by_mass, goal, at, tid, bucket);
    end.last = at.ranks[bucket[0]], end.end_id = at.ids[bucket[0]] + 1;
    end.mass = mass_before + bucket[3] + mass_of(row, row.x[end.end_id - 1]);
    return end;
}

// The mass of the tokens before `end`, or their moments, in 32 parts of the ids from `first` on, each of
// `each` ids: one a simdgroup.
INLINE void part_masses(
    thread const Row& row, thread const End& end, bool moments, uint first, uint each, uint limit,
    thread const Shared& at, uint tid)
{
    const uint from = first + tid / 32 * each, to = min(from + each, limit);
    ulong sum = 0;
    for (uint id = from + tid % 32; id < to; id += AHEAD * 32) {
        float v[AHEAD];
        read_ahead(row.x, id, 32, to, v);
        UNROLL for (int i = 0; i < AHEAD; ++i) {
            const uint own = id + uint(i) * 32;
            if (!ranks(rank_of(row, v[i], own), own, end.last, end.end_id)) continue;
            sum += moments ? moment_of(row, v[i]) : mass_of(row, v[i]);
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

// The mass of all tokens before `end`, or their moments.
INLINE ulong total_of(thread const Row& row, thread const End& end, bool moments, thread const Shared& at, uint tid) {
    part_masses(row, end, moments, 0, (row.vocab + 31) / 32, row.vocab, at, tid);
    return sum_of_parts(at);
}

// The token before `end` in whose mass the fraction `bits` / 2^64 of the total falls, by ascending id. The sums are
// those that the total was found by.
INLINE uint draw(
    thread const Row& row, thread const End& end, ulong total, ulong bits, thread const Shared& at, uint tid)
{
    uint first = 0, limit = row.vocab, each = (row.vocab + 31) / 32;
    ulong left = high(bits, total);
    for (;;) {
        uint part = 0;
        while (part < 31 && left >= at.sums[part]) left -= at.sums[part++];
        first += part * each, limit = min(first + each, limit);
        if (each == 1) return first;
        each = (each + 31) / 32;
        part_masses(row, end, false, first, each, limit, at, tid);
    }
}

// 64 more random bits: a step of SplitMix64.
INLINE ulong redraw(ulong bits) {
    ulong z = bits + 0x9e3779b97f4a7c15ul;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ul;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebul;
    return z ^ (z >> 31);
}

// A token of the shortest prefix of those before `end` whose mass reaches the goal; of all of them where it is 0.
// One drawn from more is refused if as much comes before it, and the next is drawn from that.
INLINE uint draw_prefix(
    thread const Row& row, End end, ulong total, ulong goal, ulong bits, thread const Shared& at, uint tid)
{
    for (;;) {
        const uint token = draw(row, end, total, bits, at, tid);
        if (goal == 0) return token;
        const End before = {true, rank_of(row, row.x[token], token), token, 0};
        total = total_of(row, before, false, at, tid);
        if (total < goal) return token;
        end = before, bits = redraw(bits);
    }
}

// The likeliest token, whose logit the row then has; NONE if the row cannot be chosen from.
INLINE uint scan(thread Row& row, thread const Shared& at, uint tid) {
    uint best = NONE;
    float refused = 0.0f;
    row.largest = -INFINITY;
    for (uint id = tid; id < row.vocab; id += AHEAD * THREADS) {
        float v[AHEAD];
        read_ahead(row.x, id, THREADS, row.vocab, v);
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
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (tid % 32 == 0) at.ranks[tid / 32] = row.largest, at.ids[tid / 32] = best, at.ranks[32 + tid / 32] = refused;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            row.largest = at.ranks[tid % 32], best = at.ids[tid % 32], refused = at.ranks[32 + tid % 32];
        }
    }
    return refused > 0.0f ? NONE : best;
}

// Writes a record but for the token's logit; false where its last tokens are too many equal ones.
INLINE bool list(
    Row row, thread const Bin& all, uint n, device uint* record, thread const Shared& at, uint tid)
{
    uint listed = 0;
    if (n > 0) {
        const End end = filter_end(row, all, false, n, at, tid);
        if (!end.known) return false;
        const Part part = {NONE, NONE, end.last, end.end_id};
        listed = gather(row, part, at, tid);
        if (tid < listed) {
            const uint id = at.ids[tid];
            record[5 + 2 * tid] = id, record[6 + 2 * tid] = as_type<uint>(row.x[id]);
        }
    }
    row.inv_t = 1.0f, row.min_d = -INFINITY;
    const End last = {true, -INFINITY, NONE, 0};
    const ulong total = total_of(row, last, false, at, tid);
    if (tid == 0) {
        record[1] = as_type<uint>(row.largest);
        record[2] = uint(total), record[3] = uint(total >> 32), record[4] = listed;
    }
    return true;
}

// Ranks the tokens before `end` by how near they are to the entropy, and returns the end of all of these. A
// token's distance from it is that of its distance from the likeliest from the mean one, which is rounded down to a
// multiple of 2^-24.
INLINE End rank_typical(thread Row& row, thread const End& end, ulong moments, ulong total) {
    uint steps = uint(moments / total);
    ulong rest = moments % total;
    for (uint i = 0; i < 24; ++i) {
        rest *= 2, steps *= 2;
        if (rest >= total) rest -= total, steps += 1;
    }
    row.typical = true, row.mean = float(steps) * 5.9604644775390625e-8f;
    row.last = end.last, row.end_id = end.end_id;
    const End all = {true, 4 * MASSLESS, NONE, total};
    return all;
}

// A share of a mass in 2^-32, rounded up; 0 is none.
INLINE ulong part_of(ulong mass, uint share) {
    if (share == 0) return 0;
    const ulong low = share * (mass & NONE);
    return max(share * (mass >> 32) + ((low + NONE) >> 32), ulong(1));
}

// Whether a filter's end has to be known: of top_k, and of what is followed by another.
INLINE bool has_ends(thread const SampleRow& want) {
    return want.inv_t > 0.0f && (want.top_k > 0 || (want.top_p > 0 && want.typical_p > 0));
}

// Draws from what the filters leave; NONE where too many equal tokens are at the end of one.
INLINE uint choose(
    thread Row& row, thread const Bin& all, thread const SampleRow& want, thread const Shared& at, uint tid)
{
    const bool typical = want.typical_p > 0;
    End end = {true, -INFINITY, NONE, all.mass_total};
    if (want.top_k > 0) end = filter_end(row, all, false, want.top_k, at, tid);
    if (end.known && want.top_p > 0 && typical) {
        end = filter_end(row, all, true, part_of(end.mass, want.top_p), at, tid);
    }
    if (!end.known) return NONE;
    const ulong moments = typical ? total_of(row, end, true, at, tid) : 0;
    const ulong total = total_of(row, end, false, at, tid);
    const ulong goal = part_of(total, typical ? want.typical_p : want.top_p);
    if (typical) end = rank_typical(row, end, moments, total);
    const ulong bits = ulong(want.bits_high) << 32 | want.bits_low;
    return draw_prefix(row, end, total, goal, bits, at, tid);
}

kernel void sample(
    device const float* logits [[buffer(0)]],
    device const float* copies [[buffer(1)]],
    device const SampleRow* rows [[buffer(2)]],
    device uint* out [[buffer(3)]],
    constant SampleParams& p [[buffer(4)]],
    uint at_row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]])
{
    threadgroup atomic_uint counts[THREADS];
    threadgroup atomic_uint lows[THREADS];
    threadgroup atomic_uint highs[THREADS];
    threadgroup float ranks[CANDIDATES];
    threadgroup uint ids[CANDIDATES];
    threadgroup ulong sums[32];
    threadgroup ulong found[4];
    const Shared at = {counts, lows, highs, ranks, ids, sums, found};
    const SampleRow want = rows[at_row];
    const bool is_edited = want.edited != NONE;
    device const float* own = logits + size_t(want.row) * p.vocab;
    device uint* record = out + p.rows + at_row * DETAILS;
    Row row = {own, p.vocab, -INFINITY, want.inv_t, want.min_d, false, 0.0f, 0.0f, 0};
    Bin all;
    all.mass_total = 0;
    uint token = 0;
    if (want.listed > 0 || !is_edited) {
        token = scan(row, at, tid);
        const bool counted = want.listed > 1 || (has_ends(want) && !is_edited);
        if (token != NONE && counted) all = histogram(row, NONE, at, tid);
    }
    if (token != NONE && want.listed > 0 && !list(row, all, want.listed - 1, record, at, tid)) token = NONE;
    if (token != NONE && is_edited) {
        row.x = copies + size_t(want.edited) * p.vocab;
        token = scan(row, at, tid);
        if (token != NONE && has_ends(want)) all = histogram(row, NONE, at, tid);
    }
    if (token != NONE && want.inv_t > 0.0f) token = choose(row, all, want, at, tid);
    if (tid == 0) out[at_row] = token;
    if (tid == 0 && token != NONE && want.listed > 0) record[0] = as_type<uint>(own[token]);
}
