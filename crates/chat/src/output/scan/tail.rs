//! White space, punctuation and tags between the parts of a call.

/// What may stand behind a call and is dropped: white space, punctuation and closing tags.
#[derive(Debug)]
pub(in super::super) struct Tail {
    closers: &'static [&'static str],
    punctuation: &'static str,
    /// The beginning of a closing tag.
    read: String,
}

/// What a character made of a tail.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum Behind {
    /// It goes on.
    More,
    /// A closing tag has been read, and more may follow.
    Tag,
    /// The last of the closing tags has been read: nothing more belongs to the span.
    Closed,
    /// This text is none of it, what is skipped left out.
    Other(String),
}

impl Tail {
    pub(in super::super) fn new(
        closers: &'static [&'static str],
        punctuation: &'static str,
    ) -> Self {
        Self { closers, punctuation, read: String::new() }
    }

    pub(in super::super) fn push(&mut self, c: char) -> Behind {
        let skipped = c.is_ascii_whitespace() || self.punctuation.contains(c);
        if skipped && self.read.is_empty() {
            return Behind::More;
        }
        self.read.push(c);
        let part = self.read.as_str();
        let whole = self.closers.iter().find(|closer| **closer == part);
        match whole {
            Some(closer) if self.closers.last() == Some(closer) => Behind::Closed,
            Some(_) => {
                self.read.clear();
                Behind::Tag
            }
            None if self.closers.iter().any(|closer| closer.starts_with(part)) => Behind::More,
            None => Behind::Other(part.to_owned()),
        }
    }
}

/// Tags that may stand before a call.
#[derive(Debug)]
pub(super) struct Lead {
    tags: &'static [&'static str],
    part: String,
}

impl Lead {
    pub(super) fn new(tags: &'static [&'static str]) -> Self {
        Self { tags, part: String::new() }
    }

    /// Whether the character is white space or part of a tag.
    pub(super) fn takes(&mut self, c: char) -> bool {
        if c.is_ascii_whitespace() && self.part.is_empty() {
            return true;
        }
        self.part.push(c);
        let part = self.part.as_str();
        if self.tags.contains(&part) {
            self.part.clear();
            return true;
        }
        let begins = self.tags.iter().any(|tag| tag.starts_with(part));
        if !begins {
            self.part.clear();
        }
        begins
    }
}
