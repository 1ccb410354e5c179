//! Drafters that know nothing, or too much.
#![allow(dead_code, reason = "each test file uses its part")]

use crate::common::Numbers;
use std::sync::Arc;
use taper_base::{SeqId, TokenId};
use taper_engine::speculative::{Draft, DraftError, DraftInput, Drafter};

/// Any tokens, some of them outside of the vocabulary.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) Numbers);

impl Drafter for Random {
    fn method(&self) -> &'static str {
        "random"
    }

    fn propose(&mut self, seqs: &[DraftInput<'_>]) -> Result<Vec<Draft>, DraftError> {
        let draft = |seq: &DraftInput<'_>| {
            let len = self.0.below(1 + seq.most as u32);
            Draft { tokens: (0..len).map(|_| self.0.below(330)).collect(), class: 0 }
        };
        Ok(seqs.iter().map(draft).collect())
    }

    fn forget(&mut self, _: SeqId) {}

    fn expected(&self, _: usize) -> f32 {
        0.9
    }
}

/// Tokens of texts that are known, one in `wrong` of them changed; 0 changes none.
#[derive(Debug)]
pub(crate) struct Oracle {
    pub(crate) texts: Arc<[Vec<TokenId>]>,
    pub(crate) wrong: usize,
}

impl Drafter for Oracle {
    fn method(&self) -> &'static str {
        "oracle"
    }

    fn propose(&mut self, seqs: &[DraftInput<'_>]) -> Result<Vec<Draft>, DraftError> {
        let draft = |seq: &DraftInput<'_>| {
            let known = self.texts.iter().find(|text| text.starts_with(seq.tokens));
            let from = seq.tokens.len();
            let tokens = known.map_or(&[][..], |text| &text[from..]).iter().take(seq.most);
            let changed = |(i, &token): (usize, &TokenId)| {
                let wrong = self.wrong > 0 && (from * 7 + i * 3).is_multiple_of(self.wrong);
                if wrong { (token + 1) % 320 } else { token }
            };
            Draft { tokens: tokens.enumerate().map(changed).collect(), class: 0 }
        };
        Ok(seqs.iter().map(draft).collect())
    }

    fn forget(&mut self, _: SeqId) {}

    fn expected(&self, _: usize) -> f32 {
        0.9
    }
}
