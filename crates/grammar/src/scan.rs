//! A text that is looked for in free output, token by token.

use crate::vocabulary::Vocabulary;
use taper_base::TokenId;

/// A text to look for.
#[derive(Debug)]
pub(crate) struct Scan {
    text: Vec<u8>,
    /// By how much of the text stands before them: tokens that complete it and go on, in a way that
    /// may not be.
    overruns: Vec<Vec<TokenId>>,
}

impl Scan {
    /// `may_follow` says whether the text may be followed by some bytes.
    pub(crate) fn new(
        text: &str,
        vocabulary: &Vocabulary,
        mut may_follow: impl FnMut(&[u8]) -> bool,
    ) -> Self {
        let text = text.as_bytes().to_vec();
        let mut overruns = vec![Vec::new(); text.len()];
        for (id, token) in vocabulary.tokens() {
            if let Some(at) = find(token, &text)
                && at + text.len() < token.len()
                && !may_follow(&token[at + text.len()..])
            {
                overruns[0].push(id);
            }
            for before in 1..text.len() {
                let rest = &text[before..];
                if token.len() > rest.len()
                    && token.starts_with(rest)
                    && !may_follow(&token[rest.len()..])
                {
                    overruns[before].push(id);
                }
            }
        }
        Self { text, overruns }
    }

    /// Tokens that may not come behind `tail`.
    pub(crate) fn banned(&self, tail: &[u8]) -> Vec<TokenId> {
        let ends = |before: &usize| tail.ends_with(&self.text[..*before]);
        let lists = (0..self.text.len()).filter(ends).map(|before| &self.overruns[before]);
        lists.flatten().copied().collect()
    }

    /// Takes a token's text behind `tail`, which keeps as much as matters. Returns what follows the
    /// text where it is complete.
    pub(crate) fn push<'a>(&self, tail: &mut Vec<u8>, token: &'a [u8]) -> Option<&'a [u8]> {
        let before = tail.len();
        tail.extend_from_slice(token);
        if let Some(at) = find(tail, &self.text) {
            tail.clear();
            // It ends in this token: the tail was too short to hold it.
            return token.get((at + self.text.len()).saturating_sub(before)..);
        }
        let keep = self.text.len().saturating_sub(1);
        tail.drain(..tail.len().saturating_sub(keep));
        None
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len().max(1)).position(|window| window == what)
}
