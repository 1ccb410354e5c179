//! `<｜DSML｜invoke name="NAME"><｜DSML｜parameter name="KEY" string="true">VALUE</｜DSML｜parameter></｜DSML｜invoke>`,
//! all between `<｜DSML｜function_calls>` tags, as DeepSeek V3.2 writes it; V4's outer tag is
//! `<｜DSML｜tool_calls>`. What is no string is JSON.

use super::{
    super::scan::{Xml, XmlStyle},
    Format,
};

const CALLS: &str = "<｜DSML｜function_calls>";
const END_CALLS: &str = "</｜DSML｜function_calls>";
const TOOL_CALLS: &str = "<｜DSML｜tool_calls>";
const END_TOOL_CALLS: &str = "</｜DSML｜tool_calls>";
const INVOKE: &str = "<｜DSML｜invoke name=\"";

static STYLE: XmlStyle = XmlStyle {
    lead: &[],
    function: INVOKE,
    end_function: "</｜DSML｜invoke>",
    parameter: "<｜DSML｜parameter name=\"",
    end_key: ">",
    value: "",
    end_parameter: "</｜DSML｜parameter>",
    closers: &[END_TOOL_CALLS, END_CALLS],
    lines: false,
};

pub(super) static FORMAT: Format = Format {
    name: "deepseek_v32",
    architectures: &["deepseek_v32", "deepseek_v4"],
    detect: |t| t.contains("｜DSML｜"),
    openers: &[CALLS, TOOL_CALLS, INVOKE],
    marks: &["｜DSML｜", END_CALLS, END_TOOL_CALLS],
    leaks: &[CALLS, TOOL_CALLS, INVOKE],
    open: |opener, tools| Xml::open(&STYLE, opener, tools),
};
