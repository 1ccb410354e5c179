//! `--kv-cache-dtype` and `--additional-config`: which codec each layer of the KV cache has.

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::sync::Arc;
use taper_kv_cache::{KvScheme, Prices};
use taper_kv_codecs::KvCodec;
use taper_tensor::gpu::Gpu;

/// How keys and values are stored.
#[derive(Debug, Clone, Args)]
pub(crate) struct KvArgs {
    /// KV-cache codec: auto (f16), f16, bf16, f32, affine8, affine4, turbo2 to turbo5 or taper2 to
    /// taper4.
    ///
    /// Names such as turbo4v2 set keys and values apart. turbo2-qjl to turbo5-qjl spend one bit of
    /// each key on a QJL sketch. taper3-l9 is taper3 with more trellis states.
    #[arg(long, default_value = "auto", value_name = "TYPE")]
    pub(crate) kv_cache_dtype: String,
    /// KV codecs by layer, and further KV caches, as JSON.
    ///
    /// {"kv_scheme": "taper4"}
    ///   One codec for all layers.
    /// {"kv_scheme": {"default": "taper3", "layers": {"0-1": "taper4", "-1": "f16"}}}
    ///   Exceptions by layer; -1 is the last layer.
    /// {"kv_scheme": ["f16", "taper4", ...]}
    ///   One codec per layer.
    /// {"kv_scheme": {"bits": 3.5, "prices": {"k": [...], "v": [...]}}}
    ///   taper codecs with this many bits on average, more where errors cost more.
    ///   `taper kv-report` measures the prices.
    /// {"kv_bits": {"8": "affine8", "4": "taper4"}}
    ///   Further caches, which a request selects with its field `kv_bits`.
    ///   All caches get equal shares of the memory.
    #[arg(long, value_name = "JSON", verbatim_doc_comment)]
    pub(crate) additional_config: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Additional {
    kv_scheme: Option<Value>,
    #[serde(default)]
    kv_bits: Map<String, Value>,
}

/// What was asked for, before the number of layers is known.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SchemeSpec {
    /// One codec.
    All(String),
    /// Exceptions by layers, the later of two for the same layer counts.
    Layers { default: String, layers: Vec<(Span, String)> },
    /// One a layer.
    List(Vec<String>),
    /// Bits in the mean, shared out by price.
    Bits { bits: f64, prices: Option<Prices> },
}

/// Layers from the first to the last; those below 0 are counted from the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    first: i64,
    last: i64,
}

impl KvArgs {
    fn additional(&self) -> Result<Additional> {
        match &self.additional_config {
            None => Ok(Additional::default()),
            Some(json) => serde_json::from_str(json).context("--additional-config"),
        }
    }

    /// What the flags say of requests that name no bits.
    pub(crate) fn spec(&self) -> Result<SchemeSpec> {
        let Some(scheme) = self.additional()?.kv_scheme else {
            return Ok(SchemeSpec::All(self.kv_cache_dtype.clone()));
        };
        ensure!(
            self.kv_cache_dtype == "auto",
            "--kv-cache-dtype and the kv_scheme of --additional-config say the same; give one"
        );
        SchemeSpec::parse(scheme).context("--additional-config: kv_scheme")
    }

    /// What a request gets by the bits that it names.
    pub(crate) fn offers(&self) -> Result<Vec<(u32, SchemeSpec)>> {
        let one = |(bits, scheme): (String, Value)| {
            let what = || format!("--additional-config: kv_bits {bits:?}");
            let number = bits.parse().ok().filter(|b| (1..=32).contains(b));
            let number = number.context("must be a number from 1 to 32").with_context(what)?;
            Ok((number, SchemeSpec::parse(scheme).with_context(what)?))
        };
        self.additional()?.kv_bits.into_iter().map(one).collect()
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

impl SchemeSpec {
    fn parse(json: Value) -> Result<Self> {
        match json {
            Value::String(name) => Ok(Self::All(name)),
            Value::Array(_) => Ok(Self::List(serde_json::from_value(json)?)),
            Value::Object(ref fields) if fields.contains_key("bits") => {
                let BitsJson { bits, prices } = serde_json::from_value(json)?;
                ensure!((2.0..=8.0).contains(&bits), "bits must be from 2 to 8, not {bits}");
                let prices = prices.map(|PricesJson { k, v }| Prices { k, v });
                let mut all = prices.iter().flat_map(|p| p.k.iter().chain(&p.v));
                ensure!(all.all(|p| *p >= 0.0 && p.is_finite()), "prices must not be below 0");
                Ok(Self::Bits { bits, prices })
            }
            Value::Object(_) => {
                let LayersJson { default, layers } = serde_json::from_value(json)?;
                let one = |(span, name): (String, Value)| match name {
                    Value::String(name) => Ok((Span::parse(&span)?, name)),
                    other => bail!("layers.{span} must be the name of a codec, not {other}"),
                };
                let layers = layers.into_iter().map(one).collect::<Result<_>>()?;
                Ok(Self::Layers { default, layers })
            }
            other => bail!("must be a name, a list of names or an object, not {other}"),
        }
    }

    /// The scheme of a model with so many layers, for a cache on `gpu` if there is one.
    pub(crate) fn resolve(&self, layers: usize, gpu: Option<&Gpu>) -> Result<KvScheme> {
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

    fn names(&self, layers: usize) -> Result<Vec<String>> {
        match self {
            Self::All(name) => Ok(vec![name.clone(); layers]),
            Self::List(names) => {
                let n = names.len();
                ensure!(n == layers, "kv_scheme has {n} codecs, and the model {layers} layers");
                Ok(names.clone())
            }
            Self::Layers { default, layers: exceptions } => {
                let mut names = vec![default.clone(); layers];
                for (span, name) in exceptions {
                    let range = span.within(layers)?;
                    names[range].fill(name.clone());
                }
                Ok(names)
            }
            Self::Bits { bits, prices } => {
                let prices = prices.clone().unwrap_or_else(|| Prices::usual(layers));
                let (k, v) = (prices.k.len(), prices.v.len());
                ensure!(
                    (k, v) == (layers, layers),
                    "kv_scheme has prices of {k} layers' keys and {v} layers' values, and the model {layers} layers"
                );
                Ok(prices.share_out(*bits))
            }
        }
    }
}

impl Span {
    /// `3`, `-1`, `0-3`.
    fn parse(text: &str) -> Result<Self> {
        let number = |n: &str| n.parse::<i64>().ok().filter(|n| n.abs() < 1 << 20);
        let (first, last) = match text.get(1..).and_then(|rest| rest.split_once('-')) {
            Some((_, last)) => (&text[..text.len() - last.len() - 1], last),
            None => (text, text),
        };
        match (number(first), number(last)) {
            (Some(first), Some(last)) => Ok(Self { first, last }),
            _ => bail!("{text:?} are no layers; write \"3\", \"-1\" for the last, or \"0-3\""),
        }
    }

    fn within(self, layers: usize) -> Result<std::ops::Range<usize>> {
        let place = |n: i64| if n < 0 { n + layers as i64 } else { n };
        let (first, last) = (place(self.first), place(self.last));
        ensure!(
            0 <= first && first <= last && last < layers as i64,
            "kv_scheme speaks of layers {}-{}, and the model has 0-{}",
            self.first,
            self.last,
            layers.saturating_sub(1)
        );
        Ok(first as usize..last as usize + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(json: &str, layers: usize) -> Result<String> {
        let args = KvArgs {
            kv_cache_dtype: "auto".to_owned(),
            additional_config: Some(format!("{{\"kv_scheme\": {json}}}")),
        };
        Ok(args.spec()?.resolve(layers, None)?.to_string())
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
    fn mistakes_are_named() {
        for (json, word) in [
            ("\"int1\"", "int1"),
            ("7", "must be a name"),
            ("{\"default\": \"f16\", \"layer\": {}}", "unknown field `layer`"),
            ("{\"layers\": {}}", "missing field `default`"),
            ("{\"default\": \"f16\", \"layers\": {\"x\": \"f16\"}}", "\"x\" are no layers"),
            ("{\"default\": \"f16\", \"layers\": {\"0-6\": \"f16\"}}", "the model has 0-5"),
            ("{\"default\": \"f16\", \"layers\": {\"-7\": \"f16\"}}", "the model has 0-5"),
            ("{\"default\": \"f16\", \"layers\": {\"3-1\": \"f16\"}}", "3-1"),
            ("{\"default\": \"f16\", \"layers\": {\"3\": 4}}", "layers.3"),
            ("[\"f16\"]", "1 codecs, and the model 6"),
            ("{\"bits\": 9}", "from 2 to 8"),
            ("{\"bits\": 3, \"prices\": {\"k\": [1], \"v\": [1]}}", "the model 6 layers"),
            ("{\"bits\": 3, \"prices\": {\"k\": [-1], \"v\": [1]}}", "below 0"),
        ] {
            let error = format!("{:#}", names(json, 6).unwrap_err());
            assert!(error.contains(word), "{json}: {error}");
        }
        let args = |dtype: &str, config: &str| {
            let (kv_cache_dtype, config) = (dtype.to_owned(), config.to_owned());
            KvArgs { kv_cache_dtype, additional_config: Some(config) }.spec()
        };
        let error = format!("{:#}", args("auto", "{\"kv_schema\": \"f16\"}").unwrap_err());
        assert!(error.contains("kv_schema") && error.contains("kv_scheme"), "{error}");
        assert!(args("f16", "{\"kv_scheme\": \"f16\"}").is_err(), "said twice");
        assert!(args("auto", "{").is_err());
        assert_eq!(args("bf16", "{}").unwrap(), SchemeSpec::All("bf16".to_owned()));
    }
}
