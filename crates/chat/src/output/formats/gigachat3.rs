//! `function call<|role_sep|>` and a line `{"name": .., "arguments": {..}}`, or
//! `<|function_call|>{..}`. Nothing closes a call.

use super::{
    super::scan::{Json, JsonStyle, Rules},
    Format, NO_ENDS, any,
};

const ROLE: &str = "function call<|role_sep|>";
const MESSAGE: &str = "<|message_sep|>\n\nfunction call<|role_sep|>";
const TAG: &str = "<|function_call|>";

static STYLE: JsonStyle =
    JsonStyle { rules: Rules { ends: NO_ENDS, unmarked: false }, lead: &[], closers: &[] };

pub(super) static FORMAT: Format = Format {
    name: "gigachat3",
    architectures: &["gigachat"],
    detect: |t| any(t, &["function call<|role_sep|>", "<|role_sep|>", TAG]),
    openers: &[ROLE, MESSAGE, TAG],
    marks: &["<|role_sep|>", "<|message_sep|>"],
    leaks: &[ROLE, TAG],
    open: |_, tools| Json::open(&STYLE, tools),
};
