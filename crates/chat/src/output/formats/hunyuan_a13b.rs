//! `<tool_calls>[{"name": .., "arguments": {..}}, ..]</tool_calls>`, as Hunyuan A13B writes it.

use super::{
    super::scan::Json,
    Format,
    jamba::{CLOSE, OPEN, STYLE},
};

pub(super) static FORMAT: Format = Format {
    name: "hunyuan_a13b",
    architectures: &["hunyuan"],
    detect: |t| t.contains(OPEN),
    openers: &[OPEN],
    marks: &[CLOSE],
    leaks: &[],
    open: |_, tools| Json::open(&STYLE, tools),
};
