//! Calls in the format of another model, which leak into the content.
//!
//! A model that was tuned on several formats, or quantized hard, at times writes a call in one that
//! it should not. Such a call is recovered if it is complete, its tool is among those of the
//! request and gets all arguments that it requires, no other call was found, and it makes up at
//! least half of the content. So nothing is recovered from an answer that speaks about calls.

use super::{
    Delta, ToolCallIds,
    formats::FORMATS,
    span::{CallWriter, KnownTools, OutputFormat, Span, SpanParser},
};
use crate::ToolCall;
use serde_json::{Map, Value};

/// Openers of other formats than the one that is expected.
pub(super) fn openers(native: Option<&dyn OutputFormat>) -> Vec<&'static str> {
    let native = native.map_or("", |f| f.name());
    let others = FORMATS.iter().filter(|f| f.name() != native);
    let mut openers: Vec<_> = others.flat_map(|f| f.leaks()).copied().collect();
    openers.sort_unstable();
    openers.dedup();
    openers
}

/// Texts in the spans of other formats that may be special tokens.
pub(super) fn marks() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().filter(|f| !f.leaks().is_empty()).flat_map(|f| f.marks()).copied()
}

/// A span that may be a call of another format: every format that has its opener reads it.
#[derive(Debug)]
pub(super) struct Leak {
    pub(super) opener: &'static str,
    tools: KnownTools,
    readers: Vec<Reader>,
    /// All that followed the opener.
    pub(super) read: String,
}

#[derive(Debug)]
struct Reader {
    parser: Box<dyn SpanParser>,
    out: Vec<Delta>,
    calls: usize,
    emitted: bool,
    ids: ToolCallIds,
}

/// What became of a leak.
#[derive(Debug)]
pub(super) enum Outcome {
    Open,
    /// It is no call.
    None,
    /// These are its calls; the text at its end belongs to none of them.
    Calls(Vec<ToolCall>, String),
}

impl Leak {
    /// Reads what follows an opener, unless only the expected format knows it.
    pub(super) fn open(
        opener: &'static str,
        native: Option<&dyn OutputFormat>,
        tools: &KnownTools,
    ) -> Option<Self> {
        let native = native.map_or("", |f| f.name());
        let others = FORMATS.iter().filter(|f| f.name() != native && f.leaks().contains(&opener));
        let readers: Vec<Reader> = others
            .map(|format| Reader {
                parser: format.open(opener, tools),
                out: Vec::new(),
                calls: 0,
                emitted: false,
                ids: ToolCallIds::new(0),
            })
            .collect();
        let tools = tools.clone();
        (!readers.is_empty()).then(|| Self { opener, tools, readers, read: String::new() })
    }

    pub(super) fn push(&mut self, c: char) -> Outcome {
        self.read.push(c);
        let mut at = 0;
        while let Some(reader) = self.readers.get_mut(at) {
            match reader.push(c) {
                Span::Open => at += 1,
                Span::Over { rest } => match reader.calls(&self.tools) {
                    Some(calls) => return Outcome::Calls(calls, rest),
                    None => drop(self.readers.remove(at)),
                },
            }
        }
        if self.readers.is_empty() { Outcome::None } else { Outcome::Open }
    }

    /// The output ends here.
    pub(super) fn finish(&mut self) -> Outcome {
        for reader in &mut self.readers {
            let rest = reader.finish();
            if let Some(calls) = reader.calls(&self.tools) {
                return Outcome::Calls(calls, rest);
            }
        }
        Outcome::None
    }

    /// The text of a span without what follows its calls.
    pub(super) fn text(&self, rest: &str) -> String {
        format!("{}{}", self.opener, self.read.strip_suffix(rest).unwrap_or(&self.read))
    }
}

impl Reader {
    fn push(&mut self, c: char) -> Span {
        let Self { parser, out, calls, emitted, ids } = self;
        let mut writer = CallWriter { out, ids, calls, emitted: *emitted };
        let span = parser.push(c, &mut writer);
        *emitted = writer.emitted;
        span
    }

    fn finish(&mut self) -> String {
        let Self { parser, out, calls, emitted, ids } = self;
        parser.finish(&mut CallWriter { out, ids, calls, emitted: *emitted })
    }

    /// The calls, if there are any and all of them are sound.
    fn calls(&mut self, tools: &KnownTools) -> Option<Vec<ToolCall>> {
        let mut message = super::ParsedMessage::default();
        self.out.drain(..).for_each(|delta| message.apply(delta));
        let sound = |call: &ToolCall| {
            let arguments = serde_json::from_str::<Map<String, Value>>(&call.arguments);
            arguments.is_ok_and(|arguments| tools.takes(&call.name, &arguments))
        };
        let calls = message.tool_calls;
        (!calls.is_empty() && calls.iter().all(sound)).then_some(calls)
    }
}

/// Content that is held back until it is known whether the calls in it are most of it.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) parts: Vec<Part>,
    /// Characters of the calls.
    calls: usize,
    /// Characters of all content up to here.
    all: usize,
}

#[derive(Debug)]
pub(super) enum Part {
    Text(String),
    Calls { text: String, calls: Vec<ToolCall> },
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Counts a character of content, and keeps it if there are calls. Returns whether it does.
    pub(super) fn text(&mut self, c: char) -> bool {
        self.all += 1;
        match self.parts.last_mut() {
            None => return false,
            Some(Part::Text(text)) => text.push(c),
            Some(Part::Calls { .. }) => self.parts.push(Part::Text(c.to_string())),
        }
        true
    }

    pub(super) fn add(&mut self, text: String, calls: Vec<ToolCall>) {
        let count = text.chars().count();
        self.calls += count;
        self.all += count;
        self.parts.push(Part::Calls { text, calls });
    }

    /// Whether the calls make up half of the content.
    pub(super) fn prevails(&self) -> bool {
        self.calls >= self.all / 2
    }

    pub(super) fn take(&mut self) -> Vec<Part> {
        self.calls = 0;
        std::mem::take(&mut self.parts)
    }
}

/// Tells whether content is code, between lines of three backticks or behind a single one.
#[derive(Debug, Default)]
pub(super) struct Code {
    fenced: bool,
    /// Backticks at the beginning of the line; `None` behind other text.
    ticks: Option<u8>,
    last: Option<char>,
}

impl Code {
    pub(super) fn push(&mut self, c: char) {
        let begins = self.last.is_none_or(|last| last == '\n');
        let ticks = if begins { Some(0) } else { self.ticks };
        self.ticks = match (c, ticks) {
            ('`', Some(n)) => Some(n.saturating_add(1)),
            (' ' | '\t', Some(0)) => ticks,
            _ => None,
        };
        if self.ticks == Some(3) && c == '`' {
            self.fenced = !self.fenced;
        }
        self.last = Some(c);
    }

    pub(super) fn is_code(&self) -> bool {
        self.fenced || self.last == Some('`')
    }
}
