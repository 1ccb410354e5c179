//! `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`, as
//! Qwen3-Coder, Qwen3.5, Nemotron 3, MiMo and Step 3.5 write it.

use super::{
    super::scan::{Xml, XmlStyle},
    Format, all,
};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
pub(super) const FUNCTION: &str = "<function=";

pub(super) const STYLE: XmlStyle = XmlStyle {
    lead: &[],
    function: FUNCTION,
    end_function: "</function>",
    parameter: "<parameter=",
    end_key: ">",
    value: "",
    end_parameter: "</parameter>",
    closers: &[CLOSE],
    lines: true,
};

const ANY: Format = Format {
    name: "",
    architectures: &[],
    detect: |_| false,
    // Models leave out the outer tag at times.
    openers: &[OPEN, FUNCTION],
    marks: &[CLOSE],
    leaks: &[],
    open: |opener, tools| Xml::open(&STYLE, opener, tools),
};

pub(super) static QWEN3_CODER: Format = Format {
    name: "qwen3_coder",
    architectures: &["qwen3_next", "qwen3_5", "nemotron"],
    detect: |t| all(t, &[OPEN, FUNCTION, "<parameter="]),
    leaks: &[OPEN, FUNCTION],
    ..ANY
};

pub(super) static QWEN3_XML: Format = Format { name: "qwen3_xml", ..ANY };

pub(super) static STEP3P5: Format =
    Format { name: "step3p5", architectures: &["step3p5"], detect: QWEN3_CODER.detect, ..ANY };

pub(super) static MIMO: Format =
    Format { name: "mimo", architectures: &["mimo"], detect: QWEN3_CODER.detect, ..ANY };
