//! `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`, as
//! Qwen3-Coder, Qwen3.5 and Nemotron 3 write it.
//!
//! Values are texts. A tool's schema says which of them are strings; the others are converted.

use super::{CallWriter, KnownTools, OutputFormat, Span, SpanParser, schema::Types};
use serde_json::Value;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const END_FUNCTION: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const END_PARAMETER: &str = "</parameter>";

/// The format.
#[derive(Debug)]
pub(super) struct Qwen3Coder;

impl OutputFormat for Qwen3Coder {
    fn name(&self) -> &'static str {
        "qwen3_coder"
    }

    fn detect(&self, template: &str) -> bool {
        [OPEN, FUNCTION, PARAMETER].iter().all(|tag| template.contains(tag))
    }

    fn openers(&self) -> &'static [&'static str] {
        // Models leave out the outer tag at times.
        &[OPEN, FUNCTION]
    }

    fn marks(&self) -> &'static [&'static str] {
        &[CLOSE]
    }

    fn open(&self, opener: &str, tools: &KnownTools) -> Box<dyn SpanParser> {
        Box::new(Reader {
            tools: tools.clone(),
            state: if opener == OPEN { State::Begin } else { State::Name },
            name: String::new(),
            parameters: None,
            read: String::new(),
        })
    }
}

#[derive(Debug)]
struct Reader {
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
    /// Before `<function=`.
    Begin,
    /// In the function's name.
    Name,
    /// Between parameters. Holds how much of a tag has been read, and white space before it.
    Between(String),
    /// In a parameter's name.
    Key(String),
    /// In a parameter's value.
    Value(ValueReader),
    /// Behind `</function>`.
    Tail,
}

impl Reader {
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

    fn name(&mut self, c: char) -> Span {
        if c == '>' {
            let known = self.tools.has(&self.name);
            return if known { self.enter(State::Between(String::new())) } else { self.over() };
        }
        self.name.push(c);
        let fits = !c.is_whitespace() && c != '<' && self.tools.has_prefix(&self.name);
        if fits { Span::Open } else { self.over() }
    }

    fn tag(&mut self, tag: &str, calls: &mut CallWriter<'_>) -> Span {
        match tag {
            PARAMETER => self.enter(State::Key(String::new())),
            CLOSE => {
                self.end(calls);
                Span::closed()
            }
            _ => {
                self.end(calls);
                self.enter(State::Tail)
            }
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
        if c != '>' {
            key.push(c);
            return if matches!(c, '<' | '\n') { self.stray(calls) } else { Span::Open };
        }
        let key = std::mem::take(key);
        let key = key.trim();
        let before = self.tell(calls);
        self.parameters = Some(before + 1);
        let comma = if before == 0 { "" } else { ", " };
        calls.arguments(&format!("{comma}{}: ", Value::from(key)));
        let types = Types::of(self.tools.schema(&self.name, key));
        self.read.clear();
        self.enter(State::Value(ValueReader::new(types, calls)))
    }

    fn step(&mut self, c: char, calls: &mut CallWriter<'_>) -> Span {
        match &mut self.state {
            State::Begin => match self.read.trim_ascii_start() {
                FUNCTION => self.enter(State::Name),
                part if FUNCTION.starts_with(part) => Span::Open,
                _ => self.over(),
            },
            State::Name => self.name(c),
            State::Between(held) => {
                held.push(c);
                let part = held.trim_ascii_start();
                let tags = [PARAMETER, END_FUNCTION, CLOSE];
                match tags.into_iter().find(|tag| tag.starts_with(part)) {
                    Some(tag) if tag.len() == part.len() => self.tag(tag, calls),
                    Some(_) => Span::Open,
                    None => self.stray(calls),
                }
            }
            State::Key(_) => self.key(c, calls),
            State::Value(value) => match value.push(c, calls) {
                None => {
                    self.read.clear();
                    Span::Open
                }
                Some(END_PARAMETER) => {
                    self.read.clear();
                    self.enter(State::Between(String::new()))
                }
                Some(tag) => {
                    tag.clone_into(&mut self.read);
                    self.tag(tag, calls)
                }
            },
            State::Tail => match self.read.trim_ascii_start() {
                CLOSE => Span::closed(),
                part if CLOSE.starts_with(part) => Span::Open,
                _ => self.over(),
            },
        }
    }
}

impl SpanParser for Reader {
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

/// Reads one value. A line break at each of its ends is markup.
#[derive(Debug)]
struct ValueReader {
    types: Types,
    /// The text of a value that is converted at its end.
    text: String,
    /// What may be the end, and a line break before it.
    held: String,
    begun: bool,
}

impl ValueReader {
    /// Texts that end a value. A forgotten closing tag does no harm.
    const ENDS: [&str; 3] = [END_PARAMETER, PARAMETER, END_FUNCTION];

    fn new(types: Types, calls: &mut CallWriter<'_>) -> Self {
        if types.only_string() {
            calls.arguments("\"");
        }
        Self { types, text: String::new(), held: String::new(), begun: false }
    }

    /// The tag that ended the value, if it has.
    fn push(&mut self, c: char, calls: &mut CallWriter<'_>) -> Option<&'static str> {
        if !std::mem::replace(&mut self.begun, true) && c == '\n' {
            return None;
        }
        self.held.push(c);
        while !self.held.is_empty() {
            let part = self.held.strip_prefix('\n').unwrap_or(&self.held);
            if let Some(tag) = Self::ENDS.into_iter().find(|tag| tag.starts_with(part)) {
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
    fn finish(&mut self, calls: &mut CallWriter<'_>) {
        for c in std::mem::take(&mut self.held).chars() {
            self.put(c, calls);
        }
        calls.arguments(&self.text);
    }
}

/// A character as it stands in a JSON string.
fn escaped(c: char) -> String {
    if c >= ' ' && !matches!(c, '"' | '\\') {
        return c.to_string();
    }
    let quoted = Value::from(c.to_string()).to_string();
    quoted.get(1..quoted.len() - 1).unwrap_or_default().to_owned()
}
