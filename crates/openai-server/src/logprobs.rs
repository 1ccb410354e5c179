//! Log probabilities in the two shapes of the API.

use crate::wire::{LegacyLogprobs, TokenLogprobOut, TopLogprobOut};
use serde_json::{Map, Value};
use taper_base::{TokenLogprob, TokenLogprobs};
use taper_chat::Tokenizer;

/// JSON has no infinity; OpenAI writes this for a token that cannot be.
const IMPOSSIBLE: f32 = -9999.0;

fn finite(logprob: f32) -> f32 {
    if logprob.is_nan() { IMPOSSIBLE } else { logprob.max(IMPOSSIBLE) }
}

/// One entry of `logprobs.content`.
pub(crate) fn chat(tokenizer: &Tokenizer, at: &TokenLogprobs) -> TokenLogprobOut {
    let one = |t: &TokenLogprob| TopLogprobOut {
        token: tokenizer.token_text(t.id),
        logprob: finite(t.logprob),
        bytes: tokenizer.token_bytes(t.id),
    };
    TokenLogprobOut { chosen: one(&at.chosen), top_logprobs: at.top.iter().map(one).collect() }
}

/// Puts the legacy shape together, entry by entry.
#[derive(Debug, Default)]
pub(crate) struct Legacy {
    entries: LegacyLogprobs,
    /// Characters before the next token.
    offset: usize,
}

impl Legacy {
    /// Adds a token that stands in the text.
    pub(crate) fn push(&mut self, tokenizer: &Tokenizer, id: u32, at: Option<&TokenLogprobs>) {
        let entries = &mut self.entries;
        entries.tokens.push(tokenizer.token_text(id));
        entries.text_offset.push(self.offset);
        entries.token_logprobs.push(at.map(|at| finite(at.chosen.logprob)));
        entries.top_logprobs.push(at.map(|at| {
            let entry = |t: &TokenLogprob| {
                (tokenizer.token_text(t.id), Value::from(f64::from(finite(t.logprob))))
            };
            at.top.iter().map(entry).collect::<Map<String, Value>>()
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
