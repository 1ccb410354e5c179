//! Bugs in the kernels of recurrent layers.

use super::{BARRIER, Mutant, mutant};

const SHARED: &str = "threadgroup_barrier(mem_flags::mem_device);";

pub(super) const MUTANTS: &[Mutant] = &[
    mutant("states", "the barrier dropped", BARRIER, ""),
    mutant(
        "states",
        "another slot copied",
        "states[size_t(p.from) * p.n + i]",
        "states[size_t(p.to) * p.n + i]",
    ),
    mutant("states", "an element left out", "if (i < p.n) states", "if (i + 1 < p.n) states"),
    mutant(
        "states",
        "a part unseen",
        "i < p.n; i += p.threads",
        "i + p.threads < p.n; i += p.threads",
    ),
    mutant("conv", "the barrier before inputs are kept dropped", SHARED, ""),
    mutant(
        "conv",
        "weights the other way round",
        "weights[j * in.channels + channel]",
        "weights[(in.kept - j) * in.channels + channel]",
    ),
    mutant("conv", "nothing before a run", "return before && in.fresh ?", "return before ?"),
    mutant(
        "conv",
        "a snapshot of the end",
        "int(cut.rows) - int(in.kept)",
        "int(run.rows) - int(in.kept)",
    ),
    mutant("conv", "an input without its gate", "return x * in.gate[at];", "return x;"),
    mutant("conv", "another channel's bias", "first = bias[channel]", "first = bias[at.x * 32]"),
    mutant("heads", "the barrier before inputs are kept dropped", SHARED, ""),
    mutant(
        "heads",
        "the barrier before the norm dropped",
        "if (!p.norm) return; \\\n    threadgroup_barrier(mem_flags::mem_device); \\\n",
        "if (!p.norm) return; \\\n",
    ),
    mutant("heads", "keys as long as they are", "k = ks[n] * k_scale", "k = ks[n]"),
    mutant(
        "heads",
        "another head's decays",
        "const uint own = head * each + e;",
        "const uint own = e;",
    ),
    mutant(
        "heads",
        "time without bounds",
        "if (!p.delta) time = min(max(time, p.least), p.most);",
        "",
    ),
    mutant(
        "heads",
        "a column's neighbour",
        "ushort(DELTA ? 2 * c : 4 * c)",
        "ushort(DELTA ? c : 2 * c)",
    ),
    mutant("heads", "a value before its correction", "now.v - by_key", "now.v"),
    mutant(
        "heads",
        "what a token writes unread by it",
        "fma(now.dot, written, read)",
        "fma(0.0f, written, read)",
    ),
    mutant("heads", "a skip left out", "y = fma(skip, now.v, y)", "y = fma(0.0f, now.v, y)"),
    mutant(
        "heads",
        "a state that decays twice",
        "s[c][n] = fma(now.k[n], d, s[c][n])",
        "s[c][n] = fma(now.k[n], d, s[c][n] * now.keep[n])",
    ),
    mutant("heads", "a cut too late", "while (due == i + 1)", "while (due == i)"),
    mutant(
        "heads",
        "a shuffle of some lanes",
        "const float other = simd_shuffle_xor(read, 16);",
        "float other = 0.0f; if (lane < 31) other = simd_shuffle_xor(read, 16);",
    ),
    mutant("heads", "SiLU for a sigmoid", "gate == 0 ? silu_of", "gate < 2 ? silu_of"),
    mutant(
        "heads",
        "the norm on the gate's other side",
        "p.norm == 1 ? x[i]",
        "p.norm == 2 ? x[i]",
    ),
    mutant("heads", "another group's gains", "gains[at.x * p.cols + i]", "gains[i]"),
    mutant("scan", "a time step without softplus", "time = softplus_of(dt[own])", "time = dt[own]"),
    mutant(
        "scan",
        "another channel's rates",
        "rates[channel * p.state + n]",
        "rates[tid * p.state + n]",
    ),
    mutant("scan", "the gate left out", "y * silu_of(z[own])", "y"),
    mutant("scan", "a skip left out", "float y = skip * value;", "float y = 0.0f;"),
    mutant("scan", "another head's map", "(size_t(head) * p.dim + i)", "(size_t(i))"),
    mutant("scan", "a first token that is not whole", "fresh && i == 0 ? 1.0f :", "false ? 1.0f :"),
    mutant("scan", "a cut too late", "while (due == i + 1)", "while (due == i)"),
];
