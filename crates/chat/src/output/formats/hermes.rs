//! `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, as Hermes and Qwen write it.

use super::{
    super::scan::{Ends, Json, JsonStyle, Rules},
    Format, any,
};

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";

/// A line break before the closing tag closes even a string.
pub(super) static STYLE: JsonStyle = JsonStyle {
    rules: Rules { ends: Ends { outside: CLOSE, in_string: "\n</tool_call>" }, unmarked: false },
    lead: &[],
    closers: &[CLOSE],
};

const ANY: Format = Format {
    name: "hermes",
    architectures: &["qwen2", "qwen3", "bailing", "holo2"],
    // Qwen3-Coder and GLM write XML between the same tags.
    detect: |t| t.contains(OPEN) && !any(t, &["<function=", "<arg_key>"]),
    openers: &[OPEN],
    marks: &[CLOSE],
    leaks: &[],
    open: |_, tools| Json::open(&STYLE, tools),
};

pub(super) static HERMES: Format = Format { leaks: &[OPEN], ..ANY };

/// vLLM's other name for it.
pub(super) static QWEN3_JSON: Format =
    Format { name: "qwen3_json", architectures: &[], detect: |_| false, ..ANY };
