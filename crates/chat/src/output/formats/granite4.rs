//! `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, as Granite 4 writes it.

use super::{
    super::scan::Json,
    Format, all,
    hermes::{CLOSE, OPEN, STYLE},
};

pub(super) static FORMAT: Format = Format {
    name: "granite4",
    architectures: &["granitemoehybrid"],
    detect: |t| all(t, &[OPEN, CLOSE, "<|start_of_role|>"]),
    openers: &[OPEN],
    marks: &[CLOSE],
    leaks: &[],
    open: |_, tools| Json::open(&STYLE, tools),
};
