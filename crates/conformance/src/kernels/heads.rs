//! Checks of products with a matrix for each head.

use super::{Pair, data::Rng};
use std::fmt;
use taper_tensor::{
    AffineFormat, DType, HeadMaps, Linear, Phase, Place, Precision, Result, gpu::Gpu,
};

#[derive(Debug, Clone, Copy)]
enum Stored {
    Dense(DType),
    Affine(AffineFormat, DType),
    Mxfp4,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    stored: Stored,
    tokens: usize,
    heads: usize,
    inputs: usize,
    outputs: usize,
    /// Elements of a head that are no input.
    rest: usize,
}

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let affine = |bits, group, scales| Stored::Affine(AffineFormat { bits, group }, scales);
    let formats = [
        Stored::Dense(DType::F16),
        affine(4, 32, DType::BF16),
        Stored::Dense(DType::BF16),
        Stored::Dense(DType::F32),
        affine(2, 32, DType::F16),
        affine(3, 32, DType::F32),
        affine(5, 32, DType::BF16),
        affine(6, 32, DType::F16),
        affine(8, 32, DType::BF16),
        Stored::Mxfp4,
    ];
    // Rows of one chunk, of several, of more than a simdgroup's lanes, and of a part of one.
    let shapes = [
        (1, 3, 32, 40, 8),
        (5, 2, 128, 72, 64),
        (1, 2, 192, 512, 64),
        (6, 1, 1056, 20, 0),
        (3, 4, 20, 24, 8),
    ];
    let mut cases = Vec::new();
    for (i, stored) in formats.into_iter().enumerate() {
        for (j, (tokens, heads, inputs, outputs, rest)) in shapes.into_iter().enumerate() {
            if !matches!(stored, Stored::Dense(_)) && inputs % 32 > 0 {
                continue;
            }
            if i < 2 || j < 2 || (!quick && (i + j) % 2 == 0) {
                cases.push(Case { stored, tokens, heads, inputs, outputs, rest });
            }
        }
    }
    cases
}

impl Case {
    pub(super) fn run(&self, gpu: &Gpu, rng: &mut Rng) -> Result<Vec<Pair>> {
        let &Self { stored, tokens, heads, inputs, outputs, rest } = self;
        let map = |rng: &mut Rng| {
            let weight = match stored {
                Stored::Dense(dtype) => rng.dense(dtype, outputs, inputs),
                Stored::Affine(format, scales) => rng.affine(format, scales, outputs, inputs),
                Stored::Mxfp4 => rng.mxfp4(outputs, inputs),
            };
            Ok(Linear::new(weight?))
        };
        let maps = HeadMaps::new((0..heads).map(|_| map(rng)).collect::<Result<_>>()?)?;
        let x = rng.tensor(&[tokens, heads * (inputs + rest)])?;
        let place = Place { gpu: Some(gpu), precision: Precision::F32 };
        let there = maps.clone().place(place)?;
        let want = maps.forward(&x, Phase::Decode)?;
        Ok(vec![Pair::of(&there.forward(&x.to_gpu(gpu)?, Phase::Decode)?, &want)?])
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Self { stored, tokens, heads, inputs, outputs, rest } = self;
        write!(f, "{tokens} x {heads} heads of {inputs} and {rest} to {outputs}, ")?;
        match stored {
            Stored::Dense(dtype) => write!(f, "{}", dtype.as_str()),
            Stored::Affine(format, _) => write!(f, "{} bits", format.bits),
            Stored::Mxfp4 => f.write_str("mxfp4"),
        }
    }
}
