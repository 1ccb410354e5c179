//! Bugs in the kernels of choices: of keys that stay, of tokens whose logits are edited.

use super::{Mutant, mutant};

pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "score",
        "real and imaginary parts exchanged",
        "fma(vector[f], x, fma(vector[e], y",
        "fma(vector[f], y, fma(vector[e], x",
    ),
    mutant("score", "pairs of neighbours", "const uint e = f + bands;", "const uint e = f ^ 1u;"),
    mutant(
        "score",
        "a token too many",
        "if (token >= p.tokens) return;",
        "if (token > p.tokens) return;",
    ),
    mutant(
        "score",
        "the modulus left out",
        "bands + f], modulus, sums[g]);",
        "bands + f], 0.0f, sums[g]);",
    ),
    mutant(
        "score",
        "the heads of another threadgroup",
        "at.y * group + at.z * AT_ONCE, n",
        "at.y * group, n",
    ),
    mutant("score", "a centre left out", "centred ? x + centre_at(centre, e) : x", "x"),
    mutant(
        "score",
        "young rows as codes",
        "if (is_trellis(p.format) && !centred) keys.format",
        "if (false) keys.format",
    ),
    mutant(
        "score",
        "rows as they are rotated",
        "rotate_back(row, scratch + sg * MAX_DIM, rotation, lane);",
        "",
    ),
    mutant(
        "score",
        "a ring that does not go round",
        "ring[(start / 16 + 1) % bits]",
        "ring[min(start / 16 + 1, bits - 1)]",
    ),
    mutant(
        "score",
        "the barrier before a row is rotated back dropped",
        "        simdgroup_barrier(mem_flags::mem_threadgroup);\n        rotate_back",
        "        rotate_back",
    ),
    mutant("score", "a block too far", "p.tokens - at.x * BLOCK); token", "p.tokens); token"),
];
