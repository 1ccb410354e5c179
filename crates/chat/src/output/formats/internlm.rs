//! `<|action_start|><|plugin|>{"name": .., "parameters": {..}}<|action_end|>`.

use super::{
    super::scan::{Ends, Json, JsonStyle, Rules},
    Format,
};

const OPEN: &str = "<|action_start|>";
const PLUGIN: &str = "<|plugin|>";
const CLOSE: &str = "<|action_end|>";

static STYLE: JsonStyle = JsonStyle {
    rules: Rules { ends: Ends { outside: CLOSE, in_string: CLOSE }, unmarked: false },
    lead: &[PLUGIN],
    closers: &[CLOSE],
};

pub(super) static FORMAT: Format = Format {
    name: "internlm",
    architectures: &["internlm"],
    detect: |t| t.contains(OPEN),
    openers: &[OPEN],
    marks: &[PLUGIN, CLOSE],
    leaks: &[OPEN],
    open: |_, tools| Json::open(&STYLE, tools),
};
