//! Text still to be read, some of it for a second time.

/// Text that is read again may be so many times as long as the text itself. A model that keeps
/// beginning calls would otherwise take time that grows with the square of its output.
const AGAIN: usize = 8;

/// What may be read again in any case, in bytes.
const FREE: usize = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct Input {
    text: String,
    /// Bytes of `text` that have been read.
    at: usize,
    /// Bytes after `at` that were read before.
    known: usize,
    /// Bytes read for the first time.
    fresh: usize,
    /// Bytes that were put back.
    again: usize,
}

impl Input {
    pub(super) fn push(&mut self, text: &str) {
        if self.at == self.text.len() {
            self.text.clear();
            self.at = 0;
        }
        self.text.push_str(text);
    }

    pub(super) fn next(&mut self) -> Option<char> {
        let c = self.text.get(self.at..)?.chars().next()?;
        self.at += c.len_utf8();
        match self.known.checked_sub(c.len_utf8()) {
            Some(known) => self.known = known,
            None => self.fresh += c.len_utf8(),
        }
        Some(c)
    }

    /// Puts text back that was read last.
    pub(super) fn unread(&mut self, text: &str) {
        self.known += text.len();
        self.again += text.len();
        let read = self.text.get(..self.at).unwrap_or_default();
        if read.ends_with(text) {
            self.at -= text.len();
        } else {
            self.text.replace_range(..self.at, text);
            self.at = 0;
        }
    }

    /// Whether too much has been read again: what is put back now must be taken as it is.
    pub(super) fn is_exhausted(&self) -> bool {
        self.again > AGAIN * self.fresh + FREE
    }
}
