//! The choice of pages: a function of scores and positions alone.

use std::ops::Range;

/// How much below the `k`-th best score a chosen page may fall before it goes: log 1.1.
const STICKY: f32 = 0.095_310_18;

/// Which pages are attended to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Pages that are chosen by their scores, at most.
    pub pages: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Tokens at the beginning that are attended to in any case; the first page always is.
    pub sink_tokens: usize,
    /// Tokens at the end that are attended to in any case.
    pub recent_tokens: usize,
}

impl Rule {
    /// Pages of a sequence of so many tokens that compete: those before are attended to in any case, and so
    /// is what comes after.
    #[must_use]
    pub fn candidates(&self, tokens: usize) -> Range<usize> {
        let first = self.sink_tokens.div_ceil(self.page_tokens).max(1);
        let end = tokens.saturating_sub(self.recent_tokens) / self.page_tokens;
        first..end.max(first)
    }

    /// Whether a sequence of so many tokens leaves pages out.
    #[must_use]
    pub fn leaves_out(&self, tokens: usize) -> bool {
        self.candidates(tokens).len() > self.pages
    }

    /// The candidates that are attended to, ascending: those of the best scores, ties to the lower position. A
    /// page of `before`, the last choice, stays until its score is clearly below the last one chosen.
    /// `scores` are of all pages, from the sequence's first on; `before` ascends.
    #[must_use]
    pub fn select(&self, tokens: usize, scores: &[f32], before: &[usize]) -> Vec<usize> {
        let candidates = self.candidates(tokens);
        if candidates.len() <= self.pages {
            return candidates.collect();
        }
        let score = |page: usize| scores.get(page).copied().unwrap_or(f32::NEG_INFINITY);
        let mut best: Vec<usize> = candidates.clone().collect();
        best.sort_by(|&a, &b| score(b).total_cmp(&score(a)).then(a.cmp(&b)));
        let Some(last) = self.pages.checked_sub(1).map(|at| score(best[at])) else {
            return Vec::new();
        };
        let stays = |page: &usize| candidates.contains(page) && score(*page) >= last - STICKY;
        let mut chosen: Vec<usize> = before.iter().copied().filter(stays).collect();
        chosen.truncate(self.pages);
        let new: Vec<usize> =
            best.into_iter().filter(|page| chosen.binary_search(page).is_err()).collect();
        chosen.extend(new.into_iter().take(self.pages - chosen.len()));
        chosen.sort_unstable();
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULE: Rule = Rule { pages: 2, page_tokens: 64, sink_tokens: 32, recent_tokens: 256 };

    #[test]
    fn the_first_page_and_the_recent_tokens_do_not_compete() {
        assert_eq!(RULE.candidates(0), 1..1);
        assert_eq!(RULE.candidates(383), 1..1);
        assert_eq!(RULE.candidates(384), 1..2);
        assert_eq!(RULE.candidates(640), 1..6);
        assert_eq!(Rule { sink_tokens: 65, ..RULE }.candidates(640), 2..6);
        assert!(!RULE.leaves_out(448) && RULE.leaves_out(512));
    }

    #[test]
    fn the_best_pages_are_chosen_and_ties_go_to_the_lower_position() {
        let scores = [9.0, 0.0, 3.0, 1.0, 3.0, 3.0, 9.0];
        assert_eq!(RULE.select(640, &scores, &[]), [2, 4]);
        assert_eq!(Rule { pages: 5, ..RULE }.select(640, &scores, &[]), [1, 2, 3, 4, 5]);
        assert_eq!(Rule { pages: 0, ..RULE }.select(640, &scores, &[]), [0; 0]);
        let broken = [f32::NAN; 7];
        assert_eq!(RULE.select(640, &broken, &[]), [1, 2]);
    }

    #[test]
    fn a_chosen_page_stays_while_it_is_almost_as_good() {
        let scores = [0.0, 2.95, 3.0, 2.8, 3.0, 0.0, 0.0];
        assert_eq!(RULE.select(640, &scores, &[1, 3]), [1, 2], "3 is too far below");
        assert_eq!(RULE.select(640, &scores, &[1, 4]), [1, 4]);
    }

    proptest! {
        #[test]
        fn a_choice_is_of_as_many_candidates_as_there_may_be(
            scores in prop::collection::vec(-5.0f32..5.0, 40),
            pages in 0usize..45,
            before in prop::collection::btree_set(0usize..50, 0..20),
            tokens in 0usize..2600,
        ) {
            let rule = Rule { pages, ..RULE };
            let before: Vec<_> = before.into_iter().collect();
            let chosen = rule.select(tokens, &scores, &before);
            let candidates = rule.candidates(tokens);
            prop_assert_eq!(chosen.len(), pages.min(candidates.len()));
            prop_assert!(chosen.is_sorted_by(|a, b| a < b));
            prop_assert!(chosen.iter().all(|page| candidates.contains(page)));
        }
    }
}
