//! A layer of a tower: norm, attention, norm, feed-forward.

use super::{Activation, Attention, Linear, Mlp, Norm, NormKind, Rope, Segments};
use crate::{VisionError, weights::Weights};
use candle_core::{Result, Tensor};

/// How a family calls a layer's tensors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockNames {
    pub(crate) norms: [&'static str; 2],
    /// One map for queries, keys and values, or three.
    pub(crate) qkv: &'static [&'static str],
    pub(crate) out: &'static str,
    /// Up and down, or gate, up and down.
    pub(crate) mlp: &'static [&'static str],
    /// Norms of queries and keys.
    pub(crate) qk_norms: Option<[&'static str; 2]>,
    /// Factors of what attention and the feed-forward layer add.
    pub(crate) scales: Option<[&'static str; 2]>,
}

/// Sizes of a tower's layers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockShape {
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) inner: usize,
    pub(crate) norm: NormKind,
    pub(crate) eps: f64,
    pub(crate) act: Activation,
}

/// A layer.
#[derive(Debug)]
pub(crate) struct Block {
    norms: [Norm; 2],
    attention: Attention,
    mlp: Mlp,
    scales: Option<[Tensor; 2]>,
}

impl Block {
    pub(crate) fn load(
        weights: &Weights<'_>,
        names: &BlockNames,
        shape: &BlockShape,
    ) -> std::result::Result<Self, VisionError> {
        let BlockShape { hidden, heads, head_dim, inner, norm, eps, act } = *shape;
        let width = heads * head_dim;
        let load_norm = |name, n, kind| Norm::load(weights, name, n, kind, eps);
        let qkv = match names.qkv {
            [one] => Linear::load(weights, one, hidden, 3 * width)?,
            parts => {
                let parts = parts.iter().map(|name| Linear::load(weights, name, hidden, width));
                Linear::join(&parts.collect::<std::result::Result<Vec<_>, _>>()?)?
            }
        };
        let qk_norms = match names.qk_norms {
            Some([q, k]) => {
                Some([load_norm(q, width, NormKind::Rms)?, load_norm(k, width, NormKind::Rms)?])
            }
            None => None,
        };
        let scales = match names.scales {
            Some([a, b]) => Some([weights.tensor(a, &[hidden])?, weights.tensor(b, &[hidden])?]),
            None => None,
        };
        let attention = Attention {
            qkv,
            out: Linear::load(weights, names.out, width, hidden)?,
            heads,
            head_dim,
            scale: (head_dim as f64).powf(-0.5),
            norms: qk_norms,
        };
        Ok(Self {
            norms: [
                load_norm(names.norms[0], hidden, norm)?,
                load_norm(names.norms[1], hidden, norm)?,
            ],
            attention,
            mlp: Mlp::load(weights, names.mlp, [hidden, inner, hidden], act)?,
            scales,
        })
    }

    /// All layers below `weights`, by their numbers.
    pub(crate) fn load_all(
        weights: &Weights<'_>,
        count: usize,
        names: &BlockNames,
        shape: &BlockShape,
    ) -> std::result::Result<Vec<Self>, VisionError> {
        (0..count).map(|i| Self::load(&weights.at(i), names, shape)).collect()
    }

    /// `[rows, hidden]`.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        rope: Option<&Rope>,
        segments: Segments<'_>,
    ) -> Result<Tensor> {
        let scaled = |y: Tensor, i: usize| match &self.scales {
            Some(scales) => y.broadcast_mul(&scales[i]),
            None => Ok(y),
        };
        let y = self.attention.forward(&self.norms[0].forward(x)?, rope, segments)?;
        let x = (x + scaled(y, 0)?)?;
        let y = self.mlp.forward(&self.norms[1].forward(&x)?)?;
        &x + scaled(y, 1)?
    }
}
