//! `<|tool_call_start|>[name(key=value, ..), ..]<|tool_call_end|>`.

use super::{
    super::scan::{Named, NamedStyle},
    Format,
    pythonic::CALLS,
};

const OPEN: &str = "<|tool_call_start|>";
const CLOSE: &str = "<|tool_call_end|>";

static STYLE: NamedStyle = NamedStyle { closers: &["]", CLOSE], ..CALLS };

pub(super) static FORMAT: Format = Format {
    name: "lfm2",
    architectures: &["lfm2"],
    detect: |t| t.contains(OPEN),
    openers: &[OPEN],
    marks: &[CLOSE],
    leaks: &[OPEN],
    open: |_, tools| Named::open(&STYLE, tools),
};
