//! Which codec each layer of a KV cache has, before the number of layers is known.

use serde::Deserialize;
use serde_json::{Map, Value};
use std::{ops::Range, sync::Arc};
use taper_kv_cache::{KvCacheError, KvScheme, Prices};
use taper_kv_codecs::{KvCodec, KvCodecError};
use taper_tensor::gpu::Gpu;

/// Layers that a span may name at most, so that sums of them never overflow.
const MOST_LAYERS: u64 = 1 << 20;

/// Which codec each layer has.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum KvPlan {
    /// One codec for all layers, as [`taper_kv_codecs::parse`] names it.
    All(String),
    /// A codec, and exceptions by layers; of two exceptions for the same layer the later counts.
    Layers {
        /// The codec of all other layers.
        default: String,
        /// The exceptions.
        layers: Vec<(LayerSpan, String)>,
    },
    /// One codec for each layer.
    List(Vec<String>),
    /// Codecs of the `taper` family: more bits where an error costs more.
    Bits {
        /// Mean bits of an element, from 2 to 8.
        bits: f64,
        /// What errors cost by layer; `None` takes those of usual models.
        prices: Option<Prices>,
    },
}

/// Layers from the first to the last; numbers below 0 count from the end, -1 is the last layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerSpan {
    first: i64,
    last: i64,
}

/// Why a plan cannot be read, or does not fit a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvPlanError {
    /// JSON of another form.
    #[error("must be a name, a list of names or an object, not {got}")]
    Form {
        /// What it is.
        got: String,
    },
    /// A field that is missing, unknown or of another type.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// Bits out of range.
    #[error("bits must be from 2 to 8, not {bits}")]
    Bits {
        /// What was asked for.
        bits: f64,
    },
    /// A price that is negative or no finite number.
    #[error("prices must be numbers, and not below 0")]
    Price,
    /// An exception that names no codec.
    #[error("layers.{span} must be the name of a codec, not {got}")]
    Exception {
        /// The layers.
        span: String,
        /// What stands there.
        got: String,
    },
    /// A text that names no layers.
    #[error("{text:?} are no layers; write \"3\", \"-1\" for the last, or \"0-3\"")]
    Span {
        /// The text.
        text: String,
    },
    /// Layers that the model does not have.
    #[error("the plan of KV codecs speaks of layers {first}-{last}, and the model has 0-{}", layers.saturating_sub(1))]
    Beyond {
        /// The first layer named.
        first: i64,
        /// The last layer named.
        last: i64,
        /// Layers of the model.
        layers: usize,
    },
    /// A list of another length than the model.
    #[error("the plan of KV codecs has {codecs} codecs, and the model {layers} layers")]
    Count {
        /// Codecs listed.
        codecs: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// Prices of another number of layers than the model has.
    #[error(
        "the plan of KV codecs has prices of {keys} layers' keys and {values} layers' values, and the model {layers} layers"
    )]
    PriceCount {
        /// Prices of keys.
        keys: usize,
        /// Prices of values.
        values: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// A codec that does not exist, or not on this device.
    #[error(transparent)]
    Codec(#[from] KvCodecError),
    /// Codecs that cannot share a cache.
    #[error(transparent)]
    Cache(#[from] KvCacheError),
}

impl From<&str> for KvPlan {
    fn from(name: &str) -> Self {
        Self::All(name.to_owned())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LayersJson {
    default: String,
    #[serde(default)]
    layers: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BitsJson {
    bits: f64,
    prices: Option<PricesJson>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PricesJson {
    k: Vec<f64>,
    v: Vec<f64>,
}

impl KvPlan {
    /// Reads one of the four forms from JSON:
    /// `"taper4"`,
    /// `["f16", "taper4", ...]` (one for each layer),
    /// `{"default": "taper3", "layers": {"0-1": "taper4", "-1": "f16"}}`, or
    /// `{"bits": 3.5, "prices": {"k": [...], "v": [...]}}`.
    ///
    /// # Errors
    /// It has none of these forms.
    pub fn from_json(json: Value) -> Result<Self, KvPlanError> {
        match json {
            Value::String(name) => Ok(Self::All(name)),
            Value::Array(_) => Ok(Self::List(serde_json::from_value(json)?)),
            Value::Object(ref fields) if fields.contains_key("bits") => {
                let BitsJson { bits, prices } = serde_json::from_value(json)?;
                let prices = prices.map(|PricesJson { k, v }| Prices { k, v });
                check_bits(bits, prices.as_ref())?;
                Ok(Self::Bits { bits, prices })
            }
            Value::Object(_) => {
                let LayersJson { default, layers } = serde_json::from_value(json)?;
                let one = |(span, name): (String, Value)| match name {
                    Value::String(name) => Ok((LayerSpan::parse(&span)?, name)),
                    other => Err(KvPlanError::Exception { span, got: other.to_string() }),
                };
                let layers = layers.into_iter().map(one).collect::<Result<_, _>>()?;
                Ok(Self::Layers { default, layers })
            }
            other => Err(KvPlanError::Form { got: other.to_string() }),
        }
    }

    /// The scheme of a model with so many layers, for a cache on `gpu` if there is one.
    ///
    /// # Errors
    /// The plan does not fit the number of layers, or names a codec that does not exist there.
    pub fn resolve(&self, layers: usize, gpu: Option<&Gpu>) -> Result<KvScheme, KvPlanError> {
        let names = self.names(layers)?;
        let mut known: Vec<(String, Arc<dyn KvCodec>)> = Vec::new();
        let mut codecs = Vec::with_capacity(layers);
        for name in names {
            // Layers share a codec, and with it its tables.
            let codec = match known.iter().find(|(n, _)| *n == name) {
                Some((_, codec)) => Arc::clone(codec),
                None => {
                    let codec = match gpu {
                        Some(gpu) => taper_kv_codecs::parse_on(&name, gpu)?,
                        None => taper_kv_codecs::parse(&name)?,
                    };
                    known.push((name, Arc::clone(&codec)));
                    codec
                }
            };
            codecs.push(codec);
        }
        Ok(KvScheme::of_layers(&codecs)?)
    }

    /// The codec of each layer.
    fn names(&self, layers: usize) -> Result<Vec<String>, KvPlanError> {
        match self {
            Self::All(name) => Ok(vec![name.clone(); layers]),
            Self::List(names) if names.len() == layers => Ok(names.clone()),
            Self::List(names) => Err(KvPlanError::Count { codecs: names.len(), layers }),
            Self::Layers { default, layers: exceptions } => {
                let mut names = vec![default.clone(); layers];
                for (span, name) in exceptions {
                    let range = span.within(layers)?;
                    names[range].fill(name.clone());
                }
                Ok(names)
            }
            Self::Bits { bits, prices } => {
                check_bits(*bits, prices.as_ref())?;
                let prices = prices.clone().unwrap_or_else(|| Prices::usual(layers));
                let (keys, values) = (prices.k.len(), prices.v.len());
                if (keys, values) != (layers, layers) {
                    return Err(KvPlanError::PriceCount { keys, values, layers });
                }
                Ok(prices.share_out(*bits))
            }
        }
    }
}

/// Whether bits can be shared out by these prices.
fn check_bits(bits: f64, prices: Option<&Prices>) -> Result<(), KvPlanError> {
    if !(2.0..=8.0).contains(&bits) {
        return Err(KvPlanError::Bits { bits });
    }
    let mut all = prices.into_iter().flat_map(|p| p.k.iter().chain(&p.v));
    match all.all(|p| *p >= 0.0 && p.is_finite()) {
        true => Ok(()),
        false => Err(KvPlanError::Price),
    }
}

impl LayerSpan {
    /// Reads `3`, `-1`, `0-3` or `-4--1`.
    ///
    /// # Errors
    /// The text is none of these.
    pub fn parse(text: &str) -> Result<Self, KvPlanError> {
        let number = |n: &str| n.parse::<i64>().ok().filter(|n| n.unsigned_abs() < MOST_LAYERS);
        let (first, last) = match text.get(1..).and_then(|rest| rest.split_once('-')) {
            Some((_, last)) => (&text[..text.len() - last.len() - 1], last),
            None => (text, text),
        };
        match (number(first), number(last)) {
            (Some(first), Some(last)) => Ok(Self { first, last }),
            _ => Err(KvPlanError::Span { text: text.to_owned() }),
        }
    }

    fn within(self, layers: usize) -> Result<Range<usize>, KvPlanError> {
        let from_start = |n: i64| if n < 0 { n + layers as i64 } else { n };
        let (first, last) = (from_start(self.first), from_start(self.last));
        if 0 <= first && first <= last && last < layers as i64 {
            return Ok(first as usize..last as usize + 1);
        }
        Err(KvPlanError::Beyond { first: self.first, last: self.last, layers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(json: &str, layers: usize) -> Result<String, KvPlanError> {
        let json = serde_json::from_str(json)?;
        Ok(KvPlan::from_json(json)?.resolve(layers, None)?.to_string())
    }

    #[test]
    fn every_form_is_read() {
        let is = |json, want| assert_eq!(names(json, 6).unwrap(), want, "{json}");
        is("\"taper4\"", "taper4");
        is("{\"default\": \"taper3\"}", "taper3");
        let ends = r#"{"default": "taper3", "layers": {"0-1": "taper4", "-1": "f16"}}"#;
        is(ends, "taper3 (0-1: taper4, 5: f16)");
        is(r#"{"default": "f16", "layers": {"-4--1": "turbo4"}}"#, "turbo4 (0-1: f16)");
        is(r#"["f16", "f16", "f16", "f16", "turbo4", "f16"]"#, "f16 (4: turbo4)");
        is(r#"{"bits": 3}"#, "taper4v3 (2-3: taper3v2, 4-5: taper3)");
        let prices = r#"{"bits": 3, "prices": {"k": [1,1,1,1,1,9], "v": [1,1,1,1,1,0]}}"#;
        is(prices, "taper3 (5: taper4v2)");
    }

    #[test]
    fn plans_that_were_not_read_are_checked_too() {
        let plan = |bits, price| {
            let prices = Some(Prices { k: vec![1.0; 2], v: vec![1.0, price] });
            KvPlan::Bits { bits, prices }.resolve(2, None).map(drop)
        };
        assert!(plan(3.0, 1.0).is_ok());
        for bits in [f64::NAN, f64::INFINITY, -3.0, 1.9, 8.1] {
            assert!(matches!(plan(bits, 1.0), Err(KvPlanError::Bits { .. })), "{bits}");
        }
        for price in [f64::NAN, f64::INFINITY, -1.0] {
            assert!(matches!(plan(3.0, price), Err(KvPlanError::Price)), "{price}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (json, word) in [
            ("\"int1\"", "int1"),
            ("7", "must be a name"),
            ("{\"default\": \"f16\", \"layer\": {}}", "unknown field `layer`"),
            ("{\"layers\": {}}", "missing field `default`"),
            ("{\"default\": \"f16\", \"layers\": {\"x\": \"f16\"}}", "\"x\" are no layers"),
            ("{\"default\": \"f16\", \"layers\": {\"é\": \"f16\"}}", "\"é\" are no layers"),
            (
                "{\"default\": \"f16\", \"layers\": {\"-9223372036854775808\": \"f16\"}}",
                "are no layers",
            ),
            ("{\"default\": \"f16\", \"layers\": {\"0-6\": \"f16\"}}", "the model has 0-5"),
            ("{\"default\": \"f16\", \"layers\": {\"-7\": \"f16\"}}", "the model has 0-5"),
            ("{\"default\": \"f16\", \"layers\": {\"3-1\": \"f16\"}}", "3-1"),
            ("{\"default\": \"f16\", \"layers\": {\"3\": 4}}", "layers.3"),
            ("[\"f16\"]", "1 codecs, and the model 6"),
            ("{\"bits\": 9}", "from 2 to 8"),
            ("{\"bits\": 3, \"prices\": {\"k\": [1], \"v\": [1]}}", "the model 6 layers"),
            ("{\"bits\": 3, \"prices\": {\"k\": [-1], \"v\": [1]}}", "below 0"),
        ] {
            let error = names(json, 6).unwrap_err().to_string();
            assert!(error.contains(word), "{json}: {error}");
        }
    }
}
