// Rows of a compressed cache, sixteen elements at a time.
//
// A head region holds a block's 32 rows of one head, in one of the layouts that taper_kv_codecs draws
// (plain.rs, turbo.rs, taper.rs, tiles.rs); a format says which. Elements 16 ring .. 16 ring + 15 of a
// row are a ring; head_dim is padded to whole rings with what counts as zero.
#pragma once
#include "common.h"

enum { BLOCK = 32, RING = 16 };
// Formats of a side. Codes of BITS bits are read through a window that has 6 - BITS bits more if the
// code is a trellis's. The host numbers them alike.
enum {
    HALF_ROWS = 0,   // [token][d] halves
    HALF_TILED = 1,  // [d / 8][token][8] halves
    AFFINE4 = 2,
    AFFINE8 = 3,
    SCALAR = 10,     // + bits, 1 to 5
    TRELLIS = 20     // + bits, 2 to 4
};

struct Rows {
    device const uchar* region;
    uint format;
    uint d;
    uint rings;
    uint group;      // affine: elements that share a scale
};

inline bool is_scalar(uint format) { return format > SCALAR && format < TRELLIS; }
inline bool is_trellis(uint format) { return format > TRELLIS; }
inline uint bits_of(uint format) { return format % 10; }

inline float half_of(uint bits) { return float(as_type<half>(ushort(bits))); }
inline float half_at(device const uchar* p) { return half_of(*(device const ushort*)p); }

// Bytes of the codes of a region.
inline uint code_bytes(uint rings, uint bits) { return BLOCK * rings * 2 * bits; }

inline void eight_halves(device const uchar* p, thread float* out) {
    const uint4 v = *(device const uint4*)p;
    const uint raw[4] = {v.x, v.y, v.z, v.w};
    UNROLL for (int i = 0; i < 8; ++i) out[i] = half_of(raw[i / 2] >> (16 * (i % 2)));
}

inline void half_ring(Rows of, uint token, uint ring, thread float* out) {
    const bool tiled = of.format == HALF_TILED;
    UNROLL for (int part = 0; part < 2; ++part) {
        const uint c = 2 * ring + uint(part);
        const uint at = tiled ? (c * BLOCK + token) * 8 : token * of.d + c * 8;
        if (c * 8 < of.d) {
            eight_halves(of.region + 2 * at, out + 8 * part);
        } else {
            UNROLL for (int i = 0; i < 8; ++i) out[8 * part + i] = 0.0f;
        }
    }
}

template <int BITS> inline void affine_ring(Rows of, uint token, uint ring, thread float* out) {
    const uint codes = of.d * BITS / 8, groups = (of.d + of.group - 1) / of.group;
    device const uchar* row = of.region + token * (codes + 4 * groups);
    UNROLL for (int part = 0; part < 2; ++part) {
        const uint c = 2 * ring + uint(part);
        if (c * 8 < of.d) {
            const uint pair = *(device const uint*)(row + codes + 4 * (c * 8 / of.group));
            const float scale = half_of(pair), bias = half_of(pair >> 16);
            device const uint* words = (device const uint*)(row + c * BITS);
            UNROLL for (int i = 0; i < 8; ++i) {
                const uint code = words[i * BITS / 32] >> (i * BITS % 32) & ((1u << BITS) - 1u);
                out[8 * part + i] = fma(float(code), scale, bias);
            }
        } else {
            UNROLL for (int i = 0; i < 8; ++i) out[8 * part + i] = 0.0f;
        }
    }
}

// Sixteen codes of BITS bits, each with the LEAD bits before it; before the first come the last ones.
template <int BITS, int LEAD>
inline void ring_codes(device const uchar* p, threadgroup const float* levels, thread float* out) {
    enum { WORDS = (BITS + 1) / 2 };
    uint w[WORDS + 1];
    if (BITS == 4) {
        const uint2 v = *(device const uint2*)p;
        w[0] = v.x, w[WORDS - 1] = v.y;
    } else if (BITS == 2) {
        w[0] = *(device const uint*)p;
    } else {
        device const ushort* h = (device const ushort*)p;
        UNROLL for (int i = 0; i < WORDS; ++i) {
            w[i] = uint(h[2 * i]) | (2 * i + 1 < BITS ? uint(h[2 * i + 1 < BITS ? 2 * i + 1 : 0]) << 16 : 0u);
        }
    }
    w[WORDS] = 0;
    if (LEAD > 0) {
        const uint last = w[WORDS - 1] >> ((16 * BITS - 1) % 32 + 1 - LEAD);
        UNROLL for (int i = WORDS; i > 0; --i) w[i] = w[i] << LEAD | w[i - 1] >> (32 - LEAD) % 32;
        w[0] = w[0] << LEAD | last;
    }
    UNROLL for (int i = 0; i < RING; ++i) {
        const int at = i * BITS, word = at / 32, offset = at % 32;
        uint code = w[word] >> offset;
        if (offset + BITS + LEAD > 32) code |= w[word + 1] << (32 - offset);
        out[i] = levels[code & ((1u << (BITS + LEAD)) - 1u)];
    }
}

// Scalar codes of 4 bits of keys: token t of a tile has its nibbles in the same half of the bytes of
// (t % 2); of values: in byte t of each word.
inline void nibble_ring(device const uchar* tile, uint t, bool keys, threadgroup const float* levels, thread float* out) {
    if (keys) {
        const uint4 v = *(device const uint4*)(tile + t % 2 * 16);
        const uint w[4] = {v.x, v.y, v.z, v.w}, shift = t / 2 * 4;
        UNROLL for (int i = 0; i < RING; ++i) out[i] = levels[w[i / 4] >> shift >> (8 * (i % 4)) & 15u];
        return;
    }
    const uint4 a = *(device const uint4*)tile, b = *(device const uint4*)(tile + 16);
    const uint w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    UNROLL for (int i = 0; i < 8; ++i) {
        const uint byte = w[i] >> (8 * t);
        out[i] = levels[byte & 15u], out[i + 8] = levels[byte >> 4 & 15u];
    }
}

// A ring of a row, without the row's scale. FORMAT is the rows' format, known at compile time.
template <int FORMAT>
inline void ring_of(Rows of, uint token, uint ring, bool keys, threadgroup const float* levels, thread float* out) {
    if (FORMAT == HALF_ROWS || FORMAT == HALF_TILED) {
        half_ring(of, token, ring, out);
    } else if (FORMAT == AFFINE4) {
        affine_ring<4>(of, token, ring, out);
    } else if (FORMAT == AFFINE8) {
        affine_ring<8>(of, token, ring, out);
    } else {
        enum { BITS = FORMAT % 10, CODED = FORMAT > SCALAR, LEAD = FORMAT > TRELLIS ? 6 - BITS : 0 };
        const uint tile = token / 4 * of.rings + ring;
        if (FORMAT == SCALAR + 4) {
            nibble_ring(of.region + tile * 32, token % 4, keys, levels, out);
        } else {
            ring_codes<BITS, LEAD>(of.region + (tile * 4 + token % 4) * 2 * BITS, levels, out);
        }
    }
}

// What multiplies a row's levels.
inline float row_scale(Rows of, uint token) {
    device const uchar* after = of.region + code_bytes(of.rings, bits_of(of.format));
    if (is_scalar(of.format)) return half_at(after + 2 * token);
    if (is_trellis(of.format)) {
        const uint code = after[token];
        const int base = int(*(device const short*)(after + BLOCK));
        return code == 0 ? 0.0f : exp2(float(base + int(code) - 128) / 24.0f);
    }
    return 1.0f;
}

// The centre of a trellis's keys: a byte that says whether the block has one yet (else its first rows
// are halves at the region's start), a scale, and seven bits an element.
inline device const uchar* centre_of(Rows of) {
    return of.region + code_bytes(of.rings, bits_of(of.format)) + BLOCK + 2;
}
inline float centre_at(device const uchar* centre, uint i) {
    device const uchar* bytes = centre + 4 + 7 * i / 8;
    const uint shift = 7 * i % 8;
    const uint low = uint(bytes[0]) >> shift, high = shift > 1 ? uint(bytes[1]) << (8 - shift) : 0u;
    return (float((low | high) & 127u) - 63.0f) * half_at(centre + 2);
}

// Calls CALL(format) for the rows' format; what every lane of a simdgroup decides alike.
#define WITH_FORMAT(FORMAT, CALL) \
    switch (FORMAT) { \
    case HALF_ROWS: CALL(HALF_ROWS); break; \
    case HALF_TILED: CALL(HALF_TILED); break; \
    case AFFINE4: CALL(AFFINE4); break; \
    case AFFINE8: CALL(AFFINE8); break; \
    case SCALAR + 1: CALL(SCALAR + 1); break; \
    case SCALAR + 2: CALL(SCALAR + 2); break; \
    case SCALAR + 3: CALL(SCALAR + 3); break; \
    case SCALAR + 4: CALL(SCALAR + 4); break; \
    case SCALAR + 5: CALL(SCALAR + 5); break; \
    case TRELLIS + 2: CALL(TRELLIS + 2); break; \
    case TRELLIS + 3: CALL(TRELLIS + 3); break; \
    case TRELLIS + 4: CALL(TRELLIS + 4); break; \
    }
