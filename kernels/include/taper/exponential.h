// An exponential that gives the same bits on every device. Reference: taper_base::exp.
#pragma once
#include "common.h"

// e^x for -87 <= x <= 0, each operation rounded once, as the host's.
INLINE float exponential(float x) {
#pragma clang fp contract(off)
    const float shifted = fma(x, 1.44269504088896341f, 12582912.0f);
    const float n = shifted - 12582912.0f;
    const float r = fma(n, 2.1219444e-4f, fma(n, -0.6933594f, x));
    float p = fma(1.9875691e-4f, r, 1.3982e-3f);
    p = fma(p, r, 8.333452e-3f);
    p = fma(p, r, 4.1665796e-2f);
    p = fma(p, r, 1.6666665e-1f);
    p = fma(p, r, 0.5f);
    const float square = r * r;
    const float y = fma(p, square, r) + 1.0f;
    return y * as_type<float>((as_type<uint>(shifted) + 127u) << 23);
}
