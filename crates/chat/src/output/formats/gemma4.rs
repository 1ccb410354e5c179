//! `<|tool_call>call:NAME{key:<|"|>text<|"|>,other:1}<tool_call|>`.

use super::{
    super::scan::{LiteralStyle, Named, NamedStyle},
    Format, NO_ENDS,
};

const OPEN: &str = "<|tool_call>";
const CLOSE: &str = "<tool_call|>";
const QUOTE: &str = "<|\"|>";

static ARGUMENTS: LiteralStyle =
    LiteralStyle { open: '{', close: '}', equals: ':', delimiter: Some(QUOTE) };

/// What both of Gemma's formats write a call as, up to their marks.
pub(super) const CALL: NamedStyle = NamedStyle {
    name: |head| head.strip_prefix("call:").map(str::trim),
    may: NamedStyle::any,
    literal: None,
    ends: NO_ENDS,
    closers: &[],
    between: "",
};

static STYLE: NamedStyle = NamedStyle { literal: Some(&ARGUMENTS), closers: &[CLOSE], ..CALL };

pub(super) static FORMAT: Format = Format {
    name: "gemma4",
    architectures: &["gemma4"],
    detect: |t| t.contains(OPEN),
    openers: &[OPEN],
    marks: &[CLOSE, QUOTE],
    leaks: &[OPEN],
    open: |_, tools| Named::open(&STYLE, tools),
};
