//! `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, as Ernie 4.5 writes it.

use super::{
    super::scan::Json,
    Format,
    hermes::{CLOSE, OPEN, STYLE},
};

pub(super) static FORMAT: Format = Format {
    name: "ernie45",
    architectures: &["ernie4_5"],
    detect: |t| t.contains(OPEN),
    openers: &[OPEN],
    marks: &[CLOSE],
    leaks: &[],
    open: |_, tools| Json::open(&STYLE, tools),
};
