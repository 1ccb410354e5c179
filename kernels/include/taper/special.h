// Functions that MSL has not.
#pragma once
#include "common.h"

// e^x - 1. Taylor's series is exact to 3e-9 of it where the difference would not be.
INLINE float exp_minus_one(float x) {
    if (abs(x) > 0.25f) return exp(x) - 1.0f;
    float sum = fma(x, 1.0f / 40320.0f, 1.0f / 5040.0f);
    sum = fma(sum, x, 1.0f / 720.0f);
    sum = fma(sum, x, 1.0f / 120.0f);
    sum = fma(sum, x, 1.0f / 24.0f);
    sum = fma(sum, x, 1.0f / 6.0f);
    sum = fma(sum, x, 0.5f);
    return fma(sum * x, x, x);
}

// ln(1 + x) of x from 0 to 1.
INLINE float log_one_plus(float x) {
    // The series' next term is below 1e-8 of the sum.
    if (x < 0.01f) return x * fma(x, fma(x, fma(x, -0.25f, 1.0f / 3.0f), -0.5f), 1.0f);
    return 0.6931471805599453f * log2(1.0f + x);
}

// erf(x), to 1.2e-7 of it: polynomials by N. Juffa, the outer one of ln(1 - erf).
INLINE float error_function(float x) {
    const float t = abs(x), s = x * x;
    if (t > 0.927734375f) {
        float r = fma(-1.72853470e-5f, t, 3.83197126e-4f);
        const float u = fma(-3.88396438e-3f, t, 2.42546219e-2f);
        r = fma(r, s, u);
        r = fma(r, t, -1.06777877e-1f);
        r = fma(r, t, -6.34846687e-1f);
        r = fma(r, t, -1.28717512e-1f);
        r = 1.0f - exp(fma(r, t, -t));
        return x < 0.0f ? -r : r;
    }
    float r = fma(-5.96761703e-4f, s, 4.99119423e-3f);
    r = fma(r, s, -2.67681349e-2f);
    r = fma(r, s, 1.12819925e-1f);
    r = fma(r, s, -3.76125336e-1f);
    r = fma(r, s, 1.28379166e-1f);
    return fma(r, x, x);
}
