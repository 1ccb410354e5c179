//! `{"name": .., "parameters": {..}}`, as Llama 3.1 to 3.3 write it, perhaps behind
//! `<|python_tag|>`. Several are separated by `;`.

use super::{
    CallWriter, KnownTools, OutputFormat, Span, SpanParser,
    arguments::Ends,
    json_call::{JsonCall, Rules, Step},
};

const TAG: &str = "<|python_tag|>";
const BRACKET: &str = "{";

const RULES: Rules = Rules { ends: Ends { outside: TAG, in_string: "" }, unmarked: true };

/// The format.
#[derive(Debug)]
pub(super) struct Llama3Json;

impl OutputFormat for Llama3Json {
    fn name(&self) -> &'static str {
        "llama3_json"
    }

    fn detect(&self, template: &str) -> bool {
        // Other models of this family's tokens mark their calls with tags.
        let tagged = ["<tool_call>", "<function="].iter().any(|tag| template.contains(tag));
        let shows = ["<|start_header_id|>", r#"{"name": "#, r#""parameters": "#];
        !tagged && shows.iter().all(|text| template.contains(text))
    }

    fn openers(&self) -> &'static [&'static str] {
        &[TAG, BRACKET]
    }

    fn marks(&self) -> &'static [&'static str] {
        &[]
    }

    fn open(&self, opener: &str, tools: &KnownTools) -> Box<dyn SpanParser> {
        let bracket = opener == BRACKET;
        let new = if bracket { JsonCall::opened } else { JsonCall::new };
        Box::new(Reader { call: new(RULES, tools), read: String::new(), done: false })
    }
}

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

/// Behind a call: the semicolon belongs to it. The next call opens a span of its own.
fn behind(read: &mut String) -> Span {
    match read.trim_ascii_start() {
        "" => Span::Open,
        ";" => Span::closed(),
        _ => Span::Over { rest: std::mem::take(read) },
    }
}
