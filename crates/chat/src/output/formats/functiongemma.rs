//! `<start_function_call>call:NAME{key:<escape>text<escape>,other:1}<end_function_call>`.

use super::{
    super::scan::{LiteralStyle, Named, NamedStyle},
    Format,
    gemma4::CALL,
};

const OPEN: &str = "<start_function_call>";
const CLOSE: &str = "<end_function_call>";
const QUOTE: &str = "<escape>";

static ARGUMENTS: LiteralStyle =
    LiteralStyle { open: '{', close: '}', equals: ':', delimiter: Some(QUOTE) };

static STYLE: NamedStyle = NamedStyle { literal: Some(&ARGUMENTS), closers: &[CLOSE], ..CALL };

pub(super) static FORMAT: Format = Format {
    name: "functiongemma",
    architectures: &[],
    detect: |t| t.contains(OPEN),
    openers: &[OPEN],
    marks: &[CLOSE, QUOTE],
    leaks: &[OPEN],
    open: |_, tools| Named::open(&STYLE, tools),
};
