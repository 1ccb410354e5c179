//! Bugs in attention and in products of many rows on matrix units.

use super::{Mutant, mutant};

pub(super) const MUTANTS: &[Mutant] = &[
    mutant("attend_tile", "what halves leave dropped", "sum[2 * u] + sum[2 * u + 1]", "sum[2 * u]"),
    mutant(
        "attend_tile",
        "tokens exchanged",
        "w0 >> 16 | (w1 & 0xffff0000u)",
        "w1 >> 16 | (w0 & 0xffff0000u)",
    ),
    mutant("attend_tile", "a token too many", "token < end &&", "token <= end &&"),
    mutant(
        "attend_tile",
        "the barrier before the shares dropped",
        "(All have read q by now.)\n    threadgroup_barrier(mem_flags::mem_threadgroup);",
        "",
    ),
    mutant(
        "attend_tile",
        "the barrier after the shares dropped",
        "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    for (uint i = tid; i < rows * D",
        "    for (uint i = tid; i < rows * D",
    ),
    mutant(
        "attend_tile",
        "an old maximum",
        "            top[n] = next;\n        }\n        simd",
        "        }\n        simd",
    ),
    mutant(
        "attend_tile",
        "the barrier after the new row dropped",
        "    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);",
        "",
    ),
    mutant(
        "attend_tile",
        "a new row in another slot",
        "const uint token = newest % BLOCK;",
        "const uint token = (newest + 1) % BLOCK;",
    ),
    mutant(
        "attend_tile",
        "the first token's angles for all",
        "const uint angle = tile_row * (D / 2) + lane",
        "const uint angle = lane",
    ),
    mutant(
        "attend_tile",
        "keys with the gains of queries",
        "norm_and_turn<D>(key_gains",
        "norm_and_turn<D>(gains",
    ),
    mutant("attend_tile", "halves in another order", "pair * 4 + eight :", "eight * 4 + pair :"),
    mutant("attend_tile", "halves in the first row", "prepared + token_row * D,", "prepared,"),
    mutant("attend_tile", "new values turned", "if (!value) norm_and_turn", "norm_and_turn"),
    mutant(
        "matvec_tile",
        "codes of another lane",
        "copied_place(t / 2 * 16 + r * 2 + t % 2)",
        "copied_place(r * 4 + t)",
    ),
    mutant(
        "matvec_tile",
        "scales of another row",
        "from.scales[h] + scale_in_row(group, packed)",
        "from.scales[h] + group",
    ),
    mutant(
        "matmul_tile",
        "a residual left out",
        "if (p.flags & NEXT_RESIDUAL) add_8",
        "if (false) add_8",
    ),
    mutant(
        "matmul_tile",
        "a norm left out",
        "v[e] = v[e] * inverse * gain[e];\n        store_halves(v, to",
        "v[e] = v[e] * gain[e];\n        store_halves(v, to",
    ),
    mutant(
        "matmul_tile",
        "gate and up exchanged",
        "activate(p.gate, y[e]) * up[e]",
        "activate(p.gate, up[e]) * y[e]",
    ),
    mutant(
        "matmul_wide",
        "the barrier before a step dropped",
        "wide_publish();\n        threadgroup_barrier(mem_flags::mem_threadgroup);",
        "wide_publish();",
    ),
    mutant(
        "matmul_wide",
        "a stage too early",
        "memory + next % WIDE_X_STAGES",
        "memory + (next + 1) % WIDE_X_STAGES",
    ),
    mutant(
        "matmul_wide",
        "scale and bias swapped",
        "widened<BITS>(raw, scale, bias, out)",
        "widened<BITS>(raw, bias, scale, out)",
    ),
    mutant(
        "matmul_wide",
        "the next step of rows that are not packed",
        "of.packed ? S::CHUNKS * 8 : S::CHUNKS",
        "S::CHUNKS",
    ),
    mutant("matmul_wide", "another half of the columns", "uint(2 * h + k)", "uint(2 * k + h)"),
    mutant(
        "matmul_wide",
        "a token left out",
        "if (token < p.tokens) to[0]",
        "if (token + 1 < p.tokens) to[0]",
    ),
];
