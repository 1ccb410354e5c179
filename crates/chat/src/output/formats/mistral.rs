//! `[TOOL_CALLS][{"name": .., "arguments": {..}}, ..]`, as Mistral's older models write it, and
//! `[TOOL_CALLS]name[ARGS]{..}`, as those with tokenizers of version 11 and later do. Between name
//! and arguments `[CALL_ID]` may give an id; `[ARGS]` may be missing.

use super::{
    super::{
        scan::{Ends, Json, JsonStyle, Named, NamedStyle, Rules},
        span::{CallWriter, KnownTools, Span, SpanParser},
    },
    Format,
};

const OPEN: &str = "[TOOL_CALLS]";
const ARGS: &str = "[ARGS]";
const CALL_ID: &str = "[CALL_ID]";

/// Another call ends one whose JSON is broken.
const ENDS: Ends = Ends { outside: OPEN, in_string: "" };

static LIST: JsonStyle =
    JsonStyle { rules: Rules { ends: ENDS, unmarked: false }, lead: &[], closers: &[] };

static NAMED: NamedStyle =
    NamedStyle { name, may, literal: None, ends: ENDS, closers: &[], between: "" };

pub(super) static FORMAT: Format = Format {
    name: "mistral",
    architectures: &["mistral", "ministral", "devstral"],
    detect: |t| t.contains(OPEN),
    openers: &[OPEN],
    marks: &[ARGS, CALL_ID],
    leaks: &[OPEN],
    open: |_, tools| Box::new(Reader::Begin { tools: tools.clone(), space: String::new() }),
};

/// The name, behind which marks may stand.
fn name(head: &str) -> Option<&str> {
    let Some(head) = head.strip_suffix(ARGS) else { return Some(head) };
    let (name, id) = head.split_once(CALL_ID).unwrap_or((head, ""));
    id.chars().all(in_name).then_some(name)
}

fn may(head: &str, tools: &KnownTools) -> bool {
    let (name, marks) = head.split_at(head.find('[').unwrap_or(head.len()));
    let marks = marks.strip_prefix(CALL_ID).map_or(marks, |id| id.trim_start_matches(in_name));
    let whole = marks == ARGS || marks.is_empty();
    let begun = ARGS.starts_with(marks) || CALL_ID.starts_with(marks);
    let spaced = marks.strip_prefix(ARGS).is_some_and(|rest| rest.trim_ascii().is_empty());
    let known = if marks.is_empty() { tools.has_prefix(name) } else { tools.has(name) };
    name.chars().all(in_name) && known && (whole || begun || spaced)
}

/// Names of tools have letters, digits, and marks like `_`, `-`, `.` and `/`.
fn in_name(c: char) -> bool {
    c.is_alphanumeric() || "_-./:".contains(c)
}

/// The first character says how the calls are written.
#[derive(Debug)]
enum Reader {
    Begin { tools: KnownTools, space: String },
    Calls(Box<dyn SpanParser>, String),
}

impl SpanParser for Reader {
    fn push(&mut self, c: char, calls: &mut CallWriter<'_>) -> Span {
        match self {
            Self::Begin { space, .. } if c.is_ascii_whitespace() => {
                space.push(c);
                Span::Open
            }
            Self::Begin { tools, space } => {
                let listed = matches!(c, '[' | '{');
                let parser =
                    if listed { Json::open(&LIST, tools) } else { Named::open(&NAMED, tools) };
                *self = Self::Calls(parser, std::mem::take(space));
                self.push(c, calls)
            }
            Self::Calls(parser, space) => match parser.push(c, calls) {
                Span::Over { rest } if !calls.emitted => Span::Over { rest: space.clone() + &rest },
                span => span,
            },
        }
    }

    fn finish(&mut self, calls: &mut CallWriter<'_>) -> String {
        match self {
            Self::Begin { space, .. } => std::mem::take(space),
            Self::Calls(parser, space) => {
                let rest = parser.finish(calls);
                if calls.emitted || rest.is_empty() { rest } else { space.clone() + &rest }
            }
        }
    }
}
