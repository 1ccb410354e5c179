//! Norms: of which kind a family has them, and where in a layer.

use crate::{ModelError, source::Source, spec::Spec};
use taper_tensor::{LayerNorm, RmsNorm, Tensor};

/// What a family's norms compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NormKind {
    /// Divided by the root of the mean square, times weights.
    Rms,
    /// Divided by the root of the mean square.
    RmsPlain,
    /// Centred and divided by the standard deviation, times weights, plus a bias.
    LayerBias,
    /// Centred and divided by the standard deviation, times weights.
    Layer,
    /// Centred and divided by the standard deviation.
    LayerPlain,
}

/// What a layer's norms are called; where nothing is said, there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LayerNorms {
    /// Norm of what the mixer reads.
    pub(crate) mixer: Option<&'static str>,
    /// Norm of the mixer's output, before the residual sum.
    pub(crate) after_mixer: Option<&'static str>,
    /// Norm of what the feed-forward reads. Beside a parallel mixer, `None` is the mixer's.
    pub(crate) mlp: Option<&'static str>,
    /// Norm of the feed-forward's output, before the residual sum.
    pub(crate) after_mlp: Option<&'static str>,
}

impl LayerNorms {
    /// Before each (Llama).
    pub(crate) const PRE: Self = Self {
        mixer: Some("input_layernorm"),
        after_mixer: None,
        mlp: Some("post_attention_layernorm"),
        after_mlp: None,
    };
    /// Before and after each (Gemma 2).
    pub(crate) const SANDWICH: Self = Self {
        mixer: Some("input_layernorm"),
        after_mixer: Some("post_attention_layernorm"),
        mlp: Some("pre_feedforward_layernorm"),
        after_mlp: Some("post_feedforward_layernorm"),
    };
    /// After each (OLMo 2).
    pub(crate) const POST: Self = Self { mixer: None, mlp: None, ..Self::SANDWICH };
    /// One for a mixer and the feed-forward beside it (Cohere).
    pub(crate) const SHARED: Self = Self { mlp: None, ..Self::PRE };
}

/// A loaded norm.
#[derive(Debug, Clone)]
pub(crate) enum Norm {
    Rms(RmsNorm),
    Layer(LayerNorm),
}

impl Norm {
    /// The family's norm of `n` elements.
    pub(crate) fn load(
        spec: &Spec,
        weights: Source<'_>,
        name: &str,
        n: usize,
    ) -> Result<Self, ModelError> {
        Self::load_with(spec, weights, name, n, (spec.norm_offset, spec.norm_eps))
    }

    /// A norm of the family's kind with an offset and an epsilon of its own.
    pub(crate) fn load_with(
        spec: &Spec,
        weights: Source<'_>,
        name: &str,
        n: usize,
        (offset, eps): (f32, f32),
    ) -> Result<Self, ModelError> {
        let gains = || {
            let mut gains = weights.vector(&format!("{name}.weight"), n)?;
            gains.iter_mut().for_each(|g| *g += offset);
            Ok::<_, ModelError>(gains)
        };
        Ok(match spec.norm {
            NormKind::Rms => Self::Rms(RmsNorm::new(gains()?, eps)),
            NormKind::RmsPlain => Self::Rms(RmsNorm::new(vec![1.0; n], eps)),
            NormKind::LayerBias => {
                let bias = weights.vector(&format!("{name}.bias"), n)?;
                Self::Layer(LayerNorm::new(gains()?, Some(bias), eps)?)
            }
            NormKind::Layer => Self::Layer(LayerNorm::new(gains()?, None, eps)?),
            NormKind::LayerPlain => Self::Layer(LayerNorm::new(vec![1.0; n], None, eps)?),
        })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        Ok(match self {
            Self::Rms(norm) => norm.forward(x)?,
            Self::Layer(norm) => norm.forward(x)?,
        })
    }

    /// The norm that products apply as they read, if it is of that kind.
    pub(crate) fn rms(&self) -> Option<&RmsNorm> {
        match self {
            Self::Rms(norm) => Some(norm),
            Self::Layer(_) => None,
        }
    }
}

/// What projections read: rows, and the norm that they still apply to them.
#[derive(Debug, Clone)]
pub(crate) struct Input<'a> {
    pub(crate) x: Tensor,
    pub(crate) norm: Option<&'a RmsNorm>,
}

impl<'a> Input<'a> {
    /// `norm(x)`, or `x` without a norm. Products apply an RMSNorm themselves; others are applied here.
    pub(crate) fn new(x: &Tensor, norm: Option<&'a Norm>) -> Result<Self, ModelError> {
        Ok(match norm {
            Some(Norm::Layer(layer)) => Self { x: layer.forward(x)?, norm: None },
            Some(Norm::Rms(rms)) => Self { x: x.clone(), norm: Some(rms) },
            None => Self { x: x.clone(), norm: None },
        })
    }

    /// The rows, normed.
    pub(crate) fn normed(&self) -> Result<Tensor, ModelError> {
        Ok(match self.norm {
            Some(norm) => norm.forward(&self.x)?,
            None => self.x.clone(),
        })
    }
}
