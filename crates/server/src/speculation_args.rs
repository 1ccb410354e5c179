//! Flags for speculative decoding.

use crate::model;
use anyhow::{Result, bail, ensure};
use clap::Args;
use serde::Deserialize;
use taper::{Builder, Speculation};
use taper_base::MAX_DRAFT_TOKENS;

/// Most tokens of a draft of another model, if nobody says otherwise.
const DRAFT_TOKENS: u32 = 4;
/// Most tokens of a draft of the model's own head, which was trained for the first one.
const HEAD_TOKENS: u32 = 3;

/// What `--speculative-config` says, in vLLM's words.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SpeculativeConfig {
    method: Option<String>,
    model: Option<String>,
    num_speculative_tokens: Option<u32>,
    prompt_lookup_min: Option<usize>,
    prompt_lookup_max: Option<usize>,
}

/// A parsed `--speculative-config`: `None` is off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked(Option<SpeculativeConfig>);

fn config(text: &str) -> Result<Asked, String> {
    let asked: Option<SpeculativeConfig> =
        serde_json::from_str(text).map_err(|error| error.to_string())?;
    Ok(Asked(asked))
}

/// How tokens are drafted.
#[derive(Debug, Clone, Args)]
pub(crate) struct SpeculationArgs {
    /// Speculative decoding, as vLLM's JSON: {"method": "suffix", "num_speculative_tokens": 8}; null
    /// turns it off [default: suffix].
    ///
    /// Drafted tokens are verified several at a time, as many as are likely to save time. The output is
    /// the same with and without. "suffix" drafts what followed earlier in the same sequence; "ngram" does
    /// so from "prompt_lookup_min" equal tokens on; "draft_model" drafts with "model"; "mtp" drafts with the
    /// multi-token prediction head of the checkpoint itself. Models on GPUs draft nothing.
    #[arg(long, value_name = "JSON", value_parser = config)]
    pub(crate) speculative_config: Option<Asked>,
    /// A smaller model with the same vocabulary that drafts: a directory, a GGUF file or the name of one that
    /// was downloaded. It runs on the CPU, with a KV cache of its own.
    #[arg(long, value_name = "MODEL")]
    pub(crate) draft_model: Option<String>,
    /// Most tokens of a draft, from 0, which drafts none, to 8.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=8))]
    pub(crate) num_draft_tokens: Option<u32>,
}

impl SpeculationArgs {
    pub(crate) fn apply(&self, builder: Builder) -> Result<Builder> {
        let asked = match &self.speculative_config {
            Some(Asked(None)) => {
                ensure!(
                    self.draft_model.is_none() && self.num_draft_tokens.unwrap_or(0) == 0,
                    "--speculative-config null drafts nothing: leave --draft-model and --num-draft-tokens out"
                );
                return Ok(builder.speculation(None));
            }
            Some(Asked(Some(asked))) => asked.clone(),
            None => SpeculativeConfig::default(),
        };
        let SpeculativeConfig {
            method,
            model,
            num_speculative_tokens,
            prompt_lookup_min,
            prompt_lookup_max,
        } = asked;
        ensure!(
            num_speculative_tokens.is_none_or(|n| n as usize <= MAX_DRAFT_TOKENS),
            "--speculative-config: num_speculative_tokens is from 0 to {MAX_DRAFT_TOKENS}"
        );
        ensure!(
            prompt_lookup_min != Some(0) && prompt_lookup_max != Some(0),
            "--speculative-config: prompt_lookup_min and prompt_lookup_max are at least 1"
        );
        let most = self.num_draft_tokens.or(num_speculative_tokens);
        // As in vLLM, "ngram" is a model too, and a model alone is one that drafts.
        let (method, model) = match model.filter(|model| method.as_deref() != Some(model.as_str()))
        {
            Some(model) if model == "ngram" && method.is_none() => (Some(model), None),
            model => (method, model),
        };
        if let Some(model) = self.draft_model.clone().or(model) {
            ensure!(
                matches!(method.as_deref(), None | Some("draft_model")),
                "--speculative-config: only the method \"draft_model\" has a model"
            );
            return Ok(match most {
                Some(0) => builder.speculation(None),
                most => {
                    builder.draft_model(model::find(Some(&model))?, most.unwrap_or(DRAFT_TOKENS))
                }
            });
        }
        let drafts = match method.as_deref() {
            None | Some("suffix") => Speculation::suffix(),
            Some("mtp") => Speculation::mtp().most(HEAD_TOKENS),
            Some("draft_model") => {
                bail!("--speculative-config: the method \"draft_model\" needs a model")
            }
            Some("ngram") => {
                Speculation::ngram(prompt_lookup_min.or(prompt_lookup_max).unwrap_or(3))
            }
            Some(other) => {
                bail!(
                    "--speculative-config: there is no method {other:?}; use \"suffix\", \"ngram\", \"draft_model\" or \"mtp\""
                )
            }
        };
        ensure!(
            method.as_deref() == Some("ngram") || prompt_lookup_min.or(prompt_lookup_max).is_none(),
            "--speculative-config: prompt_lookup_min is for the method \"ngram\""
        );
        if most == Some(0) {
            return Ok(builder.speculation(None));
        }
        Ok(builder.speculation(Some(most.into_iter().fold(drafts, Speculation::most))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(json: &str) -> Result<Builder> {
        let asked = config(json).map_err(anyhow::Error::msg)?;
        let args = SpeculationArgs {
            speculative_config: Some(asked),
            draft_model: None,
            num_draft_tokens: None,
        };
        args.apply(taper::Taper::builder("m"))
    }

    #[test]
    fn vllms_configurations_are_taken() {
        for json in [
            "null",
            "{}",
            r#"{"method": "suffix", "num_speculative_tokens": 4}"#,
            r#"{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 2, "prompt_lookup_max": 4}"#,
            r#"{"model": "ngram"}"#,
            r#"{"method": "mtp", "num_speculative_tokens": 2}"#,
        ] {
            assert!(applied(json).is_ok(), "{json}");
        }
    }

    #[test]
    fn what_is_not_there_is_refused() {
        for (json, word) in [
            (r#"{"method": "medusa"}"#, "no method"),
            (r#"{"method": "mtp", "model": "/no/such/model"}"#, "only the method"),
            (r#"{"method": "eagle"}"#, "draft_model"),
            (r#"{"num_speculative_tokens": 99}"#, "from 0 to 8"),
            (r#"{"method": "ngram", "prompt_lookup_min": 0}"#, "at least 1"),
            (r#"{"method": "draft_model"}"#, "needs a model"),
            (r#"{"method": "draft_model", "model": "/no/such/model"}"#, "/no/such/model"),
            (r#"{"method": "ngram", "model": "/no/such/model"}"#, "only the method"),
            (r#"{"prompt_lookup_min": 2}"#, "ngram"),
            (r#"{"tokens": 2}"#, "unknown field"),
            ("[]", "invalid"),
            ("8", "invalid"),
        ] {
            let error = applied(json).unwrap_err().to_string();
            assert!(error.contains(word), "{json}: {error}");
        }
    }
}
