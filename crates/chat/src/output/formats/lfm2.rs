//! `<|tool_call_start|>[name(key=value, ..), ..]<|tool_call_end|>`.

use super::{
    super::scan::{Named, NamedStyle},
    Format, NO_ENDS,
    pythonic::{ARGUMENTS, may, name},
};

const OPEN: &str = "<|tool_call_start|>";
const CLOSE: &str = "<|tool_call_end|>";

static STYLE: NamedStyle = NamedStyle {
    name,
    may,
    literal: Some(&ARGUMENTS),
    ends: NO_ENDS,
    closers: &["]", CLOSE],
    between: ",",
};

pub(super) static FORMAT: Format = Format {
    name: "lfm2",
    architectures: &["lfm2"],
    detect: |t| t.contains(OPEN),
    openers: &[OPEN],
    marks: &[CLOSE],
    leaks: &[OPEN],
    open: |_, tools| Named::open(&STYLE, tools),
};
