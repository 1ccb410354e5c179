//! How a layer's tokens read each other: attention, or a recurrence.

mod attention;
mod beside;
mod gated_delta;
mod latent;
mod mamba;
mod mamba2;
mod rg_lru;
mod sharing;
mod short_conv;

use crate::{
    Ahead, LoadOptions, ModelError, StateSession,
    feed_forward::{Residual, project, size},
    norms::Input,
    source::Source,
    spec::{LayerSpec, MixerSpec, Spec},
};
use std::fmt;
use taper_kv_codecs::{Mutual, MutualSpan};
use taper_tensor::{ConvShape, Linear, Pass, RopeAngles, Tensor};

pub(crate) use attention::Attention;
pub(crate) use beside::{Beside, BesideSpec};
pub(crate) use gated_delta::{DeltaLayout, DeltaSpec, GatedDeltaNet};
pub(crate) use latent::Latent;
pub(crate) use mamba::{Mamba, MambaSpec, ScanNorms};
pub(crate) use mamba2::{Mamba2Spec, StateNorm, StateSpace};
pub(crate) use rg_lru::{Griffin, GriffinSpec};
pub(crate) use sharing::Sharing;
pub(crate) use short_conv::{GatedConv, ShortConvSpec};

/// The part of a layer in which tokens of a sequence meet, up to its output projection.
pub(crate) trait Mixer: Send + Sync + fmt::Debug {
    /// What [`Self::project`] reads.
    ///
    /// # Shapes
    /// Rows `[t, hidden]` -> `[t, n]`, where `n` is the mixer's own.
    ///
    /// # Errors
    /// A session that was opened for other tokens, or an operation's error.
    fn mix(
        &self,
        input: &Input<'_>,
        step: &Step<'_>,
        state: &mut dyn StateSession,
    ) -> Result<Tensor, ModelError>;

    /// What projects the mixed rows back to the stream.
    fn out(&self) -> Out<'_>;

    /// Maps that adapters may change: each reads one row for each row of the step that it is given.
    fn maps(&self) -> Vec<&Linear>;

    /// Weights in all, and bytes they take.
    fn size(&self) -> (u64, u64) {
        size(self.maps())
    }
}

/// A mixer's output projection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Out<'a> {
    One(&'a Linear),
    Beside(&'a Beside),
}

impl Out<'_> {
    /// The projection of what was mixed, plus `residual`.
    ///
    /// # Shapes
    /// Rows `[t, n]` of [`Mixer::mix`] -> `[t, hidden]`.
    ///
    /// # Errors
    /// An operation's error.
    pub(crate) fn project(
        self,
        mixed: &Tensor,
        residual: Residual<'_>,
        pass: Pass<'_>,
    ) -> Result<Tensor, ModelError> {
        match self {
            Self::One(linear) => project(linear, mixed, residual, pass),
            Self::Beside(both) => both.project(mixed, residual, pass),
        }
    }
}

/// What the layers of a step share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step<'a> {
    pub(crate) spec: &'a Spec,
    /// Angles of each of [`Spec::ropes`].
    pub(crate) ropes: &'a [RopeAngles],
    /// Inputs of each layer's own, `[t, layers * size]`, where the model has such.
    pub(crate) inputs: Option<&'a Tensor>,
    /// Tokens of the step whose rows there are, where not all are left.
    pub(crate) rows: Option<&'a [u32]>,
    /// Of each token in its sequence.
    pub(crate) positions: &'a [u32],
    /// Tokens that see each other, by what images bring.
    pub(crate) mutual: &'a [MutualSpan],
    pub(crate) pass: Pass<'a>,
    /// [`Self::pass`] of the rows that are left after a layer's mixer.
    pub(crate) kept: Pass<'a>,
    /// The output projection reads the mixer's rows as they come, all of them.
    pub(crate) whole: bool,
}

impl<'a> Step<'a> {
    /// Tokens that see each other in a layer with this window.
    pub(crate) fn mutual(&self, window: Option<usize>) -> Mutual<'a> {
        match (self.spec.ahead, window) {
            (None, _) | (Some(Ahead::ImagesInWindows), None) => Mutual::default(),
            (Some(ahead), _) => {
                Mutual { spans: self.mutual, past_window: ahead != Ahead::ImagesInWindows }
            }
        }
    }

    /// How maps are applied after a mixer of whose rows those of `kept` are left, or all.
    pub(crate) fn after(&self, kept: Option<&[u32]>) -> Pass<'a> {
        if kept.is_some() { self.kept } else { self.pass }
    }
}

/// How many layers of each kind of state come before one: what numbers its state.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StateIds {
    pub(crate) attention: u16,
    pub(crate) recurrent: usize,
}

/// Loads a layer's mixer, below `at`, where and as it will run; `None` of a layer without one.
pub(crate) fn load(
    spec: &Spec,
    layer: &LayerSpec,
    ids: &mut StateIds,
    weights: Source<'_>,
    at: &str,
    options: LoadOptions<'_>,
) -> Result<Option<Box<dyn Mixer>>, ModelError> {
    let StateIds { attention, recurrent: id } = *ids;
    ids.attention += u16::from(layer.mixer.cached(spec).is_some());
    ids.recurrent += layer.mixer.states().len();
    Ok(match layer.mixer {
        MixerSpec::None => None,
        MixerSpec::Attention(own) => {
            Some(Box::new(Attention::load(spec, own, attention, weights, at)?.placed(options)?))
        }
        MixerSpec::Latent(own) => {
            Some(Box::new(Latent::load(spec, own, attention, weights, at)?.placed(options)?))
        }
        MixerSpec::Sharing(own) => {
            Some(Box::new(Sharing::load(spec, own, attention, weights, at)?.placed(options)?))
        }
        MixerSpec::GatedDelta(own) => {
            Some(Box::new(GatedDeltaNet::load(spec, own, id, weights, at)?.placed(options)?))
        }
        MixerSpec::Mamba(own) => {
            Some(Box::new(Mamba::load(spec, own, id, weights, at)?.placed(options)?))
        }
        MixerSpec::Mamba2(own) => {
            Some(Box::new(StateSpace::load(spec, own, id, weights, at)?.placed(options)?))
        }
        MixerSpec::ShortConv(own) => {
            Some(Box::new(GatedConv::load(spec, own, id, weights, at)?.placed(options)?))
        }
        MixerSpec::Griffin(own) => {
            Some(Box::new(Griffin::load(spec, own, id, weights, at)?.placed(options)?))
        }
        MixerSpec::Beside(own) => {
            let attention = Attention::load(spec, own.attention, attention, weights, at)?;
            let mamba = StateSpace::load(spec, own.mamba, id, weights, at)?;
            Some(Box::new(Beside::new(own, attention, mamba).placed(options)?))
        }
    })
}

/// The weights `[channels, kernel]` of a convolution, which are `[channels, 1, kernel]` in Hugging Face's files and
/// `[channels, kernel, 1]` in MLX's.
fn convolution(
    weights: Source<'_>,
    name: &str,
    ConvShape { channels, kernel }: ConvShape,
) -> Result<Vec<f32>, ModelError> {
    let name = format!("{name}.weight");
    let mlx = weights.floats(&name)?.1 == [channels, kernel, 1];
    let stored = if mlx { [channels, kernel, 1] } else { [channels, 1, kernel] };
    Ok(weights.array(&name, &stored)?)
}
