//! RecurrentGemma: Griffin's recurrent block in two of three layers, attention in a window in the others.

use super::{
    common,
    hybrid::{MAX_KERNEL, require_attention, unknown},
};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    mixers::GriffinSpec,
    norms::LayerNorms,
    source::Renames,
    spec::{MixerSpec, MlpSpec, Spec, TopNames},
};
use serde::Deserialize;
use serde_json::Value;
use taper_tensor::{RgLruShape, ops::Activation};

const FAMILY: &str = "recurrent_gemma";
const RENAMES: Renames =
    &[("self_attn", "temporal_block"), ("recurrent", "temporal_block"), ("mlp", "mlp_block")];
/// The context of the published models; config.json says nothing of it.
const POSITIONS: usize = 8192;

#[derive(Deserialize)]
struct Own {
    block_types: Option<Vec<String>>,
    lru_width: Option<usize>,
    conv1d_width: Option<usize>,
    attention_window_size: Option<usize>,
    logits_soft_cap: Option<f32>,
    #[serde(default)]
    attention_bias: bool,
}

pub(super) fn recurrent_gemma(
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_activation", &["gelu_pytorch_tanh"])?;
    let config = &config::with_default(config, "max_position_embeddings", POSITIONS);
    let config = &config::one_name(config, "attention_window_size", "sliding_window")?;
    let shape: Shape = config::parse(FAMILY, config)?;
    let own: Own = config::parse(FAMILY, config)?;
    let mut rope = config::rope(FAMILY, config, 10_000.0)?;
    rope.partial_rotary_factor.get_or_insert(0.5);
    let mut spec = common(FAMILY, &shape, &rope, options)?;
    spec.renames = RENAMES;
    spec.top = TopNames { norm: "final_norm", ..TopNames::LLAMA };
    let (mixer, mlp) = (Some("temporal_pre_norm"), Some("channel_pre_norm"));
    spec.norms = LayerNorms { mixer, mlp, ..LayerNorms::PRE };
    spec.norm_offset = 1.0;
    spec.activation = Activation::GeluTanh;
    (spec.qkv_bias, spec.out_bias, spec.mlp_bias) = (own.attention_bias, true, true);
    spec.embed_scale = Some(as_bf16((spec.hidden as f32).sqrt()));
    let cap = own.logits_soft_cap.unwrap_or(30.0);
    config::factors(FAMILY, &[("logits_soft_cap", Some(cap))])?;
    spec.logit_soft_cap = Some(cap);
    spec.tied = shape.tied(true);
    let griffin = own.griffin(&spec)?;
    let window = own.attention_window_size.unwrap_or(2048);
    let default = || ["recurrent", "recurrent", "attention"].map(str::to_owned).to_vec();
    let kinds = own.block_types.unwrap_or_else(default);
    // The list is repeated.
    for (layer, kind) in spec.layers.iter_mut().zip(kinds.iter().cycle()) {
        layer.mixer = match kind.as_str() {
            "recurrent" => MixerSpec::Griffin(griffin),
            "attention" => MixerSpec::attention(Some(0), Some(window)),
            other => return Err(unknown(FAMILY, "block_types", other)),
        };
        let inner = shape.intermediate_size / 2;
        config::size(FAMILY, "intermediate_size", inner, config::MAX_SIZE)?;
        layer.mlp = MlpSpec::Dense(inner);
    }
    if kinds.is_empty() {
        return Err(unknown(FAMILY, "block_types", "[]"));
    }
    require_attention(FAMILY, "block_types", &spec.layers)?;
    Ok(spec)
}

impl Own {
    fn griffin(&self, spec: &Spec) -> Result<GriffinSpec, ModelError> {
        let width = self.lru_width.unwrap_or(spec.hidden);
        let kernel = self.conv1d_width.unwrap_or(4);
        config::size(FAMILY, "lru_width", width, config::MAX_SIZE)?;
        config::size(FAMILY, "conv1d_width", kernel, MAX_KERNEL)?;
        if !width.is_multiple_of(spec.heads) {
            return Err(unknown(FAMILY, "lru_width", &width.to_string()));
        }
        let shape = RgLruShape { heads: spec.heads, head_dim: width / spec.heads };
        Ok(GriffinSpec { shape, kernel })
    }
}

/// The nearest number that bf16 has: transformers keeps the factor of embeddings so, in every model.
fn as_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn factors_are_rounded() {
        assert_eq!(as_bf16(2560f32.sqrt()), 50.5);
        assert_eq!(as_bf16(8.0), 8.0);
    }

    #[test]
    fn what_is_not_run_is_refused_by_name() {
        let config = json!({"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8,
                            "num_hidden_layers": 4, "num_attention_heads": 2});
        let spec = recurrent_gemma(&config, LoadOptions::default()).unwrap();
        let attends: Vec<_> = spec.layers.iter().map(|layer| layer.mixer.attends()).collect();
        assert_eq!(attends, [false, false, true, false]);
        for (field, value) in [
            ("block_types", json!(["recurrent"])),
            ("block_types", json!(["other"])),
            ("block_types", json!([])),
            ("lru_width", json!(7)),
            ("conv1d_width", json!(0)),
            ("logits_soft_cap", json!(0.0)),
            ("hidden_activation", json!("gelu")),
        ] {
            let mut config = config.clone();
            config[field] = value;
            let error = recurrent_gemma(&config, LoadOptions::default()).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
