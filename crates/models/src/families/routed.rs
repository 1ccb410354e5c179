//! Decoders with sigmoid routers like DeepSeek V3's (arXiv 2412.19437) and plain attention: GLM 4.5 to 4.7 (arXiv
//! 2508.06471), dots.llm1 (arXiv 2506.05767), Solar Open, K-EXAONE and Hunyuan 3.

use super::read;
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    experts::{ExpertNames, ExpertSpec, SharedSpec},
    router::{Groups, Route},
    source::Renames,
    spec::{MixerSpec, MlpSpec, QkNorm, Spec},
};
use serde::Deserialize;
use serde_json::Value;

/// The experts of every token are called so in most of these families.
pub(super) const SHARED_EXPERTS: Renames = &[("shared_expert", "shared_experts")];
/// Hunyuan 3's names.
const HUNYUAN: Renames = &[("shared_expert", "shared_mlp")];

/// What config.json says of experts that a sigmoid chooses.
#[derive(Deserialize)]
pub(super) struct Mixture {
    #[serde(alias = "n_routed_experts")]
    num_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    #[serde(alias = "n_shared_experts")]
    num_shared_experts: Option<usize>,
    norm_topk_prob: Option<bool>,
    #[serde(alias = "router_scaling_factor")]
    routed_scaling_factor: Option<f32>,
    n_group: Option<usize>,
    topk_group: Option<usize>,
    /// Layers without experts, the first ones.
    first_k_dense_replace: Option<usize>,
    /// What each layer has: `dense` or `sparse`.
    mlp_layer_types: Option<Vec<String>>,
}

impl Mixture {
    /// The experts; weights sum to one, and are multiplied, as `defaults` say where the configuration does not.
    pub(super) fn experts(&self, defaults: (bool, f32)) -> ExpertSpec {
        let normalise = self.norm_topk_prob.unwrap_or(defaults.0);
        let scale = self.routed_scaling_factor.unwrap_or(defaults.1);
        let (count, kept) = (self.n_group.unwrap_or(1), self.topk_group.unwrap_or(1));
        let groups = (count != 1).then_some(Groups { count, kept, best: 2 });
        let route = Route { scale, groups, ..Route::sigmoid(self.num_experts_per_tok, normalise) };
        let size = self.moe_intermediate_size;
        let shared = together(self.num_shared_experts.unwrap_or(0), size);
        ExpertSpec { shared, ..ExpertSpec::new(self.num_experts, size, route) }
    }

    /// Gives layers these experts, but for those without; the first `dense` of them where nothing is said.
    pub(super) fn place(
        &self,
        spec: &mut Spec,
        experts: ExpertSpec,
        dense: usize,
    ) -> Result<(), ModelError> {
        experts.check(spec.family)?;
        let first = self.first_k_dense_replace.unwrap_or(dense);
        for (i, layer) in spec.layers.iter_mut().enumerate() {
            if sparse(spec.family, self.mlp_layer_types.as_deref(), i, i >= first)? {
                layer.mlp = MlpSpec::Experts(experts);
            }
        }
        Ok(())
    }
}

/// Experts that every token goes through, as the one that they are together.
pub(super) fn together(count: usize, size: usize) -> Option<SharedSpec> {
    let intermediate = count.saturating_mul(size);
    (count > 0).then_some(SharedSpec { intermediate, gated: false })
}

/// Whether a layer has experts: what `mlp_layer_types` says of it, or else the family.
pub(super) fn sparse(
    family: &'static str,
    types: Option<&[String]>,
    layer: usize,
    otherwise: bool,
) -> Result<bool, ModelError> {
    const FIELD: &str = "mlp_layer_types";
    let Some(types) = types else { return Ok(otherwise) };
    match types.get(layer).map(String::as_str) {
        Some("sparse") => Ok(true),
        Some("dense") => Ok(false),
        Some(other) => {
            Err(ModelError::Unsupported { family, field: FIELD, value: other.to_owned() })
        }
        None => {
            let (value, range) =
                (format!("{} entries", types.len()), "each layer needs one".into());
            Err(ModelError::OutOfRange { family, field: FIELD, value, range })
        }
    }
}

#[derive(Deserialize)]
struct Own {
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    use_qk_norm: bool,
    sliding_window: Option<usize>,
    /// Every so many layers see all tokens.
    sliding_window_pattern: Option<Value>,
    /// Layers from here on have the window.
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
}

/// GLM 4.5 to 4.7: half of each head is rotated; heads are normed in the larger one.
pub(super) fn glm4_moe(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let config = &config::with_default(config, "partial_rotary_factor", 0.5);
    let (mut spec, own, mixture) = build("glm4_moe", config, 10_000.0, options)?;
    spec.qkv_bias = own.attention_bias;
    spec.qk_norm = own.use_qk_norm.then_some(QkNorm::Head);
    mixture.place(&mut spec, mixture.experts((true, 1.0)), 1)?;
    Ok(spec)
}

/// Solar Open: experts in every layer.
pub(super) fn solar_open(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    // Published without the size of layers that it does not have.
    let inner = config.get("moe_intermediate_size").cloned().unwrap_or(Value::Null);
    let config = &config::with_default(config, "intermediate_size", inner);
    let config = &config::with_default(config, "head_dim", 128);
    let (mut spec, own, mixture) = build("solar_open", config, 1e6, options)?;
    spec.qkv_bias = own.attention_bias;
    let experts = mixture.experts((true, 1.0));
    experts.check("solar_open")?;
    spec.layers.iter_mut().for_each(|layer| layer.mlp = MlpSpec::Experts(experts));
    Ok(spec)
}

/// dots.llm1: Qwen 3's attention.
pub(super) fn dots1(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let (mut spec, own, mixture) = build("dots1", config, 10_000.0, options)?;
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    spec.qk_norm = Some(QkNorm::Head);
    let from = own.max_window_layers.unwrap_or(usize::MAX);
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let slides = config::slides("dots1", own.layer_types.as_deref(), i, i >= from)?;
        layer.set_window(own.sliding_window.filter(|_| slides));
    }
    mixture.place(&mut spec, mixture.experts((false, 1.0)), 0)?;
    Ok(spec)
}

/// K-EXAONE: layers that see all tokens leave positions out, unless all of them do.
pub(super) fn exaone_moe(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    const FAMILY: &str = "exaone_moe";
    let (mut spec, own, mixture) = build(FAMILY, config, 10_000.0, options)?;
    spec.qk_norm = Some(QkNorm::Head);
    let pattern = match (&own.layer_types, &own.sliding_window_pattern) {
        (None, Some(pattern)) => config::parse::<usize>(FAMILY, pattern)?,
        _ => 4,
    };
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let otherwise = own.sliding_window.is_some() && !(i + 1).is_multiple_of(pattern.max(1));
        let slides = config::slides(FAMILY, own.layer_types.as_deref(), i, otherwise)?;
        let rope = (slides || own.sliding_window.is_none()).then_some(0);
        layer.mixer = MixerSpec::attention(rope, own.sliding_window.filter(|_| slides));
    }
    let mut experts = mixture.experts((true, 2.5));
    experts.route.bias = Some("e_score_correction_bias");
    mixture.place(&mut spec, experts, 1)?;
    Ok(spec)
}

/// Hunyuan 3.
pub(super) fn hy_v3(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let (mut spec, own, mixture) = build("hy_v3", config, 11_158_840.0, options)?;
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    spec.mlp_bias = own.mlp_bias;
    spec.qk_norm = Some(QkNorm::Head);
    spec.renames = HUNYUAN;
    let mut experts = mixture.experts((true, 2.826));
    experts.names = ExpertNames { router: "router.gate", ..ExpertNames::QWEN };
    experts.route.bias = Some("expert_bias");
    mixture.place(&mut spec, experts, 1)?;
    Ok(spec)
}

fn build(
    family: &'static str,
    config: &Value,
    theta: f64,
    options: LoadOptions<'_>,
) -> Result<(Spec, Own, Mixture), ModelError> {
    config::require(family, config, "hidden_act", &["silu"])?;
    // "noaux_tc" is what dots.llm1 calls a sigmoid with a bias for the choice.
    config::require(family, config, "scoring_func", &["sigmoid", "noaux_tc"])?;
    let (own, mixture) = (config::parse(family, config)?, config::parse(family, config)?);
    let (_, mut spec): (Shape, Spec) = read(family, config, theta, options)?;
    spec.renames = SHARED_EXPERTS;
    Ok((spec, own, mixture))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config() -> Value {
        json!({"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 3,
               "num_attention_heads": 2, "max_position_embeddings": 16, "n_routed_experts": 8,
               "num_experts_per_tok": 2, "moe_intermediate_size": 6, "n_shared_experts": 2})
    }

    fn experts(spec: &Spec) -> Vec<Option<ExpertSpec>> {
        let own = |mlp| if let MlpSpec::Experts(experts) = mlp { Some(experts) } else { None };
        spec.layers.iter().map(|layer| own(layer.mlp)).collect()
    }

    #[test]
    fn first_layers_are_dense_and_shared_experts_are_one() -> Result<(), ModelError> {
        let spec = glm4_moe(&config(), LoadOptions::default())?;
        let all = experts(&spec);
        assert!(all[0].is_none() && all[1] == all[2]);
        let shared = all[1].and_then(|experts| experts.shared);
        assert_eq!(shared, Some(SharedSpec { intermediate: 12, gated: false }));
        let mut config = config();
        config["mlp_layer_types"] = json!(["sparse", "dense", "sparse"]);
        let all = experts(&hy_v3(&config, LoadOptions::default())?);
        assert!(all[0].is_some() && all[1].is_none());
        Ok(())
    }

    #[test]
    fn what_routers_and_layers_cannot_be_is_refused() {
        for (field, value) in [
            ("n_group", json!(3)),
            ("num_experts_per_tok", json!(9)),
            ("n_shared_experts", json!(1_u64 << 40)),
            ("mlp_layer_types", json!(["dense"])),
            ("mlp_layer_types", json!(["dense", "sparse", "other"])),
            ("scoring_func", json!("softmax")),
            ("routed_scaling_factor", json!(-1.0)),
        ] {
            let mut config = config();
            config[field] = value;
            assert!(glm4_moe(&config, LoadOptions::default()).is_err(), "{field}");
        }
    }

    #[test]
    fn k_exaone_rotates_in_windows_only() -> Result<(), ModelError> {
        let mut config = config();
        config["sliding_window"] = json!(4);
        config["sliding_window_pattern"] = json!(3);
        let spec = exaone_moe(&config, LoadOptions::default())?;
        let local = MixerSpec::attention(Some(0), Some(4));
        let mixers: Vec<_> = spec.layers.iter().map(|layer| layer.mixer).collect();
        assert_eq!(mixers, [local, local, MixerSpec::attention(None, None)]);
        config["sliding_window_pattern"] = json!("LLG");
        assert!(exaone_moe(&config, LoadOptions::default()).is_err());
        Ok(())
    }
}
