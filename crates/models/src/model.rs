//! The model seam.

use crate::{
    Adapter, AdapterTargets, Ahead, DraftHead, ExpertStreaming, ImagePositions, ModelError,
    StateSession, StepImages, StreamedExperts,
};
use std::{fmt, sync::Arc};
use taper_base::{Phase, TokenId};
use taper_kv_cache::{KvConfig, KvHeads, KvScheme, RecurrentConfig};
use taper_kv_codecs::KvGeometry;
use taper_tensor::{Place, Precision, Tensor, gpu::Gpu};

/// Tokens of one step: those of several sequences, one after the other, never padded.
#[derive(Debug, Clone, Copy, Default)]
pub struct Batch<'a> {
    /// Token ids of the batch, `[t]`.
    pub tokens: &'a [TokenId],
    /// The position of each in its sequence.
    pub positions: &'a [u32],
    /// Indices into `tokens` whose logits are wanted, ascending.
    pub logits_at: &'a [u32],
    /// What all of them are: [`ModelInfo::phase`] of what they are to their requests.
    pub phase: Phase,
    /// The adapter of each token, or none; empty where no token has one.
    pub adapters: &'a [Option<&'a Adapter>],
    /// What stands for images among them.
    pub images: StepImages<'a>,
}

/// A language model.
pub trait Model: Send + Sync + fmt::Debug {
    /// What it is.
    fn info(&self) -> &ModelInfo;

    /// What adapters can change of it; `None` of a model that takes none.
    fn adapter_targets(&self) -> Option<&AdapterTargets> {
        None
    }

    /// Experts that are streamed; `None` where all are in memory.
    fn experts(&self) -> Option<StreamedExperts> {
        None
    }

    /// The head that drafts from hidden states, where the checkpoint has one and [`LoadOptions::draft_head`] asks for it.
    fn draft_head(&self) -> Option<&Arc<DraftHead>> {
        None
    }

    /// Runs a step as [`Self::forward`] does, for a head that drafts.
    ///
    /// # Shapes
    /// Returns logits `[logits_at.len(), vocab]`, and what the output projection reads of every token `[t, hidden]`.
    ///
    /// # Errors
    /// As [`Self::forward`]; [`ModelError::NoHidden`] of a model without such a head.
    fn forward_hidden(
        &self,
        _batch: &Batch<'_>,
        _kv: &mut dyn StateSession,
    ) -> Result<[Tensor; 2], ModelError> {
        Err(ModelError::NoHidden { family: self.info().family })
    }

    /// Runs a step.
    ///
    /// # Shapes
    /// Returns logits `[logits_at.len(), vocab]` f32. A token's logits do not depend on the other
    /// sequences of the batch, nor on how its prompt is chunked.
    ///
    /// # Errors
    /// A token outside the vocabulary, images that the model or the step cannot have, or a session that was opened for
    /// other tokens.
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
    /// What the cache keeps of each layer, of a model whose layers differ or cache something else than
    /// heads; empty where all keep `kv_heads` of `head_dim`.
    pub layer_heads: Vec<KvHeads>,
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
    /// What a cache keeps for the head that drafts, of a model that was loaded with one.
    pub draft_heads: Option<KvHeads>,
    /// How images count; `None` of a model that takes none.
    pub images: Option<ImagePositions>,
    /// Which tokens of prompts see tokens after them; `None` of a model where none do. Steps must not end among them.
    pub ahead: Option<Ahead>,
}

impl ModelInfo {
    /// The phase whose arithmetic is meant for tokens of `phase`.
    #[must_use]
    pub fn phase(&self, phase: Phase) -> Phase {
        if self.prefill_apart { phase } else { Phase::Decode }
    }

    /// The shape of a cache for it, of so many blocks of so many tokens; its recurrent states are the
    /// caller's to add.
    #[must_use]
    pub fn cache(
        &self,
        scheme: impl Into<KvScheme>,
        block_tokens: usize,
        blocks: usize,
    ) -> KvConfig {
        let Self { kv_heads, head_dim, .. } = *self;
        let geometry = KvGeometry { kv_heads, head_dim, block_tokens };
        let layer_heads = self.layer_heads.clone();
        KvConfig { layer_heads, ..KvConfig::new(scheme, self.layers, geometry, blocks) }
    }

    /// What a cache with so many recurrent states needs to know, of a model that has such; see
    /// [`RecurrentConfig`].
    #[must_use]
    pub fn states(&self, slots: usize, interval: usize) -> Option<RecurrentConfig> {
        let layers = self.recurrent.clone();
        (!layers.is_empty()).then_some(RecurrentConfig { layers, slots, draft_slots: 0, interval })
    }
}

/// Choices at load time.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoadOptions<'a> {
    /// Longest sequence that will be run; `None` is the configuration's. Models with two sets of
    /// rotary frequencies (longrope) choose by it, once and for every request.
    pub max_model_len: Option<usize>,
    /// How precisely it computes.
    pub precision: Precision,
    /// Where it runs; `None` is the CPU.
    pub gpu: Option<&'a Gpu>,
    /// Experts stay on a disk; `None` has all of them in memory.
    pub experts: Option<&'a ExpertStreaming>,
    /// Experts that a token goes through, fewer than the model was trained with; `None` is as many.
    pub moe_top_k: Option<usize>,
    /// The head of the checkpoint that drafts tokens is loaded too, where there is one.
    pub draft_head: bool,
}

impl LoadOptions<'static> {
    /// On the CPU, with exact products and all experts in memory.
    pub const EXACT: Self = Self {
        max_model_len: None,
        precision: Precision::F32,
        gpu: None,
        experts: None,
        moe_top_k: None,
        draft_head: false,
    };
}

impl<'a> LoadOptions<'a> {
    /// Where and how precisely maps are computed.
    pub(crate) fn place(&self) -> Place<'a> {
        Place { gpu: self.gpu, precision: self.precision }
    }
}
