//! `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, as Hermes and Qwen write it.

use super::{
    CallWriter, KnownTools, OutputFormat, Span, SpanParser,
    arguments::Ends,
    json_call::{JsonCall, Rules, Step},
};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// A line break before the closing tag closes even a string, for JSON has no line breaks inside
/// strings.
const RULES: Rules =
    Rules { ends: Ends { outside: CLOSE, in_string: "\n</tool_call>" }, unmarked: false };

/// The format.
#[derive(Debug)]
pub(super) struct Hermes;

impl OutputFormat for Hermes {
    fn name(&self) -> &'static str {
        "hermes"
    }

    fn detect(&self, template: &str) -> bool {
        // Qwen3-Coder and GLM write XML between the same tags.
        let xml = ["<function=", "<arg_key>"].iter().any(|tag| template.contains(tag));
        template.contains(OPEN) && !xml
    }

    fn openers(&self) -> &'static [&'static str] {
        &[OPEN]
    }

    fn marks(&self) -> &'static [&'static str] {
        &[CLOSE]
    }

    fn open(&self, _: &str, tools: &KnownTools) -> Box<dyn SpanParser> {
        Box::new(Reader { call: JsonCall::new(RULES, tools), read: String::new(), tail: None })
    }
}

#[derive(Debug)]
struct Reader {
    call: JsonCall,
    /// All that was read, as long as nothing is emitted.
    read: String,
    /// What was read behind the call's object.
    tail: Option<String>,
}

impl SpanParser for Reader {
    fn push(&mut self, c: char, calls: &mut CallWriter<'_>) -> Span {
        if let Some(tail) = &mut self.tail {
            tail.push(c);
            return behind(tail);
        }
        if !self.call.is_told() {
            self.read.push(c);
        }
        match self.call.push(c, calls) {
            Step::More => Span::Open,
            Step::Rejected => Span::Over { rest: std::mem::take(&mut self.read) },
            Step::Done => {
                self.tail = Some(String::new());
                Span::Open
            }
            Step::End => Span::closed(),
            Step::Beyond(rest) => Span::Over { rest },
        }
    }

    fn finish(&mut self, calls: &mut CallWriter<'_>) -> String {
        if !self.call.is_told() {
            return std::mem::take(&mut self.read);
        }
        // What follows the arguments is the beginning of the closing tag.
        self.call.finish(calls);
        String::new()
    }
}

/// Behind a call: the closing tag, perhaps after a bracket too many. Anything else means that the
/// model forgot the tag.
fn behind(tail: &mut String) -> Span {
    let rest = tail.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '}');
    if rest == CLOSE {
        return Span::closed();
    }
    if CLOSE.starts_with(rest) {
        return Span::Open;
    }
    Span::Over { rest: std::mem::take(tail) }
}
