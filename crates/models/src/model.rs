//! The model seam.

use crate::{ModelError, StateSession};
use std::fmt;
use taper_base::{Phase, TokenId};
use taper_kv_cache::RecurrentConfig;
use taper_tensor::{Answers, Rounding, Tensor, cpu::FlashTile, gpu::Gpu};

/// Tokens of one step: those of several sequences, one after the other, never padded.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Token ids of the batch, `[t]`.
    pub tokens: &'a [TokenId],
    /// The position of each in its sequence.
    pub positions: &'a [u32],
    /// Indices into `tokens` whose logits are wanted, ascending.
    pub logits_at: &'a [u32],
    /// What all of them are: [`ModelInfo::phase`] of what they are to their requests.
    pub phase: Phase,
}

/// A language model.
pub trait Model: Send + Sync + fmt::Debug {
    /// What it is.
    fn info(&self) -> &ModelInfo;

    /// Runs a step.
    ///
    /// # Shapes
    /// Returns logits `[logits_at.len(), vocab]` f32. A token's logits do not depend on the other
    /// sequences of the batch, nor on how its prompt is chunked.
    ///
    /// # Errors
    /// A token outside the vocabulary, or a session that was opened for other tokens.
    fn forward(&self, batch: &Batch<'_>, kv: &mut dyn StateSession) -> Result<Tensor, ModelError>;
}

/// What the engine must know of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// `model_type` of the family.
    pub family: &'static str,
    /// Layers with a KV cache.
    pub layers: usize,
    /// Elements (f32) that each layer with a recurrent state keeps for a sequence; empty for most models.
    pub recurrent: Vec<usize>,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Size of the residual stream.
    pub hidden: usize,
    /// Size of the vocabulary: logits per token.
    pub vocab: usize,
    /// Longest sequence that the configuration allows.
    pub max_positions: usize,
    /// Number of weights.
    pub parameters: u64,
    /// Bytes of the weights in memory or mapped.
    pub weight_bytes: u64,
    /// Tokens of prompts are computed in another arithmetic than those that follow, in batches of
    /// their own.
    pub prefill_apart: bool,
}

impl ModelInfo {
    /// The phase whose arithmetic is meant for tokens of `phase`.
    #[must_use]
    pub fn phase(&self, phase: Phase) -> Phase {
        if self.prefill_apart { phase } else { Phase::Decode }
    }

    /// What a cache with so many recurrent states needs to know, of a model that has such; see
    /// [`RecurrentConfig`].
    #[must_use]
    pub fn states(&self, slots: usize, interval: usize) -> Option<RecurrentConfig> {
        let layers = self.recurrent.clone();
        (!layers.is_empty()).then_some(RecurrentConfig { layers, slots, interval })
    }
}

/// Choices at load time.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadOptions<'a> {
    /// Longest sequence that will be run; `None` is the configuration's. Models with two sets of
    /// rotary frequencies (longrope) choose by it, once and for every request.
    pub max_model_len: Option<usize>,
    /// How products with quantized weights are computed.
    pub activations: Activations,
    /// Where it runs; `None` is the CPU.
    pub gpu: Option<&'a Gpu>,
}

/// Arithmetic of the products of quantized weights with activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activations {
    /// Exact: weights are widened to f32.
    #[default]
    F32,
    /// Weights are repacked for their kernels, and the activations of quantized ones rounded to 16
    /// bits a group, which takes two 8-bit products.
    Int16,
    /// As [`Self::Int16`] for prompts, or in `bf16` where the processor is faster at that, attention of prompts
    /// too. On a GPU, products of many rows round weights and activations to f16 instead of either.
    Phased {
        /// What follows a prompt is rounded to.
        answers: Answers,
    },
    /// Fast: prompts are rounded to 8 bits, too.
    Int8,
}

impl Activations {
    /// Values of `--dtype`.
    pub const DTYPES: [&str; 4] = ["auto", "int8", "float16", "float32"];

    /// By its name among [`Self::DTYPES`], where at most so many sequences run together.
    #[must_use]
    pub fn of_dtype(name: &str, sequences: usize) -> Option<Self> {
        match name {
            "auto" => Some(Self::Phased { answers: Answers::of_sequences(sequences) }),
            "int8" => Some(Self::Int8),
            "float16" => Some(Self::Int16),
            "float32" => Some(Self::F32),
            _ => None,
        }
    }

    /// Whether prompts have an arithmetic of their own: that of products with weights, or that of
    /// attention with heads of so many elements.
    pub(crate) fn prefill_apart(self, head_dim: usize) -> bool {
        match self {
            Self::Phased { .. } => true,
            Self::Int8 => FlashTile::rounds(head_dim, head_dim),
            Self::Int16 | Self::F32 => false,
        }
    }

    /// How the host's kernels round; `None` if not at all.
    pub(crate) fn rounding(self) -> Option<Rounding> {
        match self {
            Self::F32 => None,
            Self::Int16 => Some(Rounding::Int16),
            Self::Phased { answers } => Some(Rounding::Phased { answers }),
            Self::Int8 => Some(Rounding::Int8),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_spares_bits_where_several_sequences_run() {
        let answers = |sequences| Activations::of_dtype("auto", sequences);
        assert_eq!(answers(1), Some(Activations::Phased { answers: Answers::Int16 }));
        assert_eq!(answers(2), Some(Activations::Phased { answers: Answers::Int8 }));
        assert!(Activations::DTYPES.iter().all(|name| Activations::of_dtype(name, 2).is_some()));
        assert_eq!(Activations::of_dtype("float8", 1), None);
    }
}
