//! Bugs in writing compressed caches and in attention over them.

use super::{Mutant, mutant};

pub(super) const MUTANTS: &[Mutant] = &[
    mutant(
        "coded",
        "a barrier before the rotation dropped",
        "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    rotate(qs + sg * SIZE",
        "    rotate(qs + sg * SIZE",
    ),
    mutant("coded", "the centre left out", "offset = sum_of_four(dot, lane);", "offset = 0.0f;"),
    mutant(
        "coded",
        "recent rows from their codes",
        "b < p.sinks || b >= tile.recent",
        "b < p.sinks",
    ),
    mutant("coded", "the values' scale left out", "e * (parts[i] * inverse)", "e / unit"),
    mutant(
        "coded",
        "the window one too wide",
        "token + p.window >= end",
        "token + p.window + 1 >= end",
    ),
    mutant(
        "coded",
        "tokens of a lane exchanged",
        "? 4 * t + i : 4 * i + t",
        "? 4 * i + t : 4 * t + i",
    ),
    mutant(
        "coded",
        "another token's affine codes",
        "min(max(first + value_token(KIND, t, uint(i)), seen.x), seen.y);\n            load_affine",
        "min(max(first + t, seen.x), seen.y);\n            load_affine",
    ),
    mutant(
        "coded",
        "rows that a token does not see weighed by zero",
        "seen.x = behind, seen.y = min(end - first, tokens) - 1;",
        "seen.x = 0, seen.y = tokens - 1;",
    ),
    mutant(
        "coded",
        "a block behind a row's window added",
        "end <= first || behind >= tokens",
        "end <= first",
    ),
    mutant(
        "coded",
        "rows that another token sees added",
        "turns == 1 || own_token == turn, lane",
        "true, lane",
    ),
    mutant(
        "coded",
        "a barrier of the merge dropped",
        "        threadgroup_barrier(mem_flags::mem_threadgroup);\n        if (sg == 0) {\n            const float next",
        "        if (sg == 0) {\n            const float next",
    ),
    mutant("coded", "a span left out", "i < n; ++i) {", "i + 1 < n; ++i) {"),
    mutant("coded_more", "the sketch left out", "s = fma(signs[i] * sketch_unit,", "s = fma(0.0f,"),
    mutant(
        "coded_more",
        "the sketch's barrier dropped",
        "        // (All have read q by now.)\n        threadgroup_barrier(mem_flags::mem_threadgroup);\n",
        "",
    ),
    mutant(
        "coded_more",
        "what halves leave of a sketched key's levels dropped",
        "left[r][e] = level(lut + REST, at)",
        "left[r][e] = 0u",
    ),
    mutant(
        "coded_more",
        "bytes of a sketched row exchanged",
        "uint(from[i]) << i % 4 * 8",
        "uint(from[i ^ 1]) << i % 4 * 8",
    ),
    mutant(
        "coded_more",
        "a wide window in its own ring",
        "(ring == 0 ? of.rings - 1 : ring - 1) * 24",
        "ring * 24",
    ),
    mutant(
        "encode",
        "a walk that is not closed",
        "cost[m] = uint(m) == start ? 0.0f : FAR;",
        "cost[m] = 0.0f;",
    ),
    mutant(
        "encode",
        "the centre added",
        "x[tid] -= centre_at(from, tid)",
        "x[tid] += centre_at(from, tid)",
    ),
    mutant(
        "encode",
        "the barrier after the walks dropped",
        "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    float least",
        "    float least",
    ),
    mutant(
        "encode",
        "another token's nibble",
        "const uint shift = t / 2 * 4;",
        "const uint shift = t % 2 * 4;",
    ),
    mutant(
        "encode",
        "exact rows not rotated",
        "rotate(row, scratch + sg * MAX_DIM, rotation, lane);\n    device half* page",
        "device half* page",
    ),
    mutant(
        "encode",
        "a scale too small for its block",
        "if (code > 255) {",
        "if (code > 100000) {",
    ),
    mutant(
        "encode",
        "a sketch of the row itself",
        "x[i] = fma(-gamma, levels[codes[i]], x[i]);",
        "x[i] = x[i];",
    ),
    mutant("encode", "a sketch that is not rotated", "rotate(x, scratch, sketch, lane);", ""),
    mutant("encode", "a sign in another byte", "signs[lane] =", "signs[eights - 1 - lane] ="),
    mutant(
        "encode",
        "a wide walk that is not closed",
        "lane + 32 * uint(m) == start ? 0.0f : FAR;",
        "0.0f;",
    ),
    mutant(
        "encode",
        "a barrier of a wide walk dropped",
        "simdgroup_barrier(mem_flags::mem_threadgroup);\n        uint chosen = 0;",
        "uint chosen = 0;",
    ),
];
