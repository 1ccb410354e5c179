//! `<tool_calls>[{"name": .., "arguments": {..}}, ..]</tool_calls>`.

use super::{
    super::scan::{Ends, Json, JsonStyle, Rules},
    Format,
};

pub(super) const OPEN: &str = "<tool_calls>";
pub(super) const CLOSE: &str = "</tool_calls>";

pub(super) static STYLE: JsonStyle = JsonStyle {
    rules: Rules { ends: Ends { outside: CLOSE, in_string: "\n</tool_calls>" }, unmarked: false },
    lead: &[],
    closers: &[CLOSE],
};

pub(super) static FORMAT: Format = Format {
    name: "jamba",
    architectures: &["jamba"],
    detect: |t| t.contains(OPEN),
    openers: &[OPEN],
    marks: &[CLOSE],
    leaks: &[OPEN],
    open: |_, tools| Json::open(&STYLE, tools),
};
