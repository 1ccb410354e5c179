//! Calls written as JSON objects, one or several, perhaps in a list and in a code fence.

use super::{
    super::{CallWriter, KnownTools, Span, SpanParser},
    object::{JsonCall, Rules, Step},
    tail::{Behind, Lead, Tail},
};

const FENCE: &str = "```";

/// How a format writes such calls.
#[derive(Debug)]
pub(in super::super) struct JsonStyle {
    /// How one object is read.
    pub(in super::super) rules: Rules,
    /// Tags that may stand before the first object.
    pub(in super::super) lead: &'static [&'static str],
    /// Tags that may stand behind the last object; the last of them ends the span. Without any, the
    /// list's bracket or the next text ends it.
    pub(in super::super) closers: &'static [&'static str],
}

/// Reads what follows an opener.
#[derive(Debug)]
pub(in super::super) struct Json {
    style: &'static JsonStyle,
    tools: KnownTools,
    state: State,
    lead: Lead,
    /// A bracket has opened a list.
    in_list: bool,
    /// What was read since the span began, or its last call ended.
    read: String,
}

#[derive(Debug)]
enum State {
    /// Before the first object.
    Begin,
    /// In the line that opens a code fence.
    Fence(String),
    Object(JsonCall),
    /// Behind an object.
    Between(Tail),
    /// Behind the list.
    Behind(Tail),
}

impl Json {
    pub(in super::super) fn open(
        style: &'static JsonStyle,
        tools: &KnownTools,
    ) -> Box<dyn SpanParser> {
        Box::new(Self::new(style, tools))
    }

    /// Begins with a bracket that has been read as the opener.
    pub(in super::super) fn open_list(
        style: &'static JsonStyle,
        tools: &KnownTools,
    ) -> Box<dyn SpanParser> {
        Box::new(Self { in_list: true, ..Self::new(style, tools) })
    }

    pub(in super::super) fn new(style: &'static JsonStyle, tools: &KnownTools) -> Self {
        Self {
            style,
            tools: tools.clone(),
            state: State::Begin,
            lead: Lead::new(style.lead),
            in_list: false,
            read: String::new(),
        }
    }

    /// What was read and emitted in no call is content.
    fn over(&mut self) -> Span {
        Span::Over { rest: std::mem::take(&mut self.read) }
    }

    fn enter(&mut self, state: State) -> Span {
        self.state = state;
        Span::Open
    }

    fn object(&mut self, calls: &mut CallWriter<'_>) -> Span {
        self.state = State::Object(JsonCall::new(self.style.rules, &self.tools));
        self.step('{', calls)
    }

    fn step(&mut self, c: char, calls: &mut CallWriter<'_>) -> Span {
        match &mut self.state {
            State::Begin => match c {
                '{' => self.object(calls),
                '[' if !self.in_list => {
                    self.in_list = true;
                    Span::Open
                }
                '`' => self.enter(State::Fence(c.to_string())),
                c if c.is_ascii_whitespace() || self.lead.takes(c) => Span::Open,
                _ => self.over(),
            },
            State::Fence(line) => {
                line.push(c);
                let word = line.strip_prefix(FENCE);
                match word {
                    Some(word) if c == '\n' || c == '[' || c == '{' => {
                        let fits = matches!(word.trim_end_matches(['[', '{']).trim(), "" | "json");
                        self.state = State::Begin;
                        match c {
                            _ if !fits => self.over(),
                            '\n' => Span::Open,
                            c => self.step(c, calls),
                        }
                    }
                    Some(word) if word.len() < 16 => Span::Open,
                    None if FENCE.starts_with(line.as_str()) => Span::Open,
                    _ => self.over(),
                }
            }
            State::Object(call) => match call.push(c, calls) {
                Step::More => Span::Open,
                Step::Rejected => self.over(),
                Step::Done => self.between(),
                Step::End if self.closes() => Span::closed(),
                Step::End => Span::Over { rest: self.style.rules.ends.outside.to_owned() },
                Step::Beyond(rest) => Span::Over { rest },
            },
            State::Between(tail) => match tail.push(c) {
                Behind::More => Span::Open,
                Behind::Tag => self.tag(),
                Behind::Closed => Span::closed(),
                Behind::Other(text) if text == "{" => self.object(calls),
                Behind::Other(text) if text == "]" && self.in_list => {
                    self.read.clear();
                    let tail = self.tail(if self.is_fence() { "" } else { "`" });
                    let over = self.style.closers.is_empty();
                    if over { Span::closed() } else { self.enter(State::Behind(tail)) }
                }
                Behind::Other(_) => self.over(),
            },
            State::Behind(tail) => match tail.push(c) {
                Behind::More => Span::Open,
                Behind::Tag => self.tag(),
                Behind::Closed => Span::closed(),
                Behind::Other(_) => self.over(),
            },
        }
    }

    fn tag(&mut self) -> Span {
        self.read.clear();
        Span::Open
    }

    /// Whether the text that ends broken JSON closes the span, too.
    fn closes(&self) -> bool {
        self.style.closers.contains(&self.style.rules.ends.outside)
    }

    /// A model may write a bracket too many, or several objects without a list.
    fn between(&mut self) -> Span {
        self.read.clear();
        let marked = self.in_list || !self.style.closers.is_empty();
        let skipped = match marked {
            true if self.is_fence() => "},;",
            true => "},;`",
            false => "}",
        };
        let tail = self.tail(skipped);
        self.enter(State::Between(tail))
    }

    fn tail(&self, skipped: &'static str) -> Tail {
        Tail::new(self.style.closers, skipped)
    }

    /// Whether a code fence closes the span.
    fn is_fence(&self) -> bool {
        self.style.closers.contains(&FENCE)
    }
}

impl SpanParser for Json {
    fn push(&mut self, c: char, calls: &mut CallWriter<'_>) -> Span {
        let in_call = matches!(&self.state, State::Object(call) if call.is_told());
        if !in_call {
            self.read.push(c);
        }
        self.step(c, calls)
    }

    fn finish(&mut self, calls: &mut CallWriter<'_>) -> String {
        match &mut self.state {
            State::Object(call) if call.is_told() => call.finish(calls),
            // What follows a call is the beginning of a closing tag, or a comma.
            State::Between(_) | State::Behind(_) => String::new(),
            _ => std::mem::take(&mut self.read),
        }
    }
}
