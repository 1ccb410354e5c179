//! Calls that are a name and then the arguments in brackets: `name{..}`, `name(..)`.

use super::{
    super::{CallWriter, KnownTools, Span, SpanParser},
    arguments::{Arguments, Ends, Read},
    literal::{Literal, LiteralStyle},
    tail::{Behind, Tail},
};

/// Most bytes of a name and what stands around it.
const MAX_HEAD: usize = 256;

/// How a format writes such calls.
#[derive(Debug)]
pub(in super::super) struct NamedStyle {
    /// The name in the text before the arguments' bracket.
    pub(in super::super) name: fn(&str) -> Option<&str>,
    /// Whether the text before the bracket may begin like this.
    pub(in super::super) may: fn(&str, &KnownTools) -> bool,
    /// Arguments that are not JSON.
    pub(in super::super) literal: Option<&'static LiteralStyle>,
    /// Texts that end broken JSON.
    pub(in super::super) ends: Ends,
    /// Tags behind the arguments; the last of them ends the span.
    pub(in super::super) closers: &'static [&'static str],
    /// Marks between calls of one span, such as a comma; empty if a span has one call.
    pub(in super::super) between: &'static str,
}

impl NamedStyle {
    /// Any text may stand before the bracket.
    pub(in super::super) fn any(_: &str, _: &KnownTools) -> bool {
        true
    }

    fn bracket(&self) -> char {
        self.literal.map_or('{', |literal| literal.open)
    }
}

/// Reads what follows an opener.
#[derive(Debug)]
pub(in super::super) struct Named {
    style: &'static NamedStyle,
    tools: KnownTools,
    state: State,
    /// What was read since the span began, or its last call ended.
    read: String,
}

#[derive(Debug)]
enum State {
    Head(String),
    Json(Arguments),
    Literal(Box<Literal>),
    Behind(Tail),
}

impl State {
    fn is_told(&self) -> bool {
        match self {
            Self::Head(_) | Self::Behind(_) => false,
            Self::Json(arguments) => arguments.is_told(),
            Self::Literal(literal) => literal.is_told(),
        }
    }
}

impl Named {
    pub(in super::super) fn open(
        style: &'static NamedStyle,
        tools: &KnownTools,
    ) -> Box<dyn SpanParser> {
        Box::new(Self::new(style, tools))
    }

    pub(in super::super) fn new(style: &'static NamedStyle, tools: &KnownTools) -> Self {
        let state = State::Head(String::new());
        Self { style, tools: tools.clone(), state, read: String::new() }
    }

    fn over(&mut self) -> Span {
        Span::Over { rest: std::mem::take(&mut self.read) }
    }

    /// Whether another call may begin like this.
    fn goes_on(&self, text: &str) -> bool {
        let one = text.chars().count() == 1;
        one && !self.style.between.is_empty() && (self.style.may)(text, &self.tools)
    }

    fn head(&mut self, c: char) -> Span {
        let State::Head(head) = &mut self.state else { return Span::Open };
        if c != self.style.bracket() {
            head.push(c);
            let text = head.trim_ascii_start();
            let fits = head.len() <= MAX_HEAD && (self.style.may)(text, &self.tools);
            return if fits { Span::Open } else { self.over() };
        }
        let name = (self.style.name)(head.trim_ascii()).filter(|name| self.tools.has(name));
        let Some(name) = name.map(str::to_owned) else { return self.over() };
        self.state = match self.style.literal {
            None => State::Json(Arguments::new(name, self.style.ends)),
            Some(style) => State::Literal(Box::new(Literal::new(style, name, &self.tools))),
        };
        Span::Open
    }

    fn arguments(&mut self, read: &Read) -> Span {
        match read {
            Read::More => return Span::Open,
            Read::Rejected => return self.over(),
            Read::End if !self.style.closers.contains(&self.style.ends.outside) => {
                return Span::Over { rest: self.style.ends.outside.to_owned() };
            }
            Read::End if self.style.closers.last() == Some(&self.style.ends.outside) => {
                return Span::closed();
            }
            Read::End | Read::Done => {}
        }
        self.read.clear();
        if self.style.closers.is_empty() && self.style.between.is_empty() {
            return Span::closed();
        }
        self.state = State::Behind(Tail::new(self.style.closers, self.style.between));
        Span::Open
    }
}

impl SpanParser for Named {
    fn push(&mut self, c: char, calls: &mut CallWriter<'_>) -> Span {
        if !self.state.is_told() {
            self.read.push(c);
        }
        match &mut self.state {
            State::Head(_) => self.head(c),
            State::Json(arguments) => {
                let read = arguments.push(c, calls);
                self.arguments(&read)
            }
            State::Literal(literal) => {
                let read = literal.push(c, calls);
                if read == Read::Rejected && literal.is_told() {
                    // What broke the arguments is text.
                    self.read = c.to_string();
                }
                self.arguments(&read)
            }
            State::Behind(tail) => match tail.push(c) {
                Behind::More => Span::Open,
                Behind::Tag => {
                    self.read.clear();
                    Span::Open
                }
                Behind::Closed => Span::closed(),
                Behind::Other(text) if self.goes_on(&text) => {
                    self.state = State::Head(String::new());
                    self.head(c)
                }
                Behind::Other(_) => self.over(),
            },
        }
    }

    fn finish(&mut self, calls: &mut CallWriter<'_>) -> String {
        match &mut self.state {
            State::Json(arguments) if arguments.is_told() => arguments.finish(calls),
            State::Literal(literal) if literal.is_told() => literal.finish(calls),
            // What follows a call is the beginning of a closing tag, or a comma.
            State::Behind(_) => {}
            _ => return std::mem::take(&mut self.read),
        }
        String::new()
    }
}
