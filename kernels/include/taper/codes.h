// Rows of a compressed cache.
//
// A head region holds a block's 32 rows of one head, in one of the layouts that taper_kv_codecs draws
// (plain.rs, turbo.rs, taper.rs, qjl.rs, tiles.rs); a format says which. Elements 16 ring .. 16 ring + 15
// of a row are a ring; head_dim is padded to whole rings with what counts as zero.
#pragma once
#include "common.h"

enum { BLOCK = 32, RING = 16 };
// Formats of a side. A trellis's codes of BITS bits are read with the 6 - BITS bits before them in their ring.
// The host numbers them alike.
enum {
    HALF_ROWS = 0,   // [token][d] halves
    HALF_TILED = 1,  // [d / 8][token][8] halves
    AFFINE4 = 2,
    AFFINE8 = 3,
    SCALAR = 10,     // + bits, 1 to 5
    TRELLIS = 20,    // + bits, 2 to 4
    WIDE = 30,       // + bits, 3: a trellis whose codes are read with the 6 bits before them in the row
    SKETCHED = 40    // + bits, 2 to 5, the sketch's among them; keys only
};
// Of a kernel that is for rows of every other format.
enum { ANY = 0 };

struct Rows {
    device const uchar* region;
    uint format;
    uint d;
    uint rings;
    uint group;      // affine: elements that share a scale
};

INLINE bool is_scalar(uint format) { return format > SCALAR && format < TRELLIS; }
INLINE bool is_trellis(uint format) { return format > TRELLIS && format < SKETCHED; }
INLINE bool is_wide(uint format) { return format > WIDE && format < SKETCHED; }
INLINE bool is_sketched(uint format) { return format > SKETCHED; }
INLINE uint bits_of(uint format) { return format % 10; }

INLINE float half_of(uint bits) { return float(as_type<half>(ushort(bits))); }
INLINE float half_at(device const uchar* p) { return half_of(*(device const ushort*)p); }

// Bytes of the codes of a region.
INLINE uint code_bytes(uint rings, uint bits) { return BLOCK * rings * 2 * bits; }

// A ring of affine codes of BITS bits, and its group's scale and bias after them. Past the row's end codes
// are any.
template <int BITS> INLINE void load_affine(Rows of, uint token, uint ring, thread uint* words) {
    enum { WORDS = BITS / 2 };
    const uint codes = of.d * BITS / 8, bytes = codes + (of.d + of.group - 1) / of.group * 4;
    device const uchar* row = of.region + token * bytes;
    device const uint* from = (device const uint*)row + ring * WORDS;
    if (bytes % 8 == 0 && of.d % RING == 0) {
        UNROLL for (int w = 0; w < WORDS; w += 2) {
            const uint2 two = *(device const uint2*)(from + w);
            words[w] = two.x, words[w + 1] = two.y;
        }
    } else {
        UNROLL for (int w = 0; w < WORDS; ++w) words[w] = from[min(uint(w), codes / 4 - ring * WORDS - 1)];
    }
    words[WORDS] = *(device const uint*)(row + codes + ring * RING / of.group * 4);
}

// Its element e. Below 2^23 a code is the rest of a float's mantissa.
template <int BITS> INLINE float affine_value(thread const uint* words, int e) {
    enum { WORDS = BITS / 2, EACH = 32 / BITS };
    const uint code = words[e / EACH] >> e % EACH * BITS & ((1u << BITS) - 1u), pair = words[WORDS];
    return fma(as_type<float>(code | 0x4b000000u) - 8388608.0f, half_of(pair), half_of(pair >> 16));
}

// Four halves of a row from element e on, a multiple of four; 0 past the row's end.
INLINE void four_halves_at(Rows of, uint token, uint e, thread uint* out) {
    const uint at = of.format == HALF_TILED ? (e / 8 * BLOCK + token) * 8 + e % 8 : token * of.d + e;
    const bool there = e < of.d;
    const uint2 v = *(device const uint2*)((device const ushort*)of.region + (there ? at : 0));
    out[0] = there ? v.x & 0xffffu : 0u, out[1] = there ? v.x >> 16 : 0u;
    out[2] = there ? v.y & 0xffffu : 0u, out[3] = there ? v.y >> 16 : 0u;
}

// One; rows that follow each other.
INLINE uint half_bits_at(Rows of, uint token, uint e) {
    const bool there = e < of.d;
    return there ? uint(((device const ushort*)of.region)[there ? token * of.d + e : 0]) : 0u;
}

// Where a token's first ring is; the next ones follow at 8 BITS bytes.
template <int BITS> INLINE device const uchar* rings_of(Rows of, uint token) {
    return of.region + (token / 4 * of.rings * 4 + token % 4) * (2 * BITS);
}

// A sketched row: scalar codes of bits - 1 bits, a sign an element (1: negative), and the lengths of the row and
// of what its codes leave as halves. It may begin at any byte.
INLINE device const uchar* sketched_row(Rows of, uint token) {
    return of.region + token * (of.d / 8 * bits_of(of.format) + 4);
}
INLINE device const uchar* signs_of(Rows of, uint token) {
    return sketched_row(of, token) + of.d / 8 * (bits_of(of.format) - 1);
}
INLINE float length_of(Rows of, uint token, uint which) {
    device const uchar* p = signs_of(of, token) + of.d / 8 + 2 * which;
    return half_of(uint(p[0]) | uint(p[1]) << 8);
}
// What multiplies the signs, in the sketch's space.
INLINE float sketch_scale(Rows of, uint token) { return sqrt(1.57079633f / float(of.d)) * length_of(of, token, 1); }

// The 16 BITS bits of a ring in such a row. Past the row's end they are any.
template <int BITS> INLINE void load_bits(Rows of, device const uchar* from, thread uint* words) {
    UNROLL for (int i = 0; i < (BITS + 1) / 2; ++i) words[i] = 0;
    if (of.d % RING == 0) {
        device const ushort* halves = (device const ushort*)from;
        UNROLL for (int i = 0; i < BITS; ++i) words[i / 2] |= uint(halves[i]) << i % 2 * 16;
    } else {
        UNROLL for (int i = 0; i < 2 * BITS; ++i) words[i / 4] |= uint(from[i]) << i % 4 * 8;
    }
}

// The 16 BITS bits of a ring.
template <int BITS> INLINE void load_ring(device const uchar* ring, thread uint* words) {
    if (BITS == 4) {
        const uint2 v = *(device const uint2*)ring;
        words[0] = v.x, words[1] = v.y;
    } else if (BITS == 2) {
        words[0] = *(device const uint*)ring;
    } else {
        device const ushort* halves = (device const ushort*)ring;
        UNROLL for (int i = 0; i < BITS; i += 2) {
            words[i / 2] = uint(halves[i]);
            if (i + 1 < BITS) words[i / 2] |= uint(halves[i + 1]) << 16;
        }
    }
}

// Where among levels of two bytes that of a ring's element `e` stands. The index has the code's BITS bits
// and LEAD bits that come before them, going round.
template <int BITS, int LEAD> INLINE uint level_at(thread const uint* words, int e) {
    enum { ALL = 16 * BITS, MASK = ((1 << (BITS + LEAD)) - 1) * 2 };
    const int start = (e * BITS + ALL - LEAD) % ALL, shift = start % 32;
    const int left = min(ALL - start, 32 - shift), next = (start + left) % ALL;
    uint bits = shift > 0 ? words[start / 32] >> (shift - 1) : words[start / 32] << 1;
    if (left < BITS + LEAD) {
        bits = (bits & ((2u << left) - 1u)) | words[next / 32] >> next % 32 << (left + 1);
    }
    return bits & uint(MASK);
}

// The 48 bits of a ring of three-bit codes, behind the last six of the ring that comes before it, going
// round.
INLINE void load_wide(Rows of, uint token, uint ring, thread uint* words) {
    device const uchar* row = rings_of<3>(of, token);
    device const ushort* own = (device const ushort*)(row + ring * 24);
    device const ushort* before = (device const ushort*)(row + (ring == 0 ? of.rings - 1 : ring - 1) * 24);
    const uint low = uint(own[0]) | uint(own[1]) << 16;
    words[0] = uint(before[2]) >> 10 | low << 6, words[1] = low >> 26 | uint(own[2]) << 6;
}

// Where among levels of two bytes that of its element `e` stands.
INLINE uint wide_level_at(thread const uint* words, int e) {
    const int start = 3 * e;
    uint bits = start < 32 ? words[0] >> start : words[1] >> (start - 32);
    if (start < 32 && start + 9 > 32) bits |= words[1] << (32 - start);
    return (bits & 511u) << 1;
}

#define IS_WIDE(KIND) (KIND > WIDE && KIND < SKETCHED)
// How many bits the codes of a kind of rows have.
#define CODE_BITS(KIND) (KIND > SKETCHED ? KIND % 10 - 1 : KIND > SCALAR && KIND % 10 > 0 ? KIND % 10 : 1)

// A ring of a row's codes, and where among levels of two bytes that of its element `e` stands.
template <int KIND> INLINE void load_codes(Rows of, uint token, uint ring, thread uint* words) {
    enum { BITS = CODE_BITS(KIND) };
    if (KIND > SKETCHED) {
        load_bits<BITS>(of, sketched_row(of, token) + ring * 2 * BITS, words);
    } else if (IS_WIDE(KIND)) {
        load_wide(of, token, ring, words);
    } else {
        load_ring<BITS>(rings_of<BITS>(of, token) + ring * 8 * BITS, words);
    }
}
template <int KIND> INLINE uint code_at(thread const uint* words, int e) {
    enum { BITS = CODE_BITS(KIND), LEAD = KIND > TRELLIS && KIND < WIDE ? 6 - BITS : 0 };
    return IS_WIDE(KIND) ? wide_level_at(words, e) : level_at<BITS, LEAD>(words, e);
}

// What multiplies a row's levels.
INLINE float row_scale(Rows of, uint token) {
    device const uchar* after = of.region + code_bytes(of.rings, bits_of(of.format));
    if (is_scalar(of.format)) return half_at(after + 2 * token);
    if (is_sketched(of.format)) return length_of(of, token, 0);
    if (is_trellis(of.format)) {
        const uint code = after[token];
        const int base = int(*(device const short*)(after + BLOCK));
        return code == 0 ? 0.0f : exp2(float(base + int(code) - 128) / 24.0f);
    }
    return 1.0f;
}

// One element of an affine row.
INLINE float affine_at(Rows of, uint token, uint e) {
    const uint bits = of.format == AFFINE4 ? 4 : 8;
    const uint codes = of.d * bits / 8, groups = (of.d + of.group - 1) / of.group;
    device const uchar* row = of.region + token * (codes + 4 * groups);
    const uint pair = *(device const uint*)(row + codes + 4 * (e / of.group));
    const uint code = uint(row[e * bits / 8]) >> (e * bits % 8) & ((1u << bits) - 1u);
    return fma(float(code), half_of(pair), half_of(pair >> 16));
}

// Which level an element has: its code, in a trellis with the bits that come before it in its ring, or in its
// row, going round. Nibbles have an order for keys and one for values.
INLINE uint level_of(Rows of, uint token, uint e, bool keys) {
    const uint bits = bits_of(of.format), i = e % RING;
    if (is_sketched(of.format)) {
        device const uchar* at = sketched_row(of, token) + e * (bits - 1) / 8;
        return (uint(at[0]) | uint(at[1]) << 8) >> e * (bits - 1) % 8 & ((1u << (bits - 1)) - 1u);
    }
    if (is_wide(of.format)) {
        uint words[2];
        load_wide(of, token, e / RING, words);
        return wide_level_at(words, int(i)) / 2;
    }
    if (of.format == SCALAR + 4) {
        device const uchar* tile = of.region + (token / 4 * of.rings + e / RING) * 32;
        return keys ? uint(tile[token % 2 * 16 + i]) >> (token % 4 / 2 * 4) & 15u
                    : uint(tile[i % 8 * 4 + token % 4]) >> (i / 8 * 4) & 15u;
    }
    const uint lead = is_trellis(of.format) ? 6 - bits : 0;
    device const ushort* ring = (device const ushort*)(of.region + ((token / 4 * of.rings + e / RING) * 4 + token % 4) * 2 * bits);
    const uint start = (i * bits + RING * bits - lead) % (RING * bits);
    const uint word = uint(ring[start / 16]) | uint(ring[(start / 16 + 1) % bits]) << 16;
    return word >> start % 16 & ((1u << (bits + lead)) - 1u);
}

// One element of a row as its codes have it, in the codes' space and without a centre. `scale` is the row's.
INLINE float element_of(Rows of, uint token, uint e, float scale, device const float* levels, bool keys) {
    if (of.format == HALF_ROWS) return half_of(half_bits_at(of, token, e));
    return of.format > SCALAR ? scale * levels[level_of(of, token, e, keys)] : affine_at(of, token, e);
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
