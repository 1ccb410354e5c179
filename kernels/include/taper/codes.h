// Rows of a compressed cache.
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

INLINE bool is_scalar(uint format) { return format > SCALAR && format < TRELLIS; }
INLINE bool is_trellis(uint format) { return format > TRELLIS; }
INLINE uint bits_of(uint format) { return format % 10; }

INLINE float half_of(uint bits) { return float(as_type<half>(ushort(bits))); }
INLINE float half_at(device const uchar* p) { return half_of(*(device const ushort*)p); }

// Bytes of the codes of a region.
INLINE uint code_bytes(uint rings, uint bits) { return BLOCK * rings * 2 * bits; }

// One element of an affine row.
INLINE float affine_at(Rows of, uint token, uint e) {
    const uint bits = of.format == AFFINE4 ? 4 : 8;
    const uint codes = of.d * bits / 8, groups = (of.d + of.group - 1) / of.group;
    device const uchar* row = of.region + token * (codes + 4 * groups);
    const uint pair = *(device const uint*)(row + codes + 4 * (e / of.group));
    const uint code = uint(row[e * bits / 8]) >> (e * bits % 8) & ((1u << bits) - 1u);
    return fma(float(code), half_of(pair), half_of(pair >> 16));
}

// N halves from element e of a row on, N consecutive ones within eight; 0 past the row's end.
template <int N> INLINE void halves_at(Rows of, uint token, uint e, thread uint* out) {
    const uint at = of.format == HALF_TILED ? (e / 8 * BLOCK + token) * 8 + e % 8 : token * of.d + e;
    const bool there = e < of.d;
    device const ushort* from = (device const ushort*)of.region + (there ? at : 0);
    UNROLL for (int i = 0; i < N; ++i) out[i] = there ? uint(from[i]) : 0u;
}

// Where the bits of some neighbouring codes of a ring are: 32 bits from `start` on, going round, hold
// four codes and what comes before them.
struct Window {
    uint start;
    uint mask;  // of a level's index
};

INLINE Window window_at(uint format, uint e) {
    const uint bits = bits_of(format), lead = is_trellis(format) ? 6 - bits : 0, all = max(16 * bits, 1u);
    const Window w = {(e * bits + all - lead) % all, (1u << (bits + lead)) - 1u};
    return w;
}

// Where a token's first ring is; the next ones follow at 8 BITS bytes.
template <int BITS> INLINE device const uchar* rings_of(Rows of, uint token) {
    return of.region + (token / 4 * of.rings * 4 + token % 4) * (2 * BITS);
}

template <int BITS> INLINE uint window_of(device const uchar* ring, Window w) {
    if (BITS == 4) {
        const uint2 v = *(device const uint2*)ring;
        const uint shift = w.start % 32;
        const bool turned = w.start >= 32;
        const uint low = turned ? v.y : v.x, high = turned ? v.x : v.y;
        return low >> shift | high << (32 - shift) % 32;
    }
    if (BITS == 2) {
        const uint v = *(device const uint*)ring, shift = w.start % 32;
        return v >> shift | v << (32 - shift) % 32;
    }
    const uint word = w.start / 16;
    device const ushort* words = (device const ushort*)ring;
    return (uint(words[word]) | uint(words[word + 1 == BITS ? 0 : word + 1]) << 16) >> w.start % 16;
}

// What multiplies a row's levels.
INLINE float row_scale(Rows of, uint token) {
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
INLINE device const uchar* centre_of(Rows of) {
    return of.region + code_bytes(of.rings, bits_of(of.format)) + BLOCK + 2;
}
INLINE float centre_at(device const uchar* centre, uint i) {
    device const uchar* bytes = centre + 4 + 7 * i / 8;
    const uint shift = 7 * i % 8;
    const uint low = uint(bytes[0]) >> shift, high = shift > 1 ? uint(bytes[1]) << (8 - shift) : 0u;
    return (float((low | high) & 127u) - 63.0f) * half_at(centre + 2);
}
