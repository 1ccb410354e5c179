//! nanochat: norms without weights, of the embeddings too; heads are rotated the other way round and then normed.

use super::{common, context};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    norms::NormKind,
    spec::{QkNorm, Spec},
};
use serde::Deserialize;
use serde_json::{Value, json};
use taper_tensor::ops::Activation;

const FAMILY: &str = "nanochat";

#[derive(Deserialize)]
struct Own {
    final_logit_softcapping: Option<f32>,
}

pub(super) fn nanochat(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let config = &config::with_defaults(config, &[("final_logit_softcapping", json!(15.0))]);
    let shape: Shape = config::parse(FAMILY, config)?;
    let own: Own = config::parse(FAMILY, config)?;
    config::factors(FAMILY, &[("final_logit_softcapping", own.final_logit_softcapping)])?;
    let rope = config::rope(FAMILY, config, 10_000.0)?;
    let mut spec = common(FAMILY, &shape, &rope, options)?;
    let table = rope.table(context(FAMILY, &shape, options))?;
    if table.scale() != 1.0 {
        // Norms of rotated heads would take it away again.
        let (family, field, value) = (FAMILY, "attention_factor", table.scale().to_string());
        return Err(ModelError::Unsupported { family, field, value });
    }
    spec.ropes = vec![table.reversed()];
    spec.norm = NormKind::RmsPlain;
    spec.embed_norm = true;
    // Rotations change no head's length: it may as well be normed before.
    spec.qk_norm = Some(QkNorm::HeadPlain);
    spec.gated_mlp = false;
    spec.activation = config::activation(FAMILY, config, "hidden_act", Activation::Relu2)?;
    spec.renames = &[("mlp.up_proj", "mlp.fc1"), ("mlp.down_proj", "mlp.fc2")];
    spec.logit_soft_cap = own.final_logit_softcapping;
    config::biases(&mut spec, config)?;
    Ok(spec)
}
