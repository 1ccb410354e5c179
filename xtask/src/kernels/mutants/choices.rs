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
    mutant("score", "a centre left out", "if (centred) x += centre_at(centre, e);", ""),
    mutant(
        "score",
        "another table of levels",
        "is_wide(p.format) ? constants_after(rotation) : constants",
        "constants",
    ),
    mutant(
        "score",
        "a sketch not rotated back",
        "rotate_back(row, scratch + sg * MAX_DIM, sketch_after(rotation), lane);",
        "",
    ),
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
    mutant(
        "edit",
        "the barrier after the copy dropped",
        "threadgroup_barrier(mem_flags::mem_device);",
        "",
    ),
    mutant(
        "edit",
        "a product added at once",
        "const float often = row.frequency * count;\n    y = y - often;",
        "y = fma(-row.frequency, count, y);",
    ),
    mutant("edit", "presence of what is in the prompt alone", "if (count > 0.0f) y", "y"),
    mutant("edit", "one time too many", "float(edit.seen - 1)", "float(edit.seen)"),
    mutant(
        "edit",
        "a sign left out",
        "biased > 0.0f ? biased / row.repetition :",
        "true ? biased / row.repetition :",
    ),
    mutant(
        "edit",
        "the bias taken off",
        "const float biased = bounded(x, x + edit.bias);",
        "const float biased = bounded(x, x - edit.bias);",
    ),
    mutant(
        "edit",
        "a ban of what cannot be banned",
        "return x < INFINITY ? -INFINITY : x;",
        "return -INFINITY;",
    ),
    mutant("edit", "the edits of another row", "edits[row.first + e]", "edits[e]"),
    mutant("edit", "another row", "size_t(row.row) * p.vocab", "size_t(at.y) * p.vocab"),
    mutant(
        "edit",
        "only as many edits as threads",
        "e < row.edits; e += THREADS",
        "e < min(row.edits, uint(THREADS)); e += THREADS",
    ),
];
