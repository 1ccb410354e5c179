//! Attention and Mamba 2 that read the same rows, side by side (Falcon-H1).

use super::{Attention, Mamba2Spec, Mixer, Out, StateSpace, Step};
use crate::{
    LoadOptions, ModelError, StateSession, feed_forward::Residual, norms::Input,
    spec::AttentionSpec,
};
use std::ops::Range;
use taper_tensor::{Linear, Pass, Tensor, ops};

/// Two mixers, and what their results are multiplied by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BesideSpec {
    pub(crate) attention: AttentionSpec,
    pub(crate) attention_scale: f32,
    pub(crate) mamba: Mamba2Spec,
    pub(crate) mamba_scale: f32,
}

/// A layer's mixers.
#[derive(Debug)]
pub(crate) struct Beside {
    spec: BesideSpec,
    attention: Attention,
    mamba: StateSpace,
}

impl Beside {
    pub(crate) fn new(spec: BesideSpec, attention: Attention, mamba: StateSpace) -> Self {
        Self { spec, attention, mamba }
    }

    /// Where and as it will run.
    pub(crate) fn placed(self, options: LoadOptions<'_>) -> Result<Self, ModelError> {
        let (attention, mamba) = (self.attention.placed(options)?, self.mamba.placed(options)?);
        Ok(Self { attention, mamba, ..self })
    }

    /// Both output projections of what was mixed, scaled and added, plus `residual`.
    pub(super) fn project(
        &self,
        mixed: &Tensor,
        residual: Residual<'_>,
        pass: Pass<'_>,
    ) -> Result<Tensor, ModelError> {
        let (inner, all) = (self.spec.mamba.shape.inner(), mixed.dims().last().copied());
        let part = |mixer: &dyn Mixer, columns: Range<usize>, scale: f32| {
            let projected = mixer.out().project(&ops::columns(mixed, columns)?, None, pass)?;
            Ok::<_, ModelError>(ops::scale(&projected, scale)?)
        };
        let mamba = part(&self.mamba, 0..inner, self.spec.mamba_scale)?;
        let attended = part(&self.attention, inner..all.unwrap_or(0), self.spec.attention_scale)?;
        let sum = ops::add(&mamba, &attended)?;
        match residual {
            Some((x, _)) => Ok(ops::add(x, &sum)?),
            None => Ok(sum),
        }
    }
}

impl Mixer for Beside {
    /// Both results side by side, Mamba's first.
    fn mix(
        &self,
        input: &Input<'_>,
        step: &Step<'_>,
        state: &mut dyn StateSession,
    ) -> Result<Tensor, ModelError> {
        let mamba = self.mamba.mix(input, step, state)?;
        let attended = self.attention.mix(input, &Step { whole: false, ..*step }, state)?;
        Ok(ops::join_columns(&[&mamba, &attended])?)
    }

    fn out(&self) -> Out<'_> {
        Out::Beside(self)
    }

    fn maps(&self) -> Vec<&Linear> {
        [self.mamba.maps(), self.attention.maps()].concat()
    }
}
