//! Every GPU kernel against the host: those of `taper_tensor`, and the compressed caches' here.

mod attention;
mod compaction;
mod kernels;
mod new_tokens;
mod scores;

pub use kernels::Outcome;

use half::f16;
use std::{fmt, sync::Arc};
use taper_base::BlockId;
use taper_kv_codecs::{
    AttnParams, Exact, KvCodec, KvCodecError, KvGeometry, LayerPages, parse, parse_on,
};
use taper_tensor::{
    Tensor,
    gpu::{Buffer, Gpu, attention::BLOCK_TOKENS},
};

/// One kernel in one form.
#[derive(Debug, Clone)]
pub struct Check {
    /// The file of kernels it belongs to.
    pub family: &'static str,
    /// The kernel and its shape.
    pub name: String,
    /// Largest error allowed, as [`Outcome::error`] is measured.
    pub tolerance: f64,
    case: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Tensor(kernels::Check),
    /// As on a GPU whose matrix units are slow.
    Slow(kernels::Check),
    Attend(Case),
    Encode(Case),
    New(Case),
    Compact(&'static str),
    Move(Case),
    Scores(scores::Case),
}

/// All checks of what a GPU may be asked to run; `quick` has fewer shapes, for slow devices.
#[must_use]
pub fn checks(gpu: &Gpu, quick: bool) -> Vec<Check> {
    let of = |check: kernels::Check, kind: fn(kernels::Check) -> Kind| Check {
        family: check.family,
        name: check.name.clone(),
        tolerance: check.tolerance,
        case: kind(check),
    };
    let plain = kernels::checks(gpu, quick).into_iter().map(|check| of(check, Kind::Tensor));
    let slow = kernels::checks(&gpu.with_slow_tiles(), quick).into_iter();
    let slow = slow.filter(|check| gpu.has_fast_tiles() && check.family == "matvec_rows");
    let slow = slow.map(|check| of(check, Kind::Slow));
    let attended = |case: Case| Check {
        family: if case.codec.contains('-') { "coded_more" } else { "coded" },
        name: case.to_string(),
        // Exact rows are compared with what they were before they became halves.
        tolerance: if case.expands() { 5e-3 } else { 1e-4 },
        case: Kind::Attend(case),
    };
    let attend = attention::cases(quick).into_iter().map(attended);
    let more = attention::more_cases().into_iter().map(attended);
    let sinks = attention::sink_cases().into_iter().map(attended);
    let encode = encode_cases(quick).into_iter().map(|case| Check {
        family: "encode",
        name: case.to_string(),
        // A walk in four bits may take a branch that is next to the nearest one.
        tolerance: if case.codec.contains("taper4") { 5e-3 } else { 2e-3 },
        case: Kind::Encode(case),
    });
    let compact = compaction::PLAIN_CODECS.into_iter().map(|name| Check {
        family: "compact",
        name: format!("compact {name}"),
        tolerance: 0.0,
        case: Kind::Compact(name),
    });
    let moved = compaction::coded_cases(quick).into_iter().map(|case| Check {
        family: "compact",
        name: format!("compact {case}"),
        // Byte for byte.
        tolerance: 0.0,
        case: Kind::Move(case),
    });
    let scores = scores::cases(quick).into_iter().map(|case| Check {
        family: "score",
        name: case.to_string(),
        tolerance: 1e-5,
        case: Kind::Scores(case),
    });
    let expanded = attention::expanded_cases()
        .into_iter()
        .map(|case| Check { family: "expand", ..attended(case) });
    let new = new_tokens::cases().into_iter().map(|case| Check {
        family: "encode",
        name: format!("new tokens of {case}"),
        tolerance: 1e-5,
        case: Kind::New(case),
    });
    let all = plain.chain(attend).chain(encode).chain(compact).chain(moved).chain(scores);
    all.chain(more).chain(slow).chain(sinks).chain(expanded).chain(new).collect()
}

impl Check {
    /// Runs it with random data of a seed.
    ///
    /// # Errors
    /// The kernel could not be run.
    pub fn run(&self, gpu: &Gpu, seed: u64) -> Result<Outcome, KvCodecError> {
        let pairs = match &self.case {
            Kind::Tensor(check) => return Ok(check.run(gpu, seed)?),
            Kind::Slow(check) => return Ok(check.run(&gpu.with_slow_tiles(), seed)?),
            Kind::Attend(case) => vec![case.attend(gpu, seed)?],
            Kind::Encode(case) => case.encode(gpu, seed)?,
            Kind::New(case) => case.attend_new(gpu, seed)?,
            Kind::Compact(name) => compaction::plain(name, gpu, seed)?,
            Kind::Move(case) => compaction::coded(case, gpu, seed)?,
            Kind::Scores(case) => vec![case.run(gpu, seed)?],
        };
        Ok(Outcome::of(pairs.iter().map(|(got, want)| (&**got, &**want)), self.tolerance))
    }
}

#[derive(Debug, Clone)]
struct Case {
    codec: &'static str,
    kv_heads: usize,
    head_dim: usize,
    group: usize,
    /// Query tokens and tokens of each sequence.
    seqs: Vec<(usize, usize)>,
    exact: Option<Exact>,
    params: AttnParams<'static>,
    /// Whether the last token of each sequence, and the first one under a window, are not numbers.
    broken: bool,
    /// Whether each head has a sink.
    sinks: bool,
}

type Pair = (Vec<f32>, Vec<f32>);
/// Blocks of a sequence, its keys and its values.
type Rows = (Vec<BlockId>, Vec<f32>, Vec<f32>);

const PLAIN: AttnParams<'_> = AttnParams::new(0.2);
const EXACT: Exact = Exact { sink_tokens: 32, recent_tokens: 64 };

/// Every format of a side once.
const FORMATS: [&str; 16] = [
    "turbo1",
    "turbo2",
    "turbo3",
    "turbo4",
    "turbo5",
    "taper2",
    "taper3",
    "taper4",
    "affine8",
    "affine4g32",
    "turbo0v3",
    "turbo2-qjl",
    "turbo3-qjl",
    "turbo4-qjl",
    "turbo5v8-qjl",
    "taper3-l9",
];

fn encode_cases(quick: bool) -> Vec<Case> {
    let names = FORMATS.into_iter().chain(["taper4v2"]);
    let mut cases = Vec::new();
    for (i, codec) in names.enumerate() {
        for (j, head_dim) in [128, 64, 24, 80, 256, 16].into_iter().enumerate() {
            if j > 0 && (i + j) % (if quick { 4 } else { 2 }) > 0 {
                continue;
            }
            let (kv_heads, group, seqs) = (1 + i % 2, 1, vec![(1, 75), (1, 33)]);
            let exact = (j == 0).then_some(EXACT);
            let (params, broken, sinks) = (PLAIN, false, false);
            cases.push(Case {
                codec,
                kv_heads,
                head_dim,
                group,
                seqs,
                exact,
                params,
                broken,
                sinks,
            });
        }
    }
    cases
}

/// Vigna's `splitmix64`: the next word. Planted bugs were chosen on its numbers.
fn next_bits(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// About normal.
fn noise(state: &mut u64, n: usize) -> Vec<f32> {
    let unit = |bits: u64| (bits & 0xffff) as f32 / 65536.0;
    let mut one = || {
        let words = [next_bits(state), next_bits(state), next_bits(state)];
        let sum: f32 = words.iter().flat_map(|w| (0..4).map(move |i| unit(w >> (16 * i)))).sum();
        sum - 6.0
    };
    (0..n).map(|_| one()).collect()
}

/// A cache on the host with its sequences.
struct Filled {
    g: KvGeometry,
    codec: Arc<dyn KvCodec>,
    pages: LayerPages,
    seqs: Vec<Rows>,
}

impl Case {
    fn geometry(&self) -> KvGeometry {
        let &Self { kv_heads, head_dim, .. } = self;
        KvGeometry { kv_heads, head_dim, block_tokens: BLOCK_TOKENS }
    }

    fn blocks(&self) -> usize {
        self.seqs.iter().map(|s| s.1.div_ceil(BLOCK_TOKENS)).sum::<usize>() + 2
    }

    fn pages(&self, codec: &dyn KvCodec) -> LayerPages {
        let g = self.geometry();
        let pages = LayerPages::zeroed(codec.block_bytes(g), self.blocks());
        match codec.exact_block_bytes(g) {
            Some(bytes) if self.exact.is_some() => pages.with_exact(bytes, self.blocks()),
            _ => pages,
        }
    }

    /// Random rows for each sequence, in blocks of a random order. Keys have a bias that their
    /// variation may or may not exceed.
    fn rows(&self, seed: u64) -> Vec<Rows> {
        let mut state = seed;
        let mut free: Vec<_> = (0..self.blocks() as u32).map(BlockId).collect();
        for i in (1..free.len()).rev() {
            free.swap(i, (next_bits(&mut state) % (i as u64 + 1)) as usize);
        }
        let bias = noise(&mut state, self.kv_heads * self.head_dim);
        let strength = [0.0, 3.0][(seed % 2) as usize];
        let rows = |&(_, kv): &(usize, usize)| {
            let n = kv * self.kv_heads * self.head_dim;
            let mut k = noise(&mut state, n);
            let v = noise(&mut state, n);
            let period = bias.len();
            k.iter_mut().enumerate().for_each(|(i, k)| *k += strength * bias[i % period]);
            (free.drain(..kv.div_ceil(BLOCK_TOKENS)).collect(), k, v)
        };
        self.seqs.iter().map(rows).collect()
    }

    fn tensor(&self, x: &[f32]) -> Result<Tensor, KvCodecError> {
        let rows = x.len() / (self.kv_heads * self.head_dim);
        Ok(Tensor::from_vec(x.to_vec(), &[rows, self.kv_heads, self.head_dim])?)
    }

    fn fill(&self, seqs: Vec<Rows>) -> Result<Filled, KvCodecError> {
        self.fill_over(seqs, 0)
    }

    /// Over pages that hold a byte everywhere.
    fn fill_over(&self, seqs: Vec<Rows>, byte: u8) -> Result<Filled, KvCodecError> {
        let (g, codec) = (self.geometry(), parse(self.codec)?);
        let mut pages = self.pages(&*codec);
        for side in [&mut pages.k, &mut pages.v, &mut pages.exact_k, &mut pages.exact_v] {
            side.as_mut_slice().fill(byte);
        }
        for (blocks, k, v) in &seqs {
            let slots = slots(blocks, k.len() / (self.kv_heads * self.head_dim));
            let (k, v) = (self.tensor(k)?, self.tensor(v)?);
            codec.encode(g, &k, &v, &slots, &mut pages)?;
            if self.exact.is_some() {
                let slots: Vec<_> = slots.into_iter().map(Some).collect();
                codec.encode_exact(g, &k, &v, &slots, &mut pages)?;
            }
        }
        Ok(Filled { g, codec, pages, seqs })
    }

    /// Rows that the GPU writes a few at a time, against those that the host writes: how far
    /// they are from what they were, and the exact ones themselves.
    fn encode(&self, gpu: &Gpu, seed: u64) -> Result<Vec<Pair>, KvCodecError> {
        let width = self.kv_heads * self.head_dim;
        let mut rows = self.rows(seed);
        if let Some((_, k, v)) = rows.first_mut() {
            // Too long for the scales that its block began with, where a code keeps some.
            let long = 20 * width..21 * width;
            k[long.clone()].iter_mut().chain(&mut v[long]).for_each(|x| *x *= 40.0);
        }
        let (filled, g) = (self.fill(rows)?, self.geometry());
        let codec = parse_on(self.codec, gpu)?;
        let mut pages = self.pages(&*codec);
        let mut at = vec![0usize; filled.seqs.len()];
        for step in [5, 1, 2, 30, usize::MAX] {
            let (mut k, mut v, mut to) = (Vec::new(), Vec::new(), Vec::new());
            for (at, (blocks, own_k, own_v)) in at.iter_mut().zip(&filled.seqs) {
                let len = own_k.len() / width;
                let end = len.min(at.saturating_add(step));
                k.extend_from_slice(&own_k[*at * width..end * width]);
                v.extend_from_slice(&own_v[*at * width..end * width]);
                to.extend_from_slice(&slots(blocks, len)[*at..end]);
                *at = end;
            }
            let (k, v) = (self.tensor(&k)?.to_gpu(gpu)?, self.tensor(&v)?.to_gpu(gpu)?);
            codec.encode(g, &k, &v, &to, &mut pages)?;
            if self.exact.is_some() {
                // Every other row.
                let some = |(i, s): (usize, &usize)| (i % 2 == 0).then_some(*s);
                let some: Vec<_> = to.iter().enumerate().map(some).collect();
                codec.encode_exact(g, &k, &v, &some, &mut pages)?;
                let rest = |(i, s): (usize, &usize)| (i % 2 == 1).then_some(*s);
                let rest: Vec<_> = to.iter().enumerate().map(rest).collect();
                codec.encode_exact(g, &k, &v, &rest, &mut pages)?;
            }
        }
        let mut pairs = Vec::new();
        for (blocks, k, v) in &filled.seqs {
            let to = slots(blocks, k.len() / width);
            let got = codec.decode(g, &to, &pages)?;
            let want = filled.codec.decode(g, &to, &filled.pages)?;
            for (rows, got, want) in [(k, got.0, want.0), (v, got.1, want.1)] {
                pairs.push((self.distance(rows, &got)?, self.distance(rows, &want)?));
            }
        }
        if self.exact.is_some() {
            let mut want = self.pages(&*codec);
            upload(gpu, &filled, &mut want)?;
            let (got, want) = (self.exact_sides(&pages)?, self.exact_sides(&want)?);
            for (got, want) in got.into_iter().zip(want) {
                let block = BLOCK_TOKENS * width;
                for (blocks, k, _) in &filled.seqs {
                    // Whole blocks only: the rest was never written.
                    for block_id in &blocks[..k.len() / width / BLOCK_TOKENS] {
                        let at = block_id.0 as usize * block * 2;
                        let side = |b: &Buffer| -> Result<_, KvCodecError> {
                            let halves = b.read::<f16>(at, block)?;
                            Ok(halves.iter().map(|x| x.to_f32()).collect::<Vec<_>>())
                        };
                        pairs.push((side(got)?, side(want)?));
                    }
                }
            }
        }
        Ok(pairs)
    }

    /// Exact rows on the GPU, keys and values. They must be there: what is missing was not compared.
    fn exact_sides<'a>(&self, pages: &'a LayerPages) -> Result<[&'a Buffer; 2], KvCodecError> {
        let missing = || KvCodecError::NoExactRows { codec: self.codec.to_owned() };
        let (k, v) = pages.gpu_exact.as_ref().ok_or_else(missing)?;
        Ok([k, v])
    }

    /// Squared distance of rows from what they were, relative to their lengths: the mean, as of
    /// equally good codes another rounding may choose another one.
    fn distance(&self, rows: &[f32], decoded: &Tensor) -> Result<Vec<f32>, KvCodecError> {
        let decoded = decoded.to_vec()?;
        let one = |(row, got): (&[f32], &[f32])| {
            let energy: f32 = row.iter().map(|x| x * x).sum();
            row.iter().zip(got).map(|(x, y)| (x - y) * (x - y)).sum::<f32>() / energy
        };
        let heads = rows.chunks_exact(self.head_dim).zip(decoded.chunks_exact(self.head_dim));
        let n = heads.len() as f32;
        Ok(vec![heads.map(one).sum::<f32>() / n])
    }
}

fn slots(blocks: &[BlockId], len: usize) -> Vec<usize> {
    (0..len)
        .map(|i| blocks[i / BLOCK_TOKENS].0 as usize * BLOCK_TOKENS + i % BLOCK_TOKENS)
        .collect()
}

/// Places the host's pages on a GPU as its kernels have them.
fn upload(gpu: &Gpu, filled: &Filled, to: &mut LayerPages) -> Result<(), KvCodecError> {
    let g = filled.g;
    let regions = |bytes: usize| bytes / g.kv_heads;
    let here = filled.codec.block_bytes(g);
    let blocks = filled.pages.k.len() / here.k;
    let side = |from: &[u8], here: usize, all: usize| {
        let there = all / (blocks * g.kv_heads);
        let mut out = vec![0u8; all];
        for (to, from) in out.chunks_exact_mut(there).zip(from.chunks_exact(here)) {
            to[..here].copy_from_slice(from);
        }
        let buffer = gpu.allocate(all)?;
        buffer.write(0, &out)?;
        Ok::<_, KvCodecError>(buffer)
    };
    let k = side(filled.pages.k.as_slice(), regions(here.k), to.k.len())?;
    let v = side(filled.pages.v.as_slice(), regions(here.v), to.v.len())?;
    to.gpu = Some((k, v));
    if to.exact_k.is_empty() {
        return Ok(());
    }
    let (d, head) = (g.head_dim, BLOCK_TOKENS * g.head_dim);
    let rows: &[f16] = bytemuck::cast_slice(filled.pages.exact_k.as_slice());
    let tiled: Vec<f16> = (0..rows.len())
        .map(|i| {
            let (at, part, token, e) = (i / head * head, i % head / 256, i / 8 % 32, i % 8);
            rows[at + token * d + part * 8 + e]
        })
        .collect();
    let (k, v) = (gpu.allocate(2 * tiled.len())?, gpu.allocate(to.exact_v.len())?);
    k.write(0, bytemuck::cast_slice(&tiled))?;
    v.write(0, filled.pages.exact_v.as_slice())?;
    to.gpu_exact = Some((k, v));
    Ok(())
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Self { codec, kv_heads, head_dim, group, ref seqs, .. } = self;
        write!(f, "{codec} {kv_heads}x{group}x{head_dim} {seqs:?}")?;
        if self.exact.is_some() {
            write!(f, " exact")?;
        }
        if self.broken {
            write!(f, " broken")?;
        }
        if self.sinks {
            write!(f, " sinks")?;
        }
        match (self.params.window, self.params.soft_cap) {
            (Some(window), _) => write!(f, " window {window}"),
            (_, Some(cap)) => write!(f, " cap {cap}"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_rows_that_are_not_on_the_gpu_fail() {
        let case = encode_cases(true).into_iter().find(|case| case.exact.is_some()).unwrap();
        let pages = case.pages(&*parse(case.codec).unwrap());
        let error = case.exact_sides(&pages).unwrap_err();
        assert!(matches!(error, KvCodecError::NoExactRows { .. }), "{error}");
    }
}
