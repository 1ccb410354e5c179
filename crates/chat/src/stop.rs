//! Stop strings, found across tokens without ever letting a part of one out.

use crate::ChatError;
use std::sync::Arc;

/// Several stop strings, prepared for the search. Cloning shares them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopPatterns(Arc<[Pattern]>);

/// One string with its Knuth-Morris-Pratt table.
#[derive(Debug, PartialEq, Eq)]
struct Pattern {
    text: String,
    /// `fallback[n]`: length of the longest proper border of the first `n` bytes.
    fallback: Vec<u32>,
}

/// Finds the first of several strings in a stream of text.
///
/// The match that ends first counts; of those that end together, the longest. What could still
/// become a match is held back, so that the result is the same however the text is cut.
#[derive(Debug, Clone)]
pub struct StopStrings {
    patterns: StopPatterns,
    /// Bytes of each pattern that stand at the end of the text so far.
    matched: Vec<usize>,
    include: bool,
    held: String,
    stopped: bool,
}

/// What [`StopStrings::push`] made of a text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopMatch {
    /// Text that no stop string can touch any more.
    pub text: String,
    /// The stop string that was found; nothing comes after it.
    pub stop: Option<String>,
}

impl StopPatterns {
    /// Bytes of all strings together. The search needs four more bytes for each of them.
    pub const MAX_BYTES: usize = 1 << 20;

    /// Prepares the strings.
    ///
    /// # Errors
    /// A string is empty, or they are longer than [`Self::MAX_BYTES`] together.
    pub fn new(stop: Vec<String>) -> Result<Self, ChatError> {
        if stop.iter().any(String::is_empty) {
            return Err(ChatError::EmptyStopString);
        }
        let bytes = stop.iter().map(String::len).fold(0, usize::saturating_add);
        if bytes > Self::MAX_BYTES {
            return Err(ChatError::LongStopStrings { bytes, limit: Self::MAX_BYTES });
        }
        Ok(Self(stop.into_iter().map(Pattern::new).collect()))
    }
}

impl Pattern {
    fn new(text: String) -> Self {
        let bytes = text.as_bytes();
        let mut fallback = vec![0u32; bytes.len() + 1];
        let mut border = 0;
        for n in 1..bytes.len() {
            while border > 0 && bytes[border] != bytes[n] {
                border = fallback[border] as usize;
            }
            if bytes[border] == bytes[n] {
                border += 1;
            }
            // `StopPatterns::MAX_BYTES` keeps lengths far below 32 bits.
            fallback[n + 1] = border as u32;
        }
        Self { text, fallback }
    }

    /// Takes one byte; true when the whole string stands at the end of the text.
    fn step(&self, matched: &mut usize, byte: u8) -> bool {
        let bytes = self.text.as_bytes();
        while *matched > 0 && bytes.get(*matched) != Some(&byte) {
            *matched = self.fallback[*matched] as usize;
        }
        if bytes[*matched] == byte {
            *matched += 1;
        }
        *matched == bytes.len()
    }
}

impl StopStrings {
    /// Looks for `patterns`; with `include` the one found is part of the text that comes out.
    #[must_use]
    pub fn new(patterns: StopPatterns, include: bool) -> Self {
        let matched = vec![0; patterns.0.len()];
        Self { patterns, matched, include, held: String::new(), stopped: false }
    }

    /// Takes text and gives back what is safe to send. After a match nothing comes any more.
    pub fn push(&mut self, text: &str) -> StopMatch {
        if self.stopped {
            return StopMatch::default();
        }
        if self.matched.is_empty() {
            return StopMatch { text: text.to_owned(), stop: None };
        }
        let before = self.held.len();
        let mut out = std::mem::take(&mut self.held);
        out.push_str(text);
        for (at, byte) in text.bytes().enumerate() {
            let mut found: Option<&Pattern> = None;
            for (pattern, matched) in self.patterns.0.iter().zip(&mut self.matched) {
                if pattern.step(matched, byte)
                    && found.is_none_or(|f| f.text.len() < pattern.text.len())
                {
                    found = Some(pattern);
                }
            }
            if let Some(found) = found {
                let end = before + at + 1;
                out.truncate(if self.include { end } else { end - found.text.len() });
                self.stopped = true;
                return StopMatch { text: out, stop: Some(found.text.clone()) };
            }
        }
        // Strings begin with a whole character, so this never splits one.
        let hold = self.matched.iter().copied().max().unwrap_or(0);
        self.held = out.split_off(out.len() - hold);
        StopMatch { text: out, stop: None }
    }

    /// Gives back text that no longer counts, unread: matches cannot reach into it.
    pub(crate) fn bypass(&mut self, text: &str) -> String {
        let mut out = self.finish();
        out.push_str(text);
        out
    }

    /// The end of the text: what was held back is no stop string after all.
    pub fn finish(&mut self) -> String {
        self.matched.fill(0);
        std::mem::take(&mut self.held)
    }
}
