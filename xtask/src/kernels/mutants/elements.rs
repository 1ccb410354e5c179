//! Bugs in activations, gates and norms, and in taking rows apart and putting them together.

use super::{BARRIER, Mutant, mutant};

pub(super) const MUTANTS: &[Mutant] = &[
    mutant("layer", "a barrier dropped", BARRIER, ""),
    mutant(
        "layer",
        "squares about zero",
        "fma(from[i] - mean, from[i] - mean, square)",
        "fma(from[i], from[i], square)",
    ),
    mutant("layer", "the bias left out", "(p.bias ? bias[i] : 0.0f)", "0.0f"),
    mutant("layer", "a bias that is not there", "(p.bias ? bias[i] : 0.0f)", "bias[i]"),
    mutant("layer", "gates below the spread", "max(from[i] - least, 0.0f)", "from[i] - least"),
    mutant("layer", "the least size left out", "max(mine, p.eps)", "mine"),
    mutant(
        "layer",
        "both rows exchanged",
        "sqrt(theirs) * rsqrt(max(mine, p.eps))",
        "sqrt(mine) * rsqrt(max(theirs, p.eps))",
    ),
    mutant(
        "gates",
        "an off-by-one",
        "if (i < p.n) {\n        const Numbers",
        "if (i <= p.n) {\n        const Numbers",
    ),
    mutant("gates", "the outer error function", "return x < 0.0f ? -r : r;", "return r;"),
    mutant("gates", "a small exponential's difference", "fma(sum * x, x, x)", "fma(sum, x, x)"),
    mutant(
        "gates",
        "a small sum's logarithm",
        "fma(x, -0.25f, 1.0f / 3.0f), -0.5f)",
        "fma(x, -0.25f, 1.0f / 3.0f), 0.5f)",
    ),
    mutant("gates", "what is negative squared", "v < 0.0f ? 0.0f : v * v", "v * v"),
    mutant("gates", "a factor without its one", "-7.0f : up) + 1.0f", "-7.0f : up)"),
    mutant("gates", "a limit on one side", "min(max(up, -p.a), p.a)", "min(up, p.a)"),
    mutant("gates", "the line left out", "curved + p.c * v", "curved"),
    mutant("gates", "an exponent above 0", "exp_minus_one(min(v, p.d)) - v", "exp_minus_one(v)"),
    mutant("gates", "another part's gate", "gates[i / p.each % p.gates]", "gates[i % p.gates]"),
    mutant("gates", "gates past their end", "gates[i / p.each % p.gates]", "gates[i / p.each]"),
    mutant(
        "shapes",
        "past a part's end",
        "j < p.from ? x[size_t(i / p.to) * p.from + j] : 0.0f",
        "x[size_t(i / p.to) * p.from + j]",
    ),
    mutant("shapes", "another part", "p.first + i % p.to", "i % p.to"),
    mutant(
        "shapes",
        "an off-by-one",
        "if (i < p.n) {\n        const uint j",
        "if (i <= p.n) {\n        const uint j",
    ),
    mutant(
        "shapes",
        "a part from the other's row",
        "* p.right + j - p.left",
        "* p.left + j - p.left",
    ),
    mutant("shapes", "the first row's coefficients", "p.alike ? at % p.outs : at", "at % p.outs"),
    mutant("shapes", "coefficients past their end", "p.alike ? at % p.outs : at", "at"),
    mutant("shapes", "another stream", "from[size_t(k) * p.width]", "from[0]"),
    mutant("shapes", "nothing added to coefficients", "c[k] + p.plus", "c[k]"),
];
