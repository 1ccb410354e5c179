// Weight formats, read in chunks of CHUNK consecutive weights of a row.
//
// A format has: RAW, the words of a chunk as they lie in memory; `load`; `quant(raw, i)`, a float q
// that stands for weight i; and `affine`, which gives s and b with w = s * q + b.
// A code c of BITS bits is read as q = 1 + c / 2^BITS: the code becomes the top of a float's
// mantissa, so it costs a shift and a mask, and no conversion.
#pragma once
#include "common.h"
#include "packed.h"

enum { CHUNK = 32 };

struct WeightRows {
    device const uint* data;
    device const uint* scales;  // scale and bias of each group: two f16 or bf16 in a word, or two f32; or exponents
    uint chunks;                // of a row
    uint group_shift;           // log2 of the chunks of a group
    uint scale_type;            // 0 f32, 1 f16, 2 bf16
    uint packed;                // whether they lie as packed.h says; of 4 and 8 bits alone
};

// N words from an address that is a multiple of as much as N is.
template <int N> inline void load_words(device const uint* p, thread uint* out) {
    enum { AT_ONCE = N % 4 == 0 ? 4 : N % 2 == 0 ? 2 : 1 };
    UNROLL for (int i = 0; i < N; i += AT_ONCE) {
        if (AT_ONCE == 4) {
            const uint4 v = *(device const uint4*)(p + i);
            out[i] = v.x, out[i + 1] = v.y, out[i + 2] = v.z, out[i + 3] = v.w;
        } else if (AT_ONCE == 2) {
            const uint2 v = *(device const uint2*)(p + i);
            out[i] = v.x, out[i + 1] = v.y;
        } else {
            out[i] = p[i];
        }
    }
}

template <int BITS> struct Affine {
    enum { RAW = BITS };

    static void load(thread uint* raw, thread const WeightRows& w, uint row, uint chunk) {
        enum { PIECES = BITS / 4 };
        const size_t chunk_at = BITS % 4 == 0 ? piece_at(row, chunk * PIECES, w.chunks * PIECES, w.packed) * 4
                                              : (size_t(row) * w.chunks + chunk) * RAW;
        load_words<RAW>(w.data + chunk_at, raw);
    }

    static float quant(thread const uint* raw, int i) {
        const int at = i * BITS, word = at / 32, offset = at % 32, top = 23 - BITS;
        const uint mask = ((1u << BITS) - 1u) << top;
        uint bits;
        if (offset + BITS > 32) {
            bits = ((raw[word] >> offset) | (raw[word + 1] << (32 - offset))) << top;
        } else {
            bits = offset <= top ? raw[word] << (top - offset) : raw[word] >> (offset - top);
        }
        return as_type<float>((bits & mask) | 0x3f800000u);
    }

    // Without branches, so that the loads of several rows are under way together.
    static void affine(thread const WeightRows& w, uint row, uint chunk, thread float& s, thread float& b) {
        const uint group = chunk >> w.group_shift, groups = w.chunks >> w.group_shift;
        const size_t at = scales_at(row, groups, w.packed) + scale_in_row(group, w.packed);
        const uint words = w.scale_type ? 1u : 2u;
        const uint first = w.scales[at * words], last = w.scales[at * words + words - 1];
        const float s16 = float(as_type<half>(ushort(first))), b16 = float(as_type<half>(ushort(first >> 16)));
        const float sb = as_type<float>(first << 16), bb = as_type<float>(first & 0xffff0000u);
        const float s32 = as_type<float>(first), b32 = as_type<float>(last);
        s = (w.scale_type == 1 ? s16 : w.scale_type == 2 ? sb : s32) * float(1 << BITS);
        b = (w.scale_type == 1 ? b16 : w.scale_type == 2 ? bb : b32) - s;
    }

    // The weight itself, rounded once as scale * code + bias is.
    static float exact(float q, float s, float b) {
        return fma(s, q - 1.0f, b + s);
    }
};

template <int WORDS> struct Dense {
    enum { RAW = WORDS };
    static void load(thread uint* raw, thread const WeightRows& w, uint row, uint chunk) {
        load_words<RAW>(w.data + (size_t(row) * w.chunks + chunk) * RAW, raw);
    }
    static void affine(thread const WeightRows&, uint, uint, thread float& s, thread float& b) { s = 1.0f, b = 0.0f; }
    static float exact(float q, float, float) { return q; }
};
struct DenseF32 : Dense<32> {
    static float quant(thread const uint* raw, int i) { return as_type<float>(raw[i]); }
};
struct DenseF16 : Dense<16> {
    static float quant(thread const uint* raw, int i) {
        return float(as_type<half>(ushort(raw[i / 2] >> (16 * (i % 2)))));
    }
};
struct DenseBf16 : Dense<16> {
    static float quant(thread const uint* raw, int i) {
        return as_type<float>(i % 2 ? raw[i / 2] & 0xffff0000u : raw[i / 2] << 16);
    }
};

// Numbers of four bits, E2M1, with a power of two for each chunk: a byte, its exponent and 127 (MXFP4, OCP
// Microscaling Formats 1.0). A half has a code's sign, exponent and digit at its own places and is then 2^-14 of
// it, also where it is below the normal numbers. Bytes of exponents are at most 240.
struct Mxfp4 {
    enum { RAW = 4 };
    static void load(thread uint* raw, thread const WeightRows& w, uint row, uint chunk) {
        load_words<RAW>(w.data + (size_t(row) * w.chunks + chunk) * RAW, raw);
    }
    static float quant(thread const uint* raw, int i) {
        const uint code = raw[i / 8] >> (4 * (i % 8));
        return float(as_type<half>(ushort((code & 8u) << 12 | (code & 7u) << 9)));
    }
    static void affine(thread const WeightRows& w, uint row, uint chunk, thread float& s, thread float& b) {
        device const uchar* exponents = (device const uchar*)w.scales;
        s = as_type<float>((uint(exponents[size_t(row) * w.chunks + chunk]) + 14u) << 23), b = 0.0f;
    }
    static float exact(float q, float s, float) { return q * s; }
};

typedef Affine<2> Q2;
typedef Affine<3> Q3;
typedef Affine<4> Q4;
typedef Affine<5> Q5;
typedef Affine<6> Q6;
typedef Affine<8> Q8;

// Instantiates a kernel for every format: MACRO(format, suffix of the name).
#define FOR_EACH_FORMAT(MACRO) \
    MACRO(Q2, q2) MACRO(Q3, q3) MACRO(Q4, q4) MACRO(Q5, q5) MACRO(Q6, q6) MACRO(Q8, q8) \
    MACRO(DenseF32, f32) MACRO(DenseF16, f16) MACRO(DenseBf16, bf16) MACRO(Mxfp4, mxfp4)
