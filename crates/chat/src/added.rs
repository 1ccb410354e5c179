//! Tokens that `tokenizer.json` leaves to the files beside it, as older tokenizers are saved.

use crate::tokenizer::{TokenText, TokenizerConfig};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, fs, io, path::Path};
use taper_base::TokenId;
use tokenizers::{AddedToken, Model, Tokenizer};

/// An entry of `added_tokens_decoder`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Added {
    content: String,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    special: bool,
}

/// Files that only complete the others: a broken one is left out with a warning.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    /// `special_tokens_map.json`: names of special tokens.
    special: Map<String, Value>,
    /// `added_tokens.json`: numbers of added tokens.
    numbers: BTreeMap<String, TokenId>,
}

impl Beside {
    pub(crate) fn read(dir: &Path) -> Self {
        Self {
            special: optional(&dir.join("special_tokens_map.json")),
            numbers: optional(&dir.join("added_tokens.json")),
        }
    }
}

fn optional<T: DeserializeOwned + Default>(path: &Path) -> T {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return T::default(),
        Err(error) => {
            tracing::warn!("{} is left out: {error}", path.display());
            return T::default();
        }
    };
    serde_json::from_slice(&text).unwrap_or_else(|error| {
        tracing::warn!("{} is left out, it is not valid: {error}", path.display());
        T::default()
    })
}

/// Adds to the tokenizer what the other files know, as transformers does: entries of
/// `added_tokens_decoder` count most, then `tokenizer.json`, then the files of older versions.
pub(crate) fn complete(
    tokenizer: &mut Tokenizer,
    config: &mut TokenizerConfig,
    mut beside: Beside,
) -> tokenizers::Result<()> {
    let known = |t: &Tokenizer, text: &str| t.token_to_id(text);
    let mut wanted: BTreeMap<TokenId, AddedToken> = BTreeMap::new();
    if config.added_tokens_decoder.is_empty() {
        for (content, id) in beside.numbers {
            if known(tokenizer, &content).is_none() {
                wanted.insert(id, AddedToken::from(content, false).normalized(false));
            }
        }
    }
    for (&id, added) in &config.added_tokens_decoder {
        let token = AddedToken::from(added.content.clone(), added.special)
            .lstrip(added.lstrip)
            .rstrip(added.rstrip)
            .normalized(added.normalized)
            .single_word(added.single_word);
        wanted.insert(id, token);
    }
    for (id, token) in wanted {
        // The library numbers new tokens itself: only one that gets its own number is right.
        let gets = known(tokenizer, &token.content).unwrap_or_else(|| next_id(tokenizer));
        if gets == id {
            tokenizer.add_tokens([token])?;
        } else {
            tracing::warn!(
                "added token {:?} is left out: it should be number {id}, and would be {gets}",
                token.content
            );
        }
    }
    for text in special_texts(&beside.special) {
        let Some(id) = known(tokenizer, &text) else { continue };
        let listed = tokenizer.get_added_tokens_decoder().get(&id).cloned();
        let token = listed.unwrap_or_else(|| AddedToken::from(text, true).normalized(false));
        tokenizer.add_special_tokens([AddedToken { special: true, ..token }])?;
    }
    let mut text = |name: &str| {
        let value = beside.special.remove(name)?;
        TokenText::deserialize(value).ok()
    };
    config.bos_token = config.bos_token.take().or_else(|| text("bos_token"));
    config.eos_token = config.eos_token.take().or_else(|| text("eos_token"));
    Ok(())
}

/// The number that the library gives to the next new token.
fn next_id(tokenizer: &Tokenizer) -> TokenId {
    let model = u32::try_from(tokenizer.get_model().get_vocab_size()).unwrap_or(u32::MAX);
    let last = tokenizer.get_added_tokens_decoder().keys().max().copied();
    last.map_or(model, |last| model.max(last.saturating_add(1)))
}

/// Texts in `special_tokens_map.json`, which names one token or a list of them.
fn special_texts(map: &Map<String, Value>) -> Vec<String> {
    let each = map.values().flat_map(|value| match value {
        Value::Array(list) => list.iter().collect(),
        one => vec![one],
    });
    each.filter_map(|v| TokenText::deserialize(v).ok()).map(|t| t.as_str().to_owned()).collect()
}
