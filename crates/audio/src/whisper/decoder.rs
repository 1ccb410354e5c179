//! From rows of the encoder and tokens to the next token.

use super::{
    config::Config,
    layers::{Attention, Memory, Mlp, Norm, Weights},
};
use crate::WhisperError;
use candle_core::{Result, Tensor};
use taper_base::TokenId;

type Fallible<T> = std::result::Result<T, WhisperError>;

#[derive(Debug)]
pub(super) struct Decoder {
    /// `[vocab, width]`, for tokens that come and that go.
    tokens: Tensor,
    /// `[positions, width]`.
    positions: Tensor,
    layers: Vec<Layer>,
    norm: Norm,
}

#[derive(Debug)]
struct Layer {
    before: Norm,
    attention: Attention,
    before_cross: Norm,
    cross: Attention,
    before_mlp: Norm,
    mlp: Mlp,
}

/// What the decoder has heard and written: keys and values of each layer.
#[derive(Debug, Clone)]
pub(super) struct State {
    heard: Vec<Memory>,
    written: Vec<Option<Memory>>,
    /// Tokens written.
    length: usize,
}

impl State {
    /// What was heard, with nothing written.
    pub(super) fn again(&self) -> Self {
        let written = vec![None; self.written.len()];
        Self { heard: self.heard.clone(), written, length: 0 }
    }
}

impl Decoder {
    pub(super) fn load(weights: &Weights<'_>, config: &Config) -> Fallible<Self> {
        let Config { d_model: width, decoder: stack, .. } = *config;
        let layer = |i| {
            let weights = weights.at(format_args!("layers.{i}"));
            let attention = |name: &str| Attention::load(&weights.at(name), width, stack.heads);
            Ok::<_, WhisperError>(Layer {
                before: weights.norm("self_attn_layer_norm", width)?,
                attention: attention("self_attn")?,
                before_cross: weights.norm("encoder_attn_layer_norm", width)?,
                cross: attention("encoder_attn")?,
                before_mlp: weights.norm("final_layer_norm", width)?,
                mlp: Mlp::load(&weights, width, stack.inner)?,
            })
        };
        let positions = [config.max_target_positions, width];
        Ok(Self {
            tokens: weights.matrix("embed_tokens", config.vocab_size, width)?,
            positions: weights.tensor("embed_positions.weight", &positions)?,
            layers: (0..stack.layers).map(layer).collect::<Fallible<_>>()?,
            norm: weights.norm("layer_norm", width)?,
        })
    }

    /// Hears the encoder's rows.
    pub(super) fn hear(&self, encoded: &Tensor) -> Result<State> {
        let heard: Result<Vec<_>> = self.layers.iter().map(|l| l.cross.memory(encoded)).collect();
        Ok(State { heard: heard?, written: vec![None; self.layers.len()], length: 0 })
    }

    /// Writes tokens behind those that stand. Gives the last layer's rows, `[tokens, width]`.
    pub(super) fn forward(&self, tokens: &[TokenId], state: &mut State) -> Fallible<Tensor> {
        let (from, n, most) = (state.length, tokens.len(), self.positions.dim(0)?);
        if from + n > most {
            return Err(WhisperError::TooLong { got: from + n, most });
        }
        let ids = Tensor::new(tokens, self.tokens.device())?;
        let positions = self.positions.narrow(0, from, n)?;
        let mut x = (self.tokens.index_select(&ids, 0)? + positions)?;
        let mask = (n > 1).then(|| causal(from, n, self.tokens.device())).transpose()?;
        for (layer, (heard, written)) in
            self.layers.iter().zip(state.heard.iter().zip(&mut state.written))
        {
            let y = layer.before.forward(&x)?;
            let new = layer.attention.memory(&y)?;
            let memory = match written.take() {
                Some(old) => old.join(new)?,
                None => new,
            };
            x = (x + layer.attention.forward(&y, &memory, mask.as_ref())?)?;
            *written = Some(memory);
            let y = layer.before_cross.forward(&x)?;
            x = (x + layer.cross.forward(&y, heard, None)?)?;
            x = (&x + layer.mlp.forward(&layer.before_mlp.forward(&x)?)?)?;
        }
        state.length += n;
        Ok(self.norm.forward(&x)?)
    }

    /// Logits of rows, `[rows, width]` to `[rows, vocab]`.
    pub(super) fn logits(&self, rows: &Tensor) -> Result<Tensor> {
        rows.matmul(&self.tokens.t()?)
    }
}

/// What hides later tokens, `[tokens, from + tokens]`.
fn causal(from: usize, n: usize, device: &candle_core::Device) -> Result<Tensor> {
    let hides = |i: usize, j: usize| if j > from + i { f32::NEG_INFINITY } else { 0.0 };
    let values = (0..n).flat_map(|i| (0..from + n).map(move |j| hides(i, j))).collect();
    Tensor::from_vec(values, (n, from + n), device)
}
