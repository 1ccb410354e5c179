// Products of a block of 128 rows of weights of 4 or 8 bits with T rows of halves in prepared.h's order, by four
// simdgroups. Weights, scales and halves of 64 columns at a time go through threadgroup memory, STAGES of them under
// way. A weight is its code, exact in a half, times scale plus bias.
//
// Which rows these are says a type ROWS: weight(rows, r) is the r-th of the block, input(rows, i) the i-th row of
// halves, and ready() waits between the first weights and the first halves.
#pragma once
#include "common.h"
#include "copies.h"
#include "packed.h"
#include "tile.h"
#include "widened.h"

enum { TN = 128, TK = 64, THREADS = 128, TILES = TN / 16 / 4 };

// Rows of a whole matrix; after the last one there is that one again.
struct MatmulRows {
    uint row0;
    uint rows;
    uint token0;
    uint tokens;
    static uint weight(thread const MatmulRows& of, uint r) { return min(of.row0 + r, of.rows - 1); }
    static uint input(thread const MatmulRows& of, uint i) { return min(of.token0 + i, of.tokens - 1); }
    static void ready() { previous_launch_done(); }
};

// What is multiplied: columns from `begin` on, in steps of TK.
struct Columns {
    device const uint* data;
    device const uint* scales;
    device const half* x;
    uint cols;
    uint begin;
    uint steps;
    uint packed;
    uint scale_type;
};

// Sizes in pieces of 16 bytes.
template <int BITS, int GROUP, int T> struct Stage {
    enum {
        CHUNKS = TK * BITS / 128,                      // of a row, a step
        LOADS = TN * CHUNKS / THREADS,
        X_LOADS = (T * TK / 8 + THREADS - 1) / THREADS,
        WORDS = TK > GROUP ? TK / GROUP : 1,           // scales of a row
        W_SIZE = TN * CHUNKS, S_SIZE = TN * WORDS / 4, X_SIZE = T * TK / 8
    };
};

// What a thread copies: where it begins, and from one step's weights to the next one's.
template <int BITS, int GROUP, int T> struct Copied {
    device const uint4* weights[Stage<BITS, GROUP, T>::LOADS];
    device const uint* scales;
    device const uint4* x[Stage<BITS, GROUP, T>::X_LOADS];
    uint step;
};

template <int BITS, int GROUP, int T, typename ROWS>
INLINE void find_weights(thread Copied<BITS, GROUP, T>& from, Columns of, thread const ROWS& rows, uint tid) {
    typedef Stage<BITS, GROUP, T> S;
    UNROLL for (int l = 0; l < S::LOADS; ++l) {
        const uint row = ROWS::weight(rows, tid / S::CHUNKS + uint(l) * (THREADS / S::CHUNKS));
        const uint piece = of.begin * BITS / 128 + tid % S::CHUNKS;
        from.weights[l] = (device const uint4*)of.data + piece_at(row, piece, of.cols * BITS / 128, of.packed);
    }
    from.scales = of.scales + scales_at(ROWS::weight(rows, tid), of.cols / GROUP, of.packed);
    from.step = of.packed ? S::CHUNKS * 8 : S::CHUNKS;
}

template <int BITS, int GROUP, int T, typename ROWS>
INLINE void find_x(thread Copied<BITS, GROUP, T>& from, Columns of, thread const ROWS& rows, uint tid) {
    UNROLL for (int l = 0; l < Stage<BITS, GROUP, T>::X_LOADS; ++l) {
        const uint row = ROWS::input(rows, tid / 8 + uint(l) * (THREADS / 8));
        from.x[l] = (device const uint4*)of.x + (size_t(row) * of.cols + of.begin) / 8 + tid % 8;
    }
}

// Asks for a step's weights and scales, if there is such a step.
template <int BITS, int GROUP, int T>
INLINE void copy_weights(thread const Copied<BITS, GROUP, T>& from, Columns of, uint step, uint tid, threadgroup uint4* to) {
    typedef Stage<BITS, GROUP, T> S;
    if (step >= of.steps) return;
    const uint row = tid / S::CHUNKS, place = row * S::CHUNKS + weight_place<BITS>(row, tid % S::CHUNKS);
    UNROLL for (int l = 0; l < S::LOADS; ++l) copy_16(to + place + l * THREADS, from.weights[l] + step * from.step);
    UNROLL for (int i = 0; i < S::WORDS; ++i) {
        const uint group = (of.begin + step * TK) / GROUP + uint(i);
        copy_4((threadgroup uint*)(to + S::W_SIZE) + tid * S::WORDS + uint(i), from.scales + scale_in_row(group, of.packed));
    }
}

// The same of halves; `place` is where the thread's first 16 bytes stand.
template <int BITS, int GROUP, int T>
INLINE void copy_x(thread const Copied<BITS, GROUP, T>& from, Columns of, uint step, uint tid, uint place, threadgroup uint4* to) {
    if (step >= of.steps) return;
    UNROLL for (int l = 0; l < Stage<BITS, GROUP, T>::X_LOADS; ++l) {
        if (T % 16 == 0 || tid < T * TK / 8) copy_16(to + place + l * THREADS, from.x[l] + step * 8);
    }
}

// Eight columns of 32 of a row of a stage, as halves: those of lane t of four that share the row.
template <int BITS, int GROUP, int T>
INLINE void widened_row(
    threadgroup const uint* stage, uint row, uint h, uint t, bool bf16, thread half2& scale, thread half2& bias, thread uint* out)
{
    typedef Stage<BITS, GROUP, T> S;
    if (h == 0 || GROUP == 32) {
        const uint pair = stage[S::W_SIZE * 4 + row * S::WORDS + (GROUP == 32 ? h : 0)];
        scale = half_pair(pair, bf16), bias = half_pair(pair >> 16, bf16);
    }
    uint raw[2];
    if (BITS == 4) {
        raw[0] = stage[(row * S::CHUNKS + weight_place<BITS>(row, h)) * 4 + t];
    } else {
        const uint place = row * S::CHUNKS + weight_place<BITS>(row, h * 2 + t / 2);
        const uint2 two = *(threadgroup const uint2*)(stage + place * 4 + t % 2 * 2);
        raw[0] = two.x, raw[1] = two.y;
    }
    widened<BITS>(raw, scale, bias, out);
}

INLINE uint x_place(uint row, uint c) { return c ^ (row & 1) * 4; }

#define TILE_MEMORY(BITS, GROUP, T, STAGES) \
    (STAGES * (Stage<BITS, GROUP, T>::W_SIZE + Stage<BITS, GROUP, T>::S_SIZE + Stage<BITS, GROUP, T>::X_SIZE))

// Of a simdgroup's 32 rows, c[i * T / 8 + j] gets the sums of the i-th 16 with the j-th eight rows of halves.
template <int BITS, int GROUP, int T, int STAGES, typename ROWS>
INLINE void tile_product(
    Columns of, thread const ROWS& rows, uint tid, uint sg, uint lane, threadgroup uint4* memory, thread TileC* c)
{
    typedef Stage<BITS, GROUP, T> S;
    enum { PLACES = T / 8, SIZE = S::W_SIZE + S::S_SIZE + S::X_SIZE };
    const uint g = lane / 4, t = lane % 4, x_to = S::W_SIZE + S::S_SIZE + tid / 8 * 8 + x_place(tid / 8, tid % 8);
    Copied<BITS, GROUP, T> from;
    find_weights(from, of, rows, tid);
    UNROLL for (int s = 0; s < STAGES - 1; ++s) copy_weights(from, of, uint(s), tid, memory + s * SIZE);
    ROWS::ready();
    find_x(from, of, rows, tid);
    UNROLL for (int s = 0; s < STAGES - 1; ++s) {
        copy_x(from, of, uint(s), tid, x_to, memory + s * SIZE);
        copies_end();
    }
    UNROLL for (int i = 0; i < TILES * PLACES; ++i) tile_zero(c[i]);
    const bool bf16 = of.scale_type == 2;
    for (uint step = 0; step < of.steps; ++step) {
        copies_wait<STAGES - 2>();
        threadgroup_barrier(mem_flags::mem_threadgroup);
        threadgroup const uint4* stage = memory + step % STAGES * SIZE;
        threadgroup const uint4* xs = stage + S::W_SIZE + S::S_SIZE;
        half2 scale[2 * TILES], bias[2 * TILES];
        UNROLL for (int h = 0; h < TK / 32; ++h) {
            uint4 b[PLACES];
            UNROLL for (int j = 0; j < PLACES; ++j) b[j] = xs[(uint(j) * 8 + g) * 8 + x_place(g, uint(h) * 4 + t)];
            UNROLL for (int i = 0; i < TILES; ++i) {
                uint a[2][4];
                UNROLL for (int u = 0; u < 2; ++u) {
                    const uint row = sg * 32 + uint(i) * 16 + uint(u) * 8 + g;
                    widened_row<BITS, GROUP, T>(
                        (threadgroup const uint*)stage, row, uint(h), t, bf16, scale[2 * i + u], bias[2 * i + u], a[u]);
                }
                TileA low, high;
                tile_of_lanes(low, lane, a[0][0], a[1][0], a[0][1], a[1][1]);
                tile_of_lanes(high, lane, a[0][2], a[1][2], a[0][3], a[1][3]);
                // Products that follow each other do not wait for each other.
                UNROLL for (int j = 0; j < PLACES; ++j) {
                    TileB tile;
                    tile_of_lanes(tile, lane, b[j].x, b[j].y);
                    tile_multiply(c[i * PLACES + j], low, tile);
                }
                UNROLL for (int j = 0; j < PLACES; ++j) {
                    TileB tile;
                    tile_of_lanes(tile, lane, b[j].z, b[j].w);
                    tile_multiply(c[i * PLACES + j], high, tile);
                }
            }
            if (h == 0) {
                const uint next = step + STAGES - 1;
                copy_weights(from, of, next, tid, memory + next % STAGES * SIZE);
                copy_x(from, of, next, tid, x_to, memory + next % STAGES * SIZE);
                copies_end();
            }
        }
    }
    copies_wait<0>();
}
