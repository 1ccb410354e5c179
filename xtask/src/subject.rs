//! The model under test: its runner, its tokenizer, and its name in the fixtures.

use crate::runner::Runner;
use anyhow::{Context, Result};
use serde_json::{Map, Value};
use std::{
    fs,
    path::{Path, PathBuf},
};
use taper_base::TokenId;
use taper_chat::{ChatTemplate, Message, Role, TemplateRequest, Tokenizer};
use taper_kv_codecs::Exact;
use taper_models::{LoadOptions, Precision};

/// The model that Taper ships, which the fixtures were measured with.
const DEFAULT: &str = "crates/server/models/demo";

/// The fixtures' name of the demo model as it was trained, in bf16.
pub(crate) const UNQUANTIZED: &str = "demo-qwen3-18m";

/// Which model to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Subject {
    /// A model's directory; the built-in demo model by default.
    pub(crate) model: Option<PathBuf>,
    /// How keys and values are stored.
    #[arg(long, default_value = "f16", value_name = "NAME")]
    pub(crate) kv_cache_dtype: String,
    /// Arithmetic, as `taper serve` takes it.
    #[arg(long, default_value = "auto", value_parser = Precision::DTYPES)]
    pub(crate) dtype: String,
    /// Sequences that run together, by which `--dtype auto` chooses.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) max_num_seqs: usize,
    /// Experts that a token goes through, fewer than the model was trained with.
    #[arg(long, value_name = "N")]
    pub(crate) moe_top_k: Option<usize>,
    /// Where to run: cpu, cuda, metal, or a library of kernels for the host runner.
    #[arg(long, default_value = "cpu", value_name = "NAME")]
    pub(crate) device: String,
    /// The entry of the fixtures to compare with; found by the quantization in config.json
    /// otherwise.
    #[arg(long, alias = "against", value_name = "NAME")]
    pub(crate) reference: Option<String>,
}

impl Subject {
    pub(crate) fn dir(&self, root: &Path) -> PathBuf {
        self.model.clone().unwrap_or_else(|| root.join(DEFAULT))
    }

    pub(crate) fn precision(&self) -> Result<Precision> {
        Precision::of_dtype(&self.dtype, self.max_num_seqs).context("--dtype")
    }

    /// Loads the model with a cache of so many tokens.
    pub(crate) fn runner(&self, root: &Path, tokens: usize) -> Result<Runner> {
        let (gpu, kept) = (crate::device::open(&self.device)?, Some(Exact::DEFAULT));
        let options = LoadOptions {
            precision: self.precision()?,
            gpu: gpu.as_ref(),
            moe_top_k: self.moe_top_k,
            ..LoadOptions::default()
        };
        Runner::load(&self.dir(root), &self.kv_cache_dtype, kept, tokens, options)
    }

    /// A runner of these weights in `f32` throughout, on the host, if the settings ask for anything less.
    pub(crate) fn exact_runner(&self, root: &Path, tokens: usize) -> Result<Option<Runner>> {
        if self.dtype == "float32" && self.kv_cache_dtype == "f32" {
            return Ok(None);
        }
        let (dir, exact) = (self.dir(root), Some(Exact::DEFAULT));
        Runner::load(&dir, "f32", exact, tokens, LoadOptions::EXACT).map(Some)
    }

    /// Whether the cache holds less than halves.
    pub(crate) fn compresses(&self) -> bool {
        !["auto", "f16", "bf16", "f32"].contains(&self.kv_cache_dtype.as_str())
    }

    /// What a table's numbers were computed with.
    pub(crate) fn settings(&self) -> String {
        format!("dtype {}, kv cache {}, {}", self.dtype, self.kv_cache_dtype, self.device)
    }

    pub(crate) fn tokenizer(&self, root: &Path) -> Result<Tokenizer> {
        let dir = self.dir(root);
        Tokenizer::load(&dir).with_context(|| format!("the tokenizer of {}", dir.display()))
    }

    pub(crate) fn template(&self, root: &Path) -> Result<ChatTemplate> {
        let dir = self.dir(root);
        ChatTemplate::load(&dir).with_context(|| format!("the template of {}", dir.display()))
    }

    /// Name of this model in ppl.json and niah.json.
    pub(crate) fn reference(&self, root: &Path) -> Result<String> {
        match &self.reference {
            Some(name) => Ok(name.clone()),
            None => reference_name(&read_json(&self.dir(root).join("config.json"))?),
        }
    }

    /// Tokens that end generation.
    pub(crate) fn stop_tokens(&self, root: &Path) -> Result<Vec<TokenId>> {
        let dir = self.dir(root);
        let generation = dir.join("generation_config.json");
        let file = if generation.is_file() { generation } else { dir.join("config.json") };
        let ids = read_json(&file)?["eos_token_id"].take();
        let list = if ids.is_array() { ids } else { Value::Array(vec![ids]) };
        serde_json::from_value(list).with_context(|| format!("eos_token_id of {}", file.display()))
    }
}

/// The prompt for one message of the user.
pub(crate) fn chat(template: &ChatTemplate, message: &str) -> Result<String> {
    Ok(template.render(&TemplateRequest {
        messages: &[Message::text(Role::User, message)],
        tools: &[],
        add_generation_prompt: true,
        continue_final_message: false,
        kwargs: &Map::new(),
    })?)
}

pub(crate) fn read_json(path: &Path) -> Result<Value> {
    let text = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))
}

/// The fixtures' name of the demo model in this quantization.
fn reference_name(config: &Value) -> Result<String> {
    let section = config.get("quantization").or_else(|| config.get("quantization_config"));
    let Some(section) = section.and_then(Value::as_object) else {
        return Ok(UNQUANTIZED.to_owned());
    };
    let number = |key: &str| section.get(key).and_then(Value::as_u64);
    let (bits, group) = number("bits").zip(number("group_size")).context("bits and group_size")?;
    let mixed = section.values().any(Value::is_object);
    let suffix = if mixed { "-6bit-ekvd" } else { "" };
    Ok(format!("demo-mlx-{bits}bit-g{group}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_reference_follows_the_quantization() {
        let name = |config| reference_name(&config).unwrap();
        assert_eq!(name(json!({})), "demo-qwen3-18m");
        let plain = json!({"bits": 6, "group_size": 64, "mode": "affine"});
        assert_eq!(name(json!({"quantization": plain})), "demo-mlx-6bit-g64");
        let mixed = json!({"bits": 4, "group_size": 32, "model.x": {"bits": 6, "group_size": 64}});
        assert_eq!(name(json!({"quantization": mixed})), "demo-mlx-4bit-g32-6bit-ekvd");
    }
}
