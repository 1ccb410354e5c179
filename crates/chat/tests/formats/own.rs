//! A format that the crate does not have.

use crate::{cuts_change_nothing, options};
use taper_chat::{
    CallWriter, KnownTools, OutputFormat, OutputParser, ParserOptions, Span, SpanParser, ToolFormat,
};

/// `@call NAME;`, with a second opener that overlaps itself.
struct Own;

#[derive(Debug)]
struct Name(String, KnownTools);

impl OutputFormat for Own {
    fn name(&self) -> &'static str {
        "own"
    }
    fn detect(&self, _: &str) -> bool {
        false
    }
    fn openers(&self) -> &'static [&'static str] {
        &["@call ", "<<|"]
    }
    fn marks(&self) -> &'static [&'static str] {
        &[]
    }
    fn open(&self, _: &str, tools: &KnownTools) -> Box<dyn SpanParser> {
        Box::new(Name(String::new(), tools.clone()))
    }
}

impl SpanParser for Name {
    fn push(&mut self, c: char, calls: &mut CallWriter<'_>) -> Span {
        self.0.push(c);
        match self.0.strip_suffix(';') {
            Some(name) if self.1.has(name) => {
                calls.start(name);
                calls.arguments("{}");
                Span::closed()
            }
            Some(_) => Span::Over { rest: std::mem::take(&mut self.0) },
            None => Span::Open,
        }
    }
    fn finish(&mut self, _: &mut CallWriter<'_>) -> String {
        std::mem::take(&mut self.0)
    }
}

#[test]
fn formats_can_be_brought_along() {
    let options = ParserOptions { tools: ToolFormat::new(&Own), ..options("none") };
    assert_eq!(options.tools.to_string(), "own");
    let text = "a @call f; <<<|f;b @call g; <<";
    cuts_change_nothing(&options, text);
    let message = OutputParser::parse(options, text);
    assert_eq!(message.content.as_deref(), Some("a  <b @call g; <<"));
    assert_eq!(message.tool_calls.len(), 2);
}
