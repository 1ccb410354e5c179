//! `<|START_ACTION|>[{"tool_call_id": "0", "tool_name": .., "parameters": {..}}]<|END_ACTION|>`, as
//! Command R7B and Command A write it.

use super::{
    super::scan::{Ends, Json, JsonStyle, Rules},
    Format,
};

const OPEN: &str = "<|START_ACTION|>";
const CLOSE: &str = "<|END_ACTION|>";

static STYLE: JsonStyle = JsonStyle {
    rules: Rules { ends: Ends { outside: CLOSE, in_string: CLOSE }, unmarked: false },
    lead: &[],
    closers: &[CLOSE],
};

const ANY: Format = Format {
    name: "cohere",
    architectures: &[],
    detect: |_| false,
    openers: &[OPEN],
    marks: &[CLOSE],
    leaks: &[],
    open: |_, tools| Json::open(&STYLE, tools),
};

/// vLLM's name for Command R7B and Command A.
pub(super) static COMMAND3: Format = Format {
    name: "cohere_command3",
    architectures: &["cohere"],
    detect: |t| t.contains(OPEN) && !t.contains("<|START_TEXT|>"),
    leaks: &[OPEN],
    ..ANY
};

/// vLLM's name for models that mark their text, too.
pub(super) static COMMAND4: Format = Format {
    name: "cohere_command4",
    detect: |t| t.contains(OPEN) && t.contains("<|START_TEXT|>"),
    ..ANY
};

/// Short for either.
pub(super) static COHERE: Format = ANY;
