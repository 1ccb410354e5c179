//! Checks of norms, rotations, element-wise operations and the choice of a token.

use super::{Pair, data::Rng};
use std::fmt;
use taper_tensor::{
    FiniteRows, Result, RmsNorm, RopeTable, Tensor,
    gpu::{self, Gpu},
    norm_rope,
    ops::{self, Activation},
};

#[derive(Debug, Clone, Copy)]
pub(super) enum Case {
    Norm { rows: usize, cols: usize },
    Rope { tokens: usize, heads: usize, head: usize, pairs: usize, norm: bool },
    Latent { rows: usize, cols: usize, rest: usize },
    Elements { rows: usize, cols: usize },
    Argmax { rows: usize, vocab: usize },
    Finite { rows: usize, cols: usize },
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, cols) in [(1, 8), (3, 255), (2, 256), (1, 257), (5, 1024)] {
        cases.push(Case::Norm { rows, cols });
        cases.push(Case::Elements { rows, cols });
    }
    for (head, pairs) in [(8, 4), (24, 12), (64, 32), (128, 64), (128, 16), (256, 128), (80, 0)] {
        cases.push(Case::Rope { tokens: 3, heads: 3, head, pairs, norm: head % 16 == 0 });
        cases.push(Case::Rope { tokens: 1, heads: 8, head, pairs, norm: head % 16 != 0 });
    }
    for (rows, vocab) in [(1, 5), (2, 1024), (3, 1025), (1, 5000)] {
        cases.push(Case::Argmax { rows, vocab });
    }
    cases.extend([(4, 8), (9, 1025)].map(|(rows, cols)| Case::Finite { rows, cols }));
    cases
}

/// Cases that came later, as a check's number decides its data: larger heads, and latents.
pub(super) fn more_cases() -> Vec<Case> {
    let (tokens, heads) = (3, 2);
    let rope = |(head, pairs, norm)| Case::Rope { tokens, heads, head, pairs, norm };
    let latent = |(rows, cols, rest)| Case::Latent { rows, cols, rest };
    let ropes = [(512, 64, true), (576, 32, false)].map(rope);
    ropes.into_iter().chain([(1, 512, 64), (3, 32, 8), (2, 7, 300)].map(latent)).collect()
}

impl Case {
    pub(super) fn family(self) -> &'static str {
        match self {
            Self::Norm { .. } | Self::Rope { .. } | Self::Latent { .. } => "rows",
            Self::Elements { .. } => "elementwise",
            Self::Argmax { .. } | Self::Finite { .. } => "argmax",
        }
    }

    pub(super) fn run(self, gpu: &Gpu, rng: &mut Rng) -> Result<Vec<Pair>> {
        match self {
            Self::Norm { rows, cols } => {
                let (x, norm) = (rng.tensor(&[rows, cols])?, RmsNorm::new(rng.vector(cols), 1e-5));
                Ok(vec![Pair::of(&norm.forward(&x.to_gpu(gpu)?)?, &norm.forward(&x)?)?])
            }
            Self::Rope { tokens, heads, head, pairs, norm } => {
                let x = rng.tensor(&[tokens, heads * head])?;
                let norm = norm.then(|| RmsNorm::new(rng.vector(head), 1e-6));
                let frequencies = (0..pairs).map(|i| 10_000f32.powf(-(i as f32) / 64.0)).collect();
                let positions: Vec<_> = (0..tokens).map(|_| rng.below(40_000) as u32).collect();
                let angles = RopeTable::new(frequencies, 1.2).angles(&positions);
                let rope = (pairs > 0).then_some(&angles);
                let y = rng.tensor(&[tokens, (heads + 2) * head])?;
                let other = RmsNorm::new(rng.vector(head), 1e-5);
                let pair = |x, y| norm_rope([(x, norm.as_ref()), (y, Some(&other))], head, rope);
                let (want, got) = (pair(&x, &y)?, pair(&x.to_gpu(gpu)?, &y.to_gpu(gpu)?)?);
                got.iter().zip(&want).map(|(g, w)| Pair::of(g, w)).collect()
            }
            Self::Latent { rows, cols, rest } => {
                let (x, norm) =
                    (rng.tensor(&[rows, cols + rest])?, RmsNorm::new(rng.vector(cols), 1e-5));
                let got = norm.forward_latent(&x.to_gpu(gpu)?)?;
                Ok(vec![Pair::of(&got, &norm.forward_latent(&x)?)?])
            }
            Self::Elements { rows, cols } => elements(gpu, rng, rows, cols),
            Self::Argmax { rows, vocab } => argmax(gpu, rng, rows, vocab),
            Self::Finite { rows, cols } => Ok(vec![finite(gpu, rng, rows, cols)?]),
        }
    }
}

fn elements(gpu: &Gpu, rng: &mut Rng, rows: usize, cols: usize) -> Result<Vec<Pair>> {
    let (x, y) = (rng.tensor(&[rows, cols])?, rng.tensor(&[rows, cols])?);
    let (gx, gy) = (x.to_gpu(gpu)?, y.to_gpu(gpu)?);
    let ids: Vec<_> = (0..rows + 2).map(|_| rng.below(rows) as u32).collect();
    let mut pairs = Vec::new();
    for activation in [Activation::Silu, Activation::GeluTanh] {
        let got = ops::gated(activation, &gx, &gy)?;
        pairs.push(Pair::of(&got, &ops::gated(activation, &x, &y)?)?);
    }
    pairs.push(Pair::of(&ops::add(&gx, &gy)?, &ops::add(&x, &y)?)?);
    pairs.push(Pair::of(&ops::scale(&gx, 0.37)?, &ops::scale(&x, 0.37)?)?);
    pairs.push(Pair::of(&ops::soft_cap(&gx, 30.0)?, &ops::soft_cap(&x, 30.0)?)?);
    pairs.push(Pair::of(&ops::take_rows(&gx, &ids)?, &ops::take_rows(&x, &ids)?)?);
    // Every second row, backwards.
    let ids: Vec<_> = (0..rows as u32).rev().step_by(2).collect();
    let other = rng.tensor(&[ids.len(), cols])?;
    let got = ops::put_rows(gx, &ids, &other.to_gpu(gpu)?)?;
    pairs.push(Pair::of(&got, &ops::put_rows(x, &ids, &other)?)?);
    pairs.push(words(gpu, rng, rows * cols)?);
    Ok(pairs)
}

/// The sum of so many chunks of 16 bytes, in halves, which a float holds exactly.
fn words(gpu: &Gpu, rng: &mut Rng, pieces: usize) -> Result<Pair> {
    let words: Vec<u32> = rng.vector(4 * pieces).iter().map(|x| x.to_bits()).collect();
    let buffer = gpu.allocate(16 * pieces)?;
    buffer.write(0, bytemuck::cast_slice(&words))?;
    let sums = gpu::sum_words(&buffer, 2)?;
    let sum = |words: &[u32]| {
        let sum = words.iter().fold(0u32, |sum, &word| sum.wrapping_add(word));
        vec![(sum >> 16) as f32, (sum & 0xffff) as f32]
    };
    Ok(Pair { got: sum(&sums.read(0, sums.len() / 4)?), want: sum(&words) })
}

fn argmax(gpu: &Gpu, rng: &mut Rng, rows: usize, vocab: usize) -> Result<Vec<Pair>> {
    let mut data = rng.vector(rows * vocab);
    // Ties: the first of equals counts. In the last row the last element is the largest.
    let last = data.len() - 1;
    data[last] = 100.0;
    for row in data[..(rows - 1) * vocab].chunks_mut(vocab) {
        let top = row.iter().copied().fold(f32::MIN, f32::max) + 1.0;
        // Neighbours, that meet among the lanes of one simdgroup, and others.
        let pair = rng.below(vocab / 32) * 32 + 3;
        for at in [pair, pair + 1, rng.below(vocab)] {
            row[at] = top;
        }
    }
    let first = |row: &[f32]| {
        let top = row.iter().copied().fold(f32::MIN, f32::max);
        row.iter().position(|&x| x == top).unwrap_or(0) as f32
    };
    let mut want: Vec<f32> = data.chunks(vocab).map(first).collect();
    // Rows without a largest number.
    let last = |x: f32, rest: f32| (0..vocab).map(move |i| if i == vocab - 1 { x } else { rest });
    data.extend(last(f32::NAN, 1.0));
    data.extend(last(f32::INFINITY, 0.0));
    data.extend(last(f32::NEG_INFINITY, f32::NEG_INFINITY));
    want.extend([-1.0; 3]);
    let rows = rows + 3;
    let logits = Tensor::from_vec(data, &[rows, vocab])?.to_gpu(gpu)?;
    // Errors are measured by the largest number, so that what is no token must not be that.
    let number = |t: u32| if t == u32::MAX { -1.0 } else { t as f32 };
    let got = gpu::argmax(&logits)?.into_iter().map(number).collect();
    Ok(vec![Pair { got, want }])
}

/// Rows of two tensors, some with one element that is not finite.
fn finite(gpu: &Gpu, rng: &mut Rng, rows: usize, cols: usize) -> Result<Pair> {
    let (mut x, mut y) = (rng.vector(rows * cols), rng.vector(rows * cols));
    let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    for (row, bad) in (0..rows).step_by(2).zip(bad.into_iter().cycle()) {
        let side = if row % 4 == 0 { &mut x } else { &mut y };
        side[row * cols + rng.below(cols)] = bad;
    }
    let [x, y] = [x, y].map(|side| Tensor::from_vec(side, &[rows, cols]));
    let (x, y) = (x?, y?);
    let numbers = |finite: Vec<bool>| finite.into_iter().map(|f| f32::from(u8::from(f))).collect();
    let want = numbers(FiniteRows::new(&x, &y)?.read()?);
    let got = numbers(FiniteRows::new(&x.to_gpu(gpu)?, &y.to_gpu(gpu)?)?.read()?);
    Ok(Pair { got, want })
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Norm { rows, cols } => write!(f, "rms_norm {rows}x{cols}"),
            Self::Rope { tokens, heads, head, pairs, norm } => {
                let norm = if *norm { " normed" } else { "" };
                write!(f, "norm_rope{norm} {tokens}x{heads}x{head}, {pairs} pairs")
            }
            Self::Latent { rows, cols, rest } => write!(f, "latent_norm {rows}x{cols}+{rest}"),
            Self::Elements { rows, cols } => write!(f, "elementwise {rows}x{cols}"),
            Self::Argmax { rows, vocab } => write!(f, "argmax {rows}x{vocab}"),
            Self::Finite { rows, cols } => write!(f, "finite rows {rows}x{cols}"),
        }
    }
}
