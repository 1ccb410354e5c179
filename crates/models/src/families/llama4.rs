//! Llama 4, text only: experts that read a weighted input, layers without positions whose queries grow with them.
//!
//! Layers with positions attend only to tokens of their own chunk of `attention_chunk_size`.

use super::read;
use crate::{
    LoadOptions, ModelError, config,
    experts::{ExpertNames, ExpertSpec, Fused, SharedSpec},
    router::{Route, Score},
    source::Renames,
    spec::{AttentionSpec, MixerSpec, MlpSpec, PositionScale, QkNorm, Spec},
};
use serde::Deserialize;
use serde_json::Value;

const FAMILY: &str = "llama4";
const RENAMES: Renames = &[("mlp", "feed_forward")];

#[derive(Deserialize)]
struct Own {
    /// Inner size of layers without experts.
    intermediate_size_mlp: usize,
    num_local_experts: usize,
    num_experts_per_tok: Option<usize>,
    moe_layers: Option<Vec<usize>>,
    interleave_moe_layer_step: Option<usize>,
    #[serde(default)]
    attention_bias: bool,
    use_qk_norm: Option<bool>,
    /// 1 where a layer rotates, 0 where it does not.
    no_rope_layers: Option<Vec<u8>>,
    no_rope_layer_interval: Option<usize>,
    attention_chunk_size: Option<usize>,
    layer_types: Option<Vec<String>>,
    attn_temperature_tuning: Option<Temperature>,
    floor_scale: Option<f32>,
    attn_scale: Option<f32>,
}

/// Chunks of a multiple of this are of whole blocks of any cache.
const WHOLE_BLOCKS: usize = 32;

/// Some published files have a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Temperature {
    Flag(bool),
    Number(u8),
}

pub(super) fn llama4(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_act", &["silu"])?;
    let own: Own = config::parse(FAMILY, config)?;
    let config = &config::with_default(config, "head_dim", 128);
    let (shape, mut spec) = read(FAMILY, config, 500_000.0, options)?;
    config::size(FAMILY, "intermediate_size_mlp", own.intermediate_size_mlp, config::MAX_SIZE)?;
    spec.interleaved = true;
    spec.renames = RENAMES;
    (spec.qkv_bias, spec.out_bias) = (own.attention_bias, own.attention_bias);
    spec.qk_norm = own.use_qk_norm.unwrap_or(true).then_some(QkNorm::RotatedPlain);
    let experts = own.experts(shape.intermediate_size);
    experts.check(FAMILY)?;
    let far = own.far()?;
    let step = own.interleave_moe_layer_step.unwrap_or(1).max(1);
    for i in 0..spec.layers.len() {
        let rope = own.rotates(i).then_some(0);
        let chunk = if own.chunked(i)? { own.chunk(&mut spec.max_positions)? } else { None };
        let q_scale = far.filter(|_| rope.is_none());
        let attention = AttentionSpec { chunk, q_scale, ..AttentionSpec::new(rope, None) };
        let sparse = match &own.moe_layers {
            Some(layers) => layers.contains(&i),
            None => (i + 1).is_multiple_of(step),
        };
        let mlp = if sparse {
            MlpSpec::Experts(experts)
        } else {
            MlpSpec::Dense(own.intermediate_size_mlp)
        };
        spec.layers[i].mixer = MixerSpec::Attention(attention);
        spec.layers[i].mlp = mlp;
    }
    Ok(spec)
}

impl Own {
    fn experts(&self, size: usize) -> ExpertSpec {
        let chosen = self.num_experts_per_tok.unwrap_or(1);
        let route =
            Route { score: Score::Sigmoid, weighs_input: true, ..Route::softmax(chosen, false) };
        ExpertSpec {
            names: ExpertNames { router: "router", fused: Fused::Transposed, ..ExpertNames::QWEN },
            shared: Some(SharedSpec { intermediate: size, gated: false }),
            ..ExpertSpec::new(self.num_local_experts, size, route)
        }
    }

    /// How queries of layers without positions grow.
    fn far(&self) -> Result<Option<PositionScale>, ModelError> {
        if matches!(
            self.attn_temperature_tuning,
            Some(Temperature::Flag(false) | Temperature::Number(0))
        ) {
            return Ok(None);
        }
        let (beta, every) = (self.attn_scale.unwrap_or(0.1), self.floor_scale.unwrap_or(8192.0));
        let factors = [("attn_scale", Some(beta)), ("floor_scale", Some(every))];
        config::factors(FAMILY, &factors)?;
        Ok(Some(PositionScale { beta, every, offset: 1.0 }))
    }

    fn rotates(&self, layer: usize) -> bool {
        let interval = self.no_rope_layer_interval.unwrap_or(4).max(1);
        let listed = self.no_rope_layers.as_ref().and_then(|layers| layers.get(layer));
        listed.map_or(!(layer + 1).is_multiple_of(interval), |&flag| flag != 0)
    }

    fn chunked(&self, layer: usize) -> Result<bool, ModelError> {
        let Some(types) = &self.layer_types else { return Ok(self.rotates(layer)) };
        match types.get(layer).map(String::as_str) {
            Some("chunked_attention") => Ok(true),
            Some("full_attention") => Ok(false),
            other => {
                let (field, value) = ("layer_types", other.unwrap_or("too few").to_owned());
                Err(ModelError::Unsupported { family: FAMILY, field, value })
            }
        }
    }

    /// Tokens of a chunk, where contexts of so many positions have several. Caches cut sequences between blocks: of
    /// another size contexts end with the first chunk.
    fn chunk(&self, positions: &mut usize) -> Result<Option<usize>, ModelError> {
        let Some(chunk) = self.attention_chunk_size else { return Ok(None) };
        config::size(FAMILY, "attention_chunk_size", chunk, config::MAX_POSITIONS)?;
        if !chunk.is_multiple_of(WHOLE_BLOCKS) {
            *positions = chunk.min(*positions);
        }
        Ok(Some(chunk).filter(|_| chunk < *positions))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::LayerSpec;
    use serde_json::json;

    #[test]
    fn layers_with_positions_see_chunks() -> Result<(), ModelError> {
        let mut config = json!({"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 4,
            "num_attention_heads": 2, "max_position_embeddings": 64, "num_local_experts": 4,
            "intermediate_size_mlp": 16, "interleave_moe_layer_step": 2, "attention_chunk_size": 32});
        let spec = llama4(&config, LoadOptions::default())?;
        assert_eq!(spec.max_positions, 64);
        let chunk = |layer: &LayerSpec| match layer.mixer {
            MixerSpec::Attention(attention) => attention.chunk,
            _ => None,
        };
        assert!(spec.layers.iter().map(chunk).eq([Some(32), Some(32), Some(32), None]));
        let dense = spec.layers.iter().map(|layer| layer.mlp == MlpSpec::Dense(16));
        assert!(dense.eq([true, false, true, false]));
        config["attention_chunk_size"] = json!(24);
        assert_eq!(llama4(&config, LoadOptions::default())?.max_positions, 24);
        config["layer_types"] = json!(vec!["full_attention"; 4]);
        assert_eq!(llama4(&config, LoadOptions::default())?.max_positions, 64);
        config["attention_chunk_size"] = json!(0);
        assert!(llama4(&config, LoadOptions::default()).is_ok());
        config["layer_types"] = json!(vec!["chunked_attention"; 4]);
        assert!(llama4(&config, LoadOptions::default()).is_err());
        Ok(())
    }
}
