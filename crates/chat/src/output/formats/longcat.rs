//! `<longcat_tool_call>{"name": .., "arguments": {..}}</longcat_tool_call>`.

use super::{
    super::scan::{Ends, Json, JsonStyle, Rules},
    Format,
};

const OPEN: &str = "<longcat_tool_call>";
const CLOSE: &str = "</longcat_tool_call>";

static STYLE: JsonStyle = JsonStyle {
    rules: Rules {
        ends: Ends { outside: CLOSE, in_string: "\n</longcat_tool_call>" },
        unmarked: false,
    },
    lead: &[],
    closers: &[CLOSE],
};

pub(super) static FORMAT: Format = Format {
    name: "longcat",
    architectures: &["longcat"],
    detect: |t| t.contains(OPEN),
    openers: &[OPEN],
    marks: &[CLOSE],
    leaks: &[OPEN],
    open: |_, tools| Json::open(&STYLE, tools),
};
