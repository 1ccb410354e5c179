//! How a layer's tokens read each other: attention, or a recurrence.

mod attention;
mod gated_delta;
mod latent;
mod sharing;

use crate::{
    LoadOptions, ModelError, StateSession,
    norms::Input,
    source::Source,
    spec::{LayerSpec, MixerSpec, Spec, Values},
};
use std::fmt;
use taper_base::Phase;
use taper_tensor::{Linear, RopeAngles, Tensor};

pub(crate) use attention::Attention;
pub(crate) use gated_delta::GatedDeltaNet;
pub(crate) use latent::Latent;
pub(crate) use sharing::Sharing;

/// The part of a layer in which tokens of a sequence meet, up to its output projection.
pub(crate) trait Mixer: Send + Sync + fmt::Debug {
    /// What the output projection reads.
    ///
    /// # Shapes
    /// Rows `[t, hidden]` -> `[t, in features of out]`.
    ///
    /// # Errors
    /// A session that was opened for other tokens, or an operation's error.
    fn mix(
        &self,
        input: &Input<'_>,
        step: &Step<'_>,
        state: &mut dyn StateSession,
    ) -> Result<Tensor, ModelError>;

    /// The output projection.
    fn out(&self) -> &Linear;

    /// Weights in all, and bytes they take.
    fn size(&self) -> (u64, u64);
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
    pub(crate) phase: Phase,
    /// The output projection reads the mixer's rows as they come, all of them.
    pub(crate) whole: bool,
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
    Ok(match layer.mixer {
        MixerSpec::None => None,
        MixerSpec::Attention(own) => {
            let id = ids.attention;
            ids.attention += 1;
            Some(Box::new(Attention::load(spec, own, id, weights, at)?.placed(options)?))
        }
        MixerSpec::Latent(own) => {
            let id = ids.attention;
            ids.attention += 1;
            Some(Box::new(Latent::load(spec, own, id, weights, at)?.placed(options)?))
        }
        MixerSpec::Sharing(own) => {
            let id = ids.attention;
            if !matches!(own.values, Values::Of(_)) {
                ids.attention += 1;
            }
            Some(Box::new(Sharing::load(spec, own, id, weights, at)?.placed(options)?))
        }
        MixerSpec::GatedDelta(shape) => {
            let id = ids.recurrent;
            ids.recurrent += 1;
            Some(Box::new(GatedDeltaNet::load(spec, shape, id, weights, at)?.placed(options)?))
        }
    })
}
