//! `<tool_calls>`, a line `{"name": .., "arguments": {..}}` for every call, `</tool_calls>`, as
//! MiniMax M1 writes it.

use super::{
    super::scan::Json,
    Format, all,
    jamba::{CLOSE, OPEN, STYLE},
};

pub(super) static FORMAT: Format = Format {
    name: "minimax",
    architectures: &["minimax"],
    detect: |t| all(t, &[OPEN, "<beginning_of_sentence>"]),
    openers: &[OPEN],
    marks: &[CLOSE],
    leaks: &[],
    open: |_, tools| Json::open(&STYLE, tools),
};
