// Rows of a compressed cache as operands of the matrix units, and its keys as tiles of them.
#pragma once
#include "codes.h"
#include "common.h"
#include "tile.h"

// How rows become halves that the matrix units take: levels of codes are whole numbers up to 127. Codes
// are read by their format's number; those of SCALAR + 4 are nibbles of their own order. Affine rows, and the
// levels of sketched ones, are split: a half, and a half for what it leaves. A sketch's signs are a kind of
// their own.
enum { HALVES = 0, NIBBLES = SCALAR + 4, SIGNS = SKETCHED };
INLINE uint kind_of(uint format) { return format == HALF_TILED ? HALVES : format; }
#define IS_SPLIT(KIND) (KIND == AFFINE4 || KIND == AFFINE8 || KIND > SKETCHED)
// Where in a table of levels those halves are that leave something.
enum { REST = 32 };
// Calls CALL(kind) for a kind, which all lanes have. A kernel for rows of one format, ONLY, has no others but
// exact rows; one for SKETCHED, sketches of all bits.
#define WITH_KIND(ONLY, KIND, CALL) \
    if (KIND == HALVES) { \
        CALL(HALVES); \
    } else if (ONLY == SKETCHED) { \
        switch (KIND) { \
        case SKETCHED + 2: CALL(SKETCHED + 2); break; \
        case SKETCHED + 3: CALL(SKETCHED + 3); break; \
        case SKETCHED + 4: CALL(SKETCHED + 4); break; \
        default: CALL(SKETCHED + 5); \
        } \
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

INLINE uint packed(uint low, uint high) { return low | high << 16; }
INLINE uint bits_of_half(float x) { return as_type<ushort>(half(x)); }
INLINE uint rest_of_half(float x) { return bits_of_half(x - float(half(x))); }

INLINE uint code_level(threadgroup const ushort* lut, uint at) {
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
    enum { AFFINE_BITS = KIND == AFFINE4 ? 4 : 8 };
    uint x[2][16], left[2][16];
    if (KIND == NIBBLES) {
        const uint4 v = *(device const uint4*)(k.region + low / 4 * k.rings * 32 + low % 4 * 16 + ring * 32);
        const uint words[4] = {v.x, v.y, v.z, v.w};
        UNROLL for (int e = 0; e < 16; ++e) {
            const uint word = words[e / 4];
            const int shift = e % 4 * 8;
            x[0][e] = code_level(lut, (shift > 0 ? word >> (shift - 1) : word << 1) & 30u);
            x[1][e] = code_level(lut, word >> (shift + 3) & 30u);
        }
    } else if (KIND == SIGNS) {
        UNROLL for (int r = 0; r < 2; ++r) {
            uint word[1];
            load_bits<1>(k, signs_of(k, r ? high : low) + ring * 2, word);
            UNROLL for (int e = 0; e < 16; ++e) x[r][e] = 0x3c00u | (word[0] >> e & 1u) << 15;
        }
    } else if (KIND > SCALAR) {
        UNROLL for (int r = 0; r < 2; ++r) {
            uint words[3];
            load_codes<KIND>(k, r ? high : low, ring, words);
            UNROLL for (int e = 0; e < 16; ++e) {
                const uint at = code_at<KIND>(words, e);
                x[r][e] = code_level(lut, at);
                if (IS_SPLIT(KIND)) left[r][e] = code_level(lut + REST, at);
            }
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

template <int KIND>
INLINE void multiply_pairs(thread TileC& c, thread const uint* a, thread const uint* rest, thread const TileB& b, uint lane) {
    TileA tile;
    tile_of_lanes(tile, lane, a[0], a[1], a[2], a[3]);
    tile_multiply(c, tile, b);
    if (IS_SPLIT(KIND)) {
        tile_of_lanes(tile, lane, rest[0], rest[1], rest[2], rest[3]);
        tile_multiply(c, tile, b);
    }
}

// Four rows of q as columns: each as halves relative to its largest element, and what they leave; what row t of
// lane 4 g + t is relative to.
template <int RINGS>
INLINE float columns_of(threadgroup const float* qs, uint lane, thread TileB* columns) {
    enum { SIZE = 16 * RINGS };
    const uint g = lane / 4, t = lane % 4;
    float largest = 0.0f;
    for (uint i = lane % 8; i < SIZE; i += 8) largest = max(largest, abs(qs[lane / 8 * SIZE + i]));
    UNROLL for (int m = 1; m < 8; m *= 2) largest = max(largest, simd_shuffle_xor(largest, ushort(m)));
    largest = largest > 0.0f ? largest : 1.0f;
    // Lane 4 g + t has column g, which is row g / 2.
    const float inverse = 1.0f / simd_shuffle(largest, ushort(g / 2 * 8));
    UNROLL for (int ring = 0; ring < RINGS; ++ring) {
        threadgroup const float* own = qs + g / 2 * SIZE + t * (4 * RINGS) + 4 * ring;
        uint x[4];
        UNROLL for (int i = 0; i < 4; ++i) x[i] = g % 2 ? rest_of_half(own[i] * inverse) : bits_of_half(own[i] * inverse);
        tile_of_lanes(columns[ring], lane, packed(x[0], x[1]), packed(x[2], x[3]));
    }
    return simd_shuffle(largest, ushort(t * 8));
}

// scores[2 h + upper]: of row t of q with the token in row g + 8 upper of tile h. Past the last ring q is
// nothing but zeros.
template <int KIND, int RINGS>
INLINE void score(Rows k, uint last, uint lane, threadgroup const ushort* lut, thread const TileB* q, thread float* scores) {
    enum { OWN = RINGS / 4 };
    const uint g = lane / 4, t = lane % 4;
    const bool whole = KIND > SCALAR;
    UNROLL for (int h = 0; h < 2; ++h) {
        const uint low = uint(16 * h) + key_token(KIND, g, 0), high = uint(16 * h) + key_token(KIND, g, 1);
        TileC c;
        tile_zero(c);
        UNROLL for (int r = 0; r < OWN; ++r) {
            uint a[4][4], rest[4][4];
            const uint ring = min(t * OWN + uint(r), k.rings - 1);
            key_pairs<KIND>(k, ring, whole ? low : min(low, last), whole ? high : min(high, last), lut, a, rest);
            UNROLL for (int m = 0; m < 4; ++m) multiply_pairs<KIND>(c, a[m], rest[m], q[4 * r + m], lane);
        }
        float sum[4];
        tile_to_lanes(c, lane, sum);
        scores[2 * h] = sum[0] + sum[1], scores[2 * h + 1] = sum[2] + sum[3];
    }
}
