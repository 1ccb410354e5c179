//! One call written as a JSON object, `{"name": .., "arguments": {..}}`.

use super::{
    super::{CallWriter, KnownTools},
    arguments::{Arguments, Brackets, Ends, Read, Scanned, Scanner},
};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, value::RawValue};
use std::borrow::Cow;

/// Most bytes of a call that stands in the content without a mark and whose arguments come before
/// its name. It bounds what is held back, and read again, for text that only looks like a call.
const MAX_UNMARKED: usize = 8 << 10;

/// Members that a call without a mark may have before it is emitted.
const MEMBERS: [&str; 5] = ["name", "arguments", "parameters", "type", "id"];

/// How a format writes such objects.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Rules {
    /// Texts that end broken JSON.
    pub(in super::super) ends: Ends,
    /// Nothing but the object itself says that it is a call. So its members must be those of a
    /// call, arguments among them.
    pub(in super::super) unmarked: bool,
}

/// What a character made of a call.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum Step {
    /// The call goes on.
    More,
    /// This is no call, and nothing has been emitted.
    Rejected,
    /// The call's closing bracket has been read, and the call has been emitted.
    Done,
    /// A text that ends broken JSON has been read; the call has been emitted.
    End,
    /// The call was over before; this text is none of it.
    Beyond(String),
}

/// A call from its opening bracket on, with white space before it.
///
/// Where the name comes first and the arguments next, the arguments are streamed as they come. A
/// call in another order is emitted as a whole.
#[derive(Debug)]
pub(in super::super) struct JsonCall {
    rules: Rules,
    tools: KnownTools,
    state: State,
    brackets: Brackets,
    /// `Buffer`: all that was read. `Behind`: what is not yet known to belong to the call.
    held: String,
    /// Where the last key of the object began in `held`.
    key_at: usize,
    /// A key comes next.
    expects_key: bool,
    /// The members before the arguments are not those of a call.
    headless: bool,
    /// The object's brackets are written twice, as in a template.
    doubled: bool,
}

#[derive(Debug)]
enum State {
    /// Nothing emitted yet.
    Buffer,
    /// Inside the arguments.
    Arguments(Arguments),
    /// Right behind the arguments.
    Behind,
    /// Among further members of the object.
    Members(Scanner),
}

impl JsonCall {
    pub(in super::super) fn new(rules: Rules, tools: &KnownTools) -> Self {
        Self {
            rules,
            tools: tools.clone(),
            state: State::Buffer,
            brackets: Brackets::default(),
            held: String::new(),
            key_at: 0,
            expects_key: false,
            headless: false,
            doubled: false,
        }
    }

    /// A call whose opening bracket has been read.
    pub(in super::super) fn opened(rules: Rules, tools: &KnownTools) -> Self {
        let brackets = Brackets { depth: 1, ..Brackets::default() };
        let held = "{".to_owned();
        Self { brackets, held, expects_key: true, ..Self::new(rules, tools) }
    }

    pub(in super::super) fn is_told(&self) -> bool {
        match &self.state {
            State::Buffer => false,
            State::Arguments(arguments) => arguments.is_told(),
            State::Behind | State::Members(_) => true,
        }
    }

    pub(in super::super) fn push(&mut self, c: char, calls: &mut CallWriter<'_>) -> Step {
        match &mut self.state {
            State::Buffer => self.buffer(c, calls),
            State::Arguments(arguments) => match arguments.push(c, calls) {
                Read::More => Step::More,
                Read::Rejected => Step::Rejected,
                Read::End => Step::End,
                Read::Done => {
                    self.state = State::Behind;
                    self.held.clear();
                    Step::More
                }
            },
            State::Behind => self.behind(c),
            // Nobody needs further members.
            State::Members(scanner) => match scanner.push(c) {
                Scanned::End => Step::End,
                Scanned::Text(_) if scanner.brackets.depth == 0 => Step::Done,
                Scanned::Held | Scanned::Text(_) => Step::More,
            },
        }
    }

    /// The output ends here. Returns text behind the arguments that may belong to no call.
    pub(in super::super) fn finish(&mut self, calls: &mut CallWriter<'_>) -> String {
        match &mut self.state {
            State::Arguments(arguments) if arguments.is_told() => arguments.finish(calls),
            State::Behind => return std::mem::take(&mut self.held),
            _ => {}
        }
        String::new()
    }

    fn buffer(&mut self, c: char, calls: &mut CallWriter<'_>) -> Step {
        if c.is_ascii_whitespace() && self.held.is_empty() {
            return Step::More;
        }
        let was_in_string = self.brackets.in_string;
        if c == '{' && !self.doubled && self.held.trim_ascii_end() == "{" {
            self.doubled = true;
            return Step::More;
        }
        self.brackets.copy(c, &mut self.held);
        if !self.may_follow(c, was_in_string) {
            return Step::Rejected;
        }
        if was_in_string {
            return Step::More;
        }
        if c == '{' && self.brackets.depth == 2 && !self.headless {
            if let Some(name) = head(&self.held) {
                if !self.tools.has(&name) {
                    return Step::Rejected;
                }
                self.state = State::Arguments(Arguments::new(name, self.rules.ends));
                return Step::More;
            }
            self.headless = true;
        }
        if c == '}' && self.brackets.depth == 0 {
            return self.whole(calls);
        }
        Step::More
    }

    /// Whether the character that was put into `held` can stand in a call.
    fn may_follow(&mut self, c: char, was_in_string: bool) -> bool {
        if was_in_string {
            return self.fits();
        }
        if c.is_ascii_whitespace() {
            return self.fits();
        }
        if self.brackets.depth == 0 && c != '}' {
            return false;
        }
        if self.held.len() == 1 && c != '{' {
            return false;
        }
        if !self.rules.unmarked {
            return c.is_ascii_alphanumeric() || "{}[]:,\"+-.".contains(c);
        }
        self.fits() && self.member_may_follow(c)
    }

    fn fits(&self) -> bool {
        !self.rules.unmarked || self.held.len() <= MAX_UNMARKED
    }

    /// Looks at the keys of the object itself.
    fn member_may_follow(&mut self, c: char) -> bool {
        if self.expects_key {
            self.expects_key = false;
            self.key_at = self.held.len() - c.len_utf8();
            return c == '"';
        }
        match c {
            '{' | ',' if self.brackets.depth == 1 => self.expects_key = true,
            ':' if self.brackets.depth == 1 => {
                let key = self.held.get(self.key_at..).and_then(string);
                return key.is_some_and(|(key, _)| MEMBERS.contains(&key.as_str()));
            }
            _ => {}
        }
        c.is_ascii_alphanumeric() || "{}[]:,\"+-.".contains(c)
    }

    /// The object is complete and has not been emitted.
    fn whole(&mut self, calls: &mut CallWriter<'_>) -> Step {
        let call = whole(&self.held, self.rules.unmarked, &self.tools);
        match call.filter(|(name, _)| self.tools.has(name)) {
            Some((name, arguments)) => {
                calls.start(&name);
                calls.arguments(&arguments);
                self.state = State::Behind;
                self.held.clear();
                Step::Done
            }
            None => Step::Rejected,
        }
    }

    /// Behind the arguments: more members, the closing bracket, or an end.
    fn behind(&mut self, c: char) -> Step {
        if c.is_ascii_whitespace() && self.held.is_empty() {
            return Step::More;
        }
        self.held.push(c);
        let end = self.rules.ends.outside;
        match self.held.as_str() {
            "," => {
                self.held.clear();
                self.state = State::Members(Scanner::in_object(self.rules.ends));
                Step::More
            }
            "}" => {
                self.held.clear();
                Step::Done
            }
            rest if rest == end => Step::End,
            rest if end.starts_with(rest) => Step::More,
            _ => Step::Beyond(std::mem::take(&mut self.held)),
        }
    }
}

/// The name in `{"name": "..", "arguments": {`, given up to that last bracket. `"type"` and ids
/// may stand before and between.
fn head(text: &str) -> Option<String> {
    let mut rest = punctuation(text, '{')?;
    let mut name = None;
    loop {
        let (key, after) = string(rest)?;
        let value = punctuation(after, ':')?;
        match key.as_str() {
            "arguments" | "parameters" => {
                let end = punctuation(value, '{')?;
                return name.filter(|name: &String| end.is_empty() && !name.is_empty());
            }
            "name" | "tool_name" | "type" | "id" | "tool_call_id" => {
                let (value, after) = string(value)?;
                if key.ends_with("name") {
                    name = Some(value);
                }
                rest = punctuation(after, ',')?;
            }
            _ => return None,
        }
    }
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

/// A call's object, with Hermes's word for the arguments or Llama's.
#[derive(Deserialize)]
struct RawCall<'a> {
    #[serde(borrow, alias = "tool_name")]
    name: Cow<'a, str>,
    #[serde(borrow, default, alias = "parameters", deserialize_with = "present")]
    arguments: Option<&'a RawValue>,
}

/// Tells `null` from an absent member.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Name and arguments of a call that is complete. Arguments may also be an object in a string; they
/// may be null for a tool that needs none, and absent where they are not `required`.
fn whole(text: &str, required: bool, tools: &KnownTools) -> Option<(String, String)> {
    let call: RawCall<'_> = serde_json::from_str(text).ok()?;
    let arguments = match call.arguments.map(RawValue::get) {
        None if required => return None,
        None => "{}".to_owned(),
        Some("null") if tools.takes(&call.name, &Map::new()) => "{}".to_owned(),
        Some(raw) if raw.starts_with('{') => raw.to_owned(),
        Some(raw) => {
            let text: String = serde_json::from_str(raw).ok()?;
            let _: Map<String, Value> = serde_json::from_str(&text).ok()?;
            text.trim().to_owned()
        }
    };
    Some((call.name.into_owned(), arguments))
}
