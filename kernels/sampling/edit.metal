// Rows of logits with some tokens' changed: bias, penalties, bans.
//
// edit_logits: logits [*, vocab] f32, rows [n] EditRow, edits Edit -> out [n, vocab]: each row copied, and
//   for each of its edits, which name different tokens, in the order and with the roundings of the host:
//   the bias is added; the logit is divided by `repetition` if it is positive and multiplied by it if not;
//   `frequency` times the count, and `presence` if there is any, are taken off. What was finite stays so.
//   A banned token has -INFINITY, unless it had a NaN or INFINITY, which nothing is chosen beside.
//   Grid: x over 4096 logits, y rows. Threads: 256. Reference: Sampler::sample.
#include "taper/common.h"

enum { THREADS = 256, RANGE = 4096 };
constant float LARGEST = 3.4028234663852886e38f;
constant uint BANNED = 0xffffffffu;

struct EditRow {
    uint row;    // of the logits
    uint first;  // of its edits
    uint edits;
    float repetition;
    float frequency;
    float presence;
};

struct Edit {
    uint token;
    float bias;
    uint seen;  // 0: no penalties; else one more than how often the token stands in the output; or BANNED
};

struct EditParams {
    uint vocab;
};

INLINE float bounded(float former, float x) {
    return abs(former) <= LARGEST ? min(max(x, -LARGEST), LARGEST) : x;
}

INLINE float edited(float x, Edit edit, EditRow row) {
#pragma clang fp contract(off)
    if (edit.seen == BANNED) return x < INFINITY ? -INFINITY : x;
    const float biased = bounded(x, x + edit.bias);
    if (edit.seen == 0) return biased;
    const float count = float(edit.seen - 1);
    float y = biased > 0.0f ? biased / row.repetition : biased * row.repetition;
    const float often = row.frequency * count;
    y = y - often;
    if (count > 0.0f) y = y - row.presence;
    return bounded(biased, y);
}

kernel void edit_logits(
    device const float* logits [[buffer(0)]],
    device const EditRow* rows [[buffer(1)]],
    device const Edit* edits [[buffer(2)]],
    device float* out [[buffer(3)]],
    constant EditParams& p [[buffer(4)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]])
{
    const EditRow row = rows[at.y];
    device const float* from = logits + size_t(row.row) * p.vocab;
    device float* to = out + size_t(at.y) * p.vocab;
    const uint begin = at.x * RANGE, end = min(begin + RANGE, p.vocab);
    for (uint i = begin + tid; i < end; i += THREADS) to[i] = from[i];
    threadgroup_barrier(mem_flags::mem_device);
    for (uint e = tid; e < row.edits; e += THREADS) {
        const Edit edit = edits[row.first + e];
        if (edit.token >= begin && edit.token < end) to[edit.token] = edited(from[edit.token], edit, row);
    }
}
