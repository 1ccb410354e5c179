//! `<|tool_call|>[{"name": .., "arguments": {..}}, ..]`, as Granite 3.0 writes it; 3.1 writes
//! `<tool_call>`. Nothing closes the list.

use super::{
    super::scan::{Ends, Json, JsonStyle, Rules},
    Format,
};

const OPEN: &str = "<|tool_call|>";
const TEXT: &str = "<tool_call>";

static STYLE: JsonStyle = JsonStyle {
    rules: Rules { ends: Ends { outside: OPEN, in_string: "" }, unmarked: false },
    lead: &[],
    closers: &[],
};

pub(super) static FORMAT: Format = Format {
    name: "granite",
    architectures: &["granite"],
    detect: |t| t.contains("<|start_of_role|>") && (t.contains(OPEN) || t.contains(TEXT)),
    openers: &[OPEN, TEXT],
    marks: &[],
    leaks: &[OPEN],
    open: |_, tools| Json::open(&STYLE, tools),
};
