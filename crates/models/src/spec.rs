//! What makes one model differ from another, as config.json says it.

use crate::feed_forward::ExpertSpec;
use taper_tensor::{GatedDeltaShape, RopeTable, ops::Activation};

/// What makes one family differ from another.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) family: &'static str,
    pub(crate) vocab: usize,
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) max_positions: usize,
    pub(crate) norm_eps: f32,
    /// Added to every norm's weight: Gemma and Qwen 3.5 store `w - 1`.
    pub(crate) norm_offset: f32,
    /// Norms after attention and feed-forward too, before the residual sum (Gemma).
    pub(crate) post_norms: bool,
    /// RMSNorm on each query and key head (Qwen 3, Gemma 3).
    pub(crate) qk_norm: bool,
    /// RMSNorm on all queries of a token together, and on all its keys (OLMo).
    pub(crate) qk_norm_whole: bool,
    pub(crate) qkv_bias: bool,
    pub(crate) out_bias: bool,
    pub(crate) mlp_bias: bool,
    /// One tensor for query, key and value, and one for gate and up (Phi 3).
    pub(crate) fused: bool,
    /// `q_proj` has a gate beside each query head, whose sigmoid scales attention's result (Qwen 3.5).
    pub(crate) gated_attention: bool,
    pub(crate) activation: Activation,
    pub(crate) attn_scale: f32,
    pub(crate) attn_soft_cap: Option<f32>,
    /// A learned score without a value in every head's softmax (gpt-oss).
    pub(crate) attn_sinks: bool,
    pub(crate) logit_soft_cap: Option<f32>,
    pub(crate) embed_scale: Option<f32>,
    /// What attention and feed-forward give is multiplied by it before the residual sum (Granite).
    pub(crate) branch_scale: Option<f32>,
    /// Logits are multiplied by it (Granite).
    pub(crate) logit_scale: Option<f32>,
    /// The output projection is the token table.
    pub(crate) tied: bool,
    pub(crate) ropes: Vec<RopeTable>,
    pub(crate) layers: Vec<LayerSpec>,
}

/// What makes one layer differ from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LayerSpec {
    /// How tokens read each other.
    pub(crate) mixer: MixerSpec,
    /// Experts instead of one feed-forward.
    pub(crate) experts: Option<ExpertSpec>,
}

/// How a layer's tokens read each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MixerSpec {
    Attention(AttentionSpec),
    GatedDelta(GatedDeltaShape),
}

/// What makes one layer's attention differ from another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttentionSpec {
    /// Index into [`Spec::ropes`]; `None` leaves positions out (NoPE).
    pub(crate) rope: Option<usize>,
    /// Sliding window in tokens.
    pub(crate) window: Option<usize>,
}

impl LayerSpec {
    /// A layer of attention and one feed-forward.
    pub(crate) fn attention(rope: Option<usize>, window: Option<usize>) -> Self {
        Self { mixer: MixerSpec::Attention(AttentionSpec { rope, window }), experts: None }
    }

    /// The sliding window, of a layer that has one.
    pub(crate) fn window(&self) -> Option<usize> {
        match self.mixer {
            MixerSpec::Attention(attention) => attention.window,
            MixerSpec::GatedDelta(_) => None,
        }
    }

    /// Gives a layer of attention a sliding window, or takes it away.
    pub(crate) fn set_window(&mut self, window: Option<usize>) {
        if let MixerSpec::Attention(attention) = &mut self.mixer {
            attention.window = window;
        }
    }
}
