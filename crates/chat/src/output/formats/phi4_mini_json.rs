//! `functools[{"name": .., "arguments": {..}}, ..]`, as Phi 4 mini writes it; newer templates ask
//! for `<|tool_call|>[..]<|/tool_call|>`.

use super::{
    super::scan::{Json, JsonStyle, Rules},
    Format, NO_ENDS, any,
};

const FUNCTOOLS: &str = "functools";

static LIST: JsonStyle =
    JsonStyle { rules: Rules { ends: NO_ENDS, unmarked: false }, lead: &[], closers: &[] };

/// The singular closes the plural, too.
static TAGGED: JsonStyle = JsonStyle {
    rules: Rules { ends: NO_ENDS, unmarked: false },
    lead: &[],
    closers: &["</tool_call>", "<|/tool_call|>", "<|/tool_calls|>"],
};

pub(super) static FORMAT: Format = Format {
    name: "phi4_mini_json",
    architectures: &["phi4"],
    detect: |t| any(t, &["functools[", "<|/tool_call|>"]),
    openers: &[FUNCTOOLS, "<|tool_call|>", "<|tool_calls|>"],
    marks: &["<|/tool_call|>", "<|/tool_calls|>"],
    leaks: &["functools[", "<|tool_call|>", "<|tool_calls|>"],
    open: |opener, tools| match opener {
        FUNCTOOLS => Json::open(&LIST, tools),
        "functools[" => Json::open_list(&LIST, tools),
        _ => Json::open(&TAGGED, tools),
    },
};
