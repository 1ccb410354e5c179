//! Products of one input with any matrices.

use super::{Map, Matrix, watch};
use crate::{
    DType, Level, Phase, Precision, Rounding,
    dense::{self, Bf16Rows, DenseLevel, DenseRows, widened},
    int8::{self, Int8Rows, PackedWeight},
    lookup, matmul_to, rms_norm,
    shared::Unwritten,
};

/// An RMS norm.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// One an input.
    pub gains: &'a [f32],
    /// Is added to the mean of the squares.
    pub eps: f32,
}

/// Rows of activations in the forms that kernels read, each made when first asked for.
#[derive(Debug)]
pub struct Input<'a> {
    x: &'a [f32],
    norm: Option<Norm<'a>>,
    phase: Phase,
    /// Whether so few rows are asked for, even of prompts, that widening weights for them does not pay.
    few: bool,
    normed: Option<Vec<f32>>,
    rounded: Option<Int8Rows>,
    halved: Option<Bf16Rows>,
}

impl<'a> Input<'a> {
    /// Rows of a phase.
    #[must_use]
    pub fn new(x: &'a [f32], phase: Phase) -> Self {
        Self { x, norm: None, phase, few: false, normed: None, rounded: None, halved: None }
    }

    /// Few rows of a phase, for which widening weights does not pay.
    #[must_use]
    pub fn few(x: &'a [f32], phase: Phase) -> Self {
        Self { few: true, ..Self::new(x, phase) }
    }

    /// Rows of a phase, after a norm.
    #[must_use]
    pub fn normed(x: &'a [f32], norm: Norm<'a>, phase: Phase) -> Self {
        Self { norm: Some(norm), ..Self::new(x, phase) }
    }

    /// Whether these rows are multiplied with quantized weights as with `bf16` ones.
    pub(super) fn widens(&self, precision: Precision) -> bool {
        !self.few && precision.widens(self.phase)
    }

    /// How many rows of so many elements there are.
    pub(super) fn rows(&self, cols: usize) -> usize {
        self.x.len() / cols.max(1)
    }

    /// How activations of this phase are rounded.
    pub(super) fn rounding(&self, precision: Precision) -> Rounding {
        // What is exact is not packed.
        precision.rounding(self.phase).unwrap_or(Rounding::Int16)
    }

    pub(super) fn floats(&mut self) -> &[f32] {
        match self.norm {
            None => self.x,
            Some(n) => self.normed.get_or_insert_with(|| rms_norm(self.x, n.gains, n.eps)),
        }
    }

    /// The inputs of each row in an order.
    fn ordered(&mut self, order: &[u32]) -> Vec<f32> {
        let rows = self.floats().chunks_exact(order.len().max(1));
        rows.flat_map(|row| order.iter().map(|&input| row[input as usize])).collect()
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
            Some(n) => Bf16Rows::normed(x, n.gains, n.eps),
        })
    }

    /// Rounded for products with `weight` and others of its groups.
    pub(super) fn rounded(&mut self, weight: &PackedWeight, precision: Precision) -> &Int8Rows {
        let (x, norm, group) = (self.x, self.norm, weight.group());
        let rounding = self.rounding(precision);
        let fresh = || match norm {
            None => Int8Rows::new(x, weight.cols(), group, rounding),
            Some(n) => Int8Rows::normed(x, n.gains, n.eps, group, rounding),
        };
        let fitting = self.rounded.take().filter(|r| r.is(group, rounding));
        self.rounded.insert(fitting.unwrap_or_else(fresh))
    }
}

/// `x Wᵀ + bias + residual` for each map.
///
/// # Shapes
/// `x [t, in]` -> `[t, out]` each.
///
/// # Panics
/// When a map has another number of inputs than `x`, or a slice another length.
pub fn apply<const N: usize>(maps: [Map<'_>; N], x: &mut Input<'_>) -> [Vec<f32>; N] {
    let mut outs = maps.map(|map| Unwritten::new(x.rows(map.matrix.cols()) * map.matrix.rows()));
    let shared = outs.each_mut().map(Unwritten::shared);
    let mut done = [false; N];
    watch::show(&maps, x);
    for first in 0..N {
        if done[first] {
            continue;
        }
        match maps[first].matrix {
            Matrix::Stored(weight) | Matrix::Watched(weight, _) => {
                done[first] = true;
                let Map { bias, residual, .. } = maps[first];
                matmul_to(Level::detect(), x.floats(), weight.source(), bias, shared[first]);
                if let Some(residual) = residual {
                    assert_eq!(residual.len(), shared[first].len(), "residual is [m, n]");
                    // SAFETY: the product has written all of it.
                    let out = unsafe { shared[first].slice(0, residual.len()) };
                    out.iter_mut().zip(residual).for_each(|(o, r)| *o += r);
                }
            }
            Matrix::Ordered(inner, order) => {
                done[first] = true;
                let own = x.ordered(order);
                let mut own = Input { few: x.few, ..Input::new(&own, x.phase) };
                let [out] = apply([Map { matrix: inner, ..maps[first] }], &mut own);
                // SAFETY: this output is written here alone, and outlives the call.
                unsafe { shared[first].write(0, &out) };
            }
            Matrix::Table(weight) => {
                done[first] = true;
                let to = maps[first].sums(shared[first]);
                lookup::product(Level::detect(), x.floats(), weight, to);
            }
            Matrix::Dense(weight) => {
                let mut products = Vec::with_capacity(N);
                for (i, map) in maps.iter().enumerate().skip(first) {
                    if let Matrix::Dense(w) = map.matrix
                        && w.dtype() == weight.dtype()
                    {
                        done[i] = true;
                        products.push(dense::Product { weight: w, to: map.sums(shared[i]) });
                    }
                }
                let level = DenseLevel::detect();
                dense::products(level, x.dense(level, weight.dtype(), weight.cols()), &products);
            }
            Matrix::Packed(weight, precision) if x.widens(*precision) => {
                let mut products = Vec::with_capacity(N);
                for (i, map) in maps.iter().enumerate().skip(first) {
                    if let Matrix::Packed(w, r) = map.matrix
                        && r == precision
                    {
                        done[i] = true;
                        products.push((&**w, map.sums(shared[i])));
                    }
                }
                let rows = x.halved(weight.cols());
                widened::products(DenseLevel::detect(), rows, &products);
            }
            Matrix::Packed(weight, precision) => {
                let mut products = Vec::with_capacity(N);
                for (i, map) in maps.iter().enumerate().skip(first) {
                    if let Matrix::Packed(w, r) = map.matrix
                        && (w.group(), r) == (weight.group(), precision)
                    {
                        done[i] = true;
                        products.push(map.product(w, shared[i]));
                    }
                }
                int8::products(x.rounded(weight, *precision), &products);
            }
        }
    }
    // SAFETY: the products have written every element of every output.
    outs.map(|out| unsafe { out.written() })
}
