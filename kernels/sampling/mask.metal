// Rows of logits of which only some tokens may be chosen.
//
// mask_logits: logits [*, vocab] f32, rows [n] uint, bits [n, words] uint -> the logits of those rows, in
//   place: of token t, bit t % 32 of word t / 32 says that it may be chosen; all others have -INFINITY, unless
//   they have a NaN or INFINITY, which nothing is chosen beside. words * 32 is at least vocab. A row stands in
//   `rows` once.
//   Grid: x over 4096 logits, y rows. Threads: 256. Reference: taper_sampler, mask.rs.
#include "taper/common.h"

enum { THREADS = 256, RANGE = 4096 };

struct MaskParams {
    uint vocab;
    uint words;
};

kernel void mask_logits(
    device const uint* rows [[buffer(0)]],
    device const uint* bits [[buffer(1)]],
    device float* logits [[buffer(2)]],
    constant MaskParams& p [[buffer(3)]],
    uint2 at [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]])
{
    device float* row = logits + size_t(rows[at.y]) * p.vocab;
    device const uint* mask = bits + size_t(at.y) * p.words;
    const uint begin = at.x * RANGE, end = min(begin + RANGE, p.vocab);
    for (uint i = begin + tid; i < end; i += THREADS) {
        const bool allowed = (mask[i / 32] >> (i % 32) & 1u) != 0;
        if (!allowed && row[i] < INFINITY) row[i] = -INFINITY;
    }
}
