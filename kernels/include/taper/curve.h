// Activations and gates of feed-forwards.
#pragma once
#include "common.h"
#include "special.h"

enum {
    SILU = 1,
    GELU_TANH = 2,
    GELU = 3,
    RELU2 = 4,
    SWIGLU_OAI = 5,
    SWIGLU_CLAMPED = 6,
    XIELU = 7,
};

// The numbers of a curve.
struct Numbers {
    float a;  // the limit of a clamped gate, or xIELU's alpha_p
    float b;  // alpha_n
    float c;  // beta
    float d;  // eps
};

// f(v), of a kind above. Two of the gates change what it is multiplied with, too.
INLINE float curve(uint kind, Numbers p, float v, thread float& up) {
    if (kind == SILU) return v / (1.0f + exp(-v));
    if (kind == GELU_TANH) {
        // 1 + tanh(z) = 2 * sigmoid(2z), without the cancellation.
        const float inner = 0.7978845608028654f * (v + 0.044715f * v * v * v);
        return v / (1.0f + exp(-2.0f * inner));
    }
    if (kind == GELU) return 0.5f * v * (1.0f + error_function(v * 0.70710678118654752f));
    // What is not a number stays so.
    if (kind == RELU2) return v < 0.0f ? 0.0f : v * v;
    if (kind == SWIGLU_OAI) {
        const float g = v > 7.0f ? 7.0f : v;
        up = (up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up) + 1.0f;
        return g / (1.0f + exp(-1.702f * g));
    }
    if (kind == SWIGLU_CLAMPED) {
        up = min(max(up, -p.a), p.a);
        return min(v / (1.0f + exp(-v)), p.a);
    }
    const float curved = v > 0.0f ? p.a * v * v : p.b * (exp_minus_one(min(v, p.d)) - v);
    return curved + p.c * v;
}
