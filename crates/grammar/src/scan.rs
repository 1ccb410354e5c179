//! Texts that are looked for in free output, token by token.

use crate::vocabulary::Vocabulary;
use taper_base::TokenId;

/// Some texts to look for.
#[derive(Debug)]
pub(crate) struct Scan {
    texts: Vec<Text>,
}

#[derive(Debug)]
struct Text {
    bytes: Vec<u8>,
    /// By how much of the text stands before them: tokens that complete it and go on, in a way that
    /// may not be.
    overruns: Vec<Vec<TokenId>>,
}

/// A text that is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found<'a> {
    /// Which of the texts it is.
    pub(crate) which: usize,
    /// What follows it in its last token.
    pub(crate) rest: &'a [u8],
}

impl Scan {
    /// `may_follow` says whether a text may be followed by some bytes.
    pub(crate) fn new(
        texts: &[&str],
        vocabulary: &Vocabulary,
        mut may_follow: impl FnMut(&[u8]) -> bool,
    ) -> Self {
        let texts = texts.iter().map(|text| Text::new(text, vocabulary, &mut may_follow));
        Self { texts: texts.collect() }
    }

    /// Tokens that may not come behind `tail`.
    pub(crate) fn banned(&self, tail: &[u8]) -> Vec<TokenId> {
        self.texts.iter().flat_map(|text| text.banned(tail)).collect()
    }

    /// Takes a token's text behind `tail`, which keeps as much as matters. Returns the text that is
    /// complete by then.
    pub(crate) fn push<'a>(&self, tail: &mut Vec<u8>, token: &'a [u8]) -> Option<Found<'a>> {
        let before = tail.len();
        tail.extend_from_slice(token);
        let end = |text: &Text| Some(find(tail, &text.bytes)? + text.bytes.len());
        let ends = self.texts.iter().enumerate().filter_map(|(i, text)| Some((end(text)?, i)));
        if let Some((end, which)) = ends.min() {
            tail.clear();
            // It ends in this token: the tail was too short to hold it.
            return Some(Found { which, rest: token.get(end.saturating_sub(before)..)? });
        }
        let keep = self.texts.iter().map(|text| text.bytes.len()).max().unwrap_or(0);
        tail.drain(..tail.len().saturating_sub(keep.saturating_sub(1)));
        None
    }
}

impl Text {
    fn new(
        text: &str,
        vocabulary: &Vocabulary,
        may_follow: &mut impl FnMut(&[u8]) -> bool,
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
        Self { bytes: text, overruns }
    }

    fn banned(&self, tail: &[u8]) -> impl Iterator<Item = TokenId> {
        let ends = |before: &usize| tail.ends_with(&self.bytes[..*before]);
        let lists = (0..self.bytes.len()).filter(ends).map(|before| &self.overruns[before]);
        lists.flatten().copied().collect::<Vec<_>>().into_iter()
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len().max(1)).position(|window| window == what)
}
