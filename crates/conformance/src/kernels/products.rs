//! Checks of products with weights, and of embeddings.

use super::{Pair, data::Rng};
use std::fmt;
use taper_tensor::{
    AffineFormat, DType, Embedding, Linear, LinearGroup, Phase, Result, RmsNorm, Tensor,
    TensorError, Weight,
    cpu::{Activation, RowSource},
    gpu::Gpu,
};

#[derive(Debug, Clone, Copy)]
pub(super) enum Stored {
    Dense(DType),
    Affine(AffineFormat, DType),
    Mxfp4,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// `x Wᵀ + bias + residual`.
    Linear,
    /// Three maps of `norm(x)`.
    Group,
    /// `act(gate(norm(x))) * up(norm(x))`.
    Gated(Activation),
    Embed,
    /// A feed-forward of so many columns, with bias and residual, and two maps of the norm of what it gives.
    Down,
}

#[derive(Debug, Clone)]
pub(super) struct Case {
    stored: Stored,
    kind: Kind,
    tokens: usize,
    rows: usize,
    cols: usize,
    /// May the product be rounded to f16?
    rounded: bool,
}

impl Stored {
    /// Whether there are kernels of its own for matrix units.
    fn has_tiles(&self) -> bool {
        matches!(self, Self::Affine(f, s) if [4, 8].contains(&f.bits) && *s != DType::F32)
    }

    fn bits(&self) -> u8 {
        if let Self::Affine(f, _) = self { f.bits } else { 16 }
    }
}

/// Every format with every kind, on shapes around the kernels' tiles.
pub(super) fn cases(quick: bool) -> Vec<Case> {
    let mut formats: Vec<_> =
        [DType::F32, DType::F16, DType::BF16].into_iter().map(Stored::Dense).collect();
    let scales = [DType::F32, DType::F16, DType::BF16];
    let affine = |(i, bits): (usize, u8)| {
        let group = AffineFormat::GROUPS[i % AffineFormat::GROUPS.len()];
        Stored::Affine(AffineFormat { bits, group }, scales[(i / 2) % 3])
    };
    formats.extend(AffineFormat::BITS.into_iter().enumerate().map(affine));
    for (bits, group, scales) in [
        (4, 64, DType::BF16),
        (4, 32, DType::F16),
        (4, 128, DType::BF16),
        (8, 32, DType::F16),
        (8, 64, DType::BF16),
        (8, 128, DType::F16),
    ] {
        formats.push(Stored::Affine(AffineFormat { bits, group }, scales));
    }
    formats.push(Stored::Mxfp4);
    let kinds = [
        Kind::Linear,
        Kind::Group,
        Kind::Gated(Activation::Silu),
        Kind::Gated(Activation::GeluTanh),
        Kind::Embed,
    ];
    // Tokens and rows below, at and above what a simdgroup and a threadgroup take.
    let shapes = [
        (1, 5, 1),
        (1, 48, 3),
        (3, 17, 2),
        (1, 9, 130),
        (2, 3, 67),
        (4, 32, 1),
        (9, 7, 5),
        (33, 40, 2),
        (70, 130, 4),
    ];
    let mut cases = Vec::new();
    for &stored in &formats {
        for (i, kind) in kinds.into_iter().enumerate() {
            for (j, &(tokens, rows, groups)) in shapes.iter().enumerate() {
                let group = match stored {
                    Stored::Dense(_) | Stored::Mxfp4 => 32,
                    Stored::Affine(f, _) => f.group,
                };
                if quick && (i + j) % 2 == 1 {
                    continue;
                }
                for rounded in [false, true] {
                    // Few tokens meet other kernels only with quantized weights.
                    let few = tokens < 5 && !stored.has_tiles();
                    if rounded && (few || matches!(kind, Kind::Embed)) {
                        continue;
                    }
                    let cols = group * groups;
                    cases.push(Case { stored, kind, tokens, rows, cols, rounded });
                }
            }
        }
    }
    // Rows that end within a chunk, and a gate that products leave to another kernel.
    for &stored in formats.iter().filter(|s| matches!(s, Stored::Dense(_))) {
        for kind in [Kind::Linear, Kind::Group, Kind::Gated(Activation::Gelu), Kind::Embed] {
            for (tokens, rows, cols) in [(1, 5, 4), (3, 17, 48), (9, 40, 100)] {
                let rounded = tokens >= 5 && !matches!(kind, Kind::Embed);
                cases.push(Case { stored, kind, tokens, rows, cols, rounded });
            }
        }
    }
    // So many columns are shared out, and other numbers of tokens meet other tiles.
    for (i, &stored) in formats.iter().filter(|s| s.has_tiles()).enumerate() {
        for (j, (tokens, rows)) in [(6, 140), (20, 33), (60, 200)].into_iter().enumerate() {
            if !quick || (i + j) % 3 == 0 {
                let kind = kinds[(i + j) % 3];
                cases.push(Case { stored, kind, tokens, rows, cols: 1152, rounded: true });
            }
        }
    }
    // Outputs that are made ready for the next product: less and more than a threadgroup takes at a time.
    for (i, &stored) in formats.iter().filter(|s| s.has_tiles()).enumerate() {
        for (tokens, rows, cols) in [(3, 256, 128), (40, 128, 384), (6, 4352, 128), (34, 128, 4352)]
        {
            if rows + cols < 4096 || !quick && i % 3 == 0 {
                cases.push(Case { stored, kind: Kind::Down, tokens, rows, cols, rounded: true });
            }
        }
    }
    // So many rows meet other threadgroups; not a multiple of what these take.
    for group in AffineFormat::GROUPS {
        for (kind, rows) in [(Kind::Linear, 8197), (Kind::Gated(Activation::Silu), 4099)] {
            let stored = Stored::Affine(AffineFormat { bits: 4, group }, DType::BF16);
            cases.push(Case { stored, kind, tokens: 1, rows, cols: group, rounded: true });
        }
    }
    cases
}

impl Case {
    /// Whether tiles of the format's own multiply it.
    fn tiled(&self) -> bool {
        let whole = self.cols.is_multiple_of(64);
        self.rounded && self.tokens > 1 && self.stored.has_tiles() && whole
    }

    /// Whose kernels run on a GPU that has fast tiles, and wide ones.
    pub(super) fn family(&self, fast: bool, wide: bool) -> &'static str {
        let one = self.rounded && self.stored.has_tiles() && self.tokens == 1;
        match self.kind {
            Kind::Embed => "embed",
            _ if fast && one => "matvec_tile",
            _ if wide && self.tiled() && self.tokens > 32 && self.stored.bits() == 4 => {
                "matmul_wide"
            }
            _ if fast && self.tiled() => "matmul_tile",
            _ if self.rounded && self.tokens >= 5 => "matmul",
            _ if fast => "matvec",
            _ => "matvec_rows",
        }
    }

    /// Weights of a group share a bias: what a token's activations of a group give is about the same for
    /// all rows but for a factor.
    fn independent_outputs(&self) -> usize {
        let groups = match self.stored {
            Stored::Dense(_) => self.cols,
            Stored::Affine(format, _) => self.cols / format.group,
            Stored::Mxfp4 => self.cols / 32,
        };
        self.tokens * self.rows.min(groups)
    }

    pub(super) fn tolerance(&self) -> f64 {
        match self.kind {
            Kind::Embed => 1e-6,
            // Three products, each of rounded inputs.
            Kind::Down => 4e-3,
            // An operand rounded to f16 is off by 2^-11 at most, by 2.1e-4 in the mean square; so a sum
            // of products of two by 2.9e-4 of the length of its terms, however many these are, and five
            // of its deviations are 1.4e-3. But errors are compared with the largest output, and where
            // few are independent they may all be much smaller than their terms: of simulated 4x32x128
            // over one group one in 1000 was off by 2.0e-3 (gated 2.4e-3) and one in 10000 by 3.0e-3
            // (3.9e-3); gated 2x3x2144, one in 100 by 4.9e-3.
            _ if self.tiled() && self.independent_outputs() < 8 => 1e-2,
            _ if self.tiled() || self.rounded && self.tokens >= 5 => 2e-3,
            // Errors are compared with the largest output, and an activation may leave only small
            // ones of large sums: 1.3e-5 was measured, in any order of threads.
            Kind::Gated(_) => 5e-5,
            _ => 1e-5,
        }
    }

    fn weight(&self, rng: &mut Rng, rows: usize) -> Result<Weight> {
        match self.stored {
            Stored::Dense(dtype) => rng.dense(dtype, rows, self.cols),
            Stored::Affine(format, scales) => rng.affine(format, scales, rows, self.cols),
            Stored::Mxfp4 => rng.mxfp4(rows, self.cols),
        }
    }

    fn linear(&self, rng: &mut Rng, rows: usize, bias: bool) -> Result<Linear> {
        let linear = Linear::new(self.weight(rng, rows)?);
        if !bias {
            return Ok(linear);
        }
        let bytes = rng.vector(rows).iter().flat_map(|x| x.to_le_bytes()).collect();
        linear.with_bias(DType::F32, taper_tensor::Bytes::from_vec(bytes))
    }

    pub(super) fn run(&self, gpu: &Gpu, rng: &mut Rng) -> Result<Vec<Pair>> {
        let (tokens, rows, exact) = (self.tokens, self.rows, !self.rounded);
        let x = rng.tensor(&[tokens, self.cols])?;
        let there = x.to_gpu(gpu)?;
        let norm = RmsNorm::new(rng.vector(self.cols), 1e-5);
        match self.kind {
            Kind::Linear => {
                let linear = self.linear(rng, rows, rows % 2 == 1)?;
                let residual = rng.tensor(&[tokens, rows])?;
                let placed = linear.clone().on(gpu, exact)?;
                let plain = Pair::of(
                    &placed.forward(&there, Phase::Decode)?,
                    &linear.forward(&x, Phase::Decode)?,
                )?;
                let added =
                    placed.forward_add(&there, &residual.to_gpu(gpu)?, None, Phase::Decode)?;
                Ok(vec![
                    plain,
                    Pair::of(&added, &linear.forward_add(&x, &residual, None, Phase::Decode)?)?,
                ])
            }
            Kind::Group => {
                // Their starts must be multiples of four elements for what reads them.
                let sizes = [rows, rows + 8, rows / 2 + 1];
                let bias = rows % 2 == 1;
                let mut part = |i: usize| self.linear(rng, sizes[i], bias && i != 1);
                let group = LinearGroup::new([part(0)?, part(1)?, part(2)?])?;
                let want = group.forward_normed(&x, Some(&norm), Phase::Decode)?;
                let got =
                    group.on(gpu, exact)?.forward_normed(&there, Some(&norm), Phase::Decode)?;
                got.iter().zip(&want).map(|(g, w)| Pair::of(g, w)).collect()
            }
            Kind::Gated(activation) => {
                let bias = rows % 2 == 1;
                let mut part = || self.linear(rng, rows, bias);
                let group = LinearGroup::new([part()?, part()?])?;
                let want = group.forward_gated(&x, Some(&norm), activation, Phase::Decode)?;
                let got = group.on(gpu, exact)?.forward_gated(
                    &there,
                    Some(&norm),
                    activation,
                    Phase::Decode,
                )?;
                Ok(vec![Pair::of(&got, &want)?])
            }
            Kind::Down => {
                let residual = rng.tensor(&[tokens, self.cols])?;
                let inner = LinearGroup::new([
                    self.linear(rng, rows, true)?,
                    self.linear(rng, rows, true)?,
                ])?;
                let wide = Self { cols: rows, ..self.clone() };
                let down = wide.linear(rng, self.cols, true)?;
                let after =
                    LinearGroup::new([self.linear(rng, 72, false)?, self.linear(rng, 40, false)?])?;
                let next = RmsNorm::new(rng.vector(self.cols), 1e-6);
                let chain = |inner: &LinearGroup<2>,
                             down: &Linear,
                             after: &LinearGroup<2>,
                             [x, residual]: [&Tensor; 2]| {
                    let (act, to) = (Activation::Silu, Some((residual, Some(&next))));
                    let y = inner.forward_down(down, x, Some(&norm), act, to, Phase::Decode)?;
                    let [a, b] = after.forward_normed(&y, Some(&next), Phase::Decode)?;
                    Ok::<_, TensorError>([y, a, b])
                };
                let want = chain(&inner, &down, &after, [&x, &residual])?;
                let placed = (inner.on(gpu, exact)?, down.on(gpu, exact)?, after.on(gpu, exact)?);
                let got = chain(&placed.0, &placed.1, &placed.2, [&there, &residual.to_gpu(gpu)?])?;
                got.iter().zip(&want).map(|(g, w)| Pair::of(g, w)).collect()
            }
            Kind::Embed => {
                let weight = self.weight(rng, rows)?;
                let limit = weight.rows();
                let ids: Vec<_> = (0..tokens).map(|_| rng.below(limit) as u32).collect();
                let table = Embedding::new(weight);
                let want = table.forward(&ids)?;
                Ok(vec![Pair::of(&table.on(gpu, true)?.forward(&ids)?, &want)?])
            }
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stored {
            Stored::Dense(dtype) => write!(f, "{}", dtype.as_str())?,
            Stored::Affine(a, s) => write!(f, "{}-bit g{} {}", a.bits, a.group, s.as_str())?,
            Stored::Mxfp4 => f.write_str("mxfp4")?,
        }
        let rounded = if self.rounded { " f16" } else { "" };
        write!(f, " {:?}{rounded} {}x{}x{}", self.kind, self.tokens, self.rows, self.cols)
    }
}
