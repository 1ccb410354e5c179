//! `<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME`, the arguments in a code fence, and
//! `<｜tool▁call▁end｜>`, all between `<｜tool▁calls▁begin｜>` and `<｜tool▁calls▁end｜>`, as
//! DeepSeek V3 and R1 write it.

use super::{
    super::scan::{Ends, Named, NamedStyle},
    Format,
};

pub(super) const CALLS: &str = "<｜tool▁calls▁begin｜>";
pub(super) const CALL: &str = "<｜tool▁call▁begin｜>";
pub(super) const SEP: &str = "<｜tool▁sep｜>";
pub(super) const END: &str = "<｜tool▁call▁end｜>";
pub(super) const ENDS: &str = "<｜tool▁calls▁end｜>";

static STYLE: NamedStyle = NamedStyle {
    name: |head| {
        let head = head.strip_prefix(CALL).unwrap_or(head).trim_start();
        let named = head.strip_prefix("function")?.strip_prefix(SEP)?;
        Some(named.trim_end_matches("```json").trim())
    },
    may: NamedStyle::any,
    literal: None,
    ends: Ends { outside: END, in_string: END },
    closers: &["```", END, ENDS],
    between: "",
};

pub(super) static FORMAT: Format = Format {
    name: "deepseek_v3",
    architectures: &["deepseek_v2", "deepseek_v3"],
    detect: |t| t.contains(CALLS) && t.contains("```json"),
    openers: &[CALLS, CALL],
    marks: &[SEP, END, ENDS],
    leaks: &[CALLS, CALL],
    open: |_, tools| Named::open(&STYLE, tools),
};
