//! Stop strings, found across tokens without ever letting a part of one out.

use crate::ChatError;

/// Finds the first of several strings in a stream of text.
///
/// The match that ends first counts; of those that end together, the longest. What could still
/// become a match is held back, so that the result is the same however the text is cut.
#[derive(Debug, Clone)]
pub struct StopStrings {
    patterns: Vec<Pattern>,
    include: bool,
    held: String,
    stopped: bool,
}

/// One string with its Knuth-Morris-Pratt table.
#[derive(Debug, Clone)]
struct Pattern {
    text: String,
    /// `fallback[n]`: length of the longest proper border of the first `n` bytes.
    fallback: Vec<usize>,
    /// Bytes matched at the end of the text so far.
    matched: usize,
}

/// What [`StopStrings::push`] made of a text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopMatch {
    /// Text that no stop string can touch any more.
    pub text: String,
    /// The stop string that was found; nothing comes after it.
    pub stop: Option<String>,
}

impl Pattern {
    fn new(text: String) -> Self {
        let bytes = text.as_bytes();
        let mut fallback = vec![0; bytes.len() + 1];
        let mut border = 0;
        for n in 1..bytes.len() {
            while border > 0 && bytes[border] != bytes[n] {
                border = fallback[border];
            }
            if bytes[border] == bytes[n] {
                border += 1;
            }
            fallback[n + 1] = border;
        }
        Self { text, fallback, matched: 0 }
    }

    /// Takes one byte; true when the whole string stands at the end of the text.
    fn step(&mut self, byte: u8) -> bool {
        let bytes = self.text.as_bytes();
        while self.matched > 0 && bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched];
        }
        if bytes[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == bytes.len()
    }
}

impl StopStrings {
    /// Looks for `stop`; with `include` the one found is part of the text that comes out.
    ///
    /// # Errors
    /// A string is empty.
    pub fn new(stop: Vec<String>, include: bool) -> Result<Self, ChatError> {
        if stop.iter().any(String::is_empty) {
            return Err(ChatError::EmptyStopString);
        }
        let patterns = stop.into_iter().map(Pattern::new).collect();
        Ok(Self { patterns, include, held: String::new(), stopped: false })
    }

    /// Takes text and gives back what is safe to send. After a match nothing comes any more.
    pub fn push(&mut self, text: &str) -> StopMatch {
        if self.stopped {
            return StopMatch::default();
        }
        if self.patterns.is_empty() {
            return StopMatch { text: text.to_owned(), stop: None };
        }
        let before = self.held.len();
        let mut out = std::mem::take(&mut self.held);
        out.push_str(text);
        for (at, byte) in text.bytes().enumerate() {
            let mut found: Option<&Pattern> = None;
            for pattern in &mut self.patterns {
                if pattern.step(byte) && found.is_none_or(|f| f.text.len() < pattern.text.len()) {
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
        let hold = self.patterns.iter().map(|p| p.matched).max().unwrap_or(0);
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
        for pattern in &mut self.patterns {
            pattern.matched = 0;
        }
        std::mem::take(&mut self.held)
    }
}
