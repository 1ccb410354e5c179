//! Feed-forwards: a gated pair of maps, and the one that follows.

use super::{Input, Linear, LinearGroup, Matrix, apply};
use crate::{
    Phase, Result, RmsNorm, Tensor, TensorError,
    cpu::{
        self, Activation,
        dense::{Bf16Rows, DenseLevel, widened},
        int8::{self, Int8Rows, PackedWeight},
        shared::{SharedOut, Unwritten},
    },
    host,
};

/// What is between the maps, as the last one reads it.
enum Inner {
    /// For weights that are widened.
    Halved(Bf16Rows),
    Rounded(Int8Rows),
}

impl Inner {
    /// `self Wᵀ + bias + residual` for the weight of `map`; all of `out` is written.
    fn multiply(
        &self,
        map: &Linear,
        weight: &PackedWeight,
        residual: Option<&[f32]>,
        out: SharedOut,
    ) {
        match self {
            Self::Halved(x) => {
                let sums = map.sums(residual, out);
                widened::products(DenseLevel::detect(), x, &[(weight, sums)]);
            }
            Self::Rounded(x) => int8::products(x, &[map.product(weight, residual, out)]),
        }
    }
}

impl LinearGroup<2> {
    /// `activation(gate(norm(x))) * up(norm(x))`, where the first map is the gate.
    ///
    /// # Shapes
    /// `x [t, in]` -> `[t, out]`.
    ///
    /// # Errors
    /// As [`Linear::forward`], or the maps differ in their outputs.
    pub fn forward_gated(
        &self,
        x: &Tensor,
        norm: &RmsNorm,
        activation: Activation,
        phase: Phase,
    ) -> Result<Tensor> {
        let [gate, up] = &self.parts;
        let shape = self.check_gated(x, norm)?;
        if let Some(x) = x.on_gpu() {
            return self.multiply_gated(x, norm, activation, None);
        }
        let [g, u] = host::read(x, |x| {
            apply([(gate, None), (up, None)], &mut Input::normed(x, norm, phase))
        })?;
        let out = cpu::gated(activation, &g, &u);
        Tensor::from_vec(out, &shape)
    }

    /// The shape of what [`Self::forward_gated`] gives.
    fn check_gated(&self, x: &Tensor, norm: &RmsNorm) -> Result<[usize; 2]> {
        let [gate, up] = &self.parts;
        if up.out_features() != gate.out_features() {
            let got = [up.out_features(), up.in_features()];
            return Err(TensorError::shape("gated", "two maps of one shape", &got));
        }
        Ok([self.check(x, norm)?, gate.out_features()])
    }

    /// `down(activation(gate(norm(x))) * up(norm(x))) + residual`: a feed-forward as a whole, so that what
    /// is between the maps need not be stored. `next` as in [`Linear::forward_add`].
    ///
    /// # Shapes
    /// `x [t, in]`, `residual [t, out]` -> `[t, out]`.
    ///
    /// # Errors
    /// As [`Self::forward_gated`] and [`Linear::forward_add`].
    pub fn forward_down(
        &self,
        down: &Linear,
        x: &Tensor,
        norm: &RmsNorm,
        activation: Activation,
        residual: Option<(&Tensor, Option<&RmsNorm>)>,
        phase: Phase,
    ) -> Result<Tensor> {
        let [t, inner] = self.check_gated(x, norm)?;
        if let Matrix::Packed(weight, _) = &down.matrix
            && weight.cols() == inner
            && let Some(inner) = self.inner(down, x, norm, activation, phase)?
        {
            let shape = [t, down.out_features()];
            let mut out = Unwritten::new(shape[0] * shape[1]);
            let to = out.shared();
            match residual {
                Some((residual, _)) => {
                    Linear::check_residual(residual, shape)?;
                    host::read(residual, |r| inner.multiply(down, weight, Some(r), to))?;
                }
                None => inner.multiply(down, weight, None, to),
            }
            // SAFETY: the product covers it.
            return Tensor::from_vec(unsafe { out.written() }, &shape);
        }
        let inner = match x.on_gpu() {
            Some(there) => self.multiply_gated(there, norm, activation, Some(down))?,
            None => self.forward_gated(x, norm, activation, phase)?,
        };
        match residual {
            Some((residual, next)) => down.forward_add(&inner, residual, next, phase),
            None => down.forward(&inner, phase),
        }
    }

    /// What `down` reads, in the form it reads it in, where all three maps are packed and computed alike.
    fn inner(
        &self,
        down: &Linear,
        x: &Tensor,
        norm: &RmsNorm,
        activation: Activation,
        phase: Phase,
    ) -> Result<Option<Inner>> {
        let [gate, up] = &self.parts;
        let (Matrix::Packed(g, r), Matrix::Packed(u, s), Matrix::Packed(d, q)) =
            (&gate.matrix, &up.matrix, &down.matrix)
        else {
            return Ok(None);
        };
        if [s, q] != [r; 2] || g.group() != u.group() {
            return Ok(None);
        }
        let inner = host::read(x, |x| {
            let mut input = Input::normed(x, norm, phase);
            if input.widens(*r) {
                let maps = [(&**g, gate.bias()), (&**u, up.bias())];
                let x = input.halved(g.cols());
                return Inner::Halved(widened::gated(DenseLevel::detect(), x, activation, maps));
            }
            let mut between = Unwritten::new(x.len() / g.cols() * g.rows());
            let shared = between.shared();
            let both = [gate.product(g, None, shared), up.product(u, None, shared)];
            let (x, rounding) = (input.rounded(g, *r), r.of_phase(phase));
            Inner::Rounded(int8::gated(x, activation, both, d.group(), rounding))
        })?;
        Ok(Some(inner))
    }
}
