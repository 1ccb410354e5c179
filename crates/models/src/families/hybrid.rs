//! What families with recurrent layers have in common: how config.json names layers, and the sizes of their states.

use crate::{
    ModelError,
    config::{self, MAX_HEADS, MAX_SIZE},
    mixers::{Mamba2Spec, StateNorm},
    spec::LayerSpec,
};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;
use taper_tensor::Mamba2Shape;

/// Tokens that a convolution sees.
pub(super) const MAX_KERNEL: usize = 1 << 10;

/// What a list says of a layer.
pub(super) fn kind<'a>(
    family: &'static str,
    field: &'static str,
    kinds: &'a [String],
    layer: usize,
) -> Result<&'a str, ModelError> {
    kinds.get(layer).map(String::as_str).ok_or_else(|| {
        let value = format!("{} entries", kinds.len());
        let range = "each layer needs one".to_owned();
        ModelError::OutOfRange { family, field, value, range }
    })
}

/// Refuses a kind of layer that the family does not have.
pub(super) fn unknown(family: &'static str, field: &'static str, kind: &str) -> ModelError {
    ModelError::Unsupported { family, field, value: kind.to_owned() }
}

/// Refuses a model in which no layer keeps keys and values.
pub(super) fn require_attention(
    family: &'static str,
    field: &'static str,
    layers: &[LayerSpec],
) -> Result<(), ModelError> {
    if layers.iter().any(|layer| layer.mixer.attends()) {
        return Ok(());
    }
    let (value, range) = ("no attention".to_owned(), "one layer needs it".to_owned());
    Err(ModelError::OutOfRange { family, field, value, range })
}

/// The least and the largest time step. What is no number in JSON is a section in transformers' files.
#[derive(Debug, Clone, Copy)]
pub(super) struct TimeSteps(pub(super) f32, pub(super) f32);

impl Default for TimeSteps {
    fn default() -> Self {
        Self(0.0, f32::INFINITY)
    }
}

impl<'de> Deserialize<'de> for TimeSteps {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Limit {
            Number(f32),
            Special {
                #[serde(rename = "__float__")]
                float: String,
            },
        }
        let [least, most] = <[Limit; 2]>::deserialize(deserializer)?;
        let number = |limit| match limit {
            Limit::Number(x) => Ok(x),
            Limit::Special { float } => float.parse().map_err(D::Error::custom),
        };
        Ok(Self(number(least)?, number(most)?))
    }
}

/// Sizes of a Mamba 2 layer, each with the name of its field.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mamba2Fields {
    pub(super) heads: (&'static str, usize),
    pub(super) head_dim: (&'static str, usize),
    pub(super) groups: (&'static str, usize),
    pub(super) state: (&'static str, usize),
    pub(super) kernel: (&'static str, usize),
}

impl Mamba2Fields {
    /// The fields of Bamba, Granite 4 and Falcon-H1.
    pub(super) fn bamba(own: &Bamba, inner: usize) -> Self {
        // Another number than "auto" must agree with the inner size, which the tensors' shapes tell.
        let given = own.mamba_d_head.as_ref().and_then(Value::as_u64).map(|n| n as usize);
        Self {
            heads: ("mamba_n_heads", own.mamba_n_heads),
            head_dim: ("mamba_d_head", given.unwrap_or(inner / own.mamba_n_heads.max(1))),
            groups: ("mamba_n_groups", own.mamba_n_groups),
            state: ("mamba_d_state", own.mamba_d_state),
            kernel: ("mamba_d_conv", own.mamba_d_conv),
        }
    }

    /// The layer, once its sizes are checked; `inner` is what the family says that all heads take together.
    pub(super) fn spec(
        self,
        family: &'static str,
        inner: usize,
        TimeSteps(least, most): TimeSteps,
    ) -> Result<Mamba2Spec, ModelError> {
        let Self { heads, head_dim, groups, state, kernel } = self;
        for (field, value) in [heads, head_dim, groups, state] {
            config::size(family, field, value, MAX_HEADS)?;
        }
        config::size(family, kernel.0, kernel.1, MAX_KERNEL)?;
        let bad = |(field, value): (&'static str, usize)| {
            Err(ModelError::Unsupported { family, field, value: value.to_string() })
        };
        if heads.1 * head_dim.1 != inner {
            return bad(head_dim);
        }
        if !heads.1.is_multiple_of(groups.1) {
            return bad(groups);
        }
        config::size(family, state.0, inner.saturating_mul(state.1), MAX_SIZE)?;
        if !(least >= 0.0 && least <= most) {
            let (value, range) = (format!("[{least}, {most}]"), "it must be a range".to_owned());
            let field = "time_step_limit";
            return Err(ModelError::OutOfRange { family, field, value, range });
        }
        let (heads, head_dim, groups) = (heads.1, head_dim.1, groups.1);
        let shape = Mamba2Shape { heads, head_dim, groups, state: state.1, kernel: kernel.1 };
        let time_step = (least, most);
        let norm = StateNorm::AfterGate;
        Ok(Mamba2Spec { shape, bias: false, conv_bias: true, time_step, factors: None, norm })
    }
}

/// What Bamba calls the sizes of its Mamba 2 layers.
#[derive(Debug, Deserialize)]
pub(super) struct Bamba {
    mamba_n_heads: usize,
    #[serde(default = "one")]
    mamba_n_groups: usize,
    mamba_d_state: usize,
    mamba_d_head: Option<Value>,
    #[serde(default = "kernel")]
    mamba_d_conv: usize,
    #[serde(default = "expand")]
    mamba_expand: usize,
    /// Channels of all heads, where it is not a multiple of the hidden size (Falcon-H1).
    mamba_d_ssm: Option<usize>,
    #[serde(default = "on")]
    mamba_conv_bias: bool,
    #[serde(default)]
    mamba_proj_bias: bool,
    time_step_limit: Option<TimeSteps>,
}

fn one() -> usize {
    1
}

fn kernel() -> usize {
    4
}

fn expand() -> usize {
    2
}

fn on() -> bool {
    true
}

impl Bamba {
    /// The layer of a model of this hidden size.
    pub(super) fn spec(
        &self,
        family: &'static str,
        hidden: usize,
    ) -> Result<Mamba2Spec, ModelError> {
        config::size(family, "mamba_expand", self.mamba_expand, MAX_HEADS)?;
        let inner = self.mamba_d_ssm.unwrap_or(self.mamba_expand * hidden);
        let fields = Mamba2Fields::bamba(self, inner);
        let spec = fields.spec(family, inner, self.time_step_limit.unwrap_or_default())?;
        Ok(Mamba2Spec { bias: self.mamba_proj_bias, conv_bias: self.mamba_conv_bias, ..spec })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn time_steps_may_be_without_end() {
        let read = |value: Value| serde_json::from_value::<TimeSteps>(value);
        let TimeSteps(least, most) = read(json!([0.5, {"__float__": "Infinity"}])).unwrap();
        assert_eq!((least, most), (0.5, f32::INFINITY));
        assert!(read(json!([0.5])).is_err());
        assert!(read(json!([0.0, {"__float__": "much"}])).is_err());
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused_by_name() {
        let config = json!({"mamba_n_heads": 4, "mamba_n_groups": 2, "mamba_d_state": 8,
                            "mamba_d_head": "auto"});
        let spec = |config: &Value| {
            let own: Bamba = serde_json::from_value(config.clone()).unwrap();
            own.spec("bamba", 16)
        };
        assert_eq!(spec(&config).unwrap().shape.head_dim, 8);
        for (field, value) in [
            ("mamba_n_heads", json!(0)),
            ("mamba_d_head", json!(7)),
            ("mamba_n_groups", json!(3)),
            ("mamba_d_state", json!(1u64 << 40)),
            ("mamba_d_conv", json!(0)),
            ("mamba_expand", json!(1u64 << 60)),
            ("time_step_limit", json!([2.0, 1.0])),
        ] {
            let mut config = config.clone();
            config[field] = value;
            let error = spec(&config).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
