// The most likely token of each row: index of the largest logit, the first of equals.
//
// logits [rows, vocab] f32 -> tokens [rows]: four bytes a sequence come back to the host. A row with a
// NaN or positive infinity, or with nothing finite, gives NONE.
// Grid: x rows. Threads: 1024. Reference: the sampler at temperature 0.
#include "taper/common.h"

constant uint NONE = 0xffffffffu;

enum { AHEAD = 8 };

struct ArgmaxParams {
    uint vocab;
};

kernel void argmax(
    device const float* logits [[buffer(0)]],
    device uint* tokens [[buffer(1)]],
    constant ArgmaxParams& p [[buffer(2)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint sg [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float values[32];
    threadgroup uint indices[32];
    threadgroup float refused[32];
    device const float* x = logits + size_t(row) * p.vocab;
    float best = -INFINITY;
    uint at = NONE;
    float bad = 0.0f;
    // Several loads are under way at a time: else a thread would mostly wait.
    for (uint i = tid; i < p.vocab; i += AHEAD * 1024) {
        float v[AHEAD];
        UNROLL for (int a = 0; a < AHEAD; ++a) v[a] = x[min(i + uint(a) * 1024, p.vocab - 1)];
        UNROLL for (int a = 0; a < AHEAD; ++a) {
            if (!(v[a] < INFINITY)) bad = 1.0f;
            const uint id = min(i + uint(a) * 1024, p.vocab - 1);
            if (v[a] > best) best = v[a], at = id;
        }
    }
    bad = simd_max(bad);
    for (uint m = 16; m > 0; m >>= 1) {
        const float other = simd_shuffle_xor(best, m);
        const uint index = simd_shuffle_xor(at, m);
        if (other > best || (other == best && index < at)) best = other, at = index;
    }
    if (lane == 0) values[sg] = best, indices[sg] = at, refused[sg] = bad;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (sg == 0) {
        best = values[lane], at = indices[lane], bad = simd_max(refused[lane]);
        for (uint m = 16; m > 0; m >>= 1) {
            const float other = simd_shuffle_xor(best, m);
            const uint index = simd_shuffle_xor(at, m);
            if (other > best || (other == best && index < at)) best = other, at = index;
        }
        if (lane == 0) tokens[row] = bad > 0.0f ? NONE : at;
    }
}
