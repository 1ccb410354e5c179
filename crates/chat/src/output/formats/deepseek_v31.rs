//! `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{..}<｜tool▁call▁end｜>`, as DeepSeek V3.1 writes it.

use super::{
    super::scan::{Ends, Named, NamedStyle},
    Format,
    deepseek_v3::{CALL, CALLS, END, ENDS, SEP},
};

static STYLE: NamedStyle = NamedStyle {
    name: |head| {
        let head = head.strip_prefix(CALL).unwrap_or(head);
        head.strip_suffix(SEP).map(str::trim)
    },
    may: NamedStyle::any,
    literal: None,
    ends: Ends { outside: END, in_string: END },
    closers: &[END, ENDS],
    between: "",
};

pub(super) static FORMAT: Format = Format {
    name: "deepseek_v31",
    architectures: &["deepseek_v31"],
    detect: |t| t.contains(CALLS),
    openers: &[CALLS, CALL],
    marks: &[SEP, END, ENDS],
    leaks: &[CALLS, CALL],
    open: |_, tools| Named::open(&STYLE, tools),
};
