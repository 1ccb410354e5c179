// Activations and gates. Threads: 256, one an element. Reference: taper_tensor::ops.
//
// activation: out = f(x), or f(x) * y where it is gated. Two of the gates change y too.
// gate_parts: out = x * f(gate), with a gate for each `each` elements in a row. After the last gate the first is next.
#include "taper/common.h"
#include "taper/curve.h"

struct ActivationParams {
    uint n;
    uint kind;
    uint gated;
    float a;  // the limit of a clamped gate, or xIELU's alpha_p
    float b;  // alpha_n
    float c;  // beta
    float d;  // eps
};

INLINE float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

kernel void activation(
    device const float* x [[buffer(0)]],
    device const float* y [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant ActivationParams& p [[buffer(3)]],
    uint i [[thread_position_in_grid]])
{
    if (i < p.n) {
        const Numbers numbers = {p.a, p.b, p.c, p.d};
        float up = p.gated ? y[i] : 1.0f;
        const float f = curve(p.kind, numbers, x[i], up);
        out[i] = f * up;
    }
}

enum { FACTOR = 0, SIGMOID = 1 };

struct GateParams {
    uint n;
    uint each;
    uint gates;
    uint kind;  // otherwise softplus
};

kernel void gate_parts(
    device const float* x [[buffer(0)]],
    device const float* gates [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant GateParams& p [[buffer(3)]],
    uint i [[thread_position_in_grid]])
{
    if (i < p.n) {
        const float g = gates[i / p.each % p.gates];
        // Without overflow of e^g, which is all there is of large ones.
        out[i] = x[i] * (p.kind == FACTOR    ? g
                         : p.kind == SIGMOID ? sigmoid(g)
                                             : max(g, 0.0f) + log_one_plus(exp(-abs(g))));
    }
}
