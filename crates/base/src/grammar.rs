//! Output that must match a grammar: what an engine asks whoever knows it.

use crate::TokenId;
use std::{fmt, sync::Arc};

/// What the output of a request must match. The choices of a request share it.
pub trait Grammar: Send + Sync + fmt::Debug {
    /// At the beginning of an output.
    fn start(&self) -> Box<dyn Constraint>;
}

/// A grammar with the output of one sequence behind it.
///
/// A position's calls are [`mask`](Self::mask), then [`accept`](Self::accept) with a token that the
/// mask allows, then [`forced`](Self::forced), whose tokens are accepted too if they are used.
pub trait Constraint: Send + Sync + fmt::Debug {
    /// The tokens that may come next; `None` where all may.
    ///
    /// # Errors
    /// No token may, or the grammar is too complex here.
    fn mask(&mut self) -> Result<Option<TokenMask>, ConstraintError>;

    /// Takes the next token.
    ///
    /// # Errors
    /// The grammar does not allow it, or is too complex here.
    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError>;

    /// Tokens that must come next, as the tokenizer would write them: each is the only one that its
    /// mask would allow. Fewer than there are, or none, where it is not certain.
    fn forced(&mut self) -> Vec<TokenId>;

    /// Whether the output may end here.
    fn end(&mut self) -> End;

    /// A copy that goes on by itself, for tokens that may be thrown away.
    fn fork(&self) -> Box<dyn Constraint>;
}

/// Whether an output may end where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// More must come.
    No,
    /// It may end or go on.
    May,
    /// Nothing can follow.
    Must,
}

/// Why a grammar has no next token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    /// No token of the vocabulary goes on from here.
    #[error("the grammar allows no further token")]
    DeadEnd,
    /// Finding the tokens that go on would take too long.
    #[error("the grammar is too complex here")]
    TooComplex,
    /// A bug: the message is for the log.
    #[error("{0}")]
    Broken(String),
}

/// A grammar that several requests can hold. Two are equal if they are one and the same.
#[derive(Debug, Clone)]
pub struct SharedGrammar(Arc<dyn Grammar>);

impl SharedGrammar {
    /// At the beginning of an output.
    #[must_use]
    pub fn start(&self) -> Box<dyn Constraint> {
        self.0.start()
    }
}

impl<G: Grammar + 'static> From<Arc<G>> for SharedGrammar {
    fn from(grammar: Arc<G>) -> Self {
        Self(grammar)
    }
}

impl PartialEq for SharedGrammar {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A set of tokens with one bit a token, which is cheap to copy. Tokens behind its end are not in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenMask(Arc<[u32]>);

impl TokenMask {
    /// Token `32 w + b` is in the set if bit `b` of word `w` is set.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.0
    }

    /// Whether the token is one of them.
    #[must_use]
    pub fn has(&self, token: TokenId) -> bool {
        let word = self.0.get(token as usize / 32).copied().unwrap_or(0);
        word >> (token % 32) & 1 == 1
    }

    /// How many tokens there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The set without some tokens.
    #[must_use]
    pub fn without(&self, tokens: &[TokenId]) -> Self {
        if !tokens.iter().any(|&token| self.has(token)) {
            return self.clone();
        }
        let mut words = self.0.to_vec();
        for &token in tokens.iter().filter(|&&token| self.has(token)) {
            words[token as usize / 32] &= !(1 << (token % 32));
        }
        words.into()
    }

    /// The tokens that are in both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let words: Vec<u32> = self.0.iter().zip(&*other.0).map(|(a, b)| a & b).collect();
        words.into()
    }

    /// The set and some tokens more.
    #[must_use]
    pub fn with(&self, tokens: &[TokenId]) -> Self {
        if tokens.iter().all(|&token| self.has(token)) {
            return self.clone();
        }
        let most = tokens.iter().map(|token| *token as usize / 32 + 1).max().unwrap_or(0);
        let mut words = self.0.to_vec();
        words.resize(words.len().max(most), 0);
        for &token in tokens {
            words[token as usize / 32] |= 1 << (token % 32);
        }
        words.into()
    }
}

impl From<Vec<u32>> for TokenMask {
    fn from(words: Vec<u32>) -> Self {
        Self(words.into())
    }
}

impl FromIterator<TokenId> for TokenMask {
    fn from_iter<I: IntoIterator<Item = TokenId>>(tokens: I) -> Self {
        Self::default().with(&tokens.into_iter().collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_holds_its_tokens_and_no_others() {
        let mask: TokenMask = [0, 31, 32, 70].into_iter().collect();
        assert_eq!(mask.words(), [0x8000_0001, 1, 1 << 6]);
        assert!(mask.has(31) && !mask.has(33) && !mask.has(1000));
        let less = mask.without(&[32, 5, 900]);
        assert_eq!((less.count(), less.has(32), mask.count()), (3, false, 4));
        assert!(Arc::ptr_eq(&mask.0, &mask.without(&[5]).0));
        let both = mask.and(&[31, 33].into_iter().collect());
        assert_eq!((both.count(), both.has(31)), (1, true));
    }
}
