//! Nemotron-H and Nemotron 3 Nano: layers of one block each, which is Mamba 2, attention without positions, a
//! feed-forward or experts, all without gates.

use super::{
    common,
    hybrid::{Mamba2Fields, TimeSteps, kind, require_attention, unknown},
};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    experts::{ExpertSpec, SharedSpec},
    mixers::Mamba2Spec,
    norms::LayerNorms,
    rope::RopeConfig,
    router::{Groups, Route},
    source::Renames,
    spec::{LayerSpec, MixerSpec, MlpSpec, Spec, TopNames},
};
use serde::Deserialize;
use serde_json::Value;
use taper_tensor::ops::Activation;

const FAMILY: &str = "nemotron_h";

const RENAMES: Renames = &[
    ("mlp.switch_mlp.up_proj", "mlp.switch_mlp.fc1"),
    ("mlp.switch_mlp.down_proj", "mlp.switch_mlp.fc2"),
    ("mlp.shared_expert", "mlp.shared_experts"),
    ("self_attn", "mixer"),
    ("mamba", "mixer"),
    ("mlp", "mixer"),
];

/// The blocks of layers, without those around them.
const NORMS: LayerNorms =
    LayerNorms { mixer: Some("norm"), after_mixer: None, mlp: Some("norm"), after_mlp: None };

const TOP: TopNames = TopNames {
    places: &[("backbone.", "lm_head"), ("model.", "lm_head")],
    embed: "embeddings",
    layers: "layers",
    norm: "norm_f",
};

#[derive(Deserialize)]
struct Own {
    layers_block_type: Option<Vec<String>>,
    layer_types: Option<Vec<String>>,
    hybrid_override_pattern: Option<String>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    use_bias: bool,
    use_conv_bias: Option<bool>,
    mamba_num_heads: usize,
    mamba_head_dim: usize,
    n_groups: usize,
    ssm_state_size: usize,
    conv_kernel: usize,
    time_step_limit: Option<TimeSteps>,
}

impl Own {
    /// What each layer is.
    fn kinds(&self) -> Result<Vec<String>, ModelError> {
        if let Some(kinds) = self.layers_block_type.as_ref().or(self.layer_types.as_ref()) {
            return Ok(kinds.clone());
        }
        let field = "hybrid_override_pattern";
        let kind = |c: char| match c {
            'M' => Ok("mamba".to_owned()),
            '*' => Ok("attention".to_owned()),
            '-' => Ok("mlp".to_owned()),
            'E' => Ok("moe".to_owned()),
            other => Err(unknown(FAMILY, field, &other.to_string())),
        };
        match &self.hybrid_override_pattern {
            Some(pattern) => pattern.chars().map(kind).collect(),
            None => Err(unknown(FAMILY, "layers_block_type", "nothing")),
        }
    }

    /// The layer of Mamba 2. Its time steps are within `time_step_limit`, as in MLX, and one by
    /// one as in whole prompts. Transformers bounds them from below by `time_step_min` instead, in whole prompts alone,
    /// so that its own two forms differ.
    fn mamba(&self) -> Result<Mamba2Spec, ModelError> {
        let fields = Mamba2Fields {
            heads: ("mamba_num_heads", self.mamba_num_heads),
            head_dim: ("mamba_head_dim", self.mamba_head_dim),
            groups: ("n_groups", self.n_groups),
            state: ("ssm_state_size", self.ssm_state_size),
            kernel: ("conv_kernel", self.conv_kernel),
        };
        let inner = self.mamba_num_heads.saturating_mul(self.mamba_head_dim);
        let spec = fields.spec(FAMILY, inner, self.time_step_limit.unwrap_or_default())?;
        let conv_bias = self.use_conv_bias.unwrap_or(true);
        Ok(Mamba2Spec { bias: self.use_bias, conv_bias, ..spec })
    }
}

#[derive(Deserialize)]
struct Mixture {
    n_routed_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    moe_shared_expert_intermediate_size: usize,
    n_shared_experts: Option<usize>,
    moe_latent_size: Option<usize>,
    norm_topk_prob: Option<bool>,
    routed_scaling_factor: Option<f32>,
    n_group: Option<usize>,
    topk_group: Option<usize>,
}

impl Mixture {
    fn experts(&self) -> Result<ExpertSpec, ModelError> {
        if let Some(size) = self.moe_latent_size {
            return Err(unknown(FAMILY, "moe_latent_size", &size.to_string()));
        }
        // Whatever their number, there is one of the whole size.
        if self.n_shared_experts == Some(0) {
            return Err(unknown(FAMILY, "n_shared_experts", "0"));
        }
        let (count, kept) = (self.n_group.unwrap_or(1), self.topk_group.unwrap_or(1));
        let route = Route {
            scale: self.routed_scaling_factor.unwrap_or(1.0),
            groups: (count != 1).then_some(Groups { count, kept, best: 2 }),
            ..Route::sigmoid(self.num_experts_per_tok, self.norm_topk_prob.unwrap_or(true))
        };
        let intermediate = self.moe_shared_expert_intermediate_size;
        let experts = ExpertSpec {
            shared: Some(SharedSpec { intermediate, gated: false }),
            ..ExpertSpec::new(self.n_routed_experts, self.moe_intermediate_size, route)
        };
        experts.check(FAMILY)?;
        Ok(experts)
    }
}

pub(super) fn nemotron_h(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "mlp_hidden_act", &["relu2"])?;
    config::require(FAMILY, config, "mamba_hidden_act", &["silu"])?;
    for field in ["mamba_proj_bias", "sliding_window"] {
        config::refuse(FAMILY, config, field)?;
    }
    let own: Own = config::parse(FAMILY, config)?;
    let kinds = own.kinds()?;
    let mut config = config::with_default(config, "intermediate_size", 1);
    if let Some(fields) = config.as_object_mut() {
        // What the list says counts, and older files have the norm's name twice.
        fields.insert("num_hidden_layers".to_owned(), kinds.len().into());
        let eps = fields.get("layer_norm_epsilon").cloned().unwrap_or_else(|| 1e-5.into());
        fields.insert("rms_norm_eps".to_owned(), eps);
    }
    let shape: Shape = config::parse(FAMILY, &config)?;
    let mut spec = common(FAMILY, &shape, &RopeConfig::default(), options)?;
    spec.renames = RENAMES;
    spec.top = TOP;
    spec.norms = NORMS;
    spec.activation = Activation::Relu2;
    spec.gated_mlp = false;
    spec.mlp_bias = own.mlp_bias;
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    let mamba = own.mamba()?;
    let mixer = |mixer| LayerSpec { mixer, mlp: MlpSpec::None };
    let mlp = |mlp| LayerSpec { mixer: MixerSpec::None, mlp };
    for i in 0..spec.layers.len() {
        spec.layers[i] = match kind(FAMILY, "layers_block_type", &kinds, i)? {
            "mamba" | "linear_attention" => mixer(MixerSpec::Mamba2(mamba)),
            "attention" | "full_attention" => mixer(MixerSpec::attention(None, None)),
            "mlp" => mlp(MlpSpec::Dense(shape.intermediate_size)),
            "moe" => {
                let mixture: Mixture = config::parse(FAMILY, &config)?;
                mlp(MlpSpec::Experts(mixture.experts()?))
            }
            other => return Err(unknown(FAMILY, "layers_block_type", other)),
        };
    }
    require_attention(FAMILY, "layers_block_type", &spec.layers)?;
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config() -> Value {
        json!({"vocab_size": 8, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8,
               "max_position_embeddings": 16, "hybrid_override_pattern": "M*-E",
               "mamba_num_heads": 2, "mamba_head_dim": 4, "n_groups": 1, "ssm_state_size": 4,
               "conv_kernel": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
               "moe_intermediate_size": 4, "moe_shared_expert_intermediate_size": 4})
    }

    #[test]
    fn a_layer_has_one_block() {
        let spec = nemotron_h(&config(), LoadOptions::default()).unwrap();
        let mixers: Vec<_> = spec.layers.iter().map(|l| l.mixer != MixerSpec::None).collect();
        let mlps: Vec<_> = spec.layers.iter().map(|l| l.mlp != MlpSpec::None).collect();
        assert_eq!(
            (mixers, mlps),
            (vec![true, true, false, false], vec![false, false, true, true])
        );
    }

    #[test]
    fn what_is_not_run_is_refused_by_name() {
        for (field, value) in [
            ("hybrid_override_pattern", json!("M*X")),
            ("layers_block_type", json!(["mamba", "mlp"])),
            ("layers_block_type", json!(["attention", "other"])),
            ("moe_latent_size", json!(4)),
            ("sliding_window", json!(4)),
            ("mamba_proj_bias", json!(true)),
            ("mlp_hidden_act", json!("silu")),
            ("mamba_head_dim", json!(1u64 << 60)),
            ("n_groups", json!(0)),
            ("n_shared_experts", json!(0)),
        ] {
            let mut config = config();
            config[field] = value;
            let error = nemotron_h(&config, LoadOptions::default()).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
