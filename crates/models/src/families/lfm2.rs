//! LFM2 and LFM3: gated short convolutions in most layers, attention in the others.

use super::{
    common, context,
    hybrid::{MAX_KERNEL, kind, require_attention, unknown},
};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    experts::{ExpertNames, ExpertSpec},
    mixers::ShortConvSpec,
    norms::LayerNorms,
    rope::RopeConfig,
    router::{Route, Score},
    source::Renames,
    spec::{AttentionGate, MixerSpec, MlpSpec, QkNorm, Spec, TopNames},
};
use serde::Deserialize;
use serde_json::{Value, json};
use taper_tensor::ConvShape;

const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

const RENAMES: Renames = &[
    ("input_layernorm", "operator_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_norm", "self_attn.q_layernorm"),
    ("self_attn.k_norm", "self_attn.k_layernorm"),
    ("self_attn.o_proj", "self_attn.out_proj"),
    ("mlp.gate_proj", "feed_forward.w1"),
    ("mlp.up_proj", "feed_forward.w3"),
    ("mlp.down_proj", "feed_forward.w2"),
    ("mlp", "feed_forward"),
];

/// MLX's names of LFM2 with experts.
const MLX_RENAMES: Renames = &[
    ("input_layernorm", "operator_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_norm", "self_attn.q_layernorm"),
    ("self_attn.k_norm", "self_attn.k_layernorm"),
    ("self_attn.o_proj", "self_attn.out_proj"),
    ("mlp", "feed_forward"),
];

const LFM3_RENAMES: Renames = &[
    ("mlp.gate_proj", "feed_forward.w1"),
    ("mlp.up_proj", "feed_forward.w3"),
    ("mlp.down_proj", "feed_forward.w2"),
];

const TOP: TopNames = TopNames { norm: "embedding_norm", ..TopNames::LLAMA };

#[derive(Deserialize)]
struct Own {
    #[serde(rename = "conv_L_cache")]
    conv_l_cache: Option<usize>,
    #[serde(default)]
    conv_bias: bool,
    layer_types: Option<Vec<String>>,
    full_attn_idxs: Option<Vec<usize>>,
    tie_embedding: Option<bool>,
    sliding_window: Option<usize>,
}

impl Own {
    /// A layer's kind, where `otherwise` is what the family says of it.
    fn kind(
        &self,
        family: &'static str,
        i: usize,
        otherwise: &'static str,
    ) -> Result<&str, ModelError> {
        match (&self.layer_types, &self.full_attn_idxs) {
            (Some(types), _) => kind(family, "layer_types", types, i),
            (None, Some(full)) => Ok(if full.contains(&i) { FULL } else { "conv" }),
            (None, None) => Ok(otherwise),
        }
    }
}

/// What all of them agree on. `kinds` says what a layer is where config.json does not.
fn read(
    family: &'static str,
    config: &Value,
    kernel: usize,
    kinds: impl Fn(usize) -> &'static str,
    (rope, options): (&RopeConfig, LoadOptions<'_>),
) -> Result<(Shape, Own, Spec), ModelError> {
    let config = &config::one_name(config, "rms_norm_eps", "norm_eps")?;
    let shape: Shape = config::parse(family, &config::with_default(config, "rms_norm_eps", 1e-5))?;
    let own: Own = config::parse(family, config)?;
    let mut spec = common(family, &shape, rope, options)?;
    spec.top = TOP;
    spec.renames = RENAMES;
    spec.qk_norm = Some(QkNorm::Head);
    spec.tied = own.tie_embedding.unwrap_or(shape.tied(true));
    let kernel = own.conv_l_cache.unwrap_or(kernel);
    config::size(family, "conv_L_cache", kernel, MAX_KERNEL)?;
    let conv = ConvShape { channels: spec.hidden, kernel };
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        layer.mixer = match own.kind(family, i, kinds(i))? {
            "conv" => MixerSpec::ShortConv(ShortConvSpec { shape: conv, bias: own.conv_bias }),
            FULL => MixerSpec::attention(Some(0), None),
            SLIDING if family == "lfm3" => MixerSpec::attention(Some(1), own.sliding_window),
            other => return Err(unknown(family, "layer_types", other)),
        };
    }
    require_attention(family, "layer_types", &spec.layers)?;
    Ok((shape, own, spec))
}

#[derive(Deserialize)]
struct Adjusted {
    block_auto_adjust_ff_dim: Option<bool>,
    block_ffn_dim_multiplier: Option<f32>,
    block_multiple_of: Option<usize>,
}

impl Adjusted {
    /// The inner size that is meant by one of config.json.
    fn size(&self, family: &'static str, given: usize) -> Result<usize, ModelError> {
        if self.block_auto_adjust_ff_dim == Some(false) {
            return Ok(given);
        }
        let (factor, multiple) = (self.block_ffn_dim_multiplier, self.block_multiple_of);
        let multiple = multiple.unwrap_or(256);
        config::factors(family, &[("block_ffn_dim_multiplier", factor)])?;
        config::size(family, "block_multiple_of", multiple, config::MAX_SIZE)?;
        let scaled = f64::from(factor.unwrap_or(1.0)) * (2 * given / 3) as f64;
        let size = (scaled as usize).next_multiple_of(multiple);
        config::size(family, "intermediate_size", size, config::MAX_SIZE)?;
        Ok(size)
    }
}

pub(super) fn lfm2(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let family = "lfm2";
    let mut config = config.clone();
    if let Some(fields) = config.as_object_mut()
        && let Some(size) = fields.get("block_ff_dim").filter(|size| !size.is_null()).cloned()
    {
        // As in transformers, the older name counts.
        fields.insert("intermediate_size".to_owned(), size);
    }
    let rope = config::rope(family, &config, 1_000_000.0)?;
    let (shape, _, mut spec) = read(family, &config, 3, |_| FULL, (&rope, options))?;
    let adjusted: Adjusted = config::parse(family, &config)?;
    let inner = adjusted.size(family, shape.intermediate_size)?;
    spec.layers.iter_mut().for_each(|layer| layer.mlp = MlpSpec::Dense(inner));
    Ok(spec)
}

#[derive(Deserialize)]
struct Mixture {
    num_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    num_dense_layers: Option<usize>,
    use_expert_bias: Option<bool>,
    norm_topk_prob: Option<bool>,
    routed_scaling_factor: Option<f32>,
}

pub(super) fn lfm2_moe(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let family = "lfm2_moe";
    let rope = config::rope(family, config, 1_000_000.0)?;
    let (_, _, mut spec) = read(family, config, 3, |_| FULL, (&rope, options))?;
    let own: Mixture = config::parse(family, config)?;
    let route = Route {
        score: Score::Sigmoid,
        normalise: own.norm_topk_prob.unwrap_or(true).then_some(1e-6),
        scale: own.routed_scaling_factor.unwrap_or(1.0),
        bias: own.use_expert_bias.unwrap_or(true).then_some("expert_bias"),
        ..Route::softmax(own.num_experts_per_tok, false)
    };
    let experts = ExpertSpec {
        names: ExpertNames { maps: ["w1", "w3", "w2"], ..ExpertNames::QWEN },
        ..ExpertSpec::new(own.num_experts, own.moe_intermediate_size, route)
    };
    experts.check(family)?;
    let dense = own.num_dense_layers.unwrap_or(2);
    spec.layers.iter_mut().skip(dense).for_each(|layer| layer.mlp = MlpSpec::Experts(experts));
    Ok(spec)
}

/// MLX has other names of feed-forwards in LFM2 with experts: whether a checkpoint has them.
pub(super) fn mlx_names(spec: &Spec, has: impl Fn(&str) -> bool) -> Option<Renames> {
    let mlx = |i| has(&format!("model.layers.{i}.feed_forward.gate_proj.weight"));
    let moe = spec.family == "lfm2_moe";
    (moe && (0..spec.layers.len()).any(mlx)).then_some(MLX_RENAMES)
}

#[derive(Deserialize)]
struct Third {
    use_sandwich_norm: Option<bool>,
    use_attention_gate: Option<bool>,
    #[serde(default)]
    attention_bias: bool,
}

pub(super) fn lfm3(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let family = "lfm3";
    let kinds = |i: usize| match i % 4 {
        2 => FULL,
        0 if i > 0 => SLIDING,
        _ => "conv",
    };
    let config = &config::with_defaults(config, &[("sliding_window", json!(256))]);
    let parameters = config::section(config, "rope_parameters").cloned();
    let parameters = parameters.unwrap_or_else(|| {
        serde_json::json!({
            SLIDING: {"rope_theta": 10_000.0},
            FULL: {"rope_type": "proportional", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.5},
        })
    });
    let rope = |name: &str| match config::section(&parameters, name) {
        Some(section) => config::parse::<RopeConfig>(family, section),
        None => Ok(RopeConfig::with_theta(10_000.0)),
    };
    let (full, sliding) = (rope(FULL)?, rope(SLIDING)?);
    config::refuse_other_ropes(family, config, &full)?;
    let (shape, _, mut spec) = read(family, config, 7, kinds, (&full, options))?;
    spec.ropes.push(sliding.table(context(family, &shape, options))?);
    let own: Third = config::parse(family, config)?;
    spec.renames = LFM3_RENAMES;
    spec.norms = LayerNorms {
        mixer: Some("operator_norm"),
        after_mixer: Some("post_operator_norm"),
        mlp: Some("ffn_norm"),
        after_mlp: Some("post_ffn_norm"),
    };
    if own.use_sandwich_norm == Some(false) {
        spec.norms = LayerNorms { after_mixer: None, after_mlp: None, ..spec.norms };
    }
    let gate = own.use_attention_gate.unwrap_or(true);
    spec.attention_gate = gate.then_some(AttentionGate::ProjectedHead);
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config() -> Value {
        json!({"vocab_size": 8, "hidden_size": 8, "intermediate_size": 30, "num_hidden_layers": 3,
               "num_attention_heads": 2, "max_position_embeddings": 16, "full_attn_idxs": [1],
               "block_multiple_of": 8})
    }

    #[test]
    fn sizes_are_adjusted_and_layers_told_apart() {
        let spec = lfm2(&config(), LoadOptions::default()).unwrap();
        assert_eq!(spec.layers[0].mlp, MlpSpec::Dense(24));
        let attends: Vec<_> = spec.layers.iter().map(|layer| layer.mixer.attends()).collect();
        assert_eq!(attends, [false, true, false]);
    }

    #[test]
    fn what_is_not_run_is_refused_by_name() {
        for (field, value) in [
            ("layer_types", json!(["conv"])),
            ("layer_types", json!(["conv", "sliding_attention", "conv"])),
            ("layer_types", json!(["conv", "conv", "conv"])),
            ("conv_L_cache", json!(0)),
            ("conv_L_cache", json!(1u64 << 40)),
            ("block_multiple_of", json!(0)),
            ("block_ffn_dim_multiplier", json!(-1.0)),
        ] {
            let mut config = config();
            config[field] = value;
            let error = lfm2(&config, LoadOptions::default()).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
