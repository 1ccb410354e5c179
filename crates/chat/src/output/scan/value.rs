//! A text up to a tag, as a JSON value of the type that a schema names.

use super::{super::CallWriter, types::Types};
use serde_json::Value;

/// Reads one value.
#[derive(Debug)]
pub(super) struct ValueReader {
    types: Types,
    /// Tags that end the value. A forgotten closing tag does no harm.
    ends: [&'static str; 3],
    /// A line break at each of its ends is markup.
    lines: bool,
    /// The text of a value that is converted at its end.
    text: String,
    /// What may be the end, and a line break before it.
    held: String,
    begun: bool,
}

impl ValueReader {
    pub(super) fn new(
        types: Types,
        ends: [&'static str; 3],
        lines: bool,
        calls: &mut CallWriter<'_>,
    ) -> Self {
        if types.only_string() {
            calls.arguments("\"");
        }
        Self { types, ends, lines, text: String::new(), held: String::new(), begun: false }
    }

    /// The tag that ended the value, if it has.
    pub(super) fn push(&mut self, c: char, calls: &mut CallWriter<'_>) -> Option<&'static str> {
        if !std::mem::replace(&mut self.begun, true) && self.lines && c == '\n' {
            return None;
        }
        self.held.push(c);
        while !self.held.is_empty() {
            let part = match self.held.strip_prefix('\n') {
                Some(part) if self.lines => part,
                _ => &self.held,
            };
            if let Some(tag) = self.ends.into_iter().find(|tag| tag.starts_with(part)) {
                if tag != part {
                    return None;
                }
                self.end(calls);
                return Some(tag);
            }
            let first = self.held.remove(0);
            self.put(first, calls);
        }
        None
    }

    fn put(&mut self, c: char, calls: &mut CallWriter<'_>) {
        if self.types.only_string() {
            calls.arguments(&escaped(c));
        } else {
            self.text.push(c);
        }
    }

    fn end(&mut self, calls: &mut CallWriter<'_>) {
        if self.types.only_string() {
            calls.arguments("\"");
        } else {
            calls.arguments(&self.types.convert(&self.text));
        }
    }

    /// The output ends inside the value, which is emitted as far as it came.
    pub(super) fn finish(&mut self, calls: &mut CallWriter<'_>) {
        for c in std::mem::take(&mut self.held).chars() {
            self.put(c, calls);
        }
        calls.arguments(&self.text);
    }
}

/// A character as it stands in a JSON string.
pub(super) fn escaped(c: char) -> String {
    if c >= ' ' && !matches!(c, '"' | '\\') {
        return c.to_string();
    }
    let quoted = Value::from(c.to_string()).to_string();
    quoted.get(1..quoted.len() - 1).unwrap_or_default().to_owned()
}
