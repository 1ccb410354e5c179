//! `<function_calls>`, a line `name(key=value, ..)` for every call, `</function_calls>`.

use super::{
    super::scan::{Named, NamedStyle},
    Format, NO_ENDS,
    pythonic::{ARGUMENTS, may, name},
};

const OPEN: &str = "<function_calls>";
const CLOSE: &str = "</function_calls>";

static STYLE: NamedStyle = NamedStyle {
    name,
    may,
    literal: Some(&ARGUMENTS),
    ends: NO_ENDS,
    closers: &["]", CLOSE],
    between: ",;",
};

pub(super) static FORMAT: Format = Format {
    name: "olmo3",
    architectures: &["olmo3"],
    detect: |t| t.contains(OPEN),
    openers: &[OPEN],
    marks: &[CLOSE],
    leaks: &[OPEN],
    open: |_, tools| Named::open(&STYLE, tools),
};
