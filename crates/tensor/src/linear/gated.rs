//! Feed-forwards: a gated pair of maps, and the one that follows.

use super::{Linear, LinearGroup, Pass, input};
use crate::{
    Phase, Result, RmsNorm, Tensor, TensorError,
    cpu::{
        self, Activation,
        maps::{apply, gated_down},
    },
    host, ops,
};

impl LinearGroup<2> {
    /// `activation(gate(norm(x))) * up(norm(x))`, where the first map is the gate; without a norm, of `x` itself.
    ///
    /// # Shapes
    /// `x [t, in]` -> `[t, out]`.
    ///
    /// # Errors
    /// As [`Linear::forward`], or the maps differ in their outputs.
    pub fn forward_gated<'a>(
        &self,
        x: &Tensor,
        norm: Option<&RmsNorm>,
        activation: Activation,
        pass: impl Into<Pass<'a>>,
    ) -> Result<Tensor> {
        let pass = pass.into();
        if self.is_changed(pass) {
            self.check_gated(x, norm)?;
            let [gate, up] = self.forward_normed(x, norm, pass)?;
            return ops::gated(activation, &gate, &up);
        }
        self.of_gated(x, norm, activation, pass.phase)
    }

    fn of_gated(
        &self,
        x: &Tensor,
        norm: Option<&RmsNorm>,
        activation: Activation,
        phase: Phase,
    ) -> Result<Tensor> {
        let [gate, up] = &self.parts;
        let shape = self.check_gated(x, norm)?;
        if let Some(x) = x.on_gpu() {
            return self.multiply_gated(x, norm, activation, None);
        }
        let maps = [gate.map(None)?, up.map(None)?];
        let [g, u] = host::read(x, |x| apply(maps, &mut input(x, norm, phase)))?;
        let out = cpu::gated(activation, &g, &u);
        Tensor::from_vec(out, &shape)
    }

    /// The shape of what [`Self::forward_gated`] gives.
    fn check_gated(&self, x: &Tensor, norm: Option<&RmsNorm>) -> Result<[usize; 2]> {
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
    pub fn forward_down<'a>(
        &self,
        down: &Linear,
        x: &Tensor,
        norm: Option<&RmsNorm>,
        activation: Activation,
        residual: Option<(&Tensor, Option<&RmsNorm>)>,
        pass: impl Into<Pass<'a>>,
    ) -> Result<Tensor> {
        let pass = pass.into();
        if self.is_changed(pass) || pass.changes(down) {
            // What is between the maps is read twice, and so must be stored.
            let inner = self.forward_gated(x, norm, activation, pass)?;
            return match residual {
                Some((residual, next)) => down.forward_add(&inner, residual, next, pass),
                None => down.forward(&inner, pass),
            };
        }
        self.of_down(down, x, norm, activation, residual, pass.phase)
    }

    fn of_down(
        &self,
        down: &Linear,
        x: &Tensor,
        norm: Option<&RmsNorm>,
        activation: Activation,
        residual: Option<(&Tensor, Option<&RmsNorm>)>,
        phase: Phase,
    ) -> Result<Tensor> {
        let [t, inner] = self.check_gated(x, norm)?;
        if x.on_gpu().is_none() && down.in_features() == inner {
            let shape = [t, down.out_features()];
            let fused = |x: &[f32], r: Option<&[f32]>| {
                let maps = [self.parts[0].map(None)?, self.parts[1].map(None)?];
                let input = input(x, norm, phase);
                Ok::<_, TensorError>(gated_down(maps, down.map(r)?, activation, input))
            };
            let out = match residual {
                Some((residual, _)) => {
                    Linear::check_residual(residual, shape)?;
                    host::read(x, |x| host::read(residual, |r| fused(x, Some(r))))???
                }
                None => host::read(x, |x| fused(x, None))??,
            };
            if let Some(out) = out {
                return Tensor::from_vec(out, &shape);
            }
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
}
