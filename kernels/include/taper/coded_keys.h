// Rows of a compressed cache as operands of the matrix units, and its keys as tiles of them.
#pragma once
#include "codes.h"
#include "common.h"

// How rows become halves that the matrix units take: levels of codes are whole numbers up to 127. Codes
// are read by their format's number; those of SCALAR + 4 are nibbles of their own order. Affine rows are
// split: a half, and a half for what it leaves.
enum { HALVES = 0, NIBBLES = SCALAR + 4 };
INLINE uint kind_of(uint format) { return format == HALF_TILED ? HALVES : format; }
#define IS_SPLIT(KIND) (KIND == AFFINE4 || KIND == AFFINE8)
// Calls CALL(kind) for a kind, which all lanes have. A kernel for rows of one format, ONLY, has no others but
// exact rows.
#define WITH_KIND(ONLY, KIND, CALL) \
    if (KIND == HALVES) { \
        CALL(HALVES); \
    } else if (ONLY != ANY) { \
        CALL((ONLY == ANY ? NIBBLES : ONLY)); \
    } else { \
        switch (KIND) { \
        case AFFINE4: CALL(AFFINE4); break; \
        case AFFINE8: CALL(AFFINE8); break; \
        case SCALAR + 1: CALL(SCALAR + 1); break; \
        case SCALAR + 2: CALL(SCALAR + 2); break; \
        case SCALAR + 3: CALL(SCALAR + 3); break; \
        case NIBBLES: CALL(NIBBLES); break; \
        case SCALAR + 5: CALL(SCALAR + 5); break; \
        case TRELLIS + 2: CALL(TRELLIS + 2); break; \
        case TRELLIS + 3: CALL(TRELLIS + 3); break; \
        default: CALL(TRELLIS + 4); \
        } \
    }
enum { ANY = 0 };

INLINE uint packed(uint low, uint high) { return low | high << 16; }
INLINE uint bits_of_half(float x) { return as_type<ushort>(half(x)); }
INLINE uint rest_of_half(float x) { return bits_of_half(x - float(half(x))); }

INLINE uint level(threadgroup const ushort* lut, uint at) {
    return *(threadgroup const ushort*)((threadgroup const uchar*)lut + at);
}

// Keys: rows of a tile are tokens, and lane 4 g + t has those in rows g and g + 8. Of these it has RINGS / 4
// consecutive rings, whose elements come four a tile.
INLINE uint key_token(uint kind, uint g, uint upper) {
    return kind == NIBBLES ? g / 2 * 4 + g % 2 + 2 * upper : g + 8 * upper;
}

// A ring of both tokens as four tiles.
template <int KIND>
INLINE void key_pairs(Rows k, uint ring, uint low, uint high, threadgroup const ushort* lut, thread uint (*a)[4], thread uint (*rest)[4]) {
    enum { BITS = KIND > SCALAR ? KIND % 10 : 1, LEAD = KIND > TRELLIS ? 6 - BITS : 0, AFFINE_BITS = KIND == AFFINE4 ? 4 : 8 };
    uint x[2][16], left[2][16];
    if (KIND == NIBBLES) {
        const uint4 v = *(device const uint4*)(k.region + low / 4 * k.rings * 32 + low % 4 * 16 + ring * 32);
        const uint words[4] = {v.x, v.y, v.z, v.w};
        UNROLL for (int e = 0; e < 16; ++e) {
            const uint word = words[e / 4];
            const int shift = e % 4 * 8;
            x[0][e] = level(lut, (shift > 0 ? word >> (shift - 1) : word << 1) & 30u);
            x[1][e] = level(lut, word >> (shift + 3) & 30u);
        }
    } else if (KIND > SCALAR) {
        UNROLL for (int r = 0; r < 2; ++r) {
            uint words[3];
            load_ring<BITS>(rings_of<BITS>(k, r ? high : low) + ring * 8 * BITS, words);
            UNROLL for (int e = 0; e < 16; ++e) x[r][e] = level(lut, level_at<BITS, LEAD>(words, e));
        }
    } else if (IS_SPLIT(KIND)) {
        UNROLL for (int r = 0; r < 2; ++r) {
            uint words[5];
            load_affine<AFFINE_BITS>(k, r ? high : low, ring, words);
            UNROLL for (int e = 0; e < 16; ++e) {
                const float value = affine_value<AFFINE_BITS>(words, e);
                x[r][e] = bits_of_half(value), left[r][e] = rest_of_half(value);
            }
        }
    } else {
        UNROLL for (int r = 0; r < 2; ++r) {
            UNROLL for (int e = 0; e < 16; e += 4) four_halves_at(k, r ? high : low, ring * RING + uint(e), x[r] + e);
        }
    }
    UNROLL for (int m = 0; m < 4; ++m) {
        UNROLL for (int r = 0; r < 2; ++r) {
            a[m][r] = packed(x[r][4 * m], x[r][4 * m + 1]), a[m][r + 2] = packed(x[r][4 * m + 2], x[r][4 * m + 3]);
            if (IS_SPLIT(KIND)) {
                rest[m][r] = packed(left[r][4 * m], left[r][4 * m + 1]);
                rest[m][r + 2] = packed(left[r][4 * m + 2], left[r][4 * m + 3]);
            }
        }
    }
}
