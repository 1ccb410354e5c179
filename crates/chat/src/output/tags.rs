//! The tags that mean something where the parser stands.

use super::{ParserOptions, recovery};

/// A set of tags.
#[derive(Debug)]
pub(super) struct Tags {
    tags: Vec<&'static str>,
    /// Whether some tag begins with this byte.
    first: [bool; 256],
}

impl Tags {
    pub(super) fn of_content(options: &ParserOptions) -> Self {
        let reasoning = options.reasoning;
        let mut tags = [reasoning.openers(), reasoning.drops()].concat();
        for format in [options.tools.get(), reasoning.channels()].into_iter().flatten() {
            tags.extend(format.openers());
        }
        if options.recovers() {
            tags.extend(recovery::openers(options.tools.get()));
        }
        Self::new(tags, options)
    }

    pub(super) fn of_reasoning(options: &ParserOptions) -> Self {
        let reasoning = options.reasoning;
        Self::new([reasoning.closers(), reasoning.openers()].concat(), options)
    }

    fn new(mut tags: Vec<&'static str>, options: &ParserOptions) -> Self {
        tags.extend(&options.hidden_tags);
        let mut first = [false; 256];
        for byte in tags.iter().filter_map(|tag| tag.bytes().next()) {
            first[usize::from(byte)] = true;
        }
        Self { tags, first }
    }

    /// Whether a text is the beginning of a longer tag.
    pub(super) fn may_grow(&self, text: &str) -> bool {
        self.begins(text) && self.tags.iter().any(|t| t.len() > text.len() && t.starts_with(text))
    }

    /// The longest tag that a text begins with.
    pub(super) fn longest(&self, text: &str) -> Option<&'static str> {
        let tags = self.tags.iter().copied().filter(|t| text.starts_with(t));
        tags.max_by_key(|t| t.len()).filter(|_| self.begins(text))
    }

    fn begins(&self, text: &str) -> bool {
        text.bytes().next().is_some_and(|byte| self.first[usize::from(byte)])
    }
}
