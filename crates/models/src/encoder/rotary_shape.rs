//! What config.json says of an encoder that rotates queries and keys, and what its tensors are called.

use super::shape::activation;
use crate::{
    ModelError, config,
    rope::{RopeConfig, RopeContext},
};
use serde::Deserialize;
use serde_json::Value;
use taper_tensor::{RopeTable, ops::Activation};

/// Sizes and names of an encoder.
#[derive(Debug, Clone)]
pub(super) struct RotaryShape {
    family: &'static str,
    pub(super) names: &'static Names,
    pub(super) vocab: usize,
    pub(super) hidden: usize,
    pub(super) intermediate: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) positions: usize,
    /// Rows of the table of kinds; 0 without one.
    pub(super) token_kinds: usize,
    pub(super) norm_eps: f32,
    pub(super) activation: Activation,
    pub(super) biases: Biases,
    ropes: Vec<RopeConfig>,
    /// Which of the ropes turns each layer, and its window.
    pub(super) turns: Vec<(usize, Option<usize>)>,
}

/// Which maps have a bias.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Biases {
    pub(super) qkv: bool,
    pub(super) out: bool,
    pub(super) gated: bool,
    pub(super) down: bool,
    pub(super) norm: bool,
}

/// Names of a family's tensors.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) words: &'static str,
    pub(super) kinds: Option<&'static str>,
    pub(super) norm: &'static str,
    pub(super) layers: &'static str,
    /// The norm behind the last layer, where layers norm what they read.
    pub(super) last: Option<&'static str>,
    pub(super) qkv: &'static str,
    pub(super) out: &'static str,
    pub(super) attention_norm: &'static str,
    pub(super) gate_up: GateUp,
    pub(super) down: &'static str,
    pub(super) gated_norm: &'static str,
}

/// What is activated, and what it is multiplied with.
#[derive(Debug, Clone, Copy)]
pub(super) enum GateUp {
    Joined(&'static str),
    Apart(&'static str, &'static str),
}

static MODERNBERT: Names = Names {
    words: "embeddings.tok_embeddings",
    kinds: None,
    norm: "embeddings.norm",
    layers: "layers",
    last: Some("final_norm"),
    qkv: "attn.Wqkv",
    out: "attn.Wo",
    attention_norm: "attn_norm",
    gate_up: GateUp::Joined("mlp.Wi"),
    down: "mlp.Wo",
    gated_norm: "mlp_norm",
};

static NOMIC: Names = Names {
    words: "embeddings.word_embeddings",
    kinds: Some("embeddings.token_type_embeddings"),
    norm: "emb_ln",
    layers: "encoder.layers",
    last: None,
    qkv: "attn.Wqkv",
    out: "attn.out_proj",
    attention_norm: "norm1",
    gate_up: GateUp::Apart("mlp.fc12", "mlp.fc11"),
    down: "mlp.fc2",
    gated_norm: "norm2",
};

#[derive(Deserialize)]
struct ModernBert {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    max_position_embeddings: usize,
    hidden_activation: Option<String>,
    norm_eps: Option<f32>,
    #[serde(default)]
    norm_bias: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    local_attention: Option<usize>,
    layer_types: Option<Vec<String>>,
    global_attn_every_n_layers: Option<usize>,
    global_rope_theta: Option<f64>,
    local_rope_theta: Option<f64>,
    rope_parameters: Option<RopesByKind>,
}

#[derive(Deserialize)]
struct RopesByKind {
    full_attention: Option<RopeConfig>,
    sliding_attention: Option<RopeConfig>,
}

/// By the names of the published file, or those of transformers.
#[derive(Deserialize)]
struct Nomic {
    vocab_size: usize,
    #[serde(alias = "n_embd")]
    hidden_size: usize,
    #[serde(alias = "n_inner")]
    intermediate_size: Option<usize>,
    #[serde(alias = "n_layer")]
    num_hidden_layers: usize,
    #[serde(alias = "n_head")]
    num_attention_heads: usize,
    #[serde(alias = "n_positions")]
    max_position_embeddings: usize,
    type_vocab_size: Option<usize>,
    #[serde(alias = "layer_norm_epsilon")]
    layer_norm_eps: Option<f32>,
    #[serde(alias = "activation_function")]
    hidden_act: Option<String>,
    rotary_emb_base: Option<f64>,
    rope_parameters: Option<RopeConfig>,
    #[serde(default)]
    qkv_proj_bias: bool,
    #[serde(default)]
    mlp_fc1_bias: bool,
    #[serde(default)]
    mlp_fc2_bias: bool,
}

impl RotaryShape {
    pub(super) fn modernbert(config: &Value) -> Result<Self, ModelError> {
        let family = "modernbert";
        config::refuse(family, config, "rope_scaling")?;
        let own: ModernBert = config::parse(family, config)?;
        let every = own.global_attn_every_n_layers.unwrap_or(3).max(1);
        let ropes = own.rope_parameters.as_ref();
        let rope = |section: Option<&RopeConfig>, older: Option<f64>, base| {
            let section = section.cloned().unwrap_or_default();
            let theta = section.rope_theta.or(older).unwrap_or(base);
            section.at(theta)
        };
        let full = ropes.and_then(|ropes| ropes.full_attention.as_ref());
        let near = ropes.and_then(|ropes| ropes.sliding_attention.as_ref());
        let full = rope(full, own.global_rope_theta, 160_000.0);
        let near = rope(near, own.local_rope_theta, 10_000.0);
        // Half of the window lies on each side of a token, which is in it too.
        let window = own.local_attention.unwrap_or(128) / 2 + 1;
        config::size(family, "num_hidden_layers", own.num_hidden_layers, usize::from(u16::MAX))?;
        let listed = own.layer_types.as_deref();
        let turn = |layer: usize| {
            let slides = config::slides(family, listed, layer, !layer.is_multiple_of(every))?;
            Ok(if slides { (1, Some(window)) } else { (0, None) })
        };
        let turns = (0..own.num_hidden_layers).map(turn).collect::<Result<_, ModelError>>()?;
        let (attention, gated) = (own.attention_bias, own.mlp_bias);
        let shape = Self {
            family,
            names: &MODERNBERT,
            vocab: own.vocab_size,
            hidden: own.hidden_size,
            intermediate: own.intermediate_size,
            layers: own.num_hidden_layers,
            heads: own.num_attention_heads,
            positions: own.max_position_embeddings,
            token_kinds: 0,
            norm_eps: own.norm_eps.unwrap_or(1e-5),
            activation: activation(family, "hidden_activation", own.hidden_activation.as_deref())?,
            biases: Biases {
                qkv: attention,
                out: attention,
                gated,
                down: gated,
                norm: own.norm_bias,
            },
            ropes: vec![full, near],
            turns,
        };
        shape.check()
    }

    pub(super) fn nomic(config: &Value) -> Result<Self, ModelError> {
        let family = "nomic_bert";
        for field in [
            "prenorm",
            "use_rms_norm",
            "causal",
            "parallel_block",
            "rotary_emb_interleaved",
            "rotary_scaling_factor",
            "rotary_emb_scale_base",
            "moe_every_n_layers",
        ] {
            if config.get(field).and_then(Value::as_u64) != Some(0) {
                config::refuse(family, config, field)?;
            }
        }
        let whole = config.get("rotary_emb_fraction").and_then(Value::as_f64);
        if let Some(part) = whole.filter(|&part| part != 1.0) {
            let (field, value) = ("rotary_emb_fraction", part.to_string());
            return Err(ModelError::Unsupported { family, field, value });
        }
        let own: Nomic = config::parse(family, config)?;
        let act = match own.hidden_act.as_deref() {
            Some("swiglu") | None => Activation::Silu,
            Some("geglu") => Activation::Gelu,
            named => activation(family, "hidden_act", named)?,
        };
        let rope = own.rope_parameters.unwrap_or_default();
        let theta = rope.rope_theta.or(own.rotary_emb_base).unwrap_or(1000.0);
        config::size(family, "num_hidden_layers", own.num_hidden_layers, usize::from(u16::MAX))?;
        let shape = Self {
            family,
            names: &NOMIC,
            vocab: own.vocab_size,
            hidden: own.hidden_size,
            intermediate: own.intermediate_size.unwrap_or(own.hidden_size.saturating_mul(4)),
            layers: own.num_hidden_layers,
            heads: own.num_attention_heads,
            positions: own.max_position_embeddings,
            token_kinds: own.type_vocab_size.unwrap_or(2),
            norm_eps: own.layer_norm_eps.unwrap_or(1e-12),
            activation: act,
            biases: Biases {
                qkv: own.qkv_proj_bias,
                out: own.qkv_proj_bias,
                gated: own.mlp_fc1_bias,
                down: own.mlp_fc2_bias,
                norm: true,
            },
            ropes: vec![rope.at(theta)],
            turns: vec![(0, None); own.num_hidden_layers],
        };
        shape.check()
    }

    /// The frequencies of each rope.
    pub(super) fn tables(&self) -> Result<Vec<RopeTable>, ModelError> {
        let context = RopeContext {
            family: self.family,
            head_dim: self.hidden / self.heads,
            max_positions: self.positions,
            run_positions: self.positions,
        };
        self.ropes.iter().map(|rope| rope.table(context)).collect()
    }

    fn check(self) -> Result<Self, ModelError> {
        let family = self.family;
        for (field, value) in [
            ("vocab_size", self.vocab),
            ("hidden_size", self.hidden),
            ("intermediate_size", self.intermediate),
            ("num_attention_heads", self.heads),
        ] {
            config::size(family, field, value, config::MAX_SIZE)?;
        }
        config::size(family, "max_position_embeddings", self.positions, config::MAX_POSITIONS)?;
        let bad = |field, value: String| Err(ModelError::Unsupported { family, field, value });
        if self.token_kinds > config::MAX_SIZE {
            return bad("type_vocab_size", self.token_kinds.to_string());
        }
        if !self.hidden.is_multiple_of(2 * self.heads) {
            return bad("num_attention_heads", self.heads.to_string());
        }
        if !(0.0..=1.0).contains(&self.norm_eps) {
            return bad("norm_eps", self.norm_eps.to_string());
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn modernbert() -> Value {
        json!({"model_type": "modernbert", "vocab_size": 10, "hidden_size": 8, "intermediate_size": 8,
               "num_hidden_layers": 4, "num_attention_heads": 2, "max_position_embeddings": 16})
    }

    fn nomic() -> Value {
        json!({"model_type": "nomic_bert", "vocab_size": 10, "n_embd": 8, "n_inner": 8, "n_layer": 1,
               "n_head": 2, "n_positions": 16, "activation_function": "swiglu"})
    }

    #[test]
    fn every_third_layer_sees_all() -> Result<(), ModelError> {
        let shape = RotaryShape::modernbert(&modernbert())?;
        let windows: Vec<_> = shape.turns.iter().map(|(_, window)| *window).collect();
        assert_eq!(windows, [None, Some(65), Some(65), None]);
        Ok(())
    }

    #[test]
    fn what_is_not_run_is_refused_by_name() {
        let of_modernbert: &dyn Fn(&Value) -> _ = &RotaryShape::modernbert;
        let of_nomic: &dyn Fn(&Value) -> _ = &RotaryShape::nomic;
        for (read, config, field, value) in [
            (of_modernbert, modernbert(), "hidden_activation", json!("relu")),
            (of_modernbert, modernbert(), "layer_types", json!(["full_attention"])),
            (of_modernbert, modernbert(), "rope_scaling", json!({"factor": 2.0})),
            (of_modernbert, modernbert(), "num_attention_heads", json!(3)),
            (of_modernbert, modernbert(), "num_hidden_layers", json!(1u64 << 40)),
            (of_nomic, nomic(), "prenorm", json!(true)),
            (of_nomic, nomic(), "rotary_emb_fraction", json!(0.5)),
            (of_nomic, nomic(), "moe_every_n_layers", json!(2)),
            (of_nomic, nomic(), "rotary_scaling_factor", json!(2)),
            (of_nomic, nomic(), "type_vocab_size", json!(1u64 << 40)),
        ] {
            let mut config = config;
            config[field] = value;
            let error = read(&config).unwrap_err().to_string();
            assert!(error.contains(field), "{field}: {error}");
        }
    }
}
