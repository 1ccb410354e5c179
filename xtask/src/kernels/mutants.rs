//! Bugs planted in the kernels, one at a time: each must make a check fail.

mod caches;
mod choices;
mod elements;
mod expert_tiles;
mod experts;
mod prompts;
mod recurrent;
mod tiles;

use super::{clang::Clang, record::Record};
use anyhow::{Result, bail, ensure};
use rayon::prelude::*;
use taper_tensor::gpu::{FAMILIES, Family};

/// Random orders to try after the fixed one: a missing barrier may go unseen in one of them.
const ORDERS: u64 = 4;

/// A change to a file of kernels, its headers included, that makes it wrong.
pub(super) struct Mutant {
    family: &'static str,
    what: &'static str,
    pub(super) from: &'static str,
    pub(super) to: &'static str,
}

pub(super) const fn mutant(
    family: &'static str,
    what: &'static str,
    from: &'static str,
    to: &'static str,
) -> Mutant {
    Mutant { family, what, from, to }
}

const BARRIER: &str = "threadgroup_barrier(mem_flags::mem_threadgroup);";

const MUTANTS: &[Mutant] = &[
    mutant(
        "matvec",
        "an operand swapped",
        "y += from[gated ? 2 * r : r];",
        "y += from[gated ? 2 * r : ROWS - 1 - r];",
    ),
    mutant(
        "matvec",
        "a chunk left out",
        "const bool there = chunk < chunks;",
        "const bool there = chunk + 1 < chunks;",
    ),
    mutant(
        "matvec",
        "a chunk twice",
        "const bool there = chunk < chunks;",
        "const bool there = true;",
    ),
    mutant("matvec", "a row read past the end", "min(n, limit - 1)", "min(n, limit + 64)"),
    mutant(
        "matvec",
        "gate and up exchanged",
        "activate(p.gate, y) * up",
        "activate(p.gate, up) * y",
    ),
    mutant(
        "matvec",
        "the barrier before a slab dropped",
        "if (M == 1) threadgroup_barrier(mem_flags::mem_threadgroup);",
        "",
    ),
    mutant(
        "matvec",
        "the barrier after a slab dropped",
        "        if (M == 1) threadgroup_barrier(mem_flags::mem_threadgroup);\n        if (there) {",
        "        if (there) {",
    ),
    mutant(
        "matvec",
        "lanes leave a sum early",
        "const float sum = simd_sum(squares[m]);",
        "float sum = 0.0f; if (lane < 31) sum = simd_sum(squares[m]);",
    ),
    mutant(
        "matvec_rows",
        "a piece left out",
        "for (uint piece = lane; piece < pieces; piece += 32u)",
        "for (uint piece = lane; piece + 1u < pieces; piece += 32u)",
    ),
    mutant(
        "matvec_rows",
        "an operand swapped",
        "if (!gated && r_of_lane == uint(r))",
        "if (!gated && r_of_lane == uint(ROWS - 1 - r))",
    ),
    mutant(
        "matvec_rows",
        "gate and up exchanged",
        "if (r % 2) up = total; else y = total;",
        "if (r % 2) y = total; else up = total;",
    ),
    mutant("matvec_rows", "a row read past the end", "min(n, limit - 1)", "min(n, limit + 64)"),
    mutant(
        "matvec_rows",
        "another token's squares",
        "if (m_of_lane == uint(m)) square = all;",
        "if (m == 0) square = all;",
    ),
    mutant(
        "matvec_rows",
        "a token twice",
        "min(at.y * M + uint(m), p.tokens - 1)",
        "min(at.y * M, p.tokens - 1)",
    ),
    mutant(
        "matvec_rows",
        "lanes leave a sum early",
        "const float total = simd_sum(acc[r][m]);",
        "float total = 0.0f; if (lane < 31) total = simd_sum(acc[r][m]);",
    ),
    mutant(
        "matvec_rows",
        "floats of another piece",
        "row) * w.chunks + piece) * WORDS",
        "row) * w.chunks + (piece ^ 1u)) * WORDS",
    ),
    mutant(
        "matmul",
        "the barrier after the stores dropped",
        "            threadgroup_barrier(mem_flags::mem_threadgroup);\n        }\n        if (k < end) {",
        "        }\n        if (k < end) {",
    ),
    mutant("matmul", "the barrier before the stores dropped", BARRIER, ""),
    mutant(
        "matmul",
        "an off-by-one",
        "min(row0 + i / CHUNKS, p.rows - 1)",
        "min(row0 + i / CHUNKS + 1, p.rows - 1)",
    ),
    mutant(
        "matmul",
        "scale and bias swapped",
        "W::quant(raw[l], e + 2 * f), s[l], b[l])",
        "W::quant(raw[l], e + 2 * f), b[l], s[l])",
    ),
    mutant("matmul", "a share left out", "s < p.shares; ++s", "s + 1 < p.shares; ++s"),
    mutant(
        "matmul",
        "a tile transposed",
        "(sg_n * TILES_N + j) * 8 * STRIDE + kk",
        "(sg_n * TILES_N + j) * 8 * STRIDE + kk / 2",
    ),
    mutant(
        "matmul_tile",
        "the barrier before a step dropped",
        "        copies_wait<STAGES - 2>();\n        threadgroup_barrier(mem_flags::mem_threadgroup);",
        "        copies_wait<STAGES - 2>();",
    ),
    mutant("matmul_tile", "the barrier of the norm dropped", BARRIER, ""),
    mutant(
        "matmul_tile",
        "a stage too early",
        "copy_x(from, of, next, tid",
        "copy_x(from, of, next + 1, tid",
    ),
    mutant(
        "matmul_tile",
        "scale and bias swapped",
        "widened<BITS>(raw, scale, bias, out)",
        "widened<BITS>(raw, bias, scale, out)",
    ),
    mutant(
        "matmul_tile",
        "a row read past the end",
        "min(of.row0 + r, of.rows - 1)",
        "min(of.row0 + r, of.rows + 64)",
    ),
    mutant(
        "matmul_tile",
        "columns in another order",
        "halves(v[e], v[e + 4])",
        "halves(v[e + 4], v[e])",
    ),
    mutant(
        "matmul_tile",
        "another group's scale",
        "(of.begin + step * TK) / GROUP",
        "of.begin / GROUP",
    ),
    mutant(
        "matmul_tile",
        "a token left out",
        "if (token < p.tokens) to[0]",
        "if (token + 1 < p.tokens) to[0]",
    ),
    mutant(
        "embed",
        "an off-by-one",
        "if (chunk >= w.chunks) return;",
        "if (chunk > w.chunks) return;",
    ),
    mutant("embed", "another row", "ids[at.y], at.y", "ids[0], at.y"),
    mutant("rows", "a barrier dropped", BARRIER, ""),
    mutant(
        "rows",
        "a barrier of some threads",
        BARRIER,
        "if (tid < 128) threadgroup_barrier(mem_flags::mem_threadgroup);",
    ),
    mutant(
        "rows",
        "a simdgroup barrier dropped",
        "simdgroup_barrier(mem_flags::mem_threadgroup);",
        "",
    ),
    mutant("rows", "a sign", "turn(v, other,", "turn(v, -other,"),
    mutant(
        "elementwise",
        "an off-by-one",
        "if (i < p.n) out[i] = EXPRESSION",
        "if (i <= p.n) out[i] = EXPRESSION",
    ),
    mutant(
        "elementwise",
        "rows in other places",
        "out[size_t(ids[i / p.cols]) * p.cols + i % p.cols] = x[i]",
        "out[size_t(i / p.cols) * p.cols + i % p.cols] = x[i]",
    ),
    mutant("elementwise", "a piece twice", "first + uint(k) * 256 < p.pieces ? all", "true ? all"),
    mutant(
        "elementwise",
        "operands swapped",
        "activate(p.kind, x[i]) * y[i]",
        "activate(p.kind, y[i]) * x[i]",
    ),
    mutant(
        "attend",
        "the barrier after q dropped",
        "        qs[i] = there ? q[(size_t(token) * p.q_heads + kv_head * group + head) * d + i % d] * p.scale : 0.0f;\n    }\n    threadgroup_barrier(mem_flags::mem_threadgroup);",
        "        qs[i] = there ? q[(size_t(token) * p.q_heads + kv_head * group + head) * d + i % d] * p.scale : 0.0f;\n    }",
    ),
    mutant(
        "attend",
        "a barrier of the merge dropped",
        "        threadgroup_barrier(mem_flags::mem_threadgroup);\n        if (sg == 0) {",
        "        if (sg == 0) {",
    ),
    mutant(
        "attend",
        "a simdgroup barrier of some lanes",
        "        simdgroup_barrier(mem_flags::mem_threadgroup);\n        device const KV* values",
        "        if (lane < tokens) simdgroup_barrier(mem_flags::mem_threadgroup);\n        device const KV* values",
    ),
    mutant(
        "attend",
        "the window one too wide",
        "token + p.window >= end",
        "token + p.window + 1 >= end",
    ),
    mutant("attend", "a token too many", "token < end &&", "token <= end &&"),
    mutant(
        "attend",
        "keys and values swapped",
        "device const KV* values = v_pages + base;",
        "device const KV* values = k_pages + base;",
    ),
    mutant(
        "attend",
        "an old maximum",
        "top[r] = next;\n            UNROLL for (int i = 0; i < PER_LANE; ++i) acc[r][i] *= fade;",
        "UNROLL for (int i = 0; i < PER_LANE; ++i) acc[r][i] *= fade;",
    ),
    mutant(
        "attend",
        "a span unfaded",
        "sum = fma(fades[i] > 0.0f ? part : 0.0f, fades[i], sum);",
        "sum += fades[i] > 0.0f ? part : 0.0f;",
    ),
    mutant(
        "matvec_tile",
        "gate and up exchanged",
        "activate(p.gate, value) * up",
        "activate(p.gate, up) * value",
    ),
    mutant("matvec_tile", "what halves leave dropped", "sum[2 * j] + sum[2 * j + 1]", "sum[2 * j]"),
    mutant("matvec_tile", "a code too large", "1048576.0f", "16777216.0f"),
    mutant(
        "matvec_tile",
        "scale and bias swapped",
        "fma(scale, dot, bias_of * whole)",
        "fma(bias_of, dot, scale * whole)",
    ),
    mutant(
        "matvec_tile",
        "the barrier after a slab dropped",
        "                threadgroup_barrier(mem_flags::mem_threadgroup);\n                load_x(",
        "                load_x(",
    ),
    mutant(
        "matvec_tile",
        "eight columns left out",
        "const bool there = column < cols;",
        "const bool there = column + 8 < cols;",
    ),
    mutant(
        "matvec_tile",
        "a shuffle of some lanes",
        "sum += simd_shuffle_xor(sum, ushort(j));",
        "if (tid < THREADS - 1) sum += simd_shuffle_xor(sum, ushort(j));",
    ),
    mutant("matvec_tile", "a later tile left out", "tile += p.groups, turn", "tile += tiles, turn"),
    mutant(
        "matvec_tile",
        "another part's activations",
        "const bool own = r / 2 == t * PARTS / 4;",
        "const bool own = r / 2 == 0;",
    ),
    mutant("matvec_tile", "a block of another stage", "(stage == 0 ? STAGES : stage) - 1", "stage"),
    mutant("argmax", "the barrier dropped", BARRIER, ""),
    mutant("argmax", "the last of equals", "index < at", "index > at"),
    mutant(
        "argmax",
        "an element left out",
        "x[min(i + uint(a) * 1024, p.vocab - 1)]",
        "x[min(i + uint(a) * 1024, p.vocab - 2)]",
    ),
    mutant(
        "sample",
        "the last of equals",
        "other == row.largest && index < best",
        "other == row.largest && index > best",
    ),
    mutant(
        "sample",
        "the end of a filter left out",
        "at.ids[bucket[0]] + 1;",
        "at.ids[bucket[0]];",
    ),
    mutant("sample", "a carry lost", "uint(m >> 32) + carry,", "uint(m >> 32),"),
    mutant("sample", "halves rounded down", "(rest > half_unit ||", "(rest > 2 * half_unit ||"),
    mutant(
        "sample",
        "a rounding in between",
        "fma(p, square, r) + 1.0f",
        "(p * square + r) + 1.0f",
    ),
    mutant("sample", "min_p left out", "d >= row.min_d ? mass(d) : 0", "mass(d)"),
    mutant("sample", "another row", "size_t(want.row)", "size_t(at_row)"),
    mutant("sample", "another copy", "size_t(want.edited)", "size_t(0)"),
    mutant("sample", "a part left in the draw", "left -= at.sums[part++]", "++part"),
    mutant(
        "sample",
        "log probabilities of the temperature",
        "row.inv_t = 1.0f, row.min_d",
        "row.min_d",
    ),
    mutant(
        "sample",
        "what is ahead of a bucket left out",
        "mass_before += bucket[3];\n        goal -= by_mass ? bucket[3] : bucket[2];",
        "mass_before += bucket[3];",
    ),
    mutant(
        "sample",
        "the barrier after the sums dropped",
        "    if (tid % 32 == 0) at.sums[tid / 32] = sum;\n    threadgroup_barrier(mem_flags::mem_threadgroup);",
        "    if (tid % 32 == 0) at.sums[tid / 32] = sum;",
    ),
    mutant(
        "sample",
        "the barrier after the maxima dropped",
        "at.ranks[32 + tid / 32] = refused;\n            threadgroup_barrier(mem_flags::mem_threadgroup);",
        "at.ranks[32 + tid / 32] = refused;",
    ),
];

fn all() -> impl Iterator<Item = &'static Mutant> {
    MUTANTS
        .iter()
        .chain(caches::MUTANTS)
        .chain(choices::MUTANTS)
        .chain(elements::MUTANTS)
        .chain(experts::MUTANTS)
        .chain(expert_tiles::MUTANTS)
        .chain(recurrent::MUTANTS)
        .chain(tiles::MUTANTS)
        .chain(prompts::MUTANTS)
}

impl Mutant {
    /// The family of kernels, if what is changed is in its source.
    fn family(&self) -> Result<&'static Family> {
        let Some(family) = FAMILIES.iter().find(|f| f.source.name == self.family) else {
            bail!("no family {}", self.family);
        };
        ensure!(
            family.source.metal().contains(self.from),
            "{}: {:?} is not in the source any more",
            self.family,
            self.from
        );
        Ok(family)
    }
}

/// Plants the bugs of these families, without those that the record has unless `again`; the record learns
/// which families had every bug caught.
///
/// # Errors
/// A bug was not caught, or does not compile.
pub(super) fn run(
    clang: &Clang,
    families: &[&Family],
    record: &mut Record,
    again: bool,
) -> Result<()> {
    let mut wanted = Vec::new();
    let mut known = 0;
    for family in families {
        let bugs: Vec<_> = all().filter(|m| m.family == family.source.name).collect();
        if !again && record.has(family.source.name, &family.source.metal(), &bugs) {
            known += bugs.len();
        } else {
            wanted.push((*family, bugs));
        }
    }
    if known > 0 {
        println!("{known} planted bugs are on record as caught (--plant-all plants them again)");
    }
    let bugs: Vec<_> = wanted.iter().flat_map(|(_, bugs)| bugs).collect();
    let caught = bugs.par_iter().map(|bug| verdict(clang, bug)).collect::<Result<Vec<_>>>()?;
    let missed = caught.iter().filter(|c| !**c).count();
    println!("{} passed, {missed} failed", caught.len() - missed);
    ensure!(missed == 0, "{missed} planted bugs were not caught");
    for (family, bugs) in &wanted {
        record.add(family.source.name, &family.source.metal(), bugs);
    }
    Ok(())
}

/// Whether a bug is caught, which is also printed.
fn verdict(clang: &Clang, mutant: &Mutant) -> Result<bool> {
    let thread = rayon::current_thread_index().unwrap_or_default();
    let caught = is_caught(clang, mutant, &format!("changed-{thread}"))?;
    let verdict = if caught { "caught" } else { "MISSED" };
    println!("planted in {:<12} {verdict}: {}", mutant.family, mutant.what);
    Ok(caught)
}

/// Whether a check fails with the bug; `unit` names the files that it makes.
fn is_caught(clang: &Clang, mutant: &Mutant, unit: &str) -> Result<bool> {
    let family = mutant.family()?;
    let change = |_: &_, text: String| text.replacen(mutant.from, mutant.to, 1);
    let library = clang.changed_library(family, unit, &change)?;
    for seed in 0..=ORDERS {
        if clang.fails(&library, mutant.family, seed)? {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_planted_bug_changes_a_kernel() {
        let stale: Vec<_> = super::all().filter_map(|mutant| mutant.family().err()).collect();
        assert!(stale.is_empty(), "{stale:?}");
    }
}
