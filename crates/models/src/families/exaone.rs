//! EXAONE 3 and 3.5: Llama under other names.

use super::read;
use crate::{
    LoadOptions, ModelError, config,
    spec::{Spec, TopNames},
};
use serde_json::{Value, json};

const FAMILY: &str = "exaone";

pub(super) fn exaone(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "activation_function", &["silu"])?;
    let config = &config::one_name(config, "num_hidden_layers", "num_layers")?;
    let config = &config::one_name(config, "rms_norm_eps", "layer_norm_epsilon")?;
    let config = &config::with_defaults(config, &[("rms_norm_eps", json!(1e-5))]);
    let (shape, mut spec) = read(FAMILY, config, 10_000.0, options)?;
    spec.tied = shape.tied(true);
    config::biases(&mut spec, config)?;
    spec.renames = &[
        ("input_layernorm", "ln_1"),
        ("post_attention_layernorm", "ln_2"),
        ("self_attn.o_proj", "self_attn.out_proj"),
        ("self_attn", "attn.attention"),
        ("mlp.gate_proj", "mlp.c_fc_0"),
        ("mlp.up_proj", "mlp.c_fc_1"),
        ("mlp.down_proj", "mlp.c_proj"),
    ];
    spec.top = TopNames {
        places: &[("transformer.", "lm_head")],
        embed: "wte",
        layers: "h",
        norm: "ln_f",
    };
    Ok(spec)
}
