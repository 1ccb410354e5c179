//! `{"name": .., "parameters": {..}}`, as Llama 3.1 to 4 write it, perhaps behind
//! `<|python_tag|>`. Several are separated by `;`.

use super::{
    super::{
        scan::{Ends, JsonCall, Rules, Step},
        span::{CallWriter, KnownTools, Span, SpanParser},
    },
    Format, all, any,
};

const TAG: &str = "<|python_tag|>";
const BRACKET: &str = "{";

const RULES: Rules = Rules { ends: Ends { outside: TAG, in_string: "" }, unmarked: true };

pub(super) static LLAMA3_JSON: Format = Format {
    name: "llama3_json",
    architectures: &["llama", "mllama"],
    detect: |t| {
        // Other models of this family's tokens mark their calls with tags.
        let tagged = any(t, &["<tool_call>", "<function="]);
        !tagged && all(t, &["<|start_header_id|>", r#"{"name": "#, r#""parameters": "#])
    },
    openers: &[TAG, BRACKET],
    marks: &[],
    leaks: &[TAG],
    open,
};

pub(super) static LLAMA4_JSON: Format = Format {
    name: "llama4_json",
    architectures: &["llama4"],
    detect: |t| all(t, &["<|header_start|>", r#""parameters": "#]),
    openers: &[TAG, BRACKET, "<|python_start|>"],
    marks: &["<|python_end|>"],
    leaks: &[],
    open,
};

fn open(opener: &str, tools: &KnownTools) -> Box<dyn SpanParser> {
    let bracket = opener == BRACKET;
    let new = if bracket { JsonCall::opened } else { JsonCall::new };
    Box::new(Reader { call: new(RULES, tools), read: String::new(), done: false })
}

/// Most bytes between a call and its semicolon.
const MAX_SPACE: usize = 256;

#[derive(Debug)]
struct Reader {
    call: JsonCall,
    /// What was read behind the opener and has not been emitted, or behind the call.
    read: String,
    /// The call is complete.
    done: bool,
}

impl SpanParser for Reader {
    fn push(&mut self, c: char, calls: &mut CallWriter<'_>) -> Span {
        if self.done {
            self.read.push(c);
            return behind(&mut self.read);
        }
        if !self.call.is_told() {
            self.read.push(c);
        }
        match self.call.push(c, calls) {
            Step::More => Span::Open,
            Step::Rejected => Span::Over { rest: std::mem::take(&mut self.read) },
            Step::Done => {
                self.read.clear();
                self.done = true;
                Span::Open
            }
            Step::End => Span::Over { rest: TAG.to_owned() },
            Step::Beyond(rest) => Span::Over { rest },
        }
    }

    fn finish(&mut self, calls: &mut CallWriter<'_>) -> String {
        if self.done || !self.call.is_told() {
            return std::mem::take(&mut self.read);
        }
        self.call.finish(calls)
    }
}

/// Behind a call: the semicolon belongs to it, and a bracket too many. The next call opens a span of its own.
fn behind(read: &mut String) -> Span {
    match read.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '}') {
        "" if read.len() < MAX_SPACE => Span::Open,
        ";" => Span::closed(),
        _ => Span::Over { rest: std::mem::take(read) },
    }
}
