//! Falcon-H1 and Bamba: Mamba 2 beside attention in every layer, or in place of it in most.

use super::{
    common,
    hybrid::{Bamba, require_attention, unknown},
    read,
};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    mixers::{BesideSpec, Mamba2Spec, StateNorm},
    norms::LayerNorms,
    source::Renames,
    spec::{AttentionSpec, MixerSpec, Spec, TopNames},
};
use serde::Deserialize;
use serde_json::Value;

const RENAMES: Renames = &[("mlp", "feed_forward")];
const NORMS: LayerNorms = LayerNorms { mlp: Some("pre_ff_layernorm"), ..LayerNorms::PRE };
const TOP: TopNames = TopNames { norm: "final_layernorm", ..TopNames::LLAMA };

#[derive(Deserialize)]
struct Indices {
    attn_layer_indices: Option<Vec<usize>>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
}

pub(super) fn bamba(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let family = "bamba";
    config::require(family, config, "hidden_act", &["silu"])?;
    let config = &config::with_default(config, "rms_norm_eps", 1e-5);
    let shape: Shape = config::parse(family, config)?;
    let own: Indices = config::parse(family, config)?;
    let mut rope = config::rope(family, config, 10_000.0)?;
    // As in transformers, whatever config.json says.
    rope.partial_rotary_factor = Some(0.5);
    let mut spec = common(family, &shape, &rope, options)?;
    (spec.renames, spec.norms, spec.top) = (RENAMES, NORMS, TOP);
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    spec.mlp_bias = own.mlp_bias;
    let mamba: Bamba = config::parse(family, config)?;
    let mamba = mamba.spec(family, spec.hidden)?;
    let attends = own.attn_layer_indices.unwrap_or_default();
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        if !attends.contains(&i) {
            layer.mixer = MixerSpec::Mamba2(mamba);
        }
    }
    require_attention(family, "attn_layer_indices", &spec.layers)?;
    Ok(spec)
}

const FAMILY: &str = "falcon_h1";

#[derive(Deserialize)]
struct Own {
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    projectors_bias: bool,
    #[serde(default)]
    mamba_proj_bias: bool,
    mamba_rms_norm: Option<bool>,
    mamba_norm_before_gate: Option<bool>,
    lm_head_multiplier: Option<f32>,
    embedding_multiplier: Option<f32>,
    mlp_multipliers: Option<[f32; 2]>,
    key_multiplier: Option<f32>,
    attention_in_multiplier: Option<f32>,
    attention_out_multiplier: Option<f32>,
    ssm_multipliers: Option<[f32; 5]>,
    ssm_in_multiplier: Option<f32>,
    ssm_out_multiplier: Option<f32>,
}

impl Own {
    /// Refuses what is no factor.
    fn check(&self) -> Result<(), ModelError> {
        let one = [
            ("lm_head_multiplier", self.lm_head_multiplier),
            ("embedding_multiplier", self.embedding_multiplier),
            ("key_multiplier", self.key_multiplier),
            ("attention_in_multiplier", self.attention_in_multiplier),
            ("attention_out_multiplier", self.attention_out_multiplier),
            ("ssm_in_multiplier", self.ssm_in_multiplier),
            ("ssm_out_multiplier", self.ssm_out_multiplier),
        ];
        let mlp = self.mlp_multipliers.iter().flatten().map(|&x| ("mlp_multipliers", Some(x)));
        let ssm = self.ssm_multipliers.iter().flatten().map(|&x| ("ssm_multipliers", Some(x)));
        let all: Vec<_> = one.into_iter().chain(mlp).chain(ssm).collect();
        config::factors(FAMILY, &all)
    }

    /// Mamba 2 of a layer. The norm's rows are multiplied before the projection, which has no bias: as well after it.
    fn mamba(&self, config: &Value, hidden: usize) -> Result<Mamba2Spec, ModelError> {
        if self.projectors_bias != self.mamba_proj_bias {
            return Err(unknown(FAMILY, "projectors_bias", &self.projectors_bias.to_string()));
        }
        let mamba: Bamba = config::parse(FAMILY, config)?;
        let mamba = mamba.spec(FAMILY, hidden)?;
        let before = self.ssm_in_multiplier.unwrap_or(1.0);
        let factors = self.ssm_multipliers.unwrap_or([1.0; 5]).map(|factor| factor * before);
        let norm = match (self.mamba_rms_norm, self.mamba_norm_before_gate) {
            (None | Some(false), _) => StateNorm::None,
            (Some(true), Some(false)) => StateNorm::AfterGate,
            (Some(true), _) => StateNorm::BeforeGate,
        };
        Ok(Mamba2Spec { factors: Some(factors), norm, ..mamba })
    }
}

pub(super) fn falcon_h1(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    // Rows that are multiplied first would want biases that are multiplied, too.
    for field in ["attention_bias", "mamba_proj_bias"] {
        config::refuse(FAMILY, config, field)?;
    }
    let config = &config::with_default(config, "rms_norm_eps", 1e-5);
    let own: Own = config::parse(FAMILY, config)?;
    own.check()?;
    let (_, mut spec) = read(FAMILY, config, 10_000.0, options)?;
    (spec.renames, spec.norms, spec.top) = (RENAMES, NORMS, TOP);
    spec.mlp_bias = own.mlp_bias;
    spec.embed_scale = own.embedding_multiplier;
    spec.logit_scale = own.lm_head_multiplier;
    spec.mlp_scales = own.mlp_multipliers;
    let before = own.attention_in_multiplier.unwrap_or(1.0);
    // What multiplies the rows that attention reads multiplies queries, keys and values.
    spec.attn_scale *= own.key_multiplier.unwrap_or(1.0) * before * before;
    let both = BesideSpec {
        attention: AttentionSpec::new(Some(0), None),
        attention_scale: own.attention_out_multiplier.unwrap_or(1.0) * before,
        mamba: own.mamba(config, spec.hidden)?,
        mamba_scale: own.ssm_out_multiplier.unwrap_or(1.0),
    };
    spec.layers.iter_mut().for_each(|layer| layer.mixer = MixerSpec::Beside(both));
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config() -> Value {
        json!({"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2,
               "num_attention_heads": 2, "max_position_embeddings": 16, "mamba_n_heads": 4,
               "mamba_d_state": 4, "attn_layer_indices": [1]})
    }

    #[test]
    fn what_is_not_run_is_refused_by_name() {
        for (field, value) in [
            ("attention_bias", json!(true)),
            ("mamba_proj_bias", json!(true)),
            ("projectors_bias", json!(true)),
            ("key_multiplier", json!(0.0)),
            ("ssm_multipliers", json!([1.0, 1.0])),
            ("mlp_multipliers", json!([1.0, -1.0])),
            ("mamba_d_ssm", json!(7)),
            ("hidden_act", json!("gelu")),
        ] {
            let mut config = config();
            config[field] = value;
            let error = falcon_h1(&config, LoadOptions::default()).unwrap_err().to_string();
            let named = if field == "mamba_d_ssm" { "mamba_d_head" } else { field };
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn bamba_attends_in_some_layers() {
        let spec = bamba(&config(), LoadOptions::default()).unwrap();
        let attends: Vec<_> = spec.layers.iter().map(|layer| layer.mixer.attends()).collect();
        assert_eq!(attends, [false, true]);
        let mut config = config();
        config["attn_layer_indices"] = json!([]);
        let error = bamba(&config, LoadOptions::default()).unwrap_err().to_string();
        assert!(error.contains("attn_layer_indices"), "{error}");
    }
}
