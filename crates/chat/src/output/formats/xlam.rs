//! `[{"name": .., "arguments": {..}}, ..]`, as Salesforce's xLAM writes it: alone, in a code fence,
//! behind `[TOOL_CALLS]`, or between `<tool_call>` tags.

use super::{
    super::scan::{Ends, Json, JsonStyle, Rules},
    Format, NO_ENDS, hermes,
};

const BRACKET: &str = "[";
const FENCE: &str = "```json";

static BARE: JsonStyle =
    JsonStyle { rules: Rules { ends: NO_ENDS, unmarked: true }, lead: &[], closers: &[] };

static FENCED: JsonStyle = JsonStyle {
    rules: Rules { ends: Ends { outside: "```", in_string: "" }, unmarked: true },
    lead: &[],
    closers: &["```"],
};

static MARKED: JsonStyle =
    JsonStyle { rules: Rules { ends: NO_ENDS, unmarked: false }, lead: &[], closers: &[] };

pub(super) static FORMAT: Format = Format {
    name: "xlam",
    architectures: &["xlam"],
    detect: |_| false,
    openers: &[BRACKET, FENCE, "[TOOL_CALLS]", hermes::OPEN],
    marks: &[hermes::CLOSE],
    leaks: &[],
    open: |opener, tools| match opener {
        BRACKET => Json::open_list(&BARE, tools),
        FENCE => Json::open(&FENCED, tools),
        hermes::OPEN => Json::open(&hermes::STYLE, tools),
        _ => Json::open(&MARKED, tools),
    },
};
