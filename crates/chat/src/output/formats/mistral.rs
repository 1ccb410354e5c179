//! `[TOOL_CALLS][{"name": .., "arguments": {..}}, ..]`, as Mistral's older models write it, and
//! `[TOOL_CALLS]name[ARGS]{..}`, as those with tokenizers of version 11 and later do. Between name
//! and arguments `[CALL_ID]` may give an id; `[ARGS]` may be missing.

use super::{
    CallWriter, KnownTools, OutputFormat, Span, SpanParser,
    arguments::{Arguments, Ends, Read},
    json_call::{JsonCall, Rules, Step},
};

const OPEN: &str = "[TOOL_CALLS]";
const ARGS: &str = "[ARGS]";
const CALL_ID: &str = "[CALL_ID]";

/// Another call ends one whose JSON is broken.
const ENDS: Ends = Ends { outside: OPEN, in_string: "" };
const RULES: Rules = Rules { ends: ENDS, unmarked: false };

/// Most bytes of a name or an id.
const MAX_WORD: usize = 256;

/// The format.
#[derive(Debug)]
pub(super) struct Mistral;

impl OutputFormat for Mistral {
    fn name(&self) -> &'static str {
        "mistral"
    }

    fn detect(&self, template: &str) -> bool {
        template.contains(OPEN)
    }

    fn openers(&self) -> &'static [&'static str] {
        &[OPEN]
    }

    fn marks(&self) -> &'static [&'static str] {
        &[ARGS, CALL_ID]
    }

    fn open(&self, _: &str, tools: &KnownTools) -> Box<dyn SpanParser> {
        Box::new(Reader { tools: tools.clone(), state: State::Begin, read: String::new() })
    }
}

#[derive(Debug)]
struct Reader {
    tools: KnownTools,
    state: State,
    /// What was read since the span began or its last call ended.
    read: String,
}

#[derive(Debug)]
enum State {
    /// Nothing but white space so far.
    Begin,
    /// In a list, between objects. `told` says whether one of them was a call.
    List { told: bool },
    /// An object, in a list or alone.
    Object { call: JsonCall, in_list: bool },
    /// A name.
    Name(String),
    /// Behind a name, in a mark that begins with a bracket.
    Mark { name: String, mark: String },
    /// An id, whose bytes are counted; nobody needs it.
    Id { name: String, bytes: usize },
    /// Behind `[ARGS]`.
    BeforeArguments(String),
    /// Arguments that follow a name.
    Arguments(Arguments),
}

impl Reader {
    /// What was read and emitted in no call is content.
    fn over(&mut self) -> Span {
        Span::Over { rest: std::mem::take(&mut self.read) }
    }

    /// Whether what comes next belongs to a call that was emitted.
    fn is_told(&self) -> bool {
        match &self.state {
            State::Object { call, .. } => call.is_told(),
            State::Arguments(arguments) => arguments.is_told(),
            _ => false,
        }
    }

    fn enter(&mut self, state: State) -> Span {
        self.state = state;
        Span::Open
    }

    fn object(&mut self, first: char, in_list: bool, calls: &mut CallWriter<'_>) -> Span {
        self.state = State::Object { call: JsonCall::new(RULES, &self.tools), in_list };
        self.step(first, calls)
    }

    fn step(&mut self, c: char, calls: &mut CallWriter<'_>) -> Span {
        match &mut self.state {
            State::Begin => self.begin(c, calls),
            State::Object { call, in_list } => {
                let in_list = *in_list;
                match call.push(c, calls) {
                    Step::More => Span::Open,
                    Step::Rejected => self.over(),
                    Step::Done if in_list => {
                        self.read.clear();
                        self.enter(State::List { told: true })
                    }
                    Step::Done => Span::closed(),
                    Step::End => Span::Over { rest: OPEN.to_owned() },
                    Step::Beyond(rest) => Span::Over { rest },
                }
            }
            State::List { told } => match c {
                '{' => self.object(c, true, calls),
                ']' if *told => Span::closed(),
                c if c == ',' || c.is_ascii_whitespace() => Span::Open,
                _ => self.over(),
            },
            State::Name(_) | State::Mark { .. } | State::Id { .. } => self.named(c),
            State::BeforeArguments(name) => match c {
                '{' => {
                    let arguments = Arguments::new(std::mem::take(name), ENDS);
                    self.enter(State::Arguments(arguments))
                }
                c if c.is_ascii_whitespace() => Span::Open,
                _ => self.over(),
            },
            State::Arguments(arguments) => match arguments.push(c, calls) {
                Read::More => Span::Open,
                Read::Rejected => self.over(),
                Read::Done => Span::closed(),
                Read::End => Span::Over { rest: OPEN.to_owned() },
            },
        }
    }

    fn begin(&mut self, c: char, calls: &mut CallWriter<'_>) -> Span {
        match c {
            c if c.is_ascii_whitespace() => Span::Open,
            '[' => self.enter(State::List { told: false }),
            '{' => self.object(c, false, calls),
            c => {
                self.state = State::Name(String::new());
                self.named(c)
            }
        }
    }

    /// From the name to the arguments.
    fn named(&mut self, c: char) -> Span {
        match &mut self.state {
            State::Name(name) if matches!(c, '[' | '{') => {
                let name = std::mem::take(name);
                match c {
                    _ if !self.tools.has(&name) => self.over(),
                    '{' => self.enter(State::Arguments(Arguments::new(name, ENDS))),
                    _ => self.enter(State::Mark { name, mark: c.to_string() }),
                }
            }
            State::Name(name) => {
                name.push(c);
                let fits = name.len() <= MAX_WORD && in_name(c) && self.tools.has_prefix(name);
                if fits { Span::Open } else { self.over() }
            }
            State::Mark { name, mark } => {
                mark.push(c);
                match mark.as_str() {
                    ARGS => {
                        let name = std::mem::take(name);
                        self.enter(State::BeforeArguments(name))
                    }
                    CALL_ID => {
                        let name = std::mem::take(name);
                        self.enter(State::Id { name, bytes: 0 })
                    }
                    part if ARGS.starts_with(part) || CALL_ID.starts_with(part) => Span::Open,
                    _ => self.over(),
                }
            }
            State::Id { name, .. } if c == '[' => {
                let name = std::mem::take(name);
                self.enter(State::Mark { name, mark: c.to_string() })
            }
            State::Id { bytes, .. } => {
                *bytes += c.len_utf8();
                if *bytes <= MAX_WORD && in_name(c) { Span::Open } else { self.over() }
            }
            _ => self.over(),
        }
    }
}

/// Names of tools have letters, digits, and marks like `_`, `-`, `.` and `/`.
fn in_name(c: char) -> bool {
    c.is_alphanumeric() || "_-./:".contains(c)
}

impl SpanParser for Reader {
    fn push(&mut self, c: char, calls: &mut CallWriter<'_>) -> Span {
        if !self.is_told() {
            self.read.push(c);
        }
        self.step(c, calls)
    }

    fn finish(&mut self, calls: &mut CallWriter<'_>) -> String {
        match &mut self.state {
            State::Object { call, .. } if call.is_told() => call.finish(calls),
            State::Arguments(arguments) if arguments.is_told() => {
                arguments.finish(calls);
                String::new()
            }
            // The list's own bracket is missing.
            State::List { told: true } => String::new(),
            _ => std::mem::take(&mut self.read),
        }
    }
}
