//! `[name(key=value, ..), ..]`, as Llama 3.2 and ToolACE write it.

use super::{
    super::{
        scan::{LiteralStyle, Named, NamedStyle},
        span::KnownTools,
    },
    Format, NO_ENDS,
};

pub(super) const BRACKET: &str = "[";

pub(super) static ARGUMENTS: LiteralStyle =
    LiteralStyle { open: '(', close: ')', equals: '=', delimiter: None };

/// Calls as Python writes them, one after the other.
pub(super) const CALLS: NamedStyle = NamedStyle {
    name,
    may,
    literal: Some(&ARGUMENTS),
    ends: NO_ENDS,
    closers: &["]"],
    between: ",",
};

static STYLE: NamedStyle = CALLS;

pub(super) static FORMAT: Format = Format {
    name: "pythonic",
    architectures: &[],
    detect: |t| t.contains("[func_name1("),
    openers: &[BRACKET],
    marks: &[],
    leaks: &[],
    open: |_, tools| Named::open(&STYLE, tools),
};

/// A list's bracket may be read with the first name.
pub(super) fn name(head: &str) -> Option<&str> {
    let name = head.trim_start_matches(['[', ' ', '\n']);
    name.chars().all(in_name).then_some(name)
}

pub(super) fn may(head: &str, tools: &KnownTools) -> bool {
    name(head).is_some_and(|name| tools.has_prefix(name))
}

fn in_name(c: char) -> bool {
    c.is_alphanumeric() || "_.-".contains(c)
}
