// The nearest closed walks of rows in trellis codes of 2 to 4 bits with six bits of state, ring by ring.
//
// A state is a memory and the branch that leads into it: a code of BITS bits has 2^(6 - BITS) memories, and 2^BITS
// branches lead into each. With 4 bits, four of these come from the same memory; the one whose level is nearest
// to an element is looked up for the element's place among BINS.
// Costs are whole numbers, whose lowest bits say which branch they are of.
// Reference: TrellisCode.
#pragma once
#include "codes.h"
#include "common.h"
#include "encoding.h"

enum { BINS = 512, BINS_PER_UNIT = 80 };
// Elements are at most 16 deviations, and a factor. Costs of a ring stay below FAR_OFF, twice which is a number.
constant float LARGEST = 24.0f;
constant float FINE = 131072.0f;
enum { FAR_OFF = 1 << 29 };
// Factors on the direction that are tried.
constant float FEW[5] = {1.0f, 0.92f, 1.08f, 0.0f, 0.0f};
constant float MANY[5] = {0.99f, 0.93f, 0.87f, 1.05f, 1.11f};

// What a branch costs at an element, without the element's square: x * element + y.
INLINE float2 branch_of(float level) {
    float2 out;
    out.x = -2.0f * FINE * level, out.y = FINE * level * level;
    return out;
}

// Of 4 bits: branches by pair of memories, and for each bin which of each four is the nearest. Of one bin.
inline void fill_nearest(Room room, uint bin) {
    const float at = (float(bin) + 0.5f - float(BINS / 2)) / float(BINS_PER_UNIT);
    uint all = 0;
    for (uint pair = 0; pair < 16; ++pair) {
        uint best = 0;
        float least = INFINITY;
        for (uint t = 0; t < 4; ++t) {
            const float level = room.levels[pair / 4 << 4 | t << 2 | pair % 4], cost = level * fma(-2.0f, at, level);
            if (cost < least) least = cost, best = t;
            if (bin == pair) room.by_pair[pair * 4 + t] = branch_of(level);
        }
        all |= best << 2 * pair;
    }
    room.nearest[bin] = all;
}

// What the branches into each memory cost at an element. With 4 bits it returns which of each four these are.
template <int BITS> INLINE uint branch_costs(float at, Room room, thread int* costs) {
    enum { MEMORIES = 1 << (6 - BITS), INTO = BITS == 3 ? 8 : 4 };
    uint which = 0;
    if (BITS == 4) {
        const float place = fma(at, float(BINS_PER_UNIT), float(BINS / 2));
        which = room.nearest[uint(min(max(place, 0.0f), float(BINS - 1)))];
    }
    UNROLL for (int i = 0; i < MEMORIES * INTO; ++i) {
        const float2 branch = BITS == 4 ? room.by_pair[uint(4 * i) + (which >> 2 * i & 3u)] : branch_of(room.levels[i]);
        costs[i] = (int(fma(branch.x, at, branch.y)) & -INTO) | i % INTO;
    }
    return which;
}

// Symbols of the best walks with each factor, and the sums that say how good they are. `x` has a row every `stride`
// floats. All threads.
template <int BITS>
void walks(Writer to, uint n, threadgroup const float* x, uint stride, Room room, uint tid) {
    enum {
        MEMORIES = 1 << (6 - BITS),
        INTO = BITS == 3 ? 8 : 4,
        INDEX = BITS == 3 ? 3 : 2,
        SCALES = BITS == 4 ? 5 : 3,
        STARTS = BITS == 2 ? 2 : 4,
        LANES = MEMORIES / STARTS
    };
    const uint total = n * SCALES * to.rings * LANES;
    for (uint base = 0; base < total; base += 256) {
        const uint unit = min(base + tid, total - 1);
        const uint first = unit % LANES * STARTS, ring = unit / LANES % to.rings;
        const uint tried = unit / LANES / to.rings % SCALES, row = unit / LANES / to.rings / SCALES;
        threadgroup const float* own = x + row * stride;
        const float factor = (BITS == 4 ? MANY[tried] : FEW[tried]) / deviation_of(room.squares[row], to.d);
        int cost[STARTS][MEMORIES];
        UNROLL for (int s = 0; s < STARTS; ++s) {
            UNROLL for (int m = 0; m < MEMORIES; ++m) cost[s][m] = uint(m) == first + uint(s) ? 0 : FAR_OFF;
        }
        uint choices[STARTS][RING], which[RING];
        for (uint i = 0; i < RING; ++i) {
            const uint e = ring * RING + i;
            const float at = e < to.d ? min(max(own[e] * factor, -LARGEST), LARGEST) : 0.0f;
            int costs[MEMORIES * INTO];
            which[i] = branch_costs<BITS>(at, room, costs);
            UNROLL for (int s = 0; s < STARTS; ++s) {
                int before[MEMORIES];
                UNROLL for (int m = 0; m < MEMORIES; ++m) before[m] = cost[s][m];
                uint chosen = 0;
                UNROLL for (int m = 0; m < MEMORIES; ++m) {
                    int next = before[(m << INDEX) & (MEMORIES - 1)] + costs[m * INTO];
                    UNROLL for (int j = 1; j < INTO; ++j) {
                        next = min(next, before[(m << INDEX | j) & (MEMORIES - 1)] + costs[m * INTO + j]);
                    }
                    const int index = next & (INTO - 1);
                    cost[s][m] = next - index;
                    chosen |= uint(index) << (m * INDEX);
                }
                choices[s][i] = chosen;
            }
        }
        int best = 2 * FAR_OFF - 1;
        uint start = first;
        UNROLL for (int s = 0; s < STARTS; ++s) {
            int closed = best;
            UNROLL for (int m = 0; m < MEMORIES; ++m) closed = uint(m) == first + uint(s) ? cost[s][m] : closed;
            if (closed < best) best = closed, start = first + uint(s);
        }
        for (uint m = 1; m < LANES; m *= 2) {
            const int other = int(simd_shuffle_xor(uint(best), ushort(m)));
            const uint index = simd_shuffle_xor(start, ushort(m));
            if (other < best || (other == best && index < start)) best = other, start = index;
        }
        if (start / STARTS * STARTS != first || base + tid >= total) continue;
        uint memory = start, w[2] = {0, 0};
        float along = 0.0f, energy = 0.0f;
        for (uint i = RING; i > 0; --i) {
            const uint e = ring * RING + i - 1, bit = (i - 1) * BITS;
            const uint from = choices[start - first][i - 1] >> (memory * INDEX) & uint(INTO - 1);
            const uint branch = BITS == 4 ? (which[i - 1] >> 2 * (memory * 4 + from) & 3u) << 2 | from : from;
            const uint state = memory << BITS | branch, symbol = state >> (6 - BITS);
            const float level = room.levels[state];
            if (e < to.d) along = fma(level, own[e], along), energy = fma(level, level, energy);
            w[bit / 32] |= symbol << bit % 32;
            if (bit % 32 + BITS > 32) w[1] |= symbol >> (32 - bit % 32);
            memory = state & uint(MEMORIES - 1);
        }
        const uint at = row * ROOM + (tried * MAX_RINGS + ring) * 2;
        room.symbols[at] = w[0], room.symbols[at + 1] = w[1];
        room.sums[at] = along, room.sums[at + 1] = energy;
    }
}
