//! Reasoning before an output, and how long it may be.

use crate::{Reasoning, scan::Scan, vocabulary::Vocabulary};
use taper_base::TokenId;

/// Reasoning before the output, which nothing constrains.
#[derive(Debug)]
pub(crate) struct Thinking {
    /// The output begins inside it.
    pub(crate) open: bool,
    /// The tokens that begin it, alone, and which of the texts each is.
    begin: Vec<(TokenId, usize)>,
    pub(crate) end: Scan,
    pub(crate) budget: Option<Budget>,
}

/// How much reasoning there may be.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Most tokens.
    pub(crate) tokens: u32,
    /// What begins it, which may be several tokens.
    pub(crate) begin: Scan,
    /// Tokens of each text that ends it.
    ends: Vec<Vec<TokenId>>,
}

impl Thinking {
    pub(crate) fn new(reasoning: &Reasoning, vocabulary: &Vocabulary) -> Self {
        let blank = |rest: &[u8]| rest.iter().all(u8::is_ascii_whitespace);
        let one = |(which, text): (usize, &&str)| Some((vocabulary.token(text)?, which));
        let budget = reasoning.budget.map(|tokens| Budget {
            tokens,
            begin: Scan::new(reasoning.begins, vocabulary, |_| true),
            ends: reasoning.ends.iter().map(|text| vocabulary.tokens_of(text)).collect(),
        });
        Self {
            open: reasoning.open,
            begin: reasoning.begins.iter().enumerate().filter_map(one).collect(),
            end: Scan::new(reasoning.ends, vocabulary, blank),
            budget,
        }
    }

    /// The tokens that begin it, alone.
    pub(crate) fn begin(&self) -> Vec<TokenId> {
        self.begin.iter().map(|(token, _)| *token).collect()
    }

    /// The tokens that begin it or end it, alone.
    pub(crate) fn marks(&self, vocabulary: &Vocabulary) -> Vec<TokenId> {
        let budget = self.budget.as_ref();
        let ends = budget.into_iter().flat_map(|budget| &budget.ends);
        let one = |end: &Vec<TokenId>| match end[..] {
            [token] if vocabulary.text(token).len() > 1 => Some(token),
            _ => None,
        };
        self.begin().into_iter().chain(ends.filter_map(one)).collect()
    }

    /// Which of the texts that begin it a token is.
    pub(crate) fn begins(&self, token: TokenId) -> Option<usize> {
        self.begin.iter().find(|(id, _)| *id == token).map(|(_, which)| *which)
    }

    /// The tokens of the text that ends what the text of this number began: that of the same number, or
    /// the shortest.
    pub(crate) fn closing(&self, which: Option<usize>) -> &[TokenId] {
        let Some(Budget { ends, .. }) = &self.budget else { return &[] };
        let same = which.and_then(|which| ends.get(which));
        same.or_else(|| ends.iter().min_by_key(|end| end.len())).map_or(&[], Vec::as_slice)
    }

    /// Whether there may be no more of it.
    pub(crate) fn is_spent(&self, tokens: u32) -> bool {
        self.budget.as_ref().is_some_and(|budget| tokens >= budget.tokens)
    }
}
