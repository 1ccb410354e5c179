//! `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{..}<|tool_call_end|>`, all between
//! `<|tool_calls_section_begin|>` and `<|tool_calls_section_end|>`.

use super::{
    super::scan::{Ends, Named, NamedStyle},
    Format,
};

const SECTION: &str = "<|tool_calls_section_begin|>";
const CALL: &str = "<|tool_call_begin|>";
const ARGUMENTS: &str = "<|tool_call_argument_begin|>";
const END: &str = "<|tool_call_end|>";
const END_SECTION: &str = "<|tool_calls_section_end|>";

static STYLE: NamedStyle = NamedStyle {
    // The id holds the name: what stands between "functions." and the number.
    name: |head| {
        let id = head.strip_prefix(CALL).unwrap_or(head).strip_suffix(ARGUMENTS)?.trim();
        let name = id.strip_prefix("functions.").unwrap_or(id);
        Some(name.rsplit_once(':').map_or(name, |(name, _)| name))
    },
    may: NamedStyle::any,
    literal: None,
    ends: Ends { outside: END, in_string: END },
    closers: &[END, END_SECTION],
    between: "",
};

pub(super) static FORMAT: Format = Format {
    name: "kimi_k2",
    architectures: &["kimi"],
    detect: |t| t.contains(SECTION) || t.contains(ARGUMENTS),
    openers: &[SECTION, CALL],
    marks: &[ARGUMENTS, END, END_SECTION],
    leaks: &[SECTION, CALL],
    open: |_, tools| Named::open(&STYLE, tools),
};
