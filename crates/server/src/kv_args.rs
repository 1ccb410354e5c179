//! `--kv-cache-dtype` and `--additional-config`: how keys and values are stored.

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use serde::Deserialize;
use serde_json::{Map, Value};
use taper::KvPlan;

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

impl KvArgs {
    fn additional(&self) -> Result<Additional> {
        match &self.additional_config {
            None => Ok(Additional::default()),
            Some(json) => parse(json),
        }
    }

    /// What the flags say of requests that name no bits.
    pub(crate) fn plan(&self) -> Result<KvPlan> {
        let Some(scheme) = self.additional()?.kv_scheme else {
            return Ok(KvPlan::All(self.kv_cache_dtype.clone()));
        };
        ensure!(
            self.kv_cache_dtype == "auto",
            "--kv-cache-dtype and the kv_scheme of --additional-config say the same; give one"
        );
        KvPlan::from_json(scheme).context("--additional-config: kv_scheme")
    }

    /// What a request gets by the bits that it names.
    pub(crate) fn offers(&self) -> Result<Vec<(u32, KvPlan)>> {
        let one = |(bits, scheme): (String, Value)| {
            let what = || format!("--additional-config: kv_bits {bits:?}");
            let number = bits.parse().ok().filter(|b| (1..=32).contains(b));
            let number = number.context("must be a number from 1 to 32").with_context(what)?;
            Ok((number, KvPlan::from_json(scheme).with_context(what)?))
        };
        self.additional()?.kv_bits.into_iter().map(one).collect()
    }
}

fn parse(json: &str) -> Result<Additional> {
    // A list would be taken for the fields in their order.
    let object = serde_json::from_str::<Map<_, _>>(json);
    let read = object.and_then(|fields| serde_json::from_value(Value::Object(fields)));
    read.map_err(|error| {
        anyhow!("--additional-config: {error}; write it as '{{\"kv_scheme\": \"taper4\"}}'")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_named() {
        let plan = |dtype: &str, config: &str| {
            let (kv_cache_dtype, config) = (dtype.to_owned(), config.to_owned());
            KvArgs { kv_cache_dtype, additional_config: Some(config) }.plan()
        };
        let error = format!("{:#}", plan("auto", "{\"kv_schema\": \"f16\"}").unwrap_err());
        assert!(error.contains("kv_schema") && error.contains("kv_scheme"), "{error}");
        assert!(plan("f16", "{\"kv_scheme\": \"f16\"}").is_err(), "said twice");
        for json in ["{", "[]", "[\"f16\", {}]", "kv.json", ""] {
            let error = plan("auto", json).unwrap_err().to_string();
            assert!(error.contains("--additional-config: "), "{error}");
            assert!(error.contains("write it as '{\"kv_scheme\": \"taper4\"}'"), "{error}");
        }
        assert_eq!(plan("bf16", "{}").unwrap(), KvPlan::All("bf16".to_owned()));
    }
}
