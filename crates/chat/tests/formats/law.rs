//! Cutting changes nothing, and nothing is lost, whatever the text.

use crate::{
    FORMATS, options,
    pieces::{cut, streamed},
};
use proptest::prelude::*;
use taper_chat::{KnownTools, OutputParser};

/// Texts made of what the formats look for.
fn texts() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "[",
        "]",
        "<|python_tag|>",
        "{\"name\": \"f\", \"parameters\": {",
        "{\"name\": \"f\", \"arguments\": {\"a\": 1}}",
        "{\"arguments\": {}, \"name\": \"f\"}",
        "{\"parameters\": ",
        "\"a\": 1}}",
        "f",
        "{",
        "}",
        "\"",
        "\\",
        ",",
        ";",
        ":",
        "\n",
        " ",
        "<",
        ">",
        "é👋",
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "<function=",
        "</function>",
        "<parameter=a>",
        "<parameter=s>",
        "<parameter=",
        "</parameter>",
        "1",
        "<think>",
        "</think>",
    ];
    proptest::collection::vec(proptest::sample::select(PIECES).prop_map(str::to_owned), 0..16)
        .prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 3000, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn cutting_changes_nothing(
        format in proptest::sample::select(FORMATS),
        text in texts(),
        cuts in proptest::collection::vec(0usize..400, 0..12),
        any: bool,
    ) {
        let mut options = options(format);
        if any {
            options.known_tools = KnownTools::any();
        }
        let pieces = cut(&text, cuts);
        prop_assert_eq!(streamed(options.clone(), &pieces), OutputParser::parse(options.clone(), &text));
        let chars: Vec<String> = text.chars().map(String::from).collect();
        let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
        prop_assert_eq!(streamed(options.clone(), &chars), OutputParser::parse(options, &text));
    }

    /// Where there is neither reasoning nor a call, nothing is lost.
    #[test]
    fn what_is_no_call_is_content(
        format in proptest::sample::select(FORMATS),
        text in texts(),
    ) {
        let message = OutputParser::parse(options(format), &text);
        if message.tool_calls.is_empty() && !text.contains("<think>") {
            prop_assert_eq!(message.content.unwrap_or_default(), text);
        }
    }
}

/// A model that repeats itself must not make the parser read the same text over and over. If it
/// did, this test would take minutes.
#[test]
fn repetitions_cost_no_more_than_their_length() {
    for format in FORMATS {
        for piece in
            ["<tool_call>", "<function=", "<function=f>", "[TOOL_CALLS]", "[TOOL_CALLS][", "{"]
        {
            for piece in [piece.to_owned(), format!("{piece} "), format!("{piece}{{\"")] {
                let text = piece.repeat(5_000);
                let message = OutputParser::parse(options(format), &text);
                assert_eq!(message.content, Some(text), "{format} {piece}");
            }
        }
    }
}
