// What products with experts share: what is between the two products of an expert, and pairs of tokens and experts in
// the order of experts, cut into tiles.
#pragma once
#include "common.h"
#include "curve.h"
#include "prepared.h"

enum { GATED = 1, BIAS = 2, WEIGHS_INPUT = 4, HALVES = 8, WIDE = 16 };

// What is between an expert's products, of what the first one gives.
INLINE float between(uint kind, float limit, bool gated, float y, float up) {
    const Numbers numbers = {limit, 0.0f, 0.0f, 0.0f};
    float other = gated ? up : 1.0f;
    const float f = curve(kind, numbers, y, other);
    return f * other;
}

// Pairs of one expert, in places next to each other. Tiles that are too many have none.
struct ExpertTile {
    uint expert;
    uint first;
    uint count;
};

struct ExpertTileParams {
    uint rows;      // of one expert
    uint cols;
    uint chosen;    // pairs that share a row of x, which stands in the order of tokens; 0: x stands in that of places
    uint stride;    // of the rows of y, zeros after what they have
    uint group_shift;
    uint scale_type;
    uint packed;
    uint curve;     // 0: none
    uint flags;
    uint bits;      // HALVES: y stands as prepared.h has it for weights of so many bits; WIDE: for wide products
    float limit;
};

// Rows of a tile's product, as tile_product.h has them.
struct ExpertRows {
    ExpertTileParams p;
    ExpertTile tile;
    device const uint* order;
    uint row0;

    // With a gate, of 16 rows the first eight are the gate's, and the others those of up that belong to them.
    static uint weight(thread const ExpertRows& of, uint r) {
        const bool gated = of.p.flags & GATED;
        const uint half_rows = of.p.rows / 2, n = gated ? of.row0 / 2 + r / 16 * 8 + r % 8 : of.row0 + r;
        const uint own = gated ? min(n, half_rows - 1) + (r % 16 / 8) * half_rows : min(n, of.p.rows - 1);
        return of.tile.expert * of.p.rows + own;
    }

    // After the last place there is that one again.
    static uint input(thread const ExpertRows& of, uint i) {
        const uint place = of.tile.first + min(i, of.tile.count - 1);
        return of.p.chosen ? of.order[place] / of.p.chosen : place;
    }

    static void ready() {}
};

// Element n of y of a tile's i-th place, from its sums. With a gate `y` is the gate's, and `up` the other.
INLINE void expert_output(
    thread const ExpertRows& of, device const float* bias, device const float* weights, device uint* out, uint i, uint n,
    float y, float up)
{
    const ExpertTileParams p = of.p;
    const bool gated = p.flags & GATED;
    const uint limit = gated ? p.rows / 2 : p.rows, place = of.tile.first + i;
    float value = 0.0f;
    if (n < limit) {
        if (p.flags & WEIGHS_INPUT) {
            const float weight = weights[of.order[place]];
            y *= weight, up *= weight;
        }
        if (p.flags & BIAS) {
            device const float* own = bias + size_t(of.tile.expert) * p.rows + n;
            y += own[0];
            if (gated) up += own[limit];
        }
        value = p.curve ? between(p.curve, p.limit, gated, y, up) : y;
    }
    const size_t row = size_t(place) * p.stride;
    if (p.flags & HALVES) {
        store_half(value, (device ushort*)out + row, n, p.bits, p.flags & WIDE ? PREPARE_WIDE : 0);
    } else {
        ((device float*)out)[row + n] = value;
    }
}

// Floats in threadgroup memory from a place's sums to the next one's, of a block of so many rows.
#define SUMS_STRIDE(ROWS) (ROWS + 4)

// Keeps the sums of 16 rows of a block from the r-th on and of eight places from the i-th on, as `tile_to_lanes` gives
// them.
INLINE void keep_sums(threadgroup float* sums, uint stride, uint r, uint i, uint lane, thread const float* sum) {
    threadgroup float* to = sums + (i + 2 * (lane % 4)) * stride + r + lane / 4;
    to[0] = sum[0], to[stride] = sum[1], to[8] = sum[2], to[stride + 8] = sum[3];
}

// What a block of ROWS rows gives, from the sums of all its places. All its threads come here, THREADS of them.
template <int ROWS, int THREADS>
INLINE void expert_outputs(
    thread const ExpertRows& of, device const float* bias, device const float* weights, device uint* out, uint tid,
    threadgroup const float* sums)
{
    const bool gated = of.p.flags & GATED;
    const uint cols = gated ? ROWS / 2 : ROWS, first = gated ? of.row0 / 2 : of.row0;
    for (uint k = tid; k < of.tile.count * cols; k += THREADS) {
        const uint i = gated ? k / (ROWS / 2) : k / ROWS, n = k % cols;
        threadgroup const float* own = sums + i * SUMS_STRIDE(ROWS) + (gated ? n / 8 * 16 + n % 8 : n);
        if (first + n < of.p.stride) expert_output(of, bias, weights, out, i, first + n, own[0], gated ? own[8] : 0.0f);
    }
}
