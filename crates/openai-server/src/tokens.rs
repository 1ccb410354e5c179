//! What requests say about tokens: those that are allowed, words that are not, and how much of a
//! prompt is kept.

use crate::{
    errors::ApiError,
    prepare::outside_vocabulary,
    state::AppState,
    wire::{Prediction, PredictionContent, SamplingFields},
};
use std::sync::Arc;
use taper_base::{EngineInfo, TokenId, TokenMask};

/// Words that must not be written. Each costs time on every token of the output.
const MOST_BAD_WORDS: usize = 1024;

/// Bytes of all of them together.
const MOST_BAD_BYTES: usize = 16 << 10;

/// The only tokens that may be chosen.
pub(crate) fn allowed(
    fields: &SamplingFields,
    info: &EngineInfo,
) -> Result<Option<TokenMask>, ApiError> {
    let Some(ids) = &fields.allowed_token_ids else { return Ok(None) };
    if ids.is_empty() {
        return Err(ApiError::value("allowed_token_ids", "must not be empty"));
    }
    if let Some(at) = ids.iter().position(|id| *id >= info.vocab_size) {
        return Err(outside_vocabulary(format!("allowed_token_ids[{at}]"), info));
    }
    Ok(Some(ids.iter().copied().collect()))
}

/// Sequences of tokens that the output must not contain: each word as it stands at the beginning of
/// a text and, where that gives another first token and no more tokens, after a space. That is what
/// vLLM does.
pub(crate) fn bad_words(
    fields: &SamplingFields,
    state: &AppState,
) -> Result<Arc<[Vec<TokenId>]>, ApiError> {
    let words = fields.bad_words.as_deref().unwrap_or_default();
    if words.len() > MOST_BAD_WORDS || words.iter().map(String::len).sum::<usize>() > MOST_BAD_BYTES
    {
        let detail = format!("takes at most {MOST_BAD_WORDS} words of {MOST_BAD_BYTES} bytes");
        return Err(ApiError::value("bad_words", detail));
    }
    let tokenizer = &state.0.tokenizer;
    let mut all = Vec::with_capacity(words.len() * 2);
    for (i, word) in words.iter().enumerate() {
        let word = word.trim_start();
        let plain = tokenizer.encode(word, false)?;
        if plain.is_empty() {
            return Err(ApiError::value(format!("bad_words[{i}]"), "has no tokens"));
        }
        let spaced = tokenizer.encode(&format!(" {word}"), false)?;
        let other = spaced.first() != plain.first() && spaced.len() == plain.len();
        all.push(plain);
        all.extend(other.then_some(spaced));
    }
    Ok(all.into())
}

/// How many times the longest output of a prediction is kept.
const SKIPPED: u32 = 8;

/// What the output is likely to contain, as far as it can be of use.
pub(crate) fn prediction(
    fields: &SamplingFields,
    state: &AppState,
    max_tokens: Option<u32>,
) -> Result<Arc<[TokenId]>, ApiError> {
    let Some(Prediction { kind, content }) = &fields.prediction else { return Ok(Arc::default()) };
    if kind != "content" {
        let detail = format!("must be 'content', got '{kind}'");
        return Err(ApiError::value("prediction.type", detail));
    }
    let text = match content {
        PredictionContent::Text(text) => text.clone(),
        PredictionContent::Parts(parts) => {
            if let Some(i) = parts.iter().position(|part| part.kind != "text") {
                let param = format!("prediction.content[{i}].type");
                return Err(ApiError::value(param, "must be 'text'"));
            }
            parts.iter().map(|part| part.text.as_str()).collect()
        }
    };
    // The output may skip parts of it, but hardly more than it has itself.
    let context = state.0.engine.info().max_model_len;
    let most = max_tokens.map_or(context, |n| n.saturating_mul(SKIPPED).min(context));
    let mut tokens = state.0.tokenizer.encode(&state.0.start_of(text, most), false)?;
    tokens.truncate(most as usize);
    Ok(tokens.into())
}

/// Tokens at the end of the prompt that are kept; `None` where a long one is refused.
pub(crate) fn kept(
    fields: &SamplingFields,
    max_tokens: Option<u32>,
    info: &EngineInfo,
) -> Result<Option<usize>, ApiError> {
    let max = info.max_model_len;
    let kept = match fields.truncate_prompt_tokens {
        None => return Ok(None),
        Some(-1) => max.saturating_sub(max_tokens.unwrap_or(1)).max(1),
        Some(n) => match u32::try_from(n).ok().filter(|n| (1..=max).contains(n)) {
            Some(n) => n,
            None => {
                let detail = format!("must be -1 or between 1 and {max}, got {n}");
                return Err(ApiError::value("truncate_prompt_tokens", detail));
            }
        },
    };
    Ok(Some(kept as usize))
}

/// The last of the tokens, as many as are kept.
pub(crate) fn cut(mut tokens: Vec<TokenId>, kept: Option<usize>) -> Vec<TokenId> {
    let first = kept.map_or(0, |kept| tokens.len().saturating_sub(kept));
    tokens.drain(..first);
    tokens
}

/// Refuses to write special tokens without spaces between them for a tokenizer that puts a space
/// between any two tokens.
pub(crate) fn check_spaces(fields: &SamplingFields, state: &AppState) -> Result<(), ApiError> {
    let asked = fields.spaces_between_special_tokens == Some(false);
    let shown = fields.skip_special_tokens == Some(false);
    if asked && shown && state.0.tokenizer.joins_with_spaces() {
        let detail = "this model's tokenizer puts a space between all tokens";
        return Err(ApiError::unsupported("spaces_between_special_tokens", detail));
    }
    Ok(())
}
