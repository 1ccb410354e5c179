// Gates of feed-forward blocks.
#pragma once
#include "common.h"

// 1: x * sigmoid(x). 2: the tanh approximation of GELU (Hendrycks & Gimpel 2016).
inline float activate(uint kind, float x) {
    if (kind == 1) return x / (1.0f + exp(-x));
    // 1 + tanh(z) = 2 * sigmoid(2z), without the cancellation.
    const float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return x / (1.0f + exp(-2.0f * inner));
}
