//! TurboQuant's second stage: one bit a coordinate of a sketch of what the first stage left over.
//!
//! ```text
//! r = x - decode_raw(x) at bits - 1       sigma = sign(S r)       x ~ decode_raw(x) + kappa |r| S^T sigma
//! head region:  [tokens] of  codes (bits - 1) * d / 8 | signs d / 8 | |x| f16 | |r| f16
//! ```
//! The sketch makes inner products unbiased, and costs more than it brings: the unbiased scale of
//! [`crate::Scale`] does the same without spending a bit. It is here so that this can be seen.
//! Source: Zandieh et al., *QJL* (arXiv 2406.03482) and *TurboQuant* (arXiv 2504.19874).

use crate::{
    Coded, KvCodecError, KvGeometry, Polar, Rotation, Scale,
    polar::{norm, sketch_rotation, standard_rotation},
    rows::RowFormat,
    side::{Precision, Products, Queries, half_at, padded_tokens, put_half},
};
use taper_tensor::cpu::{
    Floats,
    codes::{Codes, DenseRows, add_rows, dot_rows},
};

/// A sketch `S` of `d x d`.
#[derive(Debug, Clone)]
pub enum Sketch {
    /// Orthonormal rows, from a rotation.
    Orthonormal(Rotation),
    /// Independent `N(0, 1)` entries, row by row.
    Gaussian(Vec<f32>),
}

impl Sketch {
    /// A Gaussian sketch.
    #[must_use]
    pub fn gaussian(d: usize, seed: u64) -> Self {
        let mut state = seed;
        let mut uniform =
            || (crate::rotation::split_mix(&mut state) >> 11) as f64 / (1u64 << 53) as f64;
        let mut normal = || {
            let (a, b) = (1.0 - uniform(), uniform());
            ((-2.0 * a.ln()).sqrt() * (2.0 * std::f64::consts::PI * b).cos()) as f32
        };
        Self::Gaussian((0..d * d).map(|_| normal()).collect())
    }

    /// What `|r| S^T sigma` is multiplied by so that its mean is `r`: `sqrt(pi/2) / d` for Gaussian
    /// rows, whose length is `sqrt(d)`, and so `sqrt(pi/2) / sqrt(d)` for rows of length 1. Mixing
    /// the two up makes the second stage do next to nothing.
    #[must_use]
    pub fn kappa(&self, d: usize) -> f32 {
        let quarter = std::f32::consts::FRAC_PI_2.sqrt();
        match self {
            Self::Orthonormal(_) => quarter / (d as f32).sqrt(),
            Self::Gaussian(_) => quarter / d as f32,
        }
    }

    /// `S x`, in place.
    pub fn apply(&self, x: &mut [f32]) {
        match self {
            Self::Orthonormal(r) => r.apply(x),
            Self::Gaussian(s) => {
                let y: Vec<f32> = s
                    .chunks_exact(x.len())
                    .map(|row| row.iter().zip(&*x).map(|(a, b)| a * b).sum())
                    .collect();
                x.copy_from_slice(&y);
            }
        }
    }

    /// `S^T x`, in place.
    pub fn transpose(&self, x: &mut [f32]) {
        match self {
            Self::Orthonormal(r) => r.undo(x),
            Self::Gaussian(s) => {
                let mut y = vec![0.0; x.len()];
                for (row, &x) in s.chunks_exact(x.len()).zip(&*x) {
                    y.iter_mut().zip(row).for_each(|(y, s)| *y += s * x);
                }
                x.copy_from_slice(&y);
            }
        }
    }
}

/// A row in both stages.
#[derive(Debug, Clone)]
pub struct Sketched {
    /// The first stage; its scale is [`Scale::Raw`].
    pub first: Coded,
    /// Whether each coordinate of the sketch is negative.
    pub negative: Vec<bool>,
    /// `|r|`.
    pub residual: f32,
}

/// TurboQuant-prod: a scalar code of `bits - 1` bits and a sketch of one bit.
#[derive(Debug, Clone)]
pub struct Prod {
    polar: Polar,
    sketch: Sketch,
}

impl Prod {
    /// Over a first stage and a sketch of its rotated space.
    #[must_use]
    pub fn new(polar: Polar, sketch: Sketch) -> Self {
        Self { polar, sketch }
    }

    /// Both stages of a row.
    ///
    /// # Panics
    /// When `x` is not one row.
    #[must_use]
    pub fn encode(&self, x: &[f32]) -> Sketched {
        let mut r = x.to_vec();
        self.polar.rotation().apply(&mut r);
        let first = self.polar.encode_rotated(&r, &[1.0]);
        let gamma = first.gamma(Scale::Raw);
        for (r, &c) in r.iter_mut().zip(&first.codes) {
            *r -= gamma * self.polar.levels()[usize::from(c)];
        }
        let residual = norm(&r);
        self.sketch.apply(&mut r);
        Sketched { first, negative: r.iter().map(|&x| x < 0.0).collect(), residual }
    }

    /// The row of both stages.
    #[must_use]
    pub fn decode(&self, x: &Sketched) -> Vec<f32> {
        let mut out = self.rotated(x);
        self.polar.rotation().undo(&mut out);
        out
    }

    fn rotated(&self, x: &Sketched) -> Vec<f32> {
        let scale = self.sketch.kappa(x.negative.len()) * x.residual;
        let mut out: Vec<_> = x.negative.iter().map(|&n| if n { -scale } else { scale }).collect();
        self.sketch.transpose(&mut out);
        let gamma = x.first.gamma(Scale::Raw);
        for (x, &c) in out.iter_mut().zip(&x.first.codes) {
            *x += gamma * self.polar.levels()[usize::from(c)];
        }
        out
    }
}

/// The paged form, with an orthonormal sketch.
#[derive(Debug)]
pub(crate) struct QjlSide {
    prod: Prod,
    bits: usize,
    d: usize,
}

impl QjlSide {
    pub(crate) fn new(g: KvGeometry, bits: usize) -> Result<Self, KvCodecError> {
        let polar = Polar::new(standard_rotation(g.head_dim)?, bits - 1);
        let sketch = Sketch::Orthonormal(sketch_rotation(g.head_dim)?);
        Ok(Self { prod: Prod::new(polar, sketch), bits, d: g.head_dim })
    }

    pub(crate) fn head_bytes(g: KvGeometry, bits: usize) -> usize {
        padded_tokens(g) * Self::bytes(g.head_dim, bits)
    }

    fn bytes(d: usize, bits: usize) -> usize {
        (bits * d).div_ceil(8) + 4
    }

    /// Rows as floats, in the rotated space.
    fn rotated(&self, rows: &[u8], out: &mut Vec<f32>) {
        out.clear();
        for row in rows.chunks_exact(self.row_bytes()) {
            out.extend(self.prod.rotated(&self.load(row)));
        }
    }

    fn load(&self, row: &[u8]) -> Sketched {
        let first_bits = self.bits - 1;
        let bit = |at: usize| row[at / 8] >> (at % 8) & 1;
        let code = |i: usize| (0..first_bits).map(|b| bit(i * first_bits + b) << b).sum();
        let at = (self.bits * self.d).div_ceil(8);
        Sketched {
            // The raw scale needs the norm only.
            first: Coded {
                codes: (0..self.d).map(code).collect(),
                norm: half_at(row, at),
                along: 1.0,
                energy: 1.0,
            },
            negative: (0..self.d).map(|i| bit(first_bits * self.d + i) == 1).collect(),
            residual: half_at(row, at + 2),
        }
    }
}

impl RowFormat for QjlSide {
    fn dim(&self) -> usize {
        self.d
    }

    fn row_bytes(&self) -> usize {
        Self::bytes(self.d, self.bits)
    }

    fn put(&self, row: &[f32], out: &mut [u8]) {
        let bytes = out.len();
        let x = self.prod.encode(row);
        out.fill(0);
        let mut set = |at: usize, bit: u8| out[at / 8] |= bit << (at % 8);
        let first_bits = self.bits - 1;
        for (i, &c) in x.first.codes.iter().enumerate() {
            (0..first_bits).for_each(|b| set(i * first_bits + b, c >> b & 1));
        }
        for (i, &n) in x.negative.iter().enumerate() {
            set(first_bits * self.d + i, u8::from(n));
        }
        put_half(out, bytes - 4, x.first.norm);
        put_half(out, bytes - 2, x.residual);
    }

    fn get(&self, row: &[u8], out: &mut [f32]) {
        out.copy_from_slice(&self.prod.rotated(&self.load(row)));
    }

    fn dots(
        &self,
        rows: Codes<'_>,
        q: &Queries,
        _: Precision,
        scratch: &mut Products,
        out: &mut [f32],
    ) {
        self.rotated(rows.here, &mut scratch.floats);
        let n = rows.here.len() / self.row_bytes();
        dot_rows(&q.floats, DenseRows::last(Floats::F32(&scratch.floats)), self.d, (out, n));
    }

    fn add_weighted(
        &self,
        rows: Codes<'_>,
        p: &[f32],
        _: Precision,
        scratch: &mut Products,
        acc: &mut [f32],
    ) {
        self.rotated(rows.here, &mut scratch.floats);
        let n = rows.here.len() / self.row_bytes();
        add_rows((p, n), DenseRows::last(Floats::F32(&scratch.floats)), self.d, acc);
    }

    fn rotate(&self, rows: &mut [f32]) {
        self.prod.polar.rotation().apply(rows);
    }

    fn restore(&self, row: &mut [f32]) {
        self.prod.polar.rotation().undo(row);
    }
}
