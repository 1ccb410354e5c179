//! From a window of features to rows.

use super::{
    config::Config,
    layers::{Attention, Mlp, Norm, Weights, gelu},
};
use crate::WhisperError;
use candle_core::{Result, Tensor};

#[derive(Debug)]
pub(super) struct Encoder {
    convolutions: [Convolution; 2],
    /// `[positions, width]`.
    positions: Tensor,
    layers: Vec<Layer>,
    norm: Norm,
    /// Mels and frames of a window.
    window: [usize; 2],
}

#[derive(Debug)]
struct Convolution {
    /// `[outputs, inputs, 3]`.
    weight: Tensor,
    /// `[outputs, 1]`.
    bias: Tensor,
    stride: usize,
}

#[derive(Debug)]
struct Layer {
    before: Norm,
    attention: Attention,
    between: Norm,
    mlp: Mlp,
}

impl Encoder {
    pub(super) fn load(
        weights: &Weights<'_>,
        config: &Config,
    ) -> std::result::Result<Self, WhisperError> {
        let Config { d_model: width, encoder: stack, .. } = *config;
        let convolution = |name: &str, inputs, stride| {
            let weight = weights.tensor(&format!("{name}.weight"), &[width, inputs, 3])?;
            let bias = weights.tensor(&format!("{name}.bias"), &[width])?.unsqueeze(1)?;
            Ok::<_, WhisperError>(Convolution { weight, bias, stride })
        };
        let layer = |i| {
            let weights = weights.at(format_args!("layers.{i}"));
            Ok::<_, WhisperError>(Layer {
                before: weights.norm("self_attn_layer_norm", width)?,
                attention: Attention::load(&weights.at("self_attn"), width, stack.heads)?,
                between: weights.norm("final_layer_norm", width)?,
                mlp: Mlp::load(&weights, width, stack.inner)?,
            })
        };
        let positions = [config.max_source_positions, width];
        Ok(Self {
            convolutions: [
                convolution("conv1", config.num_mel_bins, 1)?,
                convolution("conv2", width, 2)?,
            ],
            positions: weights.tensor("embed_positions.weight", &positions)?,
            layers: (0..stack.layers).map(layer).collect::<std::result::Result<_, _>>()?,
            norm: weights.norm("layer_norm", width)?,
            window: [config.num_mel_bins, 2 * config.max_source_positions],
        })
    }

    /// `[mels, frames]` of one window to `[positions, width]`.
    pub(super) fn forward(&self, features: Vec<f32>) -> Result<Tensor> {
        let [mels, frames] = self.window;
        let mut x = Tensor::from_vec(features, (1, mels, frames), self.positions.device())?;
        for Convolution { weight, bias, stride } in &self.convolutions {
            x = gelu(&x.conv1d(weight, 1, *stride, 1, 1)?.broadcast_add(bias)?)?;
        }
        let mut x = (x.squeeze(0)?.t()?.contiguous()? + &self.positions)?;
        for layer in &self.layers {
            let y = layer.before.forward(&x)?;
            let memory = layer.attention.memory(&y)?;
            x = (x + layer.attention.forward(&y, &memory, None)?)?;
            x = (&x + layer.mlp.forward(&layer.between.forward(&x)?)?)?;
        }
        self.norm.forward(&x)
    }
}
