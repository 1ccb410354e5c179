//! Mamba, Falcon Mamba and Mamba 2: nothing but recurrent layers.

use super::{
    common,
    hybrid::{MAX_KERNEL, Mamba2Fields, TimeSteps},
};
use crate::{
    LoadOptions, ModelError,
    config::{self, MAX_HEADS, MAX_SIZE, Shape},
    mixers::{Mamba2Spec, MambaSpec, ScanNorms},
    norms::LayerNorms,
    rope::RopeConfig,
    source::Renames,
    spec::{LayerSpec, MixerSpec, MlpSpec, Spec, TopNames},
};
use serde::Deserialize;
use serde_json::Value;
use taper_tensor::SelectiveScanShape;

const RENAMES: Renames = &[("input_layernorm", "norm"), ("mamba", "mixer")];
const TOP: TopNames = TopNames {
    places: &[("backbone.", "lm_head"), ("model.", "lm_head")],
    embed: "embeddings",
    layers: "layers",
    norm: "norm_f",
};
/// Tokens of a sequence where nothing is said of them: states do not grow.
const POSITIONS: usize = 1 << 18;

/// Elements that time steps are projected from: a number, or a sixteenth of the hidden size.
pub(super) fn rank(
    family: &'static str,
    field: &'static str,
    given: Option<&Value>,
    hidden: usize,
) -> Result<usize, ModelError> {
    let rank = match given {
        None | Some(Value::Null) => hidden.div_ceil(16),
        Some(Value::String(auto)) if auto == "auto" => hidden.div_ceil(16),
        Some(other) => config::parse(family, other).map_err(|_| ModelError::Unsupported {
            family,
            field,
            value: other.to_string(),
        })?,
    };
    config::size(family, field, rank, MAX_SIZE)?;
    Ok(rank)
}

#[derive(Deserialize)]
struct Own {
    expand: Option<usize>,
    /// Channels of a layer, whatever `expand` says (Mamba, Falcon Mamba).
    intermediate_size: Option<usize>,
    state_size: Option<usize>,
    conv_kernel: Option<usize>,
    time_step_rank: Option<Value>,
    #[serde(default)]
    use_bias: bool,
    use_conv_bias: Option<bool>,
    mixer_rms_eps: Option<f32>,
    // Mamba 2.
    num_heads: Option<usize>,
    head_dim: Option<usize>,
    n_groups: Option<usize>,
    time_step_limit: Option<TimeSteps>,
}

/// A model whose layers all have this mixer, and nothing after it. It is made of the hidden size, and of this times
/// `expand`.
fn only(
    family: &'static str,
    config: &Value,
    tied: bool,
    options: LoadOptions<'_>,
    mixer: impl FnOnce(&Own, [usize; 2]) -> Result<MixerSpec, ModelError>,
) -> Result<Spec, ModelError> {
    config::require(family, config, "hidden_act", &["silu"])?;
    let own: Own = config::parse(family, config)?;
    let mut config = config::with_default(config, "layer_norm_epsilon", 1e-5);
    if let Some(fields) = config.as_object_mut() {
        let eps = fields.get("layer_norm_epsilon").cloned().unwrap_or(Value::Null);
        fields.insert("rms_norm_eps".to_owned(), eps);
        // Nothing attends: what is said of heads is of no account.
        for name in ["num_attention_heads", "num_key_value_heads", "intermediate_size"] {
            fields.insert(name.to_owned(), 1.into());
        }
        fields.insert("max_position_embeddings".to_owned(), POSITIONS.into());
        fields.insert("head_dim".to_owned(), 128.into());
    }
    let shape: Shape = config::parse(family, &config)?;
    let mut spec = common(family, &shape, &RopeConfig::default(), options)?;
    (spec.renames, spec.top) = (RENAMES, TOP);
    spec.norms = LayerNorms { mlp: None, ..LayerNorms::PRE };
    spec.tied = shape.tied(tied);
    let expand = own.expand.unwrap_or(2);
    config::size(family, "expand", expand, MAX_HEADS)?;
    let mixer = mixer(&own, [spec.hidden, expand * spec.hidden])?;
    let layer = LayerSpec { mixer, mlp: MlpSpec::None };
    spec.layers.fill(layer);
    Ok(spec)
}

/// A layer of Mamba.
fn scan(
    family: &'static str,
    own: &Own,
    [hidden, expanded]: [usize; 2],
    norms: ScanNorms,
) -> Result<MixerSpec, ModelError> {
    let channels = own.intermediate_size.unwrap_or(expanded);
    config::size(family, "intermediate_size", channels, MAX_SIZE)?;
    let (state, kernel) = (own.state_size.unwrap_or(16), own.conv_kernel.unwrap_or(4));
    config::size(family, "state_size", state, MAX_HEADS)?;
    config::size(family, "conv_kernel", kernel, MAX_KERNEL)?;
    config::size(family, "state_size", channels.saturating_mul(state), MAX_SIZE)?;
    Ok(MixerSpec::Mamba(MambaSpec {
        scan: SelectiveScanShape { channels, state },
        kernel,
        rank: rank(family, "time_step_rank", own.time_step_rank.as_ref(), hidden)?,
        bias: own.use_bias,
        conv_bias: own.use_conv_bias.unwrap_or(true),
        norms,
    }))
}

pub(super) fn mamba(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    only("mamba", config, true, options, |own, sizes| scan("mamba", own, sizes, ScanNorms::None))
}

pub(super) fn falcon_mamba(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let family = "falcon_mamba";
    only(family, config, true, options, |own, sizes| {
        let eps = own.mixer_rms_eps.unwrap_or(1e-6);
        if !(0.0..=1.0).contains(&eps) {
            let (value, range) = (eps.to_string(), "it must be from 0 to 1".to_owned());
            let field = "mixer_rms_eps";
            return Err(ModelError::OutOfRange { family, field, value, range });
        }
        scan(family, own, sizes, ScanNorms::Plain(eps))
    })
}

pub(super) fn mamba2(config: &Value, options: LoadOptions<'_>) -> Result<Spec, ModelError> {
    let family = "mamba2";
    only(family, config, false, options, |own, [_, inner]| {
        let fields = Mamba2Fields {
            heads: ("num_heads", own.num_heads.unwrap_or(128)),
            head_dim: ("head_dim", own.head_dim.unwrap_or(64)),
            groups: ("n_groups", own.n_groups.unwrap_or(8)),
            state: ("state_size", own.state_size.unwrap_or(128)),
            kernel: ("conv_kernel", own.conv_kernel.unwrap_or(4)),
        };
        let spec = fields.spec(family, inner, own.time_step_limit.unwrap_or_default())?;
        let conv_bias = own.use_conv_bias.unwrap_or(true);
        Ok(MixerSpec::Mamba2(Mamba2Spec { bias: own.use_bias, conv_bias, ..spec }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    type Read = fn(&Value, LoadOptions<'_>) -> Result<Spec, ModelError>;

    #[test]
    fn channels_are_those_that_are_said_whatever_they_expand_to() {
        let mut config =
            json!({"vocab_size": 8, "hidden_size": 64, "num_hidden_layers": 2, "expand": 16});
        let layer = |config: &Value, read: Read| {
            let spec = read(config, LoadOptions::default()).unwrap();
            let MixerSpec::Mamba(mamba) = spec.layers[0].mixer else { panic!("a scan") };
            (mamba.scan.channels, mamba.rank)
        };
        assert_eq!(layer(&config, falcon_mamba), (1024, 4));
        config["intermediate_size"] = json!(128);
        assert_eq!(layer(&config, falcon_mamba), (128, 4));
        assert_eq!(layer(&config, mamba), (128, 4));
    }

    #[test]
    fn what_is_not_run_is_refused_by_name() {
        let config = json!({"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 2, "num_heads": 4,
                            "head_dim": 4, "n_groups": 2, "state_size": 4});
        let cases: [(Read, &str, Value); 10] = [
            (mamba, "intermediate_size", json!(0)),
            (mamba, "state_size", json!(0)),
            (mamba, "conv_kernel", json!(1u64 << 40)),
            (mamba, "expand", json!(1u64 << 60)),
            (mamba, "time_step_rank", json!(0)),
            (mamba, "hidden_act", json!("gelu")),
            (falcon_mamba, "mixer_rms_eps", json!(-1.0)),
            (mamba2, "head_dim", json!(5)),
            (mamba2, "n_groups", json!(3)),
            (mamba2, "time_step_limit", json!([1.0, 0.0])),
        ];
        for (read, field, value) in cases {
            assert!(read(&config, LoadOptions::default()).is_ok());
            let mut config = config.clone();
            config[field] = value;
            let error = read(&config, LoadOptions::default()).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
