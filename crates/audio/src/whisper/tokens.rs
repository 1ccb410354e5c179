//! Tokens that are no text.

use super::config::Config;
use crate::{WhisperError, languages};
use serde_json::Value;
use taper_base::TokenId;
use taper_chat::Tokenizer;

/// Whisper's special tokens. Those of times come behind all others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Specials {
    /// Ends a text; every token below it is text.
    pub(super) end: TokenId,
    /// Begins a transcript.
    pub(super) start: TokenId,
    pub(super) translate: TokenId,
    pub(super) transcribe: TokenId,
    /// Comes before a prompt.
    pub(super) previous: TokenId,
    pub(super) no_speech: Option<TokenId>,
    pub(super) no_times: TokenId,
    /// The time 0.00; each later token is 0.02 seconds later.
    pub(super) times: TokenId,
    /// Codes of languages; empty for a model of English alone.
    pub(super) languages: Vec<(&'static str, TokenId)>,
}

/// What may not be written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Suppressed {
    /// Anywhere.
    pub(super) always: Vec<TokenId>,
    /// As the first token.
    pub(super) first: Vec<TokenId>,
}

impl Specials {
    /// Looks them up. `generation` is generation_config.json, or null.
    pub(super) fn find(
        tokenizer: &Tokenizer,
        config: &Config,
        generation: &Value,
    ) -> Result<Self, WhisperError> {
        let known = |text: &str| {
            let id = tokenizer.token_id(text)?;
            ((id as usize) < config.vocab_size).then_some(id)
        };
        let token = |text: &'static str| known(text).ok_or(WhisperError::Token(text));
        let no_times = token("<|notimestamps|>")?;
        let times = no_times + 1;
        if times as usize >= config.vocab_size {
            return Err(WhisperError::Token("<|0.00|>"));
        }
        // Tokenizers of English alone have the languages' tokens too; nobody has trained them.
        let multilingual = match generation.get("is_multilingual").and_then(Value::as_bool) {
            Some(flag) => flag,
            None => config.vocab_size >= 51_865,
        };
        let language = |code| Some((code, known(&format!("<|{code}|>"))?));
        let languages = languages::codes().filter(|_| multilingual).filter_map(language).collect();
        Ok(Self {
            end: token("<|endoftext|>")?,
            start: token("<|startoftranscript|>")?,
            translate: token("<|translate|>")?,
            transcribe: token("<|transcribe|>")?,
            previous: token("<|startofprev|>")?,
            no_speech: known("<|nospeech|>").or_else(|| known("<|nocaptions|>")),
            no_times,
            times,
            languages,
        })
    }

    /// What begins a transcript.
    pub(super) fn prelude(&self, language: &str, translate: bool) -> Vec<TokenId> {
        let token = self.languages.iter().find(|(code, _)| *code == language).map(|(_, id)| *id);
        let task = if translate { self.translate } else { self.transcribe };
        match token {
            Some(language) => vec![self.start, language, task],
            None => vec![self.start],
        }
    }

    /// A token's time after its window's start, in steps of 0.02 seconds; `None` of other tokens.
    pub(super) fn time(&self, token: TokenId) -> Option<usize> {
        token.checked_sub(self.times).map(|steps| steps as usize)
    }

    pub(super) fn is_time(&self, token: TokenId) -> bool {
        token >= self.times
    }
}

impl Suppressed {
    /// By generation_config.json, or by config.json where older models have it, and the specials themselves.
    pub(super) fn read(
        specials: &Specials,
        tokenizer: &Tokenizer,
        config: &Value,
        generation: &Value,
    ) -> Self {
        let list = |name: &str| {
            let list = [generation, config].into_iter().find_map(|json| json.get(name)?.as_array());
            let id = |x: &Value| x.as_u64().and_then(|id| TokenId::try_from(id).ok());
            list.map(|list| list.iter().filter_map(id).collect::<Vec<_>>())
        };
        let mut always = list("suppress_tokens").unwrap_or_default();
        let Specials { start, translate, transcribe, previous, no_times, .. } = *specials;
        always.extend([start, translate, transcribe, previous, no_times]);
        always.extend(specials.no_speech);
        always.extend(tokenizer.token_id("<|startoflm|>"));
        always.sort_unstable();
        always.dedup();
        let blank = || tokenizer.encode(" ", false).unwrap_or_default();
        let mut first = list("begin_suppress_tokens").unwrap_or_else(blank);
        first.push(specials.end);
        Self { always, first }
    }
}
