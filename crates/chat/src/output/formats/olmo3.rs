//! `<function_calls>`, a line `name(key=value, ..)` for every call, `</function_calls>`.

use super::{
    super::scan::{Named, NamedStyle},
    Format,
    pythonic::CALLS,
};

const OPEN: &str = "<function_calls>";
const CLOSE: &str = "</function_calls>";

static STYLE: NamedStyle = NamedStyle { closers: &["]", CLOSE], between: ",;", ..CALLS };

pub(super) static FORMAT: Format = Format {
    name: "olmo3",
    architectures: &["olmo3"],
    detect: |t| t.contains(OPEN),
    openers: &[OPEN],
    marks: &[CLOSE],
    leaks: &[OPEN],
    open: |_, tools| Named::open(&STYLE, tools),
};
