// Weights of 4 and 8 bits as the halves that tiles multiply.
#pragma once
#include "common.h"

// Eight codes from 4 or 8 bits, as halves, in matmul_prepare's order: w = scale * code + bias.
// 1024 + a code below 1024 is a half whose low bits are the code's.
template <int BITS> INLINE void widened(thread const uint* raw, half2 scale, half2 bias, thread uint* out) {
    const half2 base = half2(1024.0h);
    if (BITS == 4) {
        const uint low = raw[0], high = low >> 8;
        // The upper four bits of eight are 16 times too large.
        const half2 part = half2(0.0625h), less = half2(-64.0h);
        out[0] = as_type<uint>(fma(as_type<half2>((low & 0x000f000fu) | 0x64006400u) - base, scale, bias));
        out[1] = as_type<uint>(fma(fma(as_type<half2>((low & 0x00f000f0u) | 0x64006400u), part, less), scale, bias));
        out[2] = as_type<uint>(fma(as_type<half2>((high & 0x000f000fu) | 0x64006400u) - base, scale, bias));
        out[3] = as_type<uint>(fma(fma(as_type<half2>((high & 0x00f000f0u) | 0x64006400u), part, less), scale, bias));
    } else {
        UNROLL for (int i = 0; i < 2; ++i) {
            out[2 * i] = as_type<uint>(fma(as_type<half2>((raw[i] & 0x00ff00ffu) | 0x64006400u) - base, scale, bias));
            out[2 * i + 1] = as_type<uint>(fma(as_type<half2>((raw[i] >> 8 & 0x00ff00ffu) | 0x64006400u) - base, scale, bias));
        }
    }
}

INLINE half2 half_pair(uint bits, bool bf16) {
    return half2(bf16 ? half(as_type<float>(bits << 16)) : as_type<half>(ushort(bits)));
}

// Where a row's 16 bytes `c` stand: lanes that read together find them in different banks.
template <int BITS> INLINE uint weight_place(uint row, uint c) { return BITS == 4 ? c ^ (row >> 2 & 1) : c ^ (row & 2); }
