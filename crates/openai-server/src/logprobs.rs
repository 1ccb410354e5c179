//! Log probabilities in the two shapes of the API.

use crate::wire::{LegacyLogprobs, PromptLogprob, PromptLogprobs, TokenLogprobOut, TopLogprobOut};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use taper_base::{TokenLogprob, TokenLogprobs};
use taper_chat::Tokenizer;

/// JSON has no infinity; OpenAI writes this for a token that cannot be.
const IMPOSSIBLE: f32 = -9999.0;

fn finite(logprob: f32) -> f32 {
    if logprob.is_nan() { IMPOSSIBLE } else { logprob.max(IMPOSSIBLE) }
}

/// A token's text, or `token_id:` and its number with `return_tokens_as_token_ids`.
fn name(tokenizer: &Tokenizer, id: u32, as_ids: bool) -> String {
    if as_ids { format!("token_id:{id}") } else { tokenizer.token_text(id) }
}

/// One entry of `logprobs.content`.
pub(crate) fn chat(tokenizer: &Tokenizer, at: &TokenLogprobs, as_ids: bool) -> TokenLogprobOut {
    let one = |t: &TokenLogprob| TopLogprobOut {
        token: name(tokenizer, t.id, as_ids),
        logprob: finite(t.logprob),
        bytes: tokenizer.token_bytes(t.id),
    };
    TokenLogprobOut { chosen: one(&at.chosen), top_logprobs: at.top.iter().map(one).collect() }
}

/// vLLM's `prompt_logprobs`: the prompt's own tokens and the `top` likeliest.
pub(crate) fn prompt(
    tokenizer: &Tokenizer,
    entries: &[Option<TokenLogprobs>],
    top: u8,
) -> PromptLogprobs {
    let one = |t: &TokenLogprob, rank| {
        let (logprob, decoded_token) = (finite(t.logprob), tokenizer.token_text(t.id));
        (t.id, PromptLogprob { logprob, rank, decoded_token })
    };
    let entry = |at: &TokenLogprobs| {
        let ranked = at.top.iter().zip(1..).take(top.into());
        let mut all: BTreeMap<_, _> = ranked.map(|(t, rank)| one(t, Some(rank))).collect();
        all.extend([one(&at.chosen, at.rank)]);
        all
    };
    entries.iter().map(|at| at.as_ref().map(entry)).collect()
}

/// Puts the legacy shape together, entry by entry.
#[derive(Debug, Default)]
pub(crate) struct Legacy {
    /// How many of the likeliest tokens are shown.
    top: u8,
    /// Tokens are shown by their numbers.
    as_ids: bool,
    entries: LegacyLogprobs,
    /// Characters before the next token.
    offset: usize,
}

impl Legacy {
    /// Nothing yet. `top` of the likeliest tokens are shown, `as_ids` by their numbers.
    pub(crate) fn new(top: u8, as_ids: bool) -> Self {
        Self { top, as_ids, ..Self::default() }
    }

    /// Adds a token that stands in the text.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, id: u32, at: Option<&TokenLogprobs>) {
        let (entries, as_ids) = (&mut self.entries, self.as_ids);
        entries.tokens.push(name(tokenizer, id, as_ids));
        entries.text_offset.push(self.offset);
        entries.token_logprobs.push(at.map(|at| finite(at.chosen.logprob)));
        entries.top_logprobs.push(at.map(|at| {
            let entry = |t: &TokenLogprob| {
                (name(tokenizer, t.id, as_ids), Value::from(f64::from(finite(t.logprob))))
            };
            at.top.iter().take(self.top.into()).map(entry).collect::<Map<String, Value>>()
        }));
        // A character counts where it begins, even if its bytes are spread over tokens.
        let begins = |byte: &&u8| **byte & 0xC0 != 0x80;
        self.offset += tokenizer.token_bytes(id).iter().filter(begins).count();
    }

    /// What was added since the last call; `None` if nothing was.
    pub(crate) fn take(&mut self) -> Option<LegacyLogprobs> {
        (!self.entries.tokens.is_empty()).then(|| std::mem::take(&mut self.entries))
    }
}
