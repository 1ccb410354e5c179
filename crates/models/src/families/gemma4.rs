//! Gemma 4 text: local and global layers with heads of their own, later layers that read the keys and values of
//! earlier ones, embeddings a layer, and experts beside a feed-forward.

use super::{common, context};
use crate::{
    LoadOptions, ModelError,
    config::{self, Shape},
    experts::{ExpertNames, ExpertSpec},
    norms::LayerNorms,
    rope::{RopeConfig, RopeContext},
    router::Route,
    spec::{MixerSpec, MlpSpec, PerLayerSpec, SharingSpec, Spec, Values},
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use taper_tensor::ops::Activation;

const FAMILY: &str = "gemma4_text";
/// Every so many layers one is global, where `layer_types` is missing.
const PATTERN: usize = 6;

#[derive(Deserialize)]
struct Own {
    global_head_dim: Option<usize>,
    num_global_key_value_heads: Option<usize>,
    /// What `transformers` saves in place of the two above, by layer.
    per_layer_config: Option<BTreeMap<String, LayerHeads>>,
    attention_k_eq_v: Option<bool>,
    num_kv_shared_layers: Option<usize>,
    use_double_wide_mlp: Option<bool>,
    hidden_size_per_layer_input: Option<usize>,
    vocab_size_per_layer_input: Option<usize>,
    sliding_window: Option<usize>,
    layer_types: Option<Vec<String>>,
    final_logit_softcapping: Option<f32>,
    enable_moe_block: Option<bool>,
    num_experts: Option<usize>,
    top_k_experts: Option<usize>,
    moe_intermediate_size: Option<usize>,
    pad_token_id: Option<u32>,
}

#[derive(Deserialize, Clone, Copy, Default)]
struct LayerHeads {
    head_dim: Option<usize>,
    num_key_value_heads: Option<usize>,
}

pub(super) fn gemma4(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    build(&with_published_defaults(config, 512, 256), options)
}

/// Gemma 4 without embeddings a layer, whose published configurations do not speak of them.
pub(super) fn unified(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    build(&with_published_defaults(config, 1024, 0), options)
}

fn build(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    config::require(FAMILY, config, "hidden_activation", &["gelu_pytorch_tanh"])?;
    // Only images are attended to in both directions.
    config::require(FAMILY, config, "use_bidirectional_attention", &["vision"])?;
    let shape: Shape = config::parse(FAMILY, config)?;
    let own: Own = config::parse(FAMILY, config)?;
    config::refuse(FAMILY, config, "attention_bias")?;
    config::factors(FAMILY, &[("final_logit_softcapping", own.final_logit_softcapping)])?;
    let mut spec = common(FAMILY, &shape, &RopeConfig::default(), options)?;
    spec.norms = LayerNorms::SANDWICH;
    spec.activation = Activation::GeluTanh;
    spec.attn_scale = 1.0;
    spec.logit_soft_cap = own.final_logit_softcapping;
    spec.embed_scale = Some((spec.hidden as f32).sqrt());
    spec.tied = shape.tied(true);
    spec.layer_scalar = true;
    spec.per_layer = own.per_layer(spec.vocab)?;
    spec.padding = own.pad_token_id.unwrap_or(0);
    let mut ropes = Ropes::new(config)?;
    let layers = own.layers(&shape)?;
    for (layer, kind) in spec.layers.iter_mut().zip(&layers) {
        let rope = ropes.table(kind, context(FAMILY, &shape, options))?;
        layer.mixer = MixerSpec::Sharing(SharingSpec { rope, ..kind.attention });
        let double =
            own.use_double_wide_mlp == Some(true) && matches!(kind.attention.values, Values::Of(_));
        let inner = shape.intermediate_size * if double { 2 } else { 1 };
        layer.mlp = match own.experts()? {
            Some(experts) => MlpSpec::DenseAndExperts(inner, experts),
            None => MlpSpec::Dense(inner),
        };
    }
    spec.ropes = ropes.tables;
    Ok(spec)
}

/// What a layer is.
#[derive(Clone, Copy)]
struct Kind {
    slides: bool,
    attention: SharingSpec,
}

impl Own {
    /// The attention of each layer, without its rotary table.
    fn layers(&self, shape: &Shape) -> Result<Vec<Kind>, ModelError> {
        let n = shape.num_hidden_layers;
        let slides = |i: usize| {
            let otherwise = !(i + 1).is_multiple_of(PATTERN);
            let slides = config::slides(FAMILY, self.layer_types.as_deref(), i, otherwise)?;
            // As in transformers, whatever is said of the last one.
            Ok::<_, ModelError>(slides && i + 1 < n)
        };
        let slides = (0..n).map(slides).collect::<Result<Vec<_>, _>>()?;
        let sources = sources(FAMILY, &slides, self.num_kv_shared_layers.unwrap_or(0))?;
        let mut layers: Vec<Kind> = Vec::with_capacity(n);
        for (i, (slides, source)) in slides.into_iter().zip(sources).enumerate() {
            let mut attention = self.attention(shape, i, slides)?;
            if let Some(source) = source {
                let d = layers.get(usize::from(source)).map(|layer| layer.attention.head_dim);
                if d != Some(attention.head_dim) {
                    return Err(unsupported("per_layer_config", "heads that share in two sizes"));
                }
                attention.values = Values::Of(source);
            }
            layers.push(Kind { slides, attention });
        }
        Ok(layers)
    }

    fn attention(
        &self,
        shape: &Shape,
        layer: usize,
        slides: bool,
    ) -> Result<SharingSpec, ModelError> {
        let keys = self.attention_k_eq_v == Some(true) && !slides;
        let own = match &self.per_layer_config {
            Some(layers) => {
                let own = layers.iter().find(|(key, _)| key.parse() == Ok(layer));
                own.map(|(_, heads)| *heads).unwrap_or_default()
            }
            None if slides => LayerHeads::default(),
            None => LayerHeads {
                head_dim: self.global_head_dim.or(Some(512)),
                num_key_value_heads: self.num_global_key_value_heads.filter(|_| keys),
            },
        };
        let heads = shape.num_attention_heads;
        let head_dim = own.head_dim.unwrap_or(shape.head_dim());
        let kv_heads = own.num_key_value_heads.unwrap_or(shape.kv_heads());
        config::size(FAMILY, "global_head_dim", head_dim, config::MAX_HEAD_DIM)?;
        config::size(FAMILY, "num_global_key_value_heads", kv_heads, heads)?;
        if !head_dim.is_multiple_of(2) {
            return Err(unsupported("global_head_dim", &head_dim.to_string()));
        }
        if !heads.is_multiple_of(kv_heads) {
            return Err(unsupported("num_global_key_value_heads", &kv_heads.to_string()));
        }
        let window = self.sliding_window.filter(|_| slides);
        let values = if keys { Values::Keys } else { Values::Own };
        Ok(SharingSpec { heads, kv_heads, head_dim, rope: 0, window, values })
    }

    fn per_layer(&self, vocab: usize) -> Result<Option<PerLayerSpec>, ModelError> {
        let Some(size) = self.hidden_size_per_layer_input.filter(|&size| size > 0) else {
            return Ok(None);
        };
        let rows = self.vocab_size_per_layer_input.unwrap_or(262_144);
        config::size(FAMILY, "hidden_size_per_layer_input", size, config::MAX_HEAD_DIM)?;
        config::size(FAMILY, "vocab_size_per_layer_input", rows, config::MAX_SIZE)?;
        if rows < vocab {
            return Err(unsupported("vocab_size_per_layer_input", &rows.to_string()));
        }
        Ok(Some(PerLayerSpec { size, vocab: rows }))
    }

    /// The experts beside each feed-forward.
    fn experts(&self) -> Result<Option<ExpertSpec>, ModelError> {
        if self.enable_moe_block != Some(true) {
            return Ok(None);
        }
        let needed =
            |field, value: Option<usize>| value.ok_or_else(|| unsupported(field, "nothing"));
        let experts = needed("num_experts", self.num_experts)?;
        let inner = needed("moe_intermediate_size", self.moe_intermediate_size)?;
        let route = Route::softmax(needed("top_k_experts", self.top_k_experts)?, true);
        let experts = ExpertSpec {
            names: ExpertNames::GEMMA4,
            scaled_router: true,
            ..ExpertSpec::new(experts, inner, route)
        };
        experts.check(FAMILY).map(|()| Some(experts))
    }
}

/// The rotary settings of both kinds of layers, and the tables made of them so far.
struct Ropes {
    local: RopeConfig,
    global: RopeConfig,
    made: Vec<(bool, usize)>,
    tables: Vec<taper_tensor::RopeTable>,
}

impl Ropes {
    fn new(config: &Value) -> Result<Self, ModelError> {
        let sections = config::section(config, "rope_parameters");
        let read = |kind, default: Value| {
            let section = sections.and_then(|sections| config::section(sections, kind));
            config::parse::<RopeConfig>(FAMILY, section.unwrap_or(&default))
        };
        let global =
            json!({"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6});
        let global = read("full_attention", global)?;
        config::refuse_other_ropes(FAMILY, config, &global)?;
        Ok(Self {
            local: read("sliding_attention", json!({"rope_theta": 1e4}))?,
            global,
            made: Vec::new(),
            tables: Vec::new(),
        })
    }

    /// The number of a layer's table.
    fn table(&mut self, layer: &Kind, context: RopeContext) -> Result<usize, ModelError> {
        let key = (layer.slides, layer.attention.head_dim);
        if let Some(made) = self.made.iter().position(|made| *made == key) {
            return Ok(made);
        }
        let rope = if layer.slides { &self.local } else { &self.global };
        self.tables.push(rope.table(RopeContext { head_dim: key.1, ..context })?);
        self.made.push(key);
        Ok(self.made.len() - 1)
    }
}

fn unsupported(field: &'static str, value: &str) -> ModelError {
    ModelError::Unsupported { family: FAMILY, field, value: value.to_owned() }
}

/// Of each layer whose keys and values are another's, which are the last `shared`: the last layer of its kind that
/// has its own.
pub(super) fn sources(
    family: &'static str,
    slides: &[bool],
    shared: usize,
) -> Result<Vec<Option<u16>>, ModelError> {
    let bad = |value| {
        let field = "num_kv_shared_layers";
        ModelError::Unsupported { family, field, value }
    };
    let n = slides.len();
    let owners = n.checked_sub(shared).ok_or_else(|| bad(format!("{shared} of {n}")))?;
    let source = |i: usize| {
        if i < owners {
            return Ok(None);
        }
        let from = slides[..owners].iter().rposition(|kind| *kind == slides[i]);
        let missing = || bad(format!("{shared}, with none to share for layer {i}"));
        from.and_then(|from| u16::try_from(from).ok()).ok_or_else(missing).map(Some)
    };
    (0..n).map(source).collect()
}

/// Whether a tensor is of keys or values, which files may have of layers that read those of others.
pub(super) fn is_stray(config: &Value, layers: usize, rest: &str) -> bool {
    let shared = config.get("num_kv_shared_layers").and_then(Value::as_u64).unwrap_or(0) as usize;
    let names = ["k_proj", "v_proj", "k_norm", "v_norm"];
    super::beyond(rest, layers.saturating_sub(shared))
        && names.iter().any(|name| rest.contains(&format!(".self_attn.{name}.")))
}

/// Published multimodal checkpoints leave out of `text_config` what equals the defaults.
fn with_published_defaults(config: &Value, window: usize, per_layer: usize) -> Value {
    let defaults = [
        ("vocab_size", json!(262_144)),
        ("num_attention_heads", json!(8)),
        ("num_key_value_heads", json!(4)),
        ("head_dim", json!(256)),
        ("max_position_embeddings", json!(131_072)),
        ("sliding_window", json!(window)),
        ("hidden_size_per_layer_input", json!(per_layer)),
    ];
    config::with_defaults(config, &defaults)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Value {
        json!({"vocab_size": 8, "hidden_size": 32, "intermediate_size": 8, "num_hidden_layers": 4,
               "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 8,
               "global_head_dim": 16, "num_kv_shared_layers": 2, "vocab_size_per_layer_input": 8,
               "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
               "use_double_wide_mlp": true, "hidden_size_per_layer_input": 4, "sliding_window": 20})
    }

    fn attention(spec: &Spec) -> Vec<SharingSpec> {
        let own = |layer: &crate::spec::LayerSpec| match layer.mixer {
            MixerSpec::Sharing(own) => own,
            _ => panic!("attention"),
        };
        spec.layers.iter().map(own).collect()
    }

    #[test]
    fn later_layers_read_the_last_of_their_kind_that_keeps_its_own() {
        let spec = gemma4(&config(), LoadOptions::default()).unwrap();
        let layers = attention(&spec);
        let values: Vec<_> = layers.iter().map(|layer| layer.values).collect();
        assert_eq!(values, [Values::Own, Values::Own, Values::Of(0), Values::Of(1)]);
        let heads: Vec<_> = layers.iter().map(|l| (l.head_dim, l.rope, l.window)).collect();
        assert_eq!(heads[..2], [(8, 0, Some(20)), (16, 1, None)]);
        assert_eq!(heads[..2], heads[2..]);
        assert_eq!(spec.ropes.iter().map(|rope| rope.pairs()).collect::<Vec<_>>(), [4, 8]);
        let inner: Vec<_> = spec.layers.iter().map(|layer| layer.mlp).collect();
        assert_eq!(inner[1..3], [MlpSpec::Dense(8), MlpSpec::Dense(16)]);
    }

    #[test]
    fn heads_are_read_from_either_form() {
        let mut new = config();
        let fields = new.as_object_mut().unwrap();
        fields.shift_remove("global_head_dim");
        let heads = json!({"head_dim": 16});
        fields.insert("per_layer_config".into(), json!({"01": heads, "03": heads}));
        let [old, new] = [&config(), &new].map(|c| gemma4(c, LoadOptions::default()).unwrap());
        assert_eq!(attention(&old), attention(&new));
    }

    #[test]
    fn what_is_not_computed_is_refused_by_its_field() {
        for (field, value) in [
            ("num_kv_shared_layers", json!(4)),
            ("num_kv_shared_layers", json!(3)),
            ("use_bidirectional_attention", json!("all")),
            ("attention_bias", json!(true)),
            ("vocab_size_per_layer_input", json!(7)),
            ("global_head_dim", json!(0)),
            ("global_head_dim", json!(1u64 << 40)),
            ("hidden_activation", json!("relu")),
            ("final_logit_softcapping", json!(0.0)),
        ] {
            let mut config = config();
            config[field] = value;
            let error = gemma4(&config, LoadOptions::default()).unwrap_err().to_string();
            assert!(error.contains(field), "{field}: {error}");
        }
        let mut experts = config();
        experts["enable_moe_block"] = json!(true);
        let error = gemma4(&experts, LoadOptions::default()).unwrap_err().to_string();
        assert!(error.contains("num_experts"), "{error}");
    }
}
