//! `<function_call> {"name": .., "arguments": {..}}`, once or several times, as Granite 20B
//! Functioncalling writes it. Nothing closes a call.

use super::{
    super::scan::{Ends, Json, JsonStyle, Rules},
    Format,
};

const OPEN: &str = "<function_call>";

static STYLE: JsonStyle = JsonStyle {
    rules: Rules { ends: Ends { outside: OPEN, in_string: "" }, unmarked: false },
    lead: &[],
    closers: &[],
};

pub(super) static FORMAT: Format = Format {
    name: "granite-20b-fc",
    architectures: &["gpt_bigcode"],
    detect: |t| t.contains(OPEN),
    openers: &[OPEN],
    marks: &[],
    leaks: &[OPEN],
    open: |_, tools| Json::open(&STYLE, tools),
};
