//! Bugs in attention of prompts.

use super::{Mutant, mutant};

pub(super) const MUTANTS: &[Mutant] = &[
    mutant("attend_prompt", "a token too many", "token < end[r] &&", "token <= end[r] &&"),
    mutant("attend_prompt", "no window", "token + p.window >= end[r]", "true"),
    mutant("attend_prompt", "a span's first tokens again", "seen + at.z * each", "seen"),
    mutant("attend_prompt", "a span's maximum in bits", "= top[r] / LOG2_E", "= top[r]"),
    mutant(
        "attend_prompt",
        "a span's part of its weight",
        "= weight[r];\n        }",
        "= 1.0f;\n        }",
    ),
    mutant("attend_prompt", "an old maximum", "            top[r] = best;\n", ""),
    mutant(
        "attend_prompt",
        "sums that do not fade",
        "wide_scale(acc[i], lane, fade[0], fade[1])",
        "(void)fade",
    ),
    mutant("attend_prompt", "a sink for every lane", "p.sinks && t == 0", "p.sinks"),
    mutant(
        "attend_prompt",
        "tokens behind the last one",
        "at < reach.from || at >= reach.to",
        "at >= reach.to + BLOCK",
    ),
    mutant(
        "attend_prompt",
        "what is not a number stays",
        ">> token % 32 & 1) values[i] = nothing();",
        ">> token % 32 & 2) values[i] = nothing();",
    ),
    mutant(
        "attend_prompt",
        "the barrier after keys were read dropped",
        "        wide_wait<0>();\n        threadgroup_barrier(mem_flags::mem_threadgroup);\n        if (from + STEP < stop) bring<D, true>",
        "        wide_wait<0>();\n        if (from + STEP < stop) bring<D, true>",
    ),
];
