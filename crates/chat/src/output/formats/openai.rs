//! Harmony, as gpt-oss writes it: `<|channel|>analysis<|message|>reasoning<|end|><|start|>assistant`
//! `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{..}<|call|>`, and
//! `<|channel|>final<|message|>content<|return|>`.

use super::{
    super::{
        scan::{Arguments, Behind, Ends, Read, Tail},
        span::{CallWriter, KnownTools, Span, SpanParser},
    },
    Format,
};

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const CALL: &str = "<|call|>";

/// Texts that end a message; the last two begin the next.
const ENDS: [&str; 5] = ["<|end|>", "<|return|>", CALL, START, CHANNEL];

/// Most bytes of a message's head.
const MAX_HEAD: usize = 512;

const BROKEN: Ends = Ends { outside: CALL, in_string: CALL };

pub(in super::super) static OPENAI: Format = Format {
    name: "openai",
    architectures: &["gpt_oss"],
    detect: |t| t.contains(CHANNEL) && t.contains(MESSAGE),
    openers: &[START, CHANNEL],
    marks: &[MESSAGE, "<|constrain|>", "<|end|>", "<|return|>", CALL],
    leaks: &[],
    open: |opener, tools| {
        let (opener, tools) = (opener.to_owned(), tools.clone());
        Box::new(Reader { tools, state: State::Head(opener), read: String::new() })
    },
};

#[derive(Debug)]
struct Reader {
    tools: KnownTools,
    state: State,
    /// What was read of a head, or of a call that has not been emitted.
    read: String,
}

#[derive(Debug)]
enum State {
    /// Before the message, the opener with it.
    Head(String),
    /// In a message; holds what may end it.
    Body {
        reasoning: bool,
        held: String,
    },
    /// Before the arguments of a call of this name.
    Before(String),
    Arguments(Arguments),
    /// Behind the arguments.
    Behind(Tail),
}

impl Reader {
    fn head(&mut self, c: char, calls: &mut CallWriter<'_>) -> Span {
        let State::Head(head) = &mut self.state else { return Span::Open };
        head.push(c);
        let Some(head) = head.strip_suffix(MESSAGE) else {
            let fits = head.len() <= MAX_HEAD && !c.is_control();
            return if fits { Span::Open } else { self.over() };
        };
        let (_, channel) = head.rsplit_once(CHANNEL).unwrap_or((head, ""));
        let reasoning = channel.trim_start().starts_with("analysis");
        self.state = match recipient(head).filter(|name| self.tools.has(name)) {
            Some(name) => State::Before(name.to_owned()),
            None => {
                calls.nothing();
                self.read.clear();
                State::Body { reasoning, held: String::new() }
            }
        };
        Span::Open
    }

    /// What should be arguments is text.
    fn no_call(&mut self, text: &str, c: char, calls: &mut CallWriter<'_>) -> Span {
        calls.nothing();
        calls.content(text);
        self.state = State::Body { reasoning: false, held: String::new() };
        self.body(c, calls)
    }

    fn over(&mut self) -> Span {
        Span::Over { rest: std::mem::take(&mut self.read) }
    }

    fn body(&mut self, c: char, calls: &mut CallWriter<'_>) -> Span {
        let State::Body { reasoning, held } = &mut self.state else { return Span::Open };
        held.push(c);
        while !held.is_empty() {
            if let Some(end) = ENDS.into_iter().find(|end| end.starts_with(held.as_str())) {
                return match end {
                    _ if end != held => Span::Open,
                    // They open the next message.
                    START | CHANNEL => Span::Over { rest: end.to_owned() },
                    _ => Span::closed(),
                };
            }
            let first = held.remove(0);
            write(*reasoning, first.encode_utf8(&mut [0; 4]), calls);
        }
        Span::Open
    }
}

fn write(reasoning: bool, text: &str, calls: &mut CallWriter<'_>) {
    if reasoning { calls.reasoning(text) } else { calls.content(text) }
}

/// The function to which a message goes. A recipient may stand before the channel, too.
fn recipient(head: &str) -> Option<&str> {
    let (_, to) = head.split_once("to=")?;
    let to = to.split(|c: char| c.is_whitespace() || c == '<').next()?;
    Some(to.strip_prefix("functions.").unwrap_or(to))
}

impl SpanParser for Reader {
    fn push(&mut self, c: char, calls: &mut CallWriter<'_>) -> Span {
        if !calls.emitted {
            self.read.push(c);
        }
        match &mut self.state {
            State::Head(_) => self.head(c, calls),
            State::Body { .. } => self.body(c, calls),
            State::Before(name) => match c {
                '{' => {
                    let name = std::mem::take(name);
                    self.state = State::Arguments(Arguments::new(name, BROKEN));
                    Span::Open
                }
                c if c.is_ascii_whitespace() => Span::Open,
                c => self.no_call("", c, calls),
            },
            State::Arguments(arguments) => match arguments.push(c, calls) {
                Read::More => Span::Open,
                Read::Rejected => self.no_call("{", c, calls),
                Read::End => Span::closed(),
                Read::Done => {
                    let closers = &["<|end|>", "<|return|>", CALL];
                    self.state = State::Behind(Tail::new(closers, ""));
                    self.read.clear();
                    Span::Open
                }
            },
            State::Behind(tail) => {
                self.read.push(c);
                match tail.push(c) {
                    Behind::More => Span::Open,
                    Behind::Tag | Behind::Closed => Span::closed(),
                    Behind::Other(_) => self.over(),
                }
            }
        }
    }

    fn finish(&mut self, calls: &mut CallWriter<'_>) -> String {
        match &mut self.state {
            State::Body { reasoning, held } => write(*reasoning, held, calls),
            State::Arguments(arguments) if arguments.is_told() => arguments.finish(calls),
            State::Behind(_) => {}
            _ => return std::mem::take(&mut self.read),
        }
        String::new()
    }
}
