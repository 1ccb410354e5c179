//! Multi-head latent attention: DeepSeek V2 to V3.2 and what was built like it (Kimi K2, GLM 4.7 Flash and 5,
//! Mistral Small 4, MiniCPM 3, Youtu).

use super::{common, ministral3::position_scale};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    experts::{ExpertSpec, SharedSpec},
    router::{Groups, Route},
    spec::{LatentSpec, MixerSpec, MlpSpec, Spec},
};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Heads {
    /// Queries come from a latent of this size, too; `None` projects them at once.
    q_lora_rank: Option<usize>,
    kv_lora_rank: usize,
    qk_nope_head_dim: usize,
    qk_rope_head_dim: usize,
    v_head_dim: Option<usize>,
    #[serde(default)]
    attention_bias: bool,
    rope_interleave: Option<bool>,
}

#[derive(Deserialize)]
struct Mixture {
    n_routed_experts: Option<usize>,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    n_shared_experts: Option<usize>,
    n_group: Option<usize>,
    topk_group: Option<usize>,
    norm_topk_prob: Option<bool>,
    routed_scaling_factor: Option<f32>,
    first_k_dense_replace: Option<usize>,
    mlp_layer_types: Option<Vec<String>>,
    topk_method: Option<String>,
    moe_layer_freq: Option<usize>,
}

/// What both lora norms of every family take, whatever `rms_norm_eps` says, as in transformers.
const LORA_NORM_EPS: f32 = 1e-6;

pub(super) fn deepseek_v3(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    sigmoid("deepseek_v3", (3, 2.5), config, options)
}

pub(super) fn glm4_moe_lite(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    sigmoid("glm4_moe_lite", (1, 1.8), config, options)
}

/// DeepSeek V3.2. Its indexer picks the tokens that are attended to; while there are no more than it picks, that
/// changes nothing, so that many are all that are served.
pub(super) fn deepseek_v32(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    indexed("deepseek_v32", config, options)
}

/// GLM 5, served like [`deepseek_v32`].
pub(super) fn glm_moe_dsa(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    indexed("glm_moe_dsa", config, options)
}

pub(super) fn deepseek_v2(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    const FAMILY: &str = "deepseek_v2";
    config::require(FAMILY, config, "scoring_func", &["softmax"])?;
    config::require(FAMILY, config, "topk_method", &["greedy", "group_limited_greedy"])?;
    let (mut spec, mixture) = read(FAMILY, config, options)?;
    config::refuse(FAMILY, config, "norm_topk_prob")?;
    let limited = mixture.topk_method.as_deref() == Some("group_limited_greedy");
    let groups = mixture.groups(1).filter(|_| limited);
    let route = Route { groups, ..Route::softmax(mixture.num_experts_per_tok, false) };
    mixture.apply(&mut spec, route, 0)?;
    Ok(spec)
}

pub(super) fn mistral4(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    const FAMILY: &str = "mistral4";
    let config = &with_mistral_rope(config)?;
    let (mut spec, mixture) = read(FAMILY, config, options)?;
    let softmax = Route::softmax(mixture.num_experts_per_tok, false);
    let normalise = mixture.norm_topk_prob.unwrap_or(true).then_some(1e-20);
    mixture.apply(&mut spec, Route { normalise, groups: mixture.groups(2), ..softmax }, 0)?;
    let scale = position_scale(FAMILY, config)?;
    for layer in &mut spec.layers {
        if let MixerSpec::Latent(latent) = &mut layer.mixer {
            latent.q_scale = scale;
        }
    }
    Ok(spec)
}

#[derive(Deserialize)]
struct MiniCpm {
    #[serde(default = "scale_emb")]
    scale_emb: f32,
    #[serde(default = "scale_depth")]
    scale_depth: Option<f32>,
    #[serde(default = "dim_model_base")]
    dim_model_base: Option<f32>,
}

fn scale_emb() -> f32 {
    12.0
}

fn scale_depth() -> Option<f32> {
    Some(1.4)
}

fn dim_model_base() -> Option<f32> {
    Some(256.0)
}

pub(super) fn minicpm3(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    const FAMILY: &str = "minicpm3";
    let own: MiniCpm = config::parse(FAMILY, config)?;
    let factors = [
        ("scale_emb", Some(own.scale_emb)),
        ("scale_depth", own.scale_depth),
        ("dim_model_base", own.dim_model_base),
    ];
    config::factors(FAMILY, &factors)?;
    let mut spec = latent(FAMILY, config, options, (10_000.0, false, true))?;
    spec.embed_scale = Some(own.scale_emb);
    spec.branch_scale = own.scale_depth.map(|scale| scale / (spec.layers.len() as f32).sqrt());
    spec.logit_scale = own.dim_model_base.map(|base| base / spec.hidden as f32);
    Ok(spec)
}

pub(super) fn youtu(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    const FAMILY: &str = "youtu";
    config::refuse(FAMILY, config, "mlp_bias")?;
    latent(FAMILY, config, options, (10_000.0, true, true))
}

/// A model whose experts are chosen by sigmoids. Where config.json says nothing, so many layers come before the first
/// with experts, and their sum is scaled so.
pub(super) fn sigmoid(
    family: &'static str,
    (dense, scale): (usize, f32),
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    config::require(family, config, "scoring_func", &["sigmoid"])?;
    config::require(family, config, "topk_method", &["noaux_tc"])?;
    let (mut spec, mixture) = read(family, config, options)?;
    let normalise = mixture.norm_topk_prob.unwrap_or(true);
    let route = Route::sigmoid(mixture.num_experts_per_tok, normalise);
    mixture.apply(&mut spec, Route { groups: mixture.groups(2), scale, ..route }, dense)?;
    Ok(spec)
}

fn indexed(
    family: &'static str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    #[derive(Deserialize)]
    struct Index {
        index_topk: Option<usize>,
    }
    let Index { index_topk } = config::parse(family, config)?;
    let mut spec = sigmoid(family, (3, 2.5), config, options)?;
    let most = index_topk.unwrap_or(2048);
    config::size(family, "index_topk", most, config::MAX_POSITIONS)?;
    spec.max_positions = spec.max_positions.min(most);
    Ok(spec)
}

/// The model without its experts, and these.
fn read(
    family: &'static str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<(Spec, Mixture), ModelError> {
    let config = &config::one_name(config, "n_routed_experts", "num_local_experts")?;
    let config = &config::one_name(config, "n_routed_experts", "num_experts")?;
    let spec = latent(family, config, options, (10_000.0, true, false))?;
    Ok((spec, config::parse(family, config)?))
}

/// A model of latent attention and plain feed-forwards. The angle base, whether rotations turn neighbours, and whether
/// the head is the token table, where config.json says nothing.
pub(super) fn latent(
    family: &'static str,
    config: &Value,
    options: LoadOptions<'_>,
    (theta, interleaved, tied): (f64, bool, bool),
) -> Result<Spec, ModelError> {
    config::require(family, config, "hidden_act", &["silu"])?;
    let own: Heads = config::parse(family, config)?;
    let rope_dim = own.qk_rope_head_dim;
    // What is rotated is a head of its own.
    let config = &config::with(config, "head_dim", rope_dim.into());
    let config = &config::with(config, "num_key_value_heads", 1.into());
    let shape: Shape = config::parse(family, config)?;
    let rope = config::rope(family, config, theta)?;
    let mut spec = common(family, &shape, &rope, options)?;
    let default = shape.hidden_size / shape.num_attention_heads;
    let value = own.v_head_dim.unwrap_or(default);
    own.check(family, value)?;
    spec.head_dim = rope_dim + own.kv_lora_rank;
    spec.tied = shape.tied(tied);
    spec.renames = &[("mlp.shared_expert", "mlp.shared_experts")];
    let scale = ((own.qk_nope_head_dim + rope_dim) as f32).powf(-0.5);
    let latent = LatentSpec {
        heads: spec.heads,
        q_lora: own.q_lora_rank,
        kv_lora: own.kv_lora_rank,
        nope: own.qk_nope_head_dim,
        rope: rope_dim,
        value,
        bias: own.attention_bias,
        interleaved: own.rope_interleave.unwrap_or(interleaved),
        factors: [1.0; 2],
        norm_eps: LORA_NORM_EPS,
        scale: scale * rope.score_scale(),
        angles: Some(0),
        q_scale: None,
    };
    spec.layers.iter_mut().for_each(|layer| layer.mixer = MixerSpec::Latent(latent));
    Ok(spec)
}

impl Heads {
    fn check(&self, family: &'static str, value: usize) -> Result<(), ModelError> {
        for (field, size) in [
            ("q_lora_rank", self.q_lora_rank.unwrap_or(1)),
            ("kv_lora_rank", self.kv_lora_rank),
            ("qk_nope_head_dim", self.qk_nope_head_dim),
            ("qk_rope_head_dim", self.qk_rope_head_dim),
            ("v_head_dim", value),
        ] {
            config::size(family, field, size, config::MAX_HEAD_DIM)?;
        }
        Ok(())
    }
}

impl Mixture {
    /// Groups of experts, of which each counts as much as so many of its best.
    fn groups(&self, best: usize) -> Option<Groups> {
        let count = self.n_group.filter(|&count| count > 1)?;
        Some(Groups { count, kept: self.topk_group.unwrap_or(count), best })
    }

    /// Gives the layers their experts, from the one after `dense` on where config.json says nothing.
    fn apply(&self, spec: &mut Spec, route: Route, dense: usize) -> Result<(), ModelError> {
        let family = spec.family;
        let bad = |field, value: String| ModelError::Unsupported { family, field, value };
        let missing = || bad("n_routed_experts", "nothing".to_owned());
        if let Some(every) = self.moe_layer_freq.filter(|&every| every != 1) {
            return Err(bad("moe_layer_freq", every.to_string()));
        }
        let inner = self.moe_intermediate_size;
        let route = Route { scale: self.routed_scaling_factor.unwrap_or(route.scale), ..route };
        let experts = self.n_routed_experts.ok_or_else(missing)?;
        let count = self.n_shared_experts.unwrap_or(0);
        let shared = SharedSpec { intermediate: inner.saturating_mul(count), gated: false };
        let shared = (count > 0).then_some(shared);
        let experts = ExpertSpec { shared, ..ExpertSpec::new(experts, inner, route) };
        experts.check(family)?;
        let first = self.first_k_dense_replace.unwrap_or(dense);
        for (i, layer) in spec.layers.iter_mut().enumerate() {
            let sparse = match self.mlp_layer_types.as_ref().map(|types| types.get(i)) {
                None => i >= first,
                Some(Some(kind)) if kind == "sparse" => true,
                Some(Some(kind)) if kind == "dense" => false,
                Some(kind) => {
                    let value = kind.map_or("too few entries", String::as_str).to_owned();
                    return Err(bad("mlp_layer_types", value));
                }
            };
            if sparse {
                layer.mlp = MlpSpec::Experts(experts);
            }
        }
        Ok(())
    }
}

/// Mistral 4's rotary settings: those of the published model where there are none. They count what is rotated as a
/// part of the whole head, which here is a head of its own.
fn with_mistral_rope(config: &Value) -> Result<Value, ModelError> {
    const FAMILY: &str = "mistral4";
    let own: Heads = config::parse(FAMILY, config)?;
    let published = || {
        json!({"rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "beta_fast": 32.0, "beta_slow": 1.0,
               "original_max_position_embeddings": 8192, "mscale": 1.0, "mscale_all_dim": 1.0,
               "llama_4_scaling_beta": 0.1})
    };
    let said = ["rope_scaling", "rope_parameters"];
    let said = said.iter().find_map(|name| config::section(config, name));
    let mut rope = said.cloned().unwrap_or_else(published);
    let part = rope.as_object_mut().and_then(|rope| rope.shift_remove("partial_rotary_factor"));
    let part = part.as_ref().and_then(Value::as_f64);
    let head = own.qk_nope_head_dim.saturating_add(own.qk_rope_head_dim);
    if let Some(part) =
        part.filter(|part| (part * head as f64).round() != own.qk_rope_head_dim as f64)
    {
        let (field, value) = ("partial_rotary_factor", part.to_string());
        return Err(ModelError::Unsupported { family: FAMILY, field, value });
    }
    let config = config::with(config, "rope_scaling", Value::Null);
    Ok(config::with(&config, "rope_parameters", rope))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::router::Score;

    fn config() -> Value {
        json!({"vocab_size": 8, "hidden_size": 32, "intermediate_size": 8, "num_hidden_layers": 4,
               "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 512,
               "q_lora_rank": 8, "kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5,
               "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 4, "n_shared_experts": 2,
               "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1})
    }

    fn sparse(spec: &Spec) -> Vec<bool> {
        spec.layers.iter().map(|layer| matches!(layer.mlp, MlpSpec::Experts(_))).collect()
    }

    #[test]
    fn the_cache_holds_latents_beside_what_is_rotated() {
        let spec = deepseek_v3(&config(), LoadOptions::default()).unwrap();
        assert_eq!((spec.kv_heads, spec.head_dim), (1, 16));
        assert_eq!(spec.ropes[0].pairs(), 2);
        assert_eq!(sparse(&spec), [false, true, true, true]);
        let MlpSpec::Experts(experts) = spec.layers[1].mlp else { panic!("experts") };
        assert_eq!(experts.shared.map(|shared| shared.intermediate), Some(8));
        let groups = Groups { count: 4, kept: 2, best: 2 };
        assert_eq!((experts.route.score, experts.route.groups), (Score::Sigmoid, Some(groups)));
    }

    #[test]
    fn families_scale_what_experts_give_by_factors_of_their_own() {
        let scale = |spec: Result<Spec, ModelError>| {
            let MlpSpec::Experts(experts) = spec.unwrap().layers[3].mlp else { panic!("experts") };
            experts.route.scale
        };
        let (mut config, options) = (config(), LoadOptions::default());
        assert_eq!(scale(deepseek_v2(&config, options)), 1.0);
        assert_eq!(scale(deepseek_v3(&config, options)), 2.5);
        assert_eq!(scale(deepseek_v32(&config, options)), 2.5);
        assert_eq!(scale(glm_moe_dsa(&config, options)), 2.5);
        assert_eq!(scale(glm4_moe_lite(&config, options)), 1.8);
        assert_eq!(scale(mistral4(&config, options)), 1.0);
        config["routed_scaling_factor"] = json!(0.5);
        assert_eq!(scale(deepseek_v3(&config, options)), 0.5);
    }

    #[test]
    fn contexts_end_where_the_indexer_would_begin_to_choose() {
        let mut config = config();
        config["index_topk"] = json!(64);
        let spec = deepseek_v32(&config, LoadOptions::default()).unwrap();
        assert_eq!(spec.max_positions, 64);
    }

    #[test]
    fn what_no_family_computes_is_refused_by_its_field() {
        type Build = fn(&Value, LoadOptions<'_>) -> Result<Spec, ModelError>;
        for (build, field, value) in [
            (deepseek_v3 as Build, "scoring_func", json!("softmax")),
            (deepseek_v3, "topk_method", json!("greedy")),
            (deepseek_v3, "moe_layer_freq", json!(2)),
            (deepseek_v3, "n_group", json!(3)),
            (deepseek_v3, "topk_group", json!(5)),
            (deepseek_v3, "kv_lora_rank", json!(0)),
            (deepseek_v3, "qk_nope_head_dim", json!(1u64 << 60)),
            (deepseek_v3, "q_lora_rank", json!(0)),
            (deepseek_v3, "mlp_layer_types", json!(["dense", "thin"])),
            (deepseek_v3, "mlp_layer_types", json!(["dense"])),
            (deepseek_v3, "hidden_act", json!("gelu")),
            (deepseek_v2, "norm_topk_prob", json!(true)),
            (deepseek_v2, "topk_method", json!("noaux_tc")),
            (deepseek_v32, "index_topk", json!(0)),
            (minicpm3, "scale_emb", json!(0.0)),
            (mistral4, "partial_rotary_factor", json!({"partial_rotary_factor": 0.9})),
            (mistral4, "original_max_position_embeddings", json!({"llama_4_scaling_beta": 0.1})),
            (youtu, "mlp_bias", json!(true)),
        ] {
            let mut config = config();
            let key = if value.is_object() { "rope_parameters" } else { field };
            config[key] = value;
            let error = build(&config, LoadOptions::default()).unwrap_err().to_string();
            assert!(error.contains(field), "{field}: {error}");
        }
    }
}
