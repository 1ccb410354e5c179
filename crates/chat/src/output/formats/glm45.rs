//! `<tool_call>NAME`, `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>` for every argument, and
//! `</tool_call>`, as GLM 4.5 writes it, on lines, and GLM 4.7, without line breaks.

use super::{
    super::scan::{Xml, XmlStyle},
    Format,
};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

static STYLE: XmlStyle = XmlStyle {
    lead: &[],
    function: "",
    end_function: CLOSE,
    parameter: "<arg_key>",
    end_key: "</arg_key>",
    value: "<arg_value>",
    end_parameter: "</arg_value>",
    closers: &[],
    lines: false,
};

const ANY: Format = Format {
    name: "",
    architectures: &[],
    detect: |t| t.contains("<arg_key>"),
    openers: &[OPEN],
    marks: &[CLOSE, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    leaks: &[],
    open: |opener, tools| Xml::open(&STYLE, opener, tools),
};

pub(super) static GLM45: Format =
    Format { name: "glm45", architectures: &["glm4", "glm_moe_dsa"], leaks: &[OPEN], ..ANY };

pub(super) static GLM47: Format = Format { name: "glm47", architectures: &["glm47"], ..ANY };
