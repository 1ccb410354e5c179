//! `<seed:tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></seed:tool_call>`.

use super::{
    super::scan::{Xml, XmlStyle},
    Format,
    qwen3_coder::{self, FUNCTION},
};

const OPEN: &str = "<seed:tool_call>";
const CLOSE: &str = "</seed:tool_call>";

static STYLE: XmlStyle = XmlStyle { closers: &[CLOSE], ..qwen3_coder::STYLE };

pub(super) static FORMAT: Format = Format {
    name: "seed_oss",
    architectures: &["seed_oss"],
    detect: |t| t.contains(OPEN),
    openers: &[OPEN, FUNCTION],
    marks: &[CLOSE],
    leaks: &[OPEN],
    open: |opener, tools| Xml::open(&STYLE, opener, tools),
};
