//! Where the end of a text stood before.

use std::collections::HashMap;
use taper_base::TokenId;

/// Stands between texts: no match and no continuation crosses it.
const SEPARATOR: TokenId = TokenId::MAX;
/// Earlier places of the last two tokens that are looked at, latest first.
const CHAIN: usize = 48;
/// Matches are not measured beyond so many tokens.
const LONGEST: usize = 32;
/// A match close after the last one counts as so many tokens longer: who copies a text with changes goes
/// on behind the change.
const NEAR: usize = 3;
/// How far before and behind the last match that is.
const BEFORE: usize = 4;
const BEHIND: usize = 12;

/// A place where the end of the text stood before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Index of the token that followed there.
    pub at: usize,
    /// Tokens that both ends have in common, counted up to 32.
    pub len: usize,
}

/// The places of each pair of tokens in a growing text, as in the hash chains of LZ77 compressors: a
/// match is found in bounded time, and an appended token costs one entry of a table.
#[derive(Debug, Clone, Default)]
pub struct SuffixIndex {
    text: Vec<TokenId>,
    /// Index behind the latest place of each pair of tokens.
    latest: HashMap<[TokenId; 2], u32>,
    /// Index behind the place before, by the index behind a place; 0 is none.
    before: Vec<u32>,
    /// Where the text was copied from last: length of the text then, and the place.
    copied: Option<(usize, usize)>,
}

impl SuffixIndex {
    /// An index of some texts that what will be appended may repeat.
    #[must_use]
    pub fn new(texts: &[&[TokenId]]) -> Self {
        let mut index = Self::default();
        for text in texts.iter().filter(|text| !text.is_empty()) {
            index.extend(text);
            index.push(SEPARATOR);
        }
        index
    }

    /// Tokens so far, separators included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// There is no text.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Appends tokens.
    pub fn extend(&mut self, tokens: &[TokenId]) {
        tokens.iter().for_each(|&token| self.push(token));
    }

    fn push(&mut self, token: TokenId) {
        self.text.push(token);
        self.before.resize(self.text.len() + 1, 0);
        let Some(&pair) = self.text.last_chunk::<2>() else { return };
        let end = self.text.len();
        let Ok(at) = u32::try_from(end) else { return };
        if !pair.contains(&SEPARATOR) {
            self.before[end] = self.latest.insert(pair, at).unwrap_or(0);
        }
    }

    /// Says that what comes next is likely to be what stands at `at`.
    pub fn expect(&mut self, at: usize) {
        self.copied = Some((self.text.len(), at));
    }

    /// The best earlier place of the text's end: the longest match, and of equals the latest. A place
    /// close after the last match counts for more.
    pub fn find(&mut self) -> Option<Match> {
        let end = self.text.len();
        let near = self.copied.map(|(len, at)| at + (end - len));
        let close = |at: usize| near.is_some_and(|near| at + BEFORE >= near && at <= near + BEHIND);
        let (mut best, mut best_score) = (None, 0);
        let mut consider = |at: usize| {
            let len = self.common(at);
            let score = len + if close(at) { NEAR } else { 0 };
            // One token in common says nothing, unless it is close; and something has to follow.
            let followed = self.text.get(at).is_some_and(|&token| token != SEPARATOR);
            if followed && len > 0 && score > best_score && score >= 2 {
                (best, best_score) = (Some(Match { at, len }), score);
            }
        };
        // The place itself comes first, then those around it from the nearest on.
        if let Some(near) = near.filter(|&near| near < end) {
            consider(near);
            (near + 1..(near + BEHIND + 1).min(end)).for_each(&mut consider);
            (near.saturating_sub(BEFORE)..near).rev().for_each(&mut consider);
        }
        let mut at = self.before.get(end).map_or(0, |&at| at as usize);
        for _ in 0..CHAIN {
            if at == 0 {
                break;
            }
            consider(at);
            at = self.before[at] as usize;
        }
        if let Some(Match { at, .. }) = best {
            self.copied = Some((end, at));
        }
        best
    }

    /// Tokens in common before `at` and before the end.
    fn common(&self, at: usize) -> usize {
        if at >= self.text.len() {
            return 0;
        }
        let pairs = self.text[..at].iter().rev().zip(self.text.iter().rev());
        pairs.take(LONGEST).take_while(|(a, b)| a == b && **a != SEPARATOR).count()
    }

    /// What followed at a place, up to `most` tokens. Where the text ends there, it goes on with itself.
    #[must_use]
    pub fn following(&self, at: usize, most: usize) -> Vec<TokenId> {
        let mut out: Vec<TokenId> = Vec::with_capacity(most);
        for i in at..at.saturating_add(most) {
            let token = match self.text.get(i) {
                Some(&token) => token,
                None => match out.get(i - self.text.len()) {
                    Some(&token) => token,
                    None => break,
                },
            };
            if token == SEPARATOR {
                break;
            }
            out.push(token);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(texts: &[&[TokenId]], text: &[TokenId]) -> Option<(usize, Vec<TokenId>)> {
        let mut index = SuffixIndex::new(texts);
        index.extend(text);
        index.find().map(|found| (found.len, index.following(found.at, 4)))
    }

    #[test]
    fn the_longest_match_goes_on() {
        assert_eq!(after(&[], &[1, 2, 3, 4, 9, 2, 3, 5, 9, 1, 2, 3]), Some((3, vec![4, 9, 2, 3])));
        assert_eq!(after(&[], &[1, 2, 3, 4, 9, 2, 3, 5, 9, 7, 2, 3]), Some((2, vec![5, 9, 7, 2])));
        assert_eq!(after(&[], &[1, 2, 3, 4, 5]), None);
        assert_eq!(after(&[], &[]), None);
    }

    #[test]
    fn a_period_goes_on_for_ever() {
        assert_eq!(after(&[], &[7, 8, 7, 8]), Some((2, vec![7, 8, 7, 8])));
        assert_eq!(after(&[], &[7, 7, 7]), Some((2, vec![7, 7, 7, 7])));
    }

    #[test]
    fn nothing_crosses_the_end_of_a_text() {
        assert_eq!(after(&[&[1, 2, 3]], &[2, 3]), None);
        assert_eq!(after(&[&[1, 2, 3, 4]], &[1, 2]), Some((2, vec![3, 4])));
        assert_eq!(after(&[&[1, 2], &[3, 4]], &[2, 3]), None);
    }

    /// Behind a changed token, one token in common is enough where it is close.
    #[test]
    fn a_copy_with_a_change_goes_on_behind_it() {
        let original: Vec<_> = (10..30).collect();
        let mut index = SuffixIndex::new(&[&original]);
        index.extend(&[10, 11, 12]);
        assert_eq!(index.find(), Some(Match { at: 3, len: 3 }));
        index.extend(&[99]);
        assert_eq!(index.find(), None);
        index.extend(&[14]);
        assert_eq!(index.find(), Some(Match { at: 5, len: 1 }));
        // Two tokens in the place of one, then one in the place of three.
        index.extend(&[15, 98, 97, 17]);
        assert_eq!(index.find(), Some(Match { at: 8, len: 1 }));
        index.extend(&[96, 21]);
        assert_eq!(index.find(), Some(Match { at: 12, len: 1 }));
    }

    #[test]
    fn what_is_expected_comes_first() {
        let mut index = SuffixIndex::new(&[&[5, 6, 7, 8]]);
        index.extend(&[1, 2]);
        index.expect(0);
        index.extend(&[5]);
        assert_eq!(index.find(), Some(Match { at: 1, len: 1 }));
        assert_eq!(index.following(1, 9), [6, 7, 8]);
    }
}
