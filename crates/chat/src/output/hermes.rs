//! One Hermes tool call, `{"name": .., "arguments": {..}}`, read character by character.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, value::RawValue};
use std::borrow::Cow;

/// Closes a call.
pub(super) const CLOSE: &str = "</tool_call>";

/// Follows brackets and strings of JSON without checking more.
#[derive(Debug, Default)]
struct Brackets {
    depth: u32,
    in_string: bool,
    escaped: bool,
}

impl Brackets {
    fn step(&mut self, c: char) {
        if self.in_string {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        match c {
            '"' => self.in_string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }
}

/// What a character made of a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing to tell yet.
    More,
    /// This is no call: everything since the opening tag, this character included, is text.
    Reject,
    /// The name is known and the arguments have begun.
    Start { name: String, arguments: String },
    /// More of the arguments.
    Arguments(String),
    /// The closing tag has been read.
    End,
    /// The whole call at once, where it could not be streamed; the closing tag comes next.
    Whole { name: String, arguments: String },
    /// The call was over before; this text is none of it.
    Beyond(String),
}

/// A call from the character after `<tool_call>` on.
///
/// As long as nothing has been told of it, a call that turns out not to be JSON becomes text.
/// Once its arguments have begun what was told stands, whatever follows: arguments may then be
/// broken JSON, which ends at the closing tag. A line break before the closing tag closes even a
/// string, for JSON has no line breaks inside strings.
#[derive(Debug)]
pub(super) struct Call {
    state: State,
    brackets: Brackets,
    /// `Buffer`: all of it. `Arguments`, `Members`: what may be the closing tag. `Outer`, `Tail`:
    /// what is not yet known to belong to the call.
    held: String,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Nothing told yet.
    Buffer,
    /// Inside the arguments, which are told as they come.
    Arguments,
    /// Right behind the arguments.
    Outer,
    /// Among further members of the outer object.
    Members,
    /// Behind the outer object.
    Tail,
}

impl Call {
    pub(super) fn new() -> Self {
        Self { state: State::Buffer, brackets: Brackets::default(), held: String::new() }
    }

    /// What has been read and not been told.
    pub(super) fn into_held(self) -> String {
        self.held
    }

    /// Whether anything has been told.
    pub(super) fn is_told(&self) -> bool {
        self.state != State::Buffer
    }

    pub(super) fn step(&mut self, c: char, known: &dyn Fn(&str) -> bool) -> Step {
        match self.state {
            State::Buffer => self.buffer(c, known),
            State::Arguments => self.arguments(c),
            State::Members => self.members(c),
            State::Outer | State::Tail => self.tail(c),
        }
    }

    fn buffer(&mut self, c: char, known: &dyn Fn(&str) -> bool) -> Step {
        self.held.push(c);
        let was_in_string = self.brackets.in_string;
        self.brackets.step(c);
        let valid = if was_in_string {
            // Control characters cannot stand in a JSON string.
            c >= ' '
        } else if self.brackets.depth == 0 && c != '}' {
            c.is_ascii_whitespace()
        } else {
            c.is_ascii_whitespace() || c.is_ascii_alphanumeric() || "{}[]:,\"+-.".contains(c)
        };
        if !valid {
            return Step::Reject;
        }
        if was_in_string {
            return Step::More;
        }
        if c == '{'
            && self.brackets.depth == 2
            && let Some(name) = head(&self.held)
        {
            if !known(&name) {
                return Step::Reject;
            }
            self.held.clear();
            self.state = State::Arguments;
            return Step::Start { name, arguments: "{".to_owned() };
        }
        if c == '}' && self.brackets.depth == 0 {
            return match whole(&self.held).filter(|(name, _)| known(name)) {
                Some((name, arguments)) => {
                    self.held.clear();
                    self.state = State::Tail;
                    Step::Whole { name, arguments }
                }
                None => Step::Reject,
            };
        }
        Step::More
    }

    fn arguments(&mut self, c: char) -> Step {
        match self.closing_tag(c) {
            Ok(step) => step,
            Err(told) => {
                // Only the last character can be a bracket: the others began like the closing tag.
                told.chars().for_each(|c| self.brackets.step(c));
                if self.brackets.depth == 1 {
                    self.state = State::Outer;
                }
                Step::Arguments(told)
            }
        }
    }

    /// Members behind the arguments, which nobody needs.
    fn members(&mut self, c: char) -> Step {
        match self.closing_tag(c) {
            Ok(step) => step,
            Err(told) => {
                told.chars().for_each(|c| self.brackets.step(c));
                if self.brackets.depth == 0 {
                    self.state = State::Tail;
                }
                Step::More
            }
        }
    }

    /// Behind the call: the closing tag, perhaps after a bracket too many. Anything else means
    /// that the model forgot the tag.
    fn tail(&mut self, c: char) -> Step {
        self.held.push(c);
        if self.state == State::Outer && self.held.trim_ascii_start() == "," {
            self.held.clear();
            self.state = State::Members;
            return Step::More;
        }
        if self.state == State::Outer && self.held.trim_ascii_start() == "}" {
            self.held.clear();
            self.state = State::Tail;
            return Step::More;
        }
        let rest = self.held.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '}');
        if rest == CLOSE {
            return Step::End;
        }
        if CLOSE.starts_with(rest) {
            return Step::More;
        }
        Step::Beyond(std::mem::take(&mut self.held))
    }

    /// Looks for the closing tag. The error is text that does not belong to it.
    fn closing_tag(&mut self, c: char) -> Result<Step, String> {
        // A string may hold the tag, but no line break.
        let tag = if self.brackets.in_string { "\n</tool_call>" } else { CLOSE };
        self.held.push(c);
        if self.held == tag {
            return Ok(Step::End);
        }
        if tag.starts_with(&self.held) {
            return Ok(Step::More);
        }
        self.held.pop();
        let mut told = std::mem::take(&mut self.held);
        if tag.starts_with(c) { &mut self.held } else { &mut told }.push(c);
        Err(told)
    }
}

/// The name in `{"name": "..", "arguments": {`, given up to that last brace.
fn head(text: &str) -> Option<String> {
    let rest = punctuation(text, '{')?;
    let (key, rest) = string(rest)?;
    let (name, rest) = string(punctuation(rest, ':')?)?;
    let (arguments, rest) = string(punctuation(rest, ',')?)?;
    let rest = punctuation(punctuation(rest, ':')?, '{')?;
    let in_order = key == "name" && (arguments == "arguments" || arguments == "parameters");
    (in_order && rest.is_empty() && !name.is_empty()).then_some(name)
}

fn punctuation(text: &str, c: char) -> Option<&str> {
    text.trim_ascii_start().strip_prefix(c)
}

/// A JSON string and what follows it.
fn string(text: &str) -> Option<(String, &str)> {
    let text = text.trim_ascii_start();
    let mut strings = serde_json::Deserializer::from_str(text).into_iter::<String>();
    let value = strings.next()?.ok()?;
    Some((value, &text[strings.byte_offset()..]))
}

/// A call as Hermes writes it, or with Llama's word for the arguments.
#[derive(Deserialize)]
struct RawCall<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default, alias = "parameters", deserialize_with = "present")]
    arguments: Option<&'a RawValue>,
}

/// Tells `null` from an absent member.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Name and arguments of a call that is complete. Arguments may also be an object in a string, or
/// absent; nothing else will do.
fn whole(text: &str) -> Option<(String, String)> {
    let call: RawCall<'_> = serde_json::from_str(text).ok()?;
    if call.name.is_empty() {
        return None;
    }
    let raw = call.arguments.map_or("{}", RawValue::get);
    let arguments = if raw.starts_with('{') {
        raw.to_owned()
    } else {
        let text: String = serde_json::from_str(raw).ok()?;
        let _: Map<String, Value> = serde_json::from_str(&text).ok()?;
        text.trim().to_owned()
    };
    Some((call.name.into_owned(), arguments))
}
