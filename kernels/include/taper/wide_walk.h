// The walk of a row in the trellis code of nine bits of state (WIDE), by one simdgroup.
//
// A state is a memory of six bits and the branch of three that the next state forgets; walks close over the
// row. Where one starts is where the best walk through the row's second half and its first one passes; the
// walk is the best one from there.
// Reference: WideTrellis.
#pragma once
#include "codes.h"
#include "common.h"
#include "encoding.h"

enum { WIDE_BRANCHES = 8 };

// Goes through elements. A lane has memories `lane` and `lane + 32`: what the cheapest walks into them cost,
// the levels of the states they are of, and, of an element, by which branches these came.
struct WideWalk {
    threadgroup const float* x;
    uint d;
    float factor;
    threadgroup float* costs;  // [64]
    float cost[2];
    float level[2][WIDE_BRANCHES];
    uchar choices[MAX_DIM];
};

INLINE void walk_on(thread WideWalk& walk, uint from, uint to, uint lane) {
    threadgroup const float* before = walk.costs + lane % WIDE_BRANCHES * WIDE_BRANCHES;
    for (uint i = from; i < to; ++i) {
        const float at = i < walk.d ? walk.x[i] * walk.factor : 0.0f;
        walk.costs[lane] = walk.cost[0], walk.costs[lane + 32] = walk.cost[1];
        simdgroup_barrier(mem_flags::mem_threadgroup);
        uint chosen = 0;
        UNROLL for (int m = 0; m < 2; ++m) {
            float next = INFINITY;
            uint branch = 0;
            UNROLL for (int low = 0; low < WIDE_BRANCHES; ++low) {
                const float level = walk.level[m][low], c = fma(level, fma(-2.0f, at, level), before[low]);
                branch = c < next ? uint(low) : branch;
                next = c < next ? c : next;
            }
            walk.cost[m] = next;
            chosen |= branch << 3 * m;
        }
        walk.choices[i] = uchar(chosen);
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// The state at element i of the walk that is in a memory after it.
INLINE uint state_at(thread const WideWalk& walk, uint i, uint memory) {
    const uint chosen = simd_shuffle(uint(walk.choices[i]), ushort(memory % 32));
    return memory << 3 | (chosen >> memory / 32 * 3 & 7u);
}

// The memory whose cheapest walk is the cheapest of all.
INLINE uint cheapest(thread const WideWalk& walk, uint lane) {
    float best = min(walk.cost[0], walk.cost[1]);
    uint memory = walk.cost[1] < walk.cost[0] ? lane + 32 : lane;
    for (uint m = 1; m < 32; m *= 2) {
        const float other = simd_shuffle_xor(best, ushort(m));
        const uint index = simd_shuffle_xor(memory, ushort(m));
        if (other < best || (other == best && index < memory)) best = other, memory = index;
    }
    return memory;
}

// The symbols of a row's rings, and the sums that say how good they are, as `walks` leaves them.
inline void wide_walk(Writer to, threadgroup const float* x, float deviation, Room room, uint lane) {
    const uint padded = to.rings * RING, half_way = padded / 2;
    WideWalk walk;
    walk.x = x, walk.d = to.d, walk.factor = 1.0f / deviation, walk.costs = room.costs;
    UNROLL for (int m = 0; m < 2; ++m) {
        walk.cost[m] = 0.0f;
        UNROLL for (int low = 0; low < WIDE_BRANCHES; ++low) walk.level[m][low] = to.wide[(lane + 32 * m) * WIDE_BRANCHES + low];
    }
    walk_on(walk, half_way, padded, lane);
    walk_on(walk, 0, half_way, lane);
    uint start = cheapest(walk, lane);
    for (uint i = half_way; i > 0; --i) start = state_at(walk, i - 1, start) % 64;
    UNROLL for (int m = 0; m < 2; ++m) walk.cost[m] = lane + 32 * uint(m) == start ? 0.0f : FAR;
    walk_on(walk, 0, padded, lane);
    // A lane keeps what is of its ring.
    uint memory = start, w[2] = {0, 0};
    float along = 0.0f, energy = 0.0f;
    for (uint i = padded; i > 0; --i) {
        const uint e = i - 1, state = state_at(walk, e, memory), bit = e % RING * 3;
        memory = state % 64;
        if (e / RING != lane) continue;
        const float level = to.wide[state];
        if (e < to.d) along = fma(level, x[e], along), energy = fma(level, level, energy);
        w[bit / 32] |= state >> 6 << bit % 32;
        if (bit % 32 + 3 > 32) w[1] |= state >> 6 >> (32 - bit % 32);
    }
    if (lane < to.rings) {
        room.symbols[lane * 2] = w[0], room.symbols[lane * 2 + 1] = w[1];
        room.sums[lane * 2] = along, room.sums[lane * 2 + 1] = energy;
    }
}
