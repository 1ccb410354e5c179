//! Qwen 2, 2.5 (biased projections) and Qwen 3 (normed heads, no bias), with experts or without.

use super::{read, turn_by_axes};
use crate::{
    LoadOptions, ModelError, config,
    experts::{ExpertNames, ExpertSpec, Fused, SharedSpec},
    router::Route,
    spec::{MlpSpec, QkNorm, Spec},
};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Windows {
    use_sliding_window: Option<bool>,
    #[serde(default = "window")]
    sliding_window: Option<usize>,
    /// Layers from here on have the window, where `layer_types` is missing.
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
    attention_bias: Option<bool>,
}

fn window() -> Option<usize> {
    Some(4096)
}

pub(super) fn qwen2(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let mut spec = qwen("qwen2", config, options)?;
    spec.qkv_bias = true;
    Ok(spec)
}

pub(super) fn qwen3(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let mut spec = qwen("qwen3", config, options)?;
    spec.qk_norm = Some(QkNorm::Head);
    Ok(spec)
}

#[derive(Deserialize)]
struct Mixture {
    num_experts: usize,
    num_experts_per_tok: usize,
    moe_intermediate_size: usize,
    #[serde(default)]
    norm_topk_prob: bool,
    /// Every so many layers have experts, but for those of `mlp_only_layers`.
    decoder_sparse_step: Option<usize>,
    #[serde(default)]
    mlp_only_layers: Vec<usize>,
}

pub(super) fn qwen3_moe(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let config = &config::one_name(config, "num_experts", "num_local_experts")?;
    untold_windows("qwen3_moe", config)?;
    let mut spec = qwen("qwen3_moe", config, options)?;
    spec.qk_norm = Some(QkNorm::Head);
    with_experts(spec, config, None)
}

/// The language model of Qwen 3 VL with experts. Positions have three axes, which are alike for text.
pub(super) fn qwen3_vl_moe(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let config = &config::with_default(config, "norm_topk_prob", true);
    let mut spec = qwen3_moe(config, options)?;
    for layer in &mut spec.layers {
        if let MlpSpec::Experts(experts) = &mut layer.mlp {
            experts.names = ExpertNames { fused: Fused::Transposed, ..experts.names };
        }
    }
    spec.family = "qwen3_vl_moe";
    turn_by_axes(&mut spec, config, [24, 20, 20], false)?;
    Ok(spec)
}

#[derive(Deserialize)]
struct Shared {
    /// Inner size of the expert of every token.
    shared_expert_intermediate_size: usize,
    qkv_bias: Option<bool>,
}

/// Qwen 1.5 and 2 with experts: one more for every token.
pub(super) fn qwen2_moe(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    untold_windows("qwen2_moe", config)?;
    let mut spec = qwen("qwen2_moe", config, options)?;
    let shared: Shared = config::parse("qwen2_moe", config)?;
    spec.qkv_bias = shared.qkv_bias.unwrap_or(true);
    with_experts(spec, config, Some(shared.shared_expert_intermediate_size))
}

/// Refuses windows of models with experts where no list tells which layers have one: each family has a rule of its own.
fn untold_windows(family: &'static str, config: &Value) -> Result<(), ModelError> {
    match config.get("layer_types") {
        None | Some(Value::Null) => config::refuse(family, config, "use_sliding_window"),
        Some(_) => Ok(()),
    }
}

/// The model with experts, in the layers that config.json says.
pub(super) fn with_experts(
    mut spec: Spec,
    config: &Value,
    shared: Option<usize>,
) -> Result<Spec, ModelError> {
    let family = spec.family;
    let mixture: Mixture = config::parse(family, config)?;
    let route = Route::softmax(mixture.num_experts_per_tok, mixture.norm_topk_prob);
    let experts = ExpertSpec::new(mixture.num_experts, mixture.moe_intermediate_size, route);
    let shared = shared.map(|intermediate| SharedSpec { intermediate, gated: true });
    let experts = ExpertSpec { shared, ..experts };
    experts.check(family)?;
    let step = mixture.decoder_sparse_step.unwrap_or(1).max(1);
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let sparse = !mixture.mlp_only_layers.contains(&i) && (i + 1).is_multiple_of(step);
        if sparse {
            layer.mlp = MlpSpec::Experts(experts);
        }
    }
    Ok(spec)
}

fn qwen(
    family: &'static str,
    config: &Value,
    options: LoadOptions<'_>,
) -> Result<Spec, ModelError> {
    config::require(family, config, "hidden_act", &["silu"])?;
    let windows: Windows = config::parse(family, config)?;
    let (_, mut spec) = read(family, config, 10_000.0, options)?;
    let bias = windows.attention_bias.unwrap_or(false);
    (spec.qkv_bias, spec.out_bias) = (bias, bias);
    let window = windows.sliding_window.filter(|_| windows.use_sliding_window == Some(true));
    let from = windows.max_window_layers.unwrap_or(28);
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        let slides = config::slides(family, windows.layer_types.as_deref(), i, i >= from)?;
        layer.set_window(window.filter(|_| slides));
    }
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config() -> Value {
        json!({"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 4,
               "num_attention_heads": 2, "max_position_embeddings": 16, "num_experts": 4,
               "num_experts_per_tok": 2, "moe_intermediate_size": 6, "decoder_sparse_step": 2,
               "mlp_only_layers": [3]})
    }

    #[test]
    fn layers_have_experts_by_the_step_unless_they_are_named() {
        let spec = qwen3_moe(&config(), LoadOptions::default()).unwrap();
        let experts = |mlp| matches!(mlp, MlpSpec::Experts(e) if e.experts == 4);
        let experts: Vec<_> = spec.layers.iter().map(|l| experts(l.mlp)).collect();
        assert_eq!(experts, [false, true, false, false]);
    }

    #[test]
    fn the_window_is_of_the_last_layers() {
        let mut config = config();
        config["num_hidden_layers"] = json!(30);
        let slides = |config: &Value| {
            let spec = qwen3(config, LoadOptions::default()).unwrap();
            let slides = |i: usize| spec.layers[i].window() == Some(4096);
            (slides(0), slides(27), slides(28))
        };
        assert_eq!(slides(&config), (false, false, false));
        config["use_sliding_window"] = json!(true);
        assert_eq!(slides(&config), (false, false, true));
        config["max_window_layers"] = json!(0);
        assert_eq!(slides(&config), (true, true, true));
    }

    #[test]
    fn more_chosen_than_there_are_is_refused() {
        for chosen in [0, 5] {
            let mut config = config();
            config["num_experts_per_tok"] = json!(chosen);
            let error = qwen3_moe(&config, LoadOptions::default()).unwrap_err().to_string();
            assert!(error.contains("num_experts_per_tok"), "{error}");
        }
    }
}
