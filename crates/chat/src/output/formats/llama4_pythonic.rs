//! `[name(key=value, ..), ..]`, as Llama 4 writes it, perhaps between `<|python_start|>` and
//! `<|python_end|>`.

use super::{
    super::scan::{Named, NamedStyle},
    Format, all,
    pythonic::{BRACKET, CALLS},
};

const START: &str = "<|python_start|>";
const END: &str = "<|python_end|>";

static STYLE: NamedStyle = NamedStyle { closers: &["]", END], ..CALLS };

pub(super) static FORMAT: Format = Format {
    name: "llama4_pythonic",
    architectures: &[],
    detect: |t| all(t, &["<|header_start|>", "[func_name1("]),
    openers: &[START, BRACKET],
    marks: &[END],
    leaks: &[START],
    open: |_, tools| Named::open(&STYLE, tools),
};
