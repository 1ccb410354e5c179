//! Calls whose parameters stand between tags:
//! `<function=NAME><parameter=KEY>VALUE</parameter></function>` and its like.
//!
//! Values are texts. A tool's schema says which of them are strings; the others are converted.

use super::{
    super::{CallWriter, KnownTools, Span, SpanParser},
    tail::{Behind, Lead, Tail},
    types::Types,
    value::ValueReader,
};
use serde_json::Value;

/// How a format writes such calls.
#[derive(Debug)]
pub(in super::super) struct XmlStyle {
    /// Tags that may stand before the function's.
    pub(in super::super) lead: &'static [&'static str],
    /// Begins the tag with the function's name, which ends with `>`. Where it is empty, the name
    /// stands alone, up to a line break or a tag.
    pub(in super::super) function: &'static str,
    pub(in super::super) end_function: &'static str,
    /// Begins a parameter's name.
    pub(in super::super) parameter: &'static str,
    /// Ends it.
    pub(in super::super) end_key: &'static str,
    /// Stands between a name and its value; may be empty.
    pub(in super::super) value: &'static str,
    pub(in super::super) end_parameter: &'static str,
    /// Tags behind the function; the last of them ends the span.
    pub(in super::super) closers: &'static [&'static str],
    /// A line break at each end of a value is markup.
    pub(in super::super) lines: bool,
}

/// Reads what follows an opener.
#[derive(Debug)]
pub(in super::super) struct Xml {
    style: &'static XmlStyle,
    tools: KnownTools,
    state: State,
    /// The function's name.
    name: String,
    /// Parameters so far; `None` as long as the call is not emitted.
    parameters: Option<usize>,
    /// What was read since the opener, or the last parameter of a call that is emitted.
    read: String,
}

#[derive(Debug)]
enum State {
    /// Before the function's tag, of which a part may have been read.
    Begin(Lead, String),
    /// In the function's name.
    Name,
    /// Between parameters. Holds how much of a tag has been read.
    Between(String),
    /// In a parameter's name.
    Key(String),
    /// Between a parameter's name and its value.
    BeforeValue(String, Types),
    /// In a parameter's value.
    Value(ValueReader),
    /// Behind the function.
    Behind(Tail),
}

/// Most bytes of a parameter's name and what stands in its tag.
const MAX_KEY: usize = 256;

impl Xml {
    /// A parser for what follows an opener, which may be the function's own tag.
    pub(in super::super) fn open(
        style: &'static XmlStyle,
        opener: &str,
        tools: &KnownTools,
    ) -> Box<dyn SpanParser> {
        let named = opener == style.function || style.function.is_empty();
        let begin = || State::Begin(Lead::new(style.lead), String::new());
        Box::new(Self {
            style,
            tools: tools.clone(),
            state: if named { State::Name } else { begin() },
            name: String::new(),
            parameters: None,
            read: String::new(),
        })
    }

    /// What was read and emitted in no call is content.
    fn over(&mut self) -> Span {
        Span::Over { rest: std::mem::take(&mut self.read) }
    }

    fn enter(&mut self, state: State) -> Span {
        self.state = state;
        Span::Open
    }

    /// The call begins with its first parameter, or ends without any.
    fn tell(&mut self, calls: &mut CallWriter<'_>) -> usize {
        if self.parameters.is_none() {
            calls.start(&self.name);
            calls.arguments("{");
        }
        *self.parameters.get_or_insert(0)
    }

    fn end(&mut self, calls: &mut CallWriter<'_>) {
        self.tell(calls);
        calls.arguments("}");
        self.read.clear();
    }

    fn begin(&mut self, c: char) -> Span {
        let State::Begin(lead, tag) = &mut self.state else { return Span::Open };
        if !c.is_ascii_whitespace() || !tag.is_empty() {
            tag.push(c);
        }
        let function = self.style.function;
        if tag == function {
            return self.enter(State::Name);
        }
        let begins = function.starts_with(tag.as_str());
        if lead.takes(c) {
            if !begins {
                tag.clear();
            }
            return Span::Open;
        }
        if begins { Span::Open } else { self.over() }
    }

    /// The name ends with its tag, or where a line or another tag follows.
    fn name(&mut self, c: char) -> Span {
        let tagged = !self.style.function.is_empty();
        let ends = if tagged { c == '>' } else { matches!(c, '\n' | '<') && !self.name.is_empty() };
        if ends {
            if tagged {
                self.name = unquoted(&self.name).to_owned();
            }
            if !self.tools.has(&self.name) {
                return self.over();
            }
            self.state = State::Between(String::new());
            return Span::Open;
        }
        if c.is_ascii_whitespace() && !tagged && self.name.is_empty() {
            return Span::Open;
        }
        self.name.push(c);
        let fits = !c.is_whitespace() && !"<{[(".contains(c) && self.name.len() <= MAX_KEY;
        if fits && self.tools.has_prefix(unquoted(&self.name)) { Span::Open } else { self.over() }
    }

    fn tag(&mut self, tag: &str, calls: &mut CallWriter<'_>) -> Span {
        if tag == self.style.parameter {
            return self.enter(State::Key(String::new()));
        }
        self.end(calls);
        let closers = self.style.closers;
        if closers.is_empty() || closers.last() == Some(&tag) {
            return Span::closed();
        }
        self.enter(State::Behind(Tail::new(closers, "")))
    }

    fn between(&mut self, c: char, calls: &mut CallWriter<'_>) -> Span {
        let State::Between(held) = &mut self.state else { return Span::Open };
        if c.is_ascii_whitespace() && held.is_empty() {
            return Span::Open;
        }
        held.push(c);
        let part = held.as_str();
        let style = self.style;
        let tags = [style.parameter, style.end_function].into_iter();
        let mut tags = tags.chain(style.closers.iter().copied());
        match tags.find(|tag| tag.starts_with(part)) {
            Some(tag) if tag.len() == part.len() => self.tag(tag, calls),
            Some(_) => Span::Open,
            None => self.stray(calls),
        }
    }

    /// Text where a tag should be: it ends a call that is emitted.
    fn stray(&mut self, calls: &mut CallWriter<'_>) -> Span {
        if self.parameters.is_some() {
            calls.arguments("}");
        }
        self.over()
    }

    fn key(&mut self, c: char, calls: &mut CallWriter<'_>) -> Span {
        let State::Key(key) = &mut self.state else { return Span::Open };
        key.push(c);
        let Some(raw) = key.strip_suffix(self.style.end_key) else {
            let tag = key.find('<').and_then(|at| key.get(at..)).unwrap_or("");
            let fits = c != '\n' && key.len() <= MAX_KEY && self.style.end_key.starts_with(tag);
            return if fits { Span::Open } else { self.stray(calls) };
        };
        let raw = raw.trim().to_owned();
        let key = unquoted(&raw);
        let before = self.tell(calls);
        self.parameters = Some(before + 1);
        let comma = if before == 0 { "" } else { ", " };
        calls.arguments(&format!("{comma}{}: ", Value::from(key)));
        // DeepSeek says itself what is a string.
        let types = match raw.get(key.len()..).unwrap_or("") {
            rest if rest.contains("string=\"true\"") => Types::string(),
            rest if rest.contains("string=\"false\"") => Types::json(),
            _ => Types::of_argument(&self.tools, &self.name, key).unwrap_or_else(Types::string),
        };
        self.read.clear();
        if self.style.value.is_empty() {
            return self.value(types, calls);
        }
        self.enter(State::BeforeValue(String::new(), types))
    }

    fn value(&mut self, types: Types, calls: &mut CallWriter<'_>) -> Span {
        let ends = [self.style.end_parameter, self.style.parameter, self.style.end_function];
        let value = ValueReader::new(types, ends, self.style.lines, calls);
        self.enter(State::Value(value))
    }

    fn step(&mut self, c: char, calls: &mut CallWriter<'_>) -> Span {
        match &mut self.state {
            State::Begin(..) => self.begin(c),
            State::Name => {
                let span = self.name(c);
                // A tag has begun.
                let again = c == '<' && matches!(self.state, State::Between(_));
                if again { self.between(c, calls) } else { span }
            }
            State::Between(_) => self.between(c, calls),
            State::Key(_) => self.key(c, calls),
            State::BeforeValue(part, _) if c.is_ascii_whitespace() && part.is_empty() => Span::Open,
            State::BeforeValue(part, types) => {
                part.push(c);
                let types = *types;
                match part.as_str() {
                    tag if tag == self.style.value => self.value(types, calls),
                    part if self.style.value.starts_with(part) => Span::Open,
                    // A value that is left out.
                    _ => {
                        calls.arguments("null");
                        self.stray(calls)
                    }
                }
            }
            State::Value(value) => match value.push(c, calls) {
                None => {
                    self.read.clear();
                    Span::Open
                }
                Some(tag) if tag == self.style.end_parameter => {
                    self.read.clear();
                    self.enter(State::Between(String::new()))
                }
                Some(tag) => {
                    tag.clone_into(&mut self.read);
                    self.tag(tag, calls)
                }
            },
            State::Behind(tail) => match tail.push(c) {
                Behind::More => Span::Open,
                Behind::Tag => {
                    self.read.clear();
                    Span::Open
                }
                Behind::Closed => Span::closed(),
                Behind::Other(_) => self.over(),
            },
        }
    }
}

/// A name as far as its closing quotation mark, where there is one.
fn unquoted(text: &str) -> &str {
    text.split('"').next().unwrap_or_default()
}

impl SpanParser for Xml {
    fn push(&mut self, c: char, calls: &mut CallWriter<'_>) -> Span {
        self.read.push(c);
        self.step(c, calls)
    }

    /// A call that ends between its parameters is complete. One that ends inside a parameter stays
    /// unfinished JSON, so that nobody takes it for a call that was meant to be.
    fn finish(&mut self, calls: &mut CallWriter<'_>) -> String {
        if self.parameters.is_none() {
            return std::mem::take(&mut self.read);
        }
        match &mut self.state {
            State::Between(_) => calls.arguments("}"),
            State::Value(value) => value.finish(calls),
            _ => {}
        }
        String::new()
    }
}
