//! Products of one input with any matrices.

use super::{Linear, Matrix};
use crate::{
    DType, Phase, RmsNorm,
    cpu::{
        self, Level,
        dense::{self, Bf16Rows, DenseLevel, DenseRows, widened},
        int8::{self, Int8Rows, PackedWeight, Rounding},
        shared::Unwritten,
    },
    gpu::Resident,
};

/// Rows of activations in the forms that kernels read, each made when first asked for.
pub(super) struct Input<'a> {
    x: &'a [f32],
    norm: Option<&'a RmsNorm>,
    phase: Phase,
    /// Whether so few rows are asked for, even of prompts, that widening weights for them does not pay.
    few: bool,
    normed: Option<Vec<f32>>,
    rounded: Option<Int8Rows>,
    halved: Option<Bf16Rows>,
}

impl<'a> Input<'a> {
    pub(super) fn new(x: &'a [f32], phase: Phase) -> Self {
        Self { x, norm: None, phase, few: false, normed: None, rounded: None, halved: None }
    }

    /// Few rows of a phase.
    pub(super) fn few(x: &'a [f32], phase: Phase) -> Self {
        Self { few: true, ..Self::new(x, phase) }
    }

    /// The rows after a norm.
    pub(super) fn normed(x: &'a [f32], norm: &'a RmsNorm, phase: Phase) -> Self {
        Self { norm: Some(norm), ..Self::new(x, phase) }
    }

    /// Whether these rows are multiplied with quantized weights as with `bf16` ones.
    pub(super) fn widens(&self, rounding: Rounding) -> bool {
        !self.few && rounding.widens(self.phase)
    }

    fn floats(&mut self) -> &[f32] {
        match self.norm {
            None => self.x,
            Some(n) => self.normed.get_or_insert_with(|| cpu::rms_norm(self.x, n.gains(), n.eps())),
        }
    }

    /// For products with weights of a type and so many inputs.
    fn dense(&mut self, level: DenseLevel, dtype: DType, cols: usize) -> DenseRows<'_> {
        if level.rounds(dtype) && self.halved.is_none() {
            self.halved = Some(Bf16Rows::new(self.floats(), cols));
        }
        self.floats();
        let x = self.normed.as_deref().unwrap_or(self.x);
        DenseRows { x, cols, rounded: self.halved.as_ref() }
    }

    /// Rounded to `bf16`, for products with weights that are widened.
    pub(super) fn halved(&mut self, cols: usize) -> &Bf16Rows {
        let (x, norm) = (self.x, self.norm);
        self.halved.get_or_insert_with(|| match norm {
            None => Bf16Rows::new(x, cols),
            Some(n) => Bf16Rows::normed(x, n.gains(), n.eps()),
        })
    }

    /// Rounded for products with `weight` and others of its groups.
    pub(super) fn rounded(&mut self, weight: &PackedWeight, rounding: Rounding) -> &Int8Rows {
        let (x, norm, group) = (self.x, self.norm, weight.group());
        let rounding = rounding.of_phase(self.phase);
        let fresh = || match norm {
            None => Int8Rows::new(x, weight.cols(), group, rounding),
            Some(n) => Int8Rows::normed(x, n.gains(), n.eps(), group, rounding),
        };
        let fitting = self.rounded.take().filter(|r| r.is(group, rounding));
        self.rounded.insert(fitting.unwrap_or_else(fresh))
    }
}

/// `x Wᵀ + bias + residual` for each map.
pub(super) fn apply<const N: usize>(
    maps: [(&Linear, Option<&[f32]>); N],
    x: &mut Input<'_>,
) -> [Vec<f32>; N] {
    let rows = |linear: &Linear| x.x.len() / linear.in_features().max(1);
    let mut outs = maps.map(|(linear, _)| Unwritten::new(rows(linear) * linear.out_features()));
    let shared = outs.each_mut().map(Unwritten::shared);
    let mut done = [false; N];
    for first in 0..N {
        if done[first] {
            continue;
        }
        let (linear, residual) = maps[first];
        match &linear.matrix {
            Matrix::Stored(weight) => {
                done[first] = true;
                let (level, bias) = (Level::detect(), linear.bias.as_ref().map(Resident::host));
                cpu::matmul_to(level, x.floats(), weight.source(), bias, shared[first]);
                if let Some(residual) = residual {
                    // SAFETY: the product has written all of it.
                    let out = unsafe { shared[first].slice(0, residual.len()) };
                    out.iter_mut().zip(residual).for_each(|(o, r)| *o += r);
                }
            }
            Matrix::Dense(weight) => {
                let mut products = Vec::with_capacity(N);
                for (i, &(linear, residual)) in maps.iter().enumerate().skip(first) {
                    if let Matrix::Dense(w) = &linear.matrix
                        && w.dtype() == weight.dtype()
                    {
                        done[i] = true;
                        let to = linear.sums(residual, shared[i]);
                        products.push(dense::Product { weight: w, to });
                    }
                }
                let level = DenseLevel::detect();
                dense::products(level, x.dense(level, weight.dtype(), weight.cols()), &products);
            }
            Matrix::Gpu(_) => unreachable!("`check` refuses an input that is not on the GPU"),
            Matrix::Packed(weight, rounding) if x.widens(*rounding) => {
                let mut products = Vec::with_capacity(N);
                for (i, &(linear, residual)) in maps.iter().enumerate().skip(first) {
                    if let Matrix::Packed(w, r) = &linear.matrix
                        && r == rounding
                    {
                        done[i] = true;
                        products.push((&**w, linear.sums(residual, shared[i])));
                    }
                }
                let rows = x.halved(weight.cols());
                widened::products(DenseLevel::detect(), rows, &products);
            }
            Matrix::Packed(weight, rounding) => {
                let mut products = Vec::with_capacity(N);
                for (i, &(linear, residual)) in maps.iter().enumerate().skip(first) {
                    if let Matrix::Packed(w, r) = &linear.matrix
                        && (w.group(), r) == (weight.group(), rounding)
                    {
                        done[i] = true;
                        products.push(linear.product(w, residual, shared[i]));
                    }
                }
                int8::products(x.rounded(weight, *rounding), &products);
            }
        }
    }
    // SAFETY: the products have written every element of every output.
    outs.map(|out| unsafe { out.written() })
}
