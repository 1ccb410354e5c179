//! What makes one model differ from another, as config.json says it.

use crate::{
    experts::ExpertSpec,
    mixers::{BesideSpec, DeltaSpec, GriffinSpec, Mamba2Spec, MambaSpec, ShortConvSpec},
    norms::{LayerNorms, NormKind},
    source::Renames,
};
use taper_tensor::{RopeTable, ops::Activation};

/// What makes one family differ from another.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) family: &'static str,
    pub(crate) vocab: usize,
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) max_positions: usize,
    pub(crate) norm_eps: f32,
    /// Added to every norm's weight: Gemma and Qwen 3.5 store `w - 1`.
    pub(crate) norm_offset: f32,
    pub(crate) norm: NormKind,
    pub(crate) norms: LayerNorms,
    /// Of norms of a mixer's or a feed-forward's output, where it is their own.
    pub(crate) after_norm_eps: Option<f32>,
    /// Of the norm before the output projection, where it is its own.
    pub(crate) last_norm_offset: Option<f32>,
    /// Rows of the token table are divided by the root of their mean square.
    pub(crate) embed_norm: bool,
    /// Norms of what the output and the down projection read: `self_attn.attn_sub_norm` and `mlp.ffn_sub_norm` (BitNet).
    pub(crate) sub_norms: bool,
    /// A table of positions whose rows are added to the embeddings (GPT-2).
    pub(crate) learned_positions: Option<&'static str>,
    /// The norms of layers that attend, where they differ (OLMo Hybrid).
    pub(crate) attention_norms: Option<LayerNorms>,
    /// The feed-forward reads what the mixer reads, not what it gives (Cohere).
    pub(crate) parallel: bool,
    /// Maps are stored with their inputs first (GPT-2).
    pub(crate) inputs_first: bool,
    /// What the family calls its tensors.
    pub(crate) renames: Renames,
    pub(crate) top: TopNames,
    pub(crate) qk_norm: Option<QkNorm>,
    pub(crate) qkv_bias: bool,
    pub(crate) out_bias: bool,
    pub(crate) mlp_bias: bool,
    pub(crate) head_bias: bool,
    /// One tensor for query, key and value: `self_attn.qkv_proj`.
    pub(crate) fused_qkv: Option<FusedQkv>,
    /// One tensor for gate and up: `mlp.gate_up_proj` (Phi 3).
    pub(crate) fused_mlp: bool,
    /// Rotations turn neighbours, `(2i, 2i + 1)`, not halves. Rows of queries and keys are sorted when they are loaded.
    pub(crate) interleaved: bool,
    pub(crate) attention_gate: Option<AttentionGate>,
    pub(crate) activation: Activation,
    /// Feed-forwards multiply their activation with a second projection.
    pub(crate) gated_mlp: bool,
    /// Feed-forwards have an activation of numbers that they store: xIELU, below `mlp.act_fn` (Apertus).
    pub(crate) xielu: bool,
    /// What gates of feed-forwards are multiplied by before their activation, and what results are (Falcon-H1).
    pub(crate) mlp_scales: Option<[f32; 2]>,
    pub(crate) attn_scale: f32,
    pub(crate) attn_soft_cap: Option<f32>,
    /// A learned score without a value in every head's softmax (gpt-oss).
    pub(crate) attn_sinks: bool,
    /// The same, in layers with a window only (MiMo V2 Flash).
    pub(crate) window_sinks: bool,
    /// Elements of a head of values, where they are fewer than [`Spec::head_dim`]. The cache keeps zeros after them.
    pub(crate) value_dim: Option<usize>,
    /// Values are multiplied by it.
    pub(crate) value_scale: Option<f32>,
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

impl Spec {
    /// Whether GPUs have every operation that it takes.
    pub(crate) fn runs_on_gpus(&self) -> bool {
        let layer = |layer: &LayerSpec| {
            let mixer = match layer.mixer {
                MixerSpec::Attention(attention) => attention.q_scale.is_none(),
                _ => false,
            };
            let mlp = match layer.mlp {
                MlpSpec::None => false,
                MlpSpec::Dense(_) => true,
                // Their result is added to what they read.
                MlpSpec::Experts(experts) => {
                    let alone = self.norms.after_mlp.is_none() && self.branch_scale.is_none();
                    let whole = experts.scale == 1.0 && experts.limits == [None; 2];
                    experts.shared.is_none() && experts.route.is_plain() && alone && whole
                }
            };
            mixer && mlp
        };
        matches!(self.norm, NormKind::Rms | NormKind::RmsPlain)
            && matches!(self.activation, Activation::Silu | Activation::GeluTanh)
            && self.gated_mlp
            && !self.parallel
            && self.attention_gate.is_none()
            && self.value_dim.is_none()
            && self.value_scale.is_none()
            && self.layers.iter().all(layer)
    }
}

/// What makes one layer differ from another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LayerSpec {
    /// How tokens read each other.
    pub(crate) mixer: MixerSpec,
    /// What follows.
    pub(crate) mlp: MlpSpec,
}

/// A layer's feed-forward.
#[expect(clippy::large_enum_variant, reason = "there is one a layer")]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum MlpSpec {
    /// The layer ends with its mixer.
    None,
    /// One, of this inner size.
    Dense(usize),
    Experts(ExpertSpec),
}

/// How rows of queries, keys and values lie in one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FusedQkv {
    /// All queries, then all keys, then all values (Phi 3).
    Rows,
    /// The queries that share a head of keys and values, then that head's key and value; one such group after the
    /// other (InternLM 2, GPT-NeoX).
    Groups,
}

/// Norms of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QkNorm {
    /// Of each head, before it is rotated (Qwen 3, Gemma 3).
    Head,
    /// The same without weights.
    HeadPlain,
    /// Of each head, after it is rotated (Hunyuan).
    Rotated,
    /// The same without weights, in layers that rotate (Llama 4).
    RotatedPlain,
    /// Of all heads of a token together, before they are rotated (OLMo).
    Whole,
}

/// What scales attention's result before its output projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttentionGate {
    /// The sigmoid of a gate that stands beside each query head in `q_proj` (Qwen 3.5).
    InQuery,
    /// The sigmoid of `self_attn.gate_proj`, element by element.
    Projected,
    /// The sigmoid of `self_attn.gate_proj`, one a head.
    ProjectedHead,
    /// The softplus of `self_attn.gate_proj`, `ln(1 + e^x)`, element by element (Laguna).
    Softplus,
    /// The same, one a head.
    SoftplusHead,
}

/// What a checkpoint calls the tensors around its layers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TopNames {
    /// Where the decoder may be, with its dot, and the output projection then.
    pub(crate) places: &'static [(&'static str, &'static str)],
    pub(crate) embed: &'static str,
    pub(crate) layers: &'static str,
    pub(crate) norm: &'static str,
}

impl TopNames {
    /// Llama's, and those of models that see: Hugging Face and MLX put these in different places.
    pub(crate) const LLAMA: Self = Self {
        places: &[
            ("model.", "lm_head"),
            ("model.language_model.", "lm_head"),
            ("language_model.model.", "language_model.lm_head"),
        ],
        embed: "embed_tokens",
        layers: "layers",
        norm: "norm",
    };
}

/// How a layer's tokens read each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum MixerSpec {
    /// The layer is a feed-forward only.
    None,
    Attention(AttentionSpec),
    GatedDelta(DeltaSpec),
    Mamba(MambaSpec),
    Mamba2(Mamba2Spec),
    ShortConv(ShortConvSpec),
    Griffin(GriffinSpec),
    /// Attention and Mamba 2 read the same.
    Beside(BesideSpec),
}

/// What makes one layer's attention differ from another's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct AttentionSpec {
    /// Index into [`Spec::ropes`]; `None` leaves positions out (NoPE).
    pub(crate) rope: Option<usize>,
    /// Sliding window in tokens.
    pub(crate) window: Option<usize>,
    pub(crate) q_scale: Option<PositionScale>,
    /// Query heads, where a layer has not as many as [`Spec::heads`] says.
    pub(crate) heads: Option<usize>,
    /// Stored heads of keys and values, where they are fewer than [`Spec::kv_heads`]: each is as many of those as it
    /// must be.
    pub(crate) stored_kv_heads: Option<usize>,
}

/// Queries of far positions are multiplied with `1 + beta * ln(1 + floor((position + offset) / every))` (Llama 4).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PositionScale {
    pub(crate) beta: f32,
    pub(crate) every: f32,
    pub(crate) offset: f32,
}

impl PositionScale {
    pub(crate) fn at(self, position: u32) -> f32 {
        1.0 + self.beta * (1.0 + ((position as f32 + self.offset) / self.every).floor()).ln()
    }
}

impl MixerSpec {
    /// Attention, and nothing special.
    pub(crate) fn attention(rope: Option<usize>, window: Option<usize>) -> Self {
        Self::Attention(AttentionSpec::new(rope, window))
    }

    /// Whether it keeps keys and values.
    pub(crate) fn attends(&self) -> bool {
        matches!(self, Self::Attention(_) | Self::Beside(_))
    }

    /// Elements of each state that it keeps of a sequence.
    pub(crate) fn states(&self) -> Vec<usize> {
        match self {
            Self::None | Self::Attention(_) => vec![],
            Self::GatedDelta(delta) => vec![delta.shape.state_len()],
            Self::Mamba(mamba) => vec![mamba.conv().state_len(), mamba.scan.state_len()],
            Self::Mamba2(mamba) => vec![mamba.shape.state_len()],
            Self::ShortConv(conv) => vec![conv.shape.state_len()],
            Self::Griffin(own) => vec![own.conv().state_len(), own.shape.width()],
            Self::Beside(both) => vec![both.mamba.shape.state_len()],
        }
    }
}

impl AttentionSpec {
    /// Attention, and nothing special.
    pub(crate) fn new(rope: Option<usize>, window: Option<usize>) -> Self {
        Self { rope, window, q_scale: None, heads: None, stored_kv_heads: None }
    }
}

impl LayerSpec {
    /// The sliding window, of a layer that has one.
    pub(crate) fn window(&self) -> Option<usize> {
        match self.mixer {
            MixerSpec::Attention(attention) => attention.window,
            _ => None,
        }
    }

    /// Gives a layer of attention a sliding window, or takes it away.
    pub(crate) fn set_window(&mut self, window: Option<usize>) {
        if let MixerSpec::Attention(attention) = &mut self.mixer {
            attention.window = window;
        }
    }
}
