//! `<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="NAME"><steptml:parameter name="KEY">VALUE</steptml:parameter></steptml:invoke><｜tool_call_end｜>`,
//! all between `<｜tool_calls_begin｜>` and `<｜tool_calls_end｜>`.

use super::{
    super::scan::{Xml, XmlStyle},
    Format,
};

const CALLS: &str = "<｜tool_calls_begin｜>";
const CALL: &str = "<｜tool_call_begin｜>";
const SEP: &str = "<｜tool_sep｜>";
const END: &str = "<｜tool_call_end｜>";
const END_CALLS: &str = "<｜tool_calls_end｜>";
const INVOKE: &str = "<steptml:invoke name=\"";

static STYLE: XmlStyle = XmlStyle {
    lead: &[CALL, "function", SEP],
    function: INVOKE,
    end_function: "</steptml:invoke>",
    parameter: "<steptml:parameter name=\"",
    end_key: ">",
    value: "",
    end_parameter: "</steptml:parameter>",
    closers: &[SEP, END, END_CALLS],
    lines: false,
};

pub(super) static FORMAT: Format = Format {
    name: "step3",
    architectures: &["step3"],
    detect: |t| t.contains("steptml:"),
    openers: &[CALLS, CALL, INVOKE],
    marks: &[SEP, END, END_CALLS],
    leaks: &[CALLS, CALL, INVOKE],
    open: |opener, tools| Xml::open(&STYLE, opener, tools),
};
