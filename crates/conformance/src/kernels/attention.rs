//! Checks of attention against a plain softmax in f64.

use super::{Pair, data::Rng};
use half::{bf16, f16};
use std::fmt;
use taper_tensor::{
    AffineFormat, DType, Linear, Phase, Projected, Result, RmsNorm, RopeAngles, RopeTable, Sinks,
    Tensor, TensorError,
    gpu::{
        Buffer, Gpu,
        attention::{self, BLOCK_TOKENS, KvShape, Plan, Scoring, Sequence, Units},
    },
};

#[derive(Debug, Clone)]
pub(super) struct Case {
    shape: KvShape,
    group: usize,
    /// Query tokens and tokens of each sequence.
    seqs: Vec<(usize, usize)>,
    scoring: Scoring<'static>,
    /// Whether each head has a sink.
    sinks: bool,
    units: Units,
    /// From what the projections give, which is written on the way; with norms?
    new: Option<bool>,
    /// Multiplied with weights of so many bits, and only then looked at.
    next: Option<u8>,
}

/// What the projections give for the newest token of each sequence.
struct Newest {
    rows: [Tensor; 3],
    norms: Option<(RmsNorm, RmsNorm)>,
    angles: RopeAngles,
}

impl Newest {
    fn there(self, gpu: &Gpu) -> Result<Self> {
        let [q, k, v] = &self.rows;
        let rows = [q.to_gpu(gpu)?, k.to_gpu(gpu)?, v.to_gpu(gpu)?];
        Ok(Self { rows, ..self })
    }

    fn projected<'a>(&'a self, head_dim: usize, next: Option<&'a Linear>) -> Projected<'a> {
        let [q, k, v] = &self.rows;
        let norms = self.norms.as_ref().map(|(q, k)| (q, k));
        Projected { q, k, v, head_dim, norms, rope: Some(&self.angles), next }
    }
}

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let shape = |kv_heads, head_dim, dtype| KvShape { kv_heads, head_dim, dtype, latent: false };
    let plain = PLAIN;
    let mut cases = Vec::new();
    let mut add = |shape: KvShape, group, seqs: &[(usize, usize)], scoring| {
        for units in
            [Units::Lanes, Units::Tiles].into_iter().take(1 + usize::from(shape.is_typed()))
        {
            let seqs = seqs.to_vec();
            let (sinks, new, next) = (false, None, None);
            cases.push(Case { shape, group, seqs, scoring, sinks, units, new, next });
        }
    };
    // Each kernel once, with lengths around a block and around a span.
    for (head_dim, dtype) in [
        (64, DType::F16),
        (128, DType::F16),
        (256, DType::F16),
        (24, DType::F16),
        (8, DType::F32),
        (72, DType::BF16),
    ] {
        add(shape(2, head_dim, dtype), 2, &[(1, 1), (1, 33), (1, 64)], plain);
        add(shape(1, head_dim, dtype), 4, &[(5, 5), (1, 40), (3, 70)], plain);
    }
    let long: &[_] = if quick { &[(1, 513)] } else { &[(1, 513), (2, 1100), (1, 512), (1, 3)] };
    add(shape(1, 64, DType::F16), 2, long, plain);
    add(shape(1, 16, DType::F32), 3, long, plain);
    add(shape(1, 32, DType::F32), 1, &[(17, 50)], plain);
    // More heads than a tile has rows.
    add(shape(2, 64, DType::F16), 20, &[(2, 37)], plain);
    add(shape(1, 40, DType::BF16), 6, &[(2, 37)], plain);
    let window = Scoring { window: Some(33), ..plain };
    add(shape(1, 64, DType::F16), 3, &[(1, 100), (7, 90), (1, 20), (40, 40)], window);
    add(shape(1, 16, DType::F32), 2, &[(1, 1030), (9, 64)], window);
    add(shape(1, 64, DType::F16), 1, &[(4, 70)], Scoring { window: Some(1), ..plain });
    let capped = Scoring { soft_cap: Some(2.5), ..plain };
    add(shape(1, 64, DType::F16), 2, &[(3, 40)], capped);
    // New tokens that begin a block, end one, stand alone, and begin a span.
    let mut add = |(kv_heads, head_dim, group), kv_lens: &[usize], scoring, norms, next| {
        let seqs = kv_lens.iter().map(|&n| (1, n)).collect();
        let (shape, new) = (shape(kv_heads, head_dim, DType::F16), Some(norms));
        let (sinks, units) = (false, Units::Tiles);
        cases.push(Case { shape, group, seqs, scoring, sinks, units, new, next });
    };
    for (head_dim, group) in [(64, 2), (64, 7), (128, 4), (128, 5), (256, 3), (256, 8)] {
        add((2, head_dim, group), &[1, 33, 64, 170], plain, head_dim != 256, None);
    }
    add((2, 64, 4), &[513, 512, 40], plain, false, None);
    add((2, 128, 4), &[100, 20], window, true, None);
    add((2, 64, 1), &[70], capped, true, None);
    // The halves of each order, and of more spans than one.
    for (bits, kv_lens) in [(4, [40, 1, 64]), (8, [40, 1, 64]), (4, [513, 1, 64])] {
        add((1, 128, 5), &kv_lens, plain, true, Some(bits));
    }
    let lens: Vec<_> = (0..64).map(|i| 30 + i % 40).collect();
    add((1, 64, 3), &lens[..33], plain, true, Some(4));
    if !quick {
        // More threadgroups than others have room for.
        add((8, 128, 2), &lens, plain, true, None);
        add((8, 128, 2), &lens, plain, true, Some(4));
    }
    cases
}

/// Scoring without anything special.
const PLAIN: Scoring<'_> =
    Scoring { scale: 0.2, window: None, soft_cap: None, sinks: None, value_dim: None };

/// Cases that came later, as a check's number decides its data: sinks, heads of more than 256, and latents.
pub(super) fn more_cases() -> Vec<Case> {
    let shape = |kv_heads, head_dim, dtype| KvShape { kv_heads, head_dim, dtype, latent: false };
    let short = vec![(1, 1), (1, 33), (3, 70)];
    let long = vec![(1, 513), (2, 530), (1, 20)];
    let of = |shape, group, seqs: &[(usize, usize)]| {
        let (seqs, scoring) = (seqs.to_vec(), PLAIN);
        Case {
            shape,
            group,
            seqs,
            scoring,
            sinks: false,
            units: Units::Lanes,
            new: None,
            next: None,
        }
    };
    let mut cases = Vec::new();
    let window = Scoring { window: Some(20), ..PLAIN };
    for (shape, group) in [
        (shape(2, 64, DType::F16), 2),
        (shape(1, 24, DType::BF16), 3),
        (shape(1, 16, DType::F32), 8),
    ] {
        for units in
            [Units::Lanes, Units::Tiles].into_iter().take(1 + usize::from(shape.is_typed()))
        {
            let sinks = |case| Case { sinks: true, units, ..case };
            cases.push(sinks(of(shape, group, &short)));
            cases.push(sinks(Case { scoring: window, ..of(shape, group, &long) }));
        }
    }
    for kv_lens in [[40, 1], [513, 64]] {
        let seqs = kv_lens.map(|n| (1, n));
        let case = of(shape(2, 128, DType::F16), 4, &seqs);
        cases.push(Case { sinks: true, units: Units::Tiles, new: Some(true), ..case });
    }
    for (head_dim, dtype) in
        [(512, DType::F16), (288, DType::F16), (320, DType::BF16), (264, DType::F32)]
    {
        cases.push(of(shape(1, head_dim, dtype), 2, &short));
        cases.push(Case { scoring: window, ..of(shape(2, head_dim, dtype), 5, &long[..2]) });
    }
    for (head_dim, value_dim, dtype) in [
        (576, 512, DType::F16),
        (40, 32, DType::F16),
        (288, 256, DType::BF16),
        (64, 64, DType::F32),
        (320, 256, DType::F32),
    ] {
        let shape = KvShape { latent: true, ..shape(1, head_dim, dtype) };
        let scoring = Scoring { value_dim: Some(value_dim), ..PLAIN };
        cases.push(Case { scoring, ..of(shape, 4, &short) });
        cases.push(Case { scoring, ..of(shape, 6, &long) });
    }
    cases
}

/// Prompts, whose tiles have many rows: lengths around a step of 64 tokens, groups that fill a tile and that do not.
pub(super) fn prompts() -> Vec<Case> {
    let of = |(kv_heads, head_dim, group), seqs: &[(usize, usize)], scoring| {
        let shape = KvShape { kv_heads, head_dim, dtype: DType::F16, latent: false };
        let (seqs, units) = (seqs.to_vec(), Units::Prompt);
        Case { shape, group, seqs, scoring, sinks: false, units, new: None, next: None }
    };
    let window = |n| Scoring { window: Some(n), ..PLAIN };
    let capped = Scoring { soft_cap: Some(2.5), ..PLAIN };
    let with_sinks = |case| Case { sinks: true, ..case };
    vec![
        of((2, 128, 4), &[(40, 40), (17, 81)], PLAIN),
        of((2, 128, 4), &[(1, 40), (40, 40), (3, 70), (20, 90), (1, 1)], PLAIN),
        of((1, 128, 1), &[(130, 130)], PLAIN),
        of((1, 128, 3), &[(64, 64), (16, 200)], PLAIN),
        of((1, 128, 7), &[(33, 129), (20, 63)], PLAIN),
        of((1, 128, 2), &[(70, 190)], window(33)),
        of((2, 128, 2), &[(100, 230)], window(70)),
        of((1, 128, 1), &[(40, 100)], window(1)),
        of((1, 128, 2), &[(50, 80)], capped),
        with_sinks(of((2, 128, 4), &[(30, 100)], PLAIN)),
        with_sinks(of((1, 128, 2), &[(30, 100)], window(40))),
        // Few tiles, which share out what they see.
        of((2, 128, 4), &[(20, 1100)], PLAIN),
        of((1, 128, 2), &[(33, 60), (20, 1500)], window(600)),
        with_sinks(of((1, 128, 4), &[(17, 1030)], capped)),
    ]
}

impl Case {
    /// Whether a GPU has what it is for.
    pub(super) fn fits(&self, gpu: &Gpu) -> bool {
        match self.units {
            Units::Lanes => true,
            Units::Tiles => gpu.has_fast_tiles(),
            Units::Prompt => gpu.has_prompt_tiles(),
        }
    }

    pub(super) fn family(&self) -> &'static str {
        match self.units {
            Units::Prompt => "attend_prompt",
            Units::Tiles => "attend_tile",
            Units::Lanes if self.shape.latent || self.shape.head_dim > 256 => "attend_more",
            Units::Lanes => "attend",
        }
    }

    pub(super) fn run(&self, gpu: &Gpu, rng: &mut Rng) -> Result<Vec<Pair>> {
        let KvShape { kv_heads, head_dim, dtype, latent } = self.shape;
        let heads = kv_heads * self.group;
        let row = kv_heads * head_dim;
        let sinks = self.sinks.then(|| Sinks::new(rng.vector(heads)));
        let scoring = Scoring { sinks: sinks.as_ref(), ..self.scoring };
        // Blocks of all sequences, in a random order, with some between that nobody wrote.
        let needed = |kv: usize| kv.div_ceil(BLOCK_TOKENS);
        let total: usize = self.seqs.iter().map(|s| needed(s.1)).sum::<usize>() + 3;
        let mut free: Vec<u32> = (0..total as u32).collect();
        for i in (1..total).rev() {
            free.swap(i, rng.below(i + 1));
        }
        let page = total * BLOCK_TOKENS * row * dtype.size_in_bytes();
        let pages = (gpu.allocate(page)?, gpu.allocate(page)?);
        // What nobody wrote is not a number.
        for side in [&pages.0, &pages.1] {
            side.write(0, &vec![0xff; page])?;
        }
        let newest = self.new.map(|norms| self.newest(rng, norms)?.there(gpu)).transpose()?;
        let turned = newest.as_ref().map(|n| n.projected(head_dim, None).turned()).transpose()?;
        let turned = turned.map(|rows| rows.map(|x| x.to_vec()));
        let turned = turned.map(|[q, k, v]| Ok::<_, TensorError>([q?, k?, v?])).transpose()?;
        let mut tables = Vec::new();
        let (mut want, mut queries) = (Vec::new(), Vec::new());
        for (i, &(q_len, kv_len)) in self.seqs.iter().enumerate() {
            let blocks: Vec<u32> = free.drain(..needed(kv_len)).collect();
            let slots: Vec<u32> = (0..kv_len)
                .map(|i| blocks[i / BLOCK_TOKENS] * BLOCK_TOKENS as u32 + (i % BLOCK_TOKENS) as u32)
                .collect();
            let (mut k, mut v) = (rng.vector(kv_len * row), rng.vector(kv_len * row));
            if latent {
                v.clone_from(&k);
            }
            let mut q = rng.vector(q_len * heads * head_dim);
            // What is there before the step.
            let mut old = kv_len;
            if let Some([own_q, own_k, own_v]) = &turned {
                old -= 1;
                q = own_q[i * q.len()..][..q.len()].to_vec();
                k[old * row..].copy_from_slice(&own_k[i * row..][..row]);
                v[old * row..].copy_from_slice(&own_v[i * row..][..row]);
            }
            if old > 0 {
                let there = |x: &[f32]| {
                    let dims = [old, kv_heads, head_dim];
                    let x = x[..old * row].to_vec();
                    Tensor::from_vec(x, &dims)?.to_gpu(gpu)
                };
                let slots = gpu.upload(&slots[..old])?;
                let pages = (&pages.0, &pages.1);
                attention::write(self.shape, &there(&k)?, &there(&v)?, &slots, pages)?;
            }
            let side = |x: &[f32]| x.iter().map(|&x| stored(dtype, x)).collect::<Vec<_>>();
            let sinks = sinks.as_ref().map(Sinks::scores);
            want.extend(self.reference((&q, sinks), &side(&k), &side(&v), (q_len, kv_len)));
            queries.extend(q);
            tables.push(blocks);
        }
        let tokens = self.seqs.iter().map(|s| s.0).sum();
        let dims = [tokens, heads, head_dim];
        let q = Tensor::from_vec(queries, &dims)?.to_gpu(gpu)?;
        let seqs: Vec<_> = self
            .seqs
            .iter()
            .zip(&tables)
            .map(|(&(q_len, kv_len), blocks)| Sequence { q_len, kv_len, blocks })
            .collect();
        let plan = match self.units {
            // The same as it is chosen, which splits off sequences of few tokens.
            Units::Prompt => Plan::new(gpu, self.shape, &seqs, self.group)?,
            units => Plan::with(gpu, self.shape, &seqs, self.group, units)?,
        };
        let pages = (&pages.0, &pages.1);
        let attend_new = |newest: &Newest, next: Option<&Linear>| {
            let rows = newest.projected(head_dim, next);
            let out = attention::attend_new(self.shape, &rows, pages, &plan, &scoring)?;
            let none = || TensorError::Device { op: "attention of new rows", device: gpu.name() };
            out.ok_or_else(none)
        };
        if let (Some(newest), Some(bits)) = (&newest, self.next) {
            let format = AffineFormat { bits, group: 64 };
            let cols = heads * head_dim;
            let next = Linear::new(rng.affine(format, DType::F16, 72, cols)?);
            let placed = next.clone().on(gpu, false)?;
            let got = attend_new(newest, Some(&placed))?.reshape(&[tokens, cols])?;
            let want = Tensor::from_vec(want, &[tokens, cols])?;
            let got = placed.forward(&got, Phase::Decode)?;
            return Ok(vec![Pair::of(&got, &next.forward(&want, Phase::Decode)?)?]);
        }
        let mut outs = Vec::new();
        if let Some(newest) = &newest {
            outs.push(attend_new(newest, None)?);
        }
        // What that wrote is there for whoever reads it next.
        outs.push(attention::attend(self.shape, &q, pages, &plan, &scoring)?);
        let pair = |out: &Tensor| Ok(Pair { got: out.to_vec()?, want: want.clone() });
        let mut pairs = outs.iter().map(pair).collect::<Result<Vec<_>>>()?;
        if let Some(whole) = outs.last() {
            self.break_tokens(gpu, &tables, pages)?;
            let broken = attention::attend(self.shape, &q, pages, &plan, &scoring)?;
            pairs.push(self.unbroken(&whole.to_vec()?, &broken)?);
        }
        Ok(pairs)
    }

    /// Elements of a head's result: the last ones of values.
    fn value_dim(&self) -> usize {
        self.scoring.value_dim.unwrap_or(self.shape.head_dim)
    }

    /// Tokens of each sequence that are replaced by what is not a number: its first and its last one.
    fn broken(&self, kv_len: usize) -> [usize; 2] {
        [0, kv_len - 1]
    }

    fn break_tokens(
        &self,
        gpu: &Gpu,
        tables: &[Vec<u32>],
        pages: (&Buffer, &Buffer),
    ) -> Result<()> {
        let KvShape { kv_heads, head_dim, .. } = self.shape;
        let mut slots = Vec::new();
        for (&(_, kv_len), blocks) in self.seqs.iter().zip(tables) {
            let size = BLOCK_TOKENS;
            slots.extend(
                self.broken(kv_len).map(|i| blocks[i / size] * size as u32 + (i % size) as u32),
            );
        }
        slots.dedup();
        let dims = [slots.len(), kv_heads, head_dim];
        let side = |x: f32| {
            let x = vec![x; dims.iter().product()];
            Tensor::from_vec(x, &dims)?.to_gpu(gpu)
        };
        attention::write(
            self.shape,
            &side(f32::NAN)?,
            &side(f32::NAN)?,
            &gpu.upload(&slots)?,
            pages,
        )
    }

    /// Answers that see no such token are what they were, to the bit, and no other is a number.
    fn unbroken(&self, whole: &[f32], broken: &Tensor) -> Result<Pair> {
        let broken: Vec<f32> = broken.to_vec()?;
        let width = self.shape.kv_heads * self.group * self.value_dim();
        let mut rows = whole.chunks(width).zip(broken.chunks(width));
        let (mut got, mut want) = (Vec::new(), Vec::new());
        for &(q_len, kv_len) in &self.seqs {
            for (token, (whole, broken)) in rows.by_ref().take(q_len).enumerate() {
                let end = kv_len - q_len + token + 1;
                let start = self.scoring.window.map_or(0, |w| end.saturating_sub(w));
                let sees = self.broken(kv_len).iter().any(|at| (start..end).contains(at));
                let right = |(a, b): (&f32, &f32)| {
                    if sees { !b.is_finite() } else { a.to_bits() == b.to_bits() }
                };
                got.push(f32::from(u8::from(whole.iter().zip(broken).all(right))));
                want.push(1.0);
            }
        }
        Ok(Pair { got, want })
    }

    /// A norm's sum of new rows is taken in another order than the reference's, so that now and then an
    /// element of a key is rounded to the other half next to it.
    pub(super) fn tolerance(&self) -> f64 {
        match (self.new, self.next) {
            // Weights and queries are halves.
            (None, _) if matches!(self.units, Units::Prompt) => 1e-3,
            (None, _) if self.shape.head_dim > 256 => 1e-5,
            (None, _) => 4e-6,
            (_, None) => 2e-4,
            // As a product of rounded inputs; see `products`.
            _ => 4e-3,
        }
    }

    fn newest(&self, rng: &mut Rng, norms: bool) -> Result<Newest> {
        let KvShape { kv_heads, head_dim, .. } = self.shape;
        let tokens = self.seqs.len();
        let mut rows = |heads| rng.tensor(&[tokens, heads * head_dim]);
        let rows = [rows(kv_heads * self.group)?, rows(kv_heads)?, rows(kv_heads)?];
        let mut norm = |eps| RmsNorm::new(rng.vector(head_dim), eps);
        let norms = norms.then(|| (norm(1e-6), norm(1e-5)));
        let inv_freq = (0..head_dim / 2).map(|i| 10_000f32.powf(-(i as f32) / 64.0)).collect();
        let positions: Vec<_> = self.seqs.iter().map(|s| s.1 as u32 - 1).collect();
        let angles = RopeTable::new(inv_freq, 1.2).angles(&positions);
        Ok(Newest { rows, norms, angles })
    }

    fn reference(
        &self,
        (q, sinks): (&[f32], Option<&[f32]>),
        k: &[f64],
        v: &[f64],
        (q_len, kv_len): (usize, usize),
    ) -> Vec<f32> {
        let KvShape { kv_heads, head_dim: d, .. } = self.shape;
        let heads = kv_heads * self.group;
        let mut out = Vec::with_capacity(q.len());
        for (i, q) in q.chunks(d).enumerate() {
            let (token, head) = (i / heads, i % heads / self.group);
            let end = kv_len - q_len + token + 1;
            let start = self.scoring.window.map_or(0, |w| end.saturating_sub(w));
            let at = |t: usize| (t * kv_heads + head) * d;
            let score = |t: usize| {
                let dot: f64 = q.iter().zip(&k[at(t)..]).map(|(&q, &k)| f64::from(q) * k).sum();
                let s = dot * f64::from(self.scoring.scale);
                self.scoring.soft_cap.map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh())
            };
            let scores: Vec<f64> = (start..end).map(score).collect();
            let sink = sinks.map(|sinks| f64::from(sinks[i % heads]));
            let top = scores.iter().copied().chain(sink).fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
            let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |s| (s - top).exp());
            out.extend((d - self.value_dim()..d).map(|e| {
                let sum: f64 = weights.iter().zip(start..end).map(|(w, t)| w * v[at(t) + e]).sum();
                (sum / total) as f32
            }));
        }
        out
    }
}

/// What the cache keeps of a number.
fn stored(dtype: DType, x: f32) -> f64 {
    match dtype {
        DType::F16 => f16::from_f32(x).to_f64(),
        DType::BF16 => bf16::from_f32(x).to_f64(),
        _ => f64::from(x),
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KvShape { kv_heads, head_dim, dtype, latent } = self.shape;
        let group = self.group;
        let units = match self.units {
            _ if self.new.is_some() => "new ",
            Units::Lanes => "",
            Units::Tiles => "tiles ",
            Units::Prompt => "prompt ",
        };
        write!(f, "{units}{} {kv_heads}x{group}x{head_dim} {:?}", dtype.as_str(), self.seqs)?;
        if latent {
            write!(f, " latent {}", self.value_dim())?;
        }
        if self.sinks {
            write!(f, " sinks")?;
        }
        if let Some(bits) = self.next {
            write!(f, " for {bits} bits")?;
        }
        if let Some(window) = self.scoring.window {
            write!(f, " window {window}")?;
        }
        match self.scoring.soft_cap {
            Some(cap) => write!(f, " cap {cap}"),
            None => Ok(()),
        }
    }
}
