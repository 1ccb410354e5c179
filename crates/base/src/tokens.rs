//! A set of tokens that is cheap to copy.

use crate::TokenId;
use std::{ops::Deref, sync::Arc};

/// Distinct tokens in ascending order. Copies share the memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenSet(Arc<[TokenId]>);

impl TokenSet {
    /// Whether the token is one of them.
    #[must_use]
    pub fn has(&self, token: TokenId) -> bool {
        self.0.binary_search(&token).is_ok()
    }

    /// All tokens that are in one of the two.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        if other.iter().all(|token| self.has(*token)) {
            return self.clone();
        }
        self.iter().chain(other.iter()).copied().collect()
    }
}

impl FromIterator<TokenId> for TokenSet {
    fn from_iter<I: IntoIterator<Item = TokenId>>(tokens: I) -> Self {
        let mut tokens: Vec<_> = tokens.into_iter().collect();
        tokens.sort_unstable();
        tokens.dedup();
        Self(tokens.into())
    }
}

impl From<Vec<TokenId>> for TokenSet {
    fn from(tokens: Vec<TokenId>) -> Self {
        tokens.into_iter().collect()
    }
}

impl Deref for TokenSet {
    type Target = [TokenId];

    fn deref(&self) -> &[TokenId] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_counts_once_and_a_union_that_adds_nothing_is_a_copy() {
        let set: TokenSet = vec![7, 3, 7, 7, 1].into();
        assert_eq!(&*set, [1, 3, 7]);
        assert!(set.has(3) && !set.has(2));
        assert_eq!(&*set.union(&vec![2, 3].into()), [1, 2, 3, 7]);
        assert!(Arc::ptr_eq(&set.0, &set.union(&vec![7].into()).0));
    }
}
