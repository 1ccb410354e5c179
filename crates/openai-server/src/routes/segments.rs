//! What a model writes, one after the other: reasoning, text and calls.

use taper_chat::Delta;

/// What a segment is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Segment {
    Reasoning,
    Text,
    Call { id: String, name: String },
}

/// What happens to the segments of a message. One is open at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Start(Segment),
    /// More of the open one: text, or arguments.
    More(String),
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Text,
    Call,
}

/// Makes segments of deltas.
#[derive(Debug, Default)]
pub(super) struct Segments {
    open: Option<Kind>,
    /// Blank text that is a segment only if more follows.
    blank: String,
}

impl Segments {
    pub(super) fn take(&mut self, delta: Delta) -> Vec<Change> {
        let mut out = Vec::new();
        match delta {
            Delta::Reasoning(text) => {
                self.enter(Kind::Reasoning, Segment::Reasoning, &mut out);
                out.push(Change::More(text));
            }
            Delta::Content(mut text) => {
                if self.open != Some(Kind::Text) {
                    self.blank.push_str(&text);
                    if self.blank.trim().is_empty() {
                        return out;
                    }
                    text = std::mem::take(&mut self.blank);
                }
                self.enter(Kind::Text, Segment::Text, &mut out);
                out.push(Change::More(text));
            }
            Delta::ToolCallStart { id, name, .. } => {
                self.close(&mut out);
                self.enter(Kind::Call, Segment::Call { id, name }, &mut out);
            }
            Delta::ToolCallArguments { fragment, .. } => out.push(Change::More(fragment)),
        }
        out
    }

    /// The end of the message.
    pub(super) fn finish(&mut self) -> Option<Change> {
        self.blank.clear();
        self.open.take().map(|_| Change::End)
    }

    fn enter(&mut self, kind: Kind, segment: Segment, out: &mut Vec<Change>) {
        if self.open != Some(kind) {
            self.close(out);
            self.open = Some(kind);
            out.push(Change::Start(segment));
        }
    }

    fn close(&mut self, out: &mut Vec<Change>) {
        out.extend(self.finish());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_text_between_segments_is_none() {
        let mut segments = Segments::default();
        let text = |text: &str| Delta::Content(text.to_owned());
        let call = |index| Delta::ToolCallStart { index, id: "i".into(), name: "f".into() };
        let deltas = [
            Delta::Reasoning("hm".into()),
            text("\n"),
            text("\n a"),
            text(" "),
            call(0),
            text("\n"),
            call(1),
        ];
        let mut all: Vec<_> = deltas.into_iter().flat_map(|d| segments.take(d)).collect();
        all.extend(segments.finish());
        let more = |text: &str| Change::More(text.to_owned());
        let f = || Change::Start(Segment::Call { id: "i".into(), name: "f".into() });
        let expected = [
            Change::Start(Segment::Reasoning),
            more("hm"),
            Change::End,
            Change::Start(Segment::Text),
            more("\n\n a"),
            more(" "),
            Change::End,
            f(),
            Change::End,
            f(),
            Change::End,
        ];
        assert_eq!(all, expected);
        assert_eq!(segments.finish(), None);
    }
}
