//! MiniCPM (arXiv 2404.06395): Llama with scaled embeddings, branches and logits.

use super::read;
use crate::{LoadOptions, ModelError, config, spec::Spec};
use serde::Deserialize;
use serde_json::Value;

const FAMILY: &str = "minicpm";

#[derive(Deserialize)]
struct Own {
    scale_emb: f32,
    scale_depth: f32,
    dim_model_base: f32,
}

pub(super) fn minicpm(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    // MiniCPM 3's experts, and 4's sparse attention.
    config::refuse(FAMILY, config, "num_experts")?;
    config::refuse(FAMILY, config, "sparse_config")?;
    let own: Own = config::parse(FAMILY, config)?;
    let factors = [
        ("scale_emb", Some(own.scale_emb)),
        ("scale_depth", Some(own.scale_depth)),
        ("dim_model_base", Some(own.dim_model_base)),
    ];
    config::factors(FAMILY, &factors)?;
    let (shape, mut spec) = read(FAMILY, config, 10_000.0, options)?;
    spec.embed_scale = Some(own.scale_emb);
    spec.branch_scale = Some(own.scale_depth / (spec.layers.len() as f32).sqrt());
    spec.logit_scale = Some(own.dim_model_base / spec.hidden as f32);
    spec.tied = shape.tied(true);
    Ok(spec)
}
