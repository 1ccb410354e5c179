//! What makes one model differ from another, as config.json says it.

use crate::{
    Ahead, ImagePositions, ModelError,
    experts::ExpertSpec,
    mixers::{BesideSpec, DeltaSpec, GriffinSpec, Mamba2Spec, MambaSpec, ShortConvSpec},
    norms::{LayerNorms, NormKind},
    source::Renames,
};
use taper_kv_cache::KvHeads;
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
    /// Offset of the norm before the output projection, where it is its own.
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
    /// Each layer of the file is two, which call their tensors so (LongCat).
    pub(crate) halves: Option<[Renames; 2]>,
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
    /// Sinks in layers with a window only (MiMo V2 Flash).
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
    /// Embeddings of each layer's own (Gemma 3n and 4).
    pub(crate) per_layer: Option<PerLayerSpec>,
    /// Several streams instead of one (Gemma 3n).
    pub(crate) streams: Option<StreamSpec>,
    /// What a layer gives is multiplied by its `layer_scalar` (Gemma 4).
    pub(crate) layer_scalar: bool,
    /// Tokens see those after them: a model for vectors of texts, not for text.
    pub(crate) bidirectional: bool,
    /// The output projection is the token table.
    pub(crate) tied: bool,
    pub(crate) ropes: Vec<RopeTable>,
    /// How images in prompts count; `None` of a model that takes none.
    pub(crate) images: Option<ImagePositions>,
    /// The token whose embeddings of each layer's own images have.
    pub(crate) padding: u32,
    /// Which tokens of prompts see tokens after them.
    pub(crate) ahead: Option<Ahead>,
    pub(crate) layers: Vec<LayerSpec>,
}

impl Spec {
    /// Layers up to the last that stores something of a token: others need only rows whose logits are wanted.
    pub(crate) fn storing(&self) -> usize {
        let reads = |layer: &LayerSpec| {
            matches!(layer.mixer, MixerSpec::Sharing(SharingSpec { values: Values::Of(_), .. }))
        };
        self.layers.iter().rposition(|layer| !reads(layer)).map_or(0, |last| last + 1)
    }

    /// Has tokens go through fewer experts than the model was trained with.
    ///
    /// # Errors
    /// It has none, or not as many.
    pub(crate) fn choose(&mut self, asked: usize) -> Result<(), ModelError> {
        let mut most = 0;
        for layer in &mut self.layers {
            let (MlpSpec::Experts(experts)
            | MlpSpec::DenseAndExperts(_, experts)
            | MlpSpec::Shortcut(_, experts)) = &mut layer.mlp
            else {
                continue;
            };
            most = most.max(experts.route.chosen);
            experts.route.chosen = experts.route.chosen.min(asked);
        }
        match (1..=most).contains(&asked) {
            true => Ok(()),
            false => Err(ModelError::TopK { asked, most }),
        }
    }

    /// Whether GPUs have every operation that it takes.
    pub(crate) fn runs_on_gpus(&self) -> bool {
        let layer = |layer: &LayerSpec| match layer.mixer {
            MixerSpec::None
            | MixerSpec::Attention(_)
            | MixerSpec::Latent(_)
            | MixerSpec::Sharing(_)
            | MixerSpec::ShortConv(_)
            | MixerSpec::Griffin(_) => true,
            MixerSpec::GatedDelta(delta) => delta.shape.fits_gpus(),
            MixerSpec::Mamba(mamba) => mamba.scan.fits_gpus(),
            MixerSpec::Mamba2(mamba) => mamba.shape.fits_gpus(),
            MixerSpec::Beside(both) => both.mamba.shape.fits_gpus(),
        };
        self.layers.iter().all(layer)
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
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum MlpSpec {
    /// The layer ends with its mixer.
    None,
    /// One, of this inner size.
    Dense(usize),
    Experts(ExpertSpec),
    /// One of this inner size, and experts beside it, each normed by themselves (Gemma 4).
    DenseAndExperts(usize, ExpertSpec),
    /// One of this inner size, whose gates count by what they are beyond so many standard deviations above their
    /// mean (Gemma 3n).
    Sparse(usize, f32),
    /// One of this inner size, and experts that read the same and whose result is added after the next layer
    /// (LongCat).
    Shortcut(usize, ExpertSpec),
    /// One of this inner size, after which what the layer before left over is added.
    AfterShortcut(usize),
}

/// Residual streams, of which layers compute one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamSpec {
    pub(crate) count: usize,
    /// The one that layers compute.
    pub(crate) active: usize,
    /// That one is scaled element by element where a layer's own inputs are added.
    pub(crate) scaled: bool,
    /// Inner size of the low-rank map beside attention.
    pub(crate) laurel: usize,
}

/// Embeddings that each layer has beside those that enter the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PerLayerSpec {
    /// Elements a layer.
    pub(crate) size: usize,
    /// Rows of their table.
    pub(crate) vocab: usize,
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
    /// Of each head, before it is rotated, without weights.
    HeadPlain,
    /// Of each head, after it is rotated (Hunyuan).
    Rotated,
    /// Of each head, after it is rotated, without weights, and only in layers that rotate (Llama 4).
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
    /// The softplus of `self_attn.gate_proj`, one a head.
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
            ("model.text_model.", "lm_head"),
            // Models for vectors of texts.
            ("", "lm_head"),
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
    Latent(LatentSpec),
    Sharing(SharingSpec),
}

/// Multi-head latent attention (DeepSeek V2).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LatentSpec {
    pub(crate) heads: usize,
    /// Queries come from a latent of this size; `None` projects them at once.
    pub(crate) q_lora: Option<usize>,
    /// Elements of the latent of keys and values.
    pub(crate) kv_lora: usize,
    /// Elements of a query head that are not rotated.
    pub(crate) nope: usize,
    /// Elements of a query head that are rotated, and of the key of positions that all heads share.
    pub(crate) rope: usize,
    /// Elements of a head's result.
    pub(crate) value: usize,
    /// Whether what reads the stream, and the output projection, have biases.
    pub(crate) bias: bool,
    /// Rotations turn neighbours, not halves.
    pub(crate) interleaved: bool,
    /// What is multiplied with the latents of queries, and of keys and values (LongCat).
    pub(crate) factors: [f32; 2],
    /// Epsilon of both latents' norms.
    pub(crate) norm_eps: f32,
    /// Scores are multiplied by it.
    pub(crate) scale: f32,
    /// Index into [`Spec::ropes`]; `None` leaves positions out.
    pub(crate) angles: Option<usize>,
    pub(crate) q_scale: Option<PositionScale>,
}

/// What makes one layer's attention differ from another's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct AttentionSpec {
    /// Index into [`Spec::ropes`]; `None` leaves positions out (NoPE).
    pub(crate) rope: Option<usize>,
    /// Sliding window in tokens.
    pub(crate) window: Option<usize>,
    /// Tokens see those of their own chunk of so many alone.
    pub(crate) chunk: Option<usize>,
    pub(crate) q_scale: Option<PositionScale>,
    /// Query heads, where a layer has not as many as [`Spec::heads`] says.
    pub(crate) heads: Option<usize>,
    /// Stored heads of keys and values, where they are fewer than [`Spec::kv_heads`]: each is as many of those as it
    /// must be.
    pub(crate) stored_kv_heads: Option<usize>,
}

/// Attention whose layers differ in their heads (Gemma 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharingSpec {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    /// Index into [`Spec::ropes`].
    pub(crate) rope: usize,
    /// Sliding window in tokens.
    pub(crate) window: Option<usize>,
    pub(crate) values: Values,
}

/// Where a layer's keys and values are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Values {
    /// Projections of its own.
    Own,
    /// A projection of its own for keys, whose raw output is the values, too.
    Keys,
    /// Another layer has stored them, counted among those that store such.
    Of(u16),
}

impl LatentSpec {
    /// Elements that the cache keeps of a token.
    pub(crate) fn cached(&self) -> usize {
        self.rope + self.kv_lora
    }
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
    /// What the cache keeps of a token, of a layer that stores keys and values.
    pub(crate) fn cached(&self, model: &Spec) -> Option<KvHeads> {
        let values_in_keys = matches!(self, Self::Latent(_));
        let (kv_heads, head_dim) = match self {
            Self::Attention(_) | Self::Beside(_) => (model.kv_heads, model.head_dim),
            Self::Latent(latent) => (1, latent.cached()),
            Self::Sharing(SharingSpec { values: Values::Of(_), .. }) => return None,
            Self::Sharing(own) => (own.kv_heads, own.head_dim),
            _ => return None,
        };
        Some(KvHeads { kv_heads, head_dim, values_in_keys })
    }

    /// Attention, and nothing special.
    pub(crate) fn attention(rope: Option<usize>, window: Option<usize>) -> Self {
        Self::Attention(AttentionSpec::new(rope, window))
    }

    /// Whether it keeps keys and values.
    pub(crate) fn attends(&self) -> bool {
        matches!(self, Self::Attention(_) | Self::Beside(_) | Self::Latent(_) | Self::Sharing(_))
    }

    /// Elements of each state that it keeps of a sequence.
    pub(crate) fn states(&self) -> Vec<usize> {
        match self {
            Self::None | Self::Attention(_) | Self::Latent(_) | Self::Sharing(_) => vec![],
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
        Self { rope, window, chunk: None, q_scale: None, heads: None, stored_kv_heads: None }
    }
}

impl LayerSpec {
    /// The sliding window, of a layer that has one.
    pub(crate) fn window(&self) -> Option<usize> {
        match self.mixer {
            MixerSpec::Attention(attention) => attention.window,
            MixerSpec::Sharing(attention) => attention.window,
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
