//! `<minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke></minimax:tool_call>`.

use super::{
    super::scan::{Xml, XmlStyle},
    Format,
};

const OPEN: &str = "<minimax:tool_call>";
const CLOSE: &str = "</minimax:tool_call>";
const INVOKE: &str = "<invoke name=\"";

static STYLE: XmlStyle = XmlStyle {
    lead: &[],
    function: INVOKE,
    end_function: "</invoke>",
    parameter: "<parameter name=\"",
    end_key: ">",
    value: "",
    end_parameter: "</parameter>",
    closers: &[CLOSE],
    lines: false,
};

pub(super) static FORMAT: Format = Format {
    name: "minimax_m2",
    architectures: &["minimax_m2"],
    detect: |t| t.contains(OPEN),
    openers: &[OPEN, INVOKE],
    marks: &[CLOSE],
    leaks: &[OPEN, INVOKE],
    open: |opener, tools| Xml::open(&STYLE, opener, tools),
};
