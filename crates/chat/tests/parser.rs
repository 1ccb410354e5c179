//! Reasoning and tool calls in model output: tables, and the law that cutting changes nothing.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code, reason = "shared with the tests of tokens")]
mod common;

#[path = "common/pieces.rs"]
mod pieces;

use pieces::{cut, streamed};
use proptest::prelude::*;
use std::sync::Arc;
use taper_chat::{
    ChatError, Delta, KnownTools, OutputParser, ParsedMessage, ParserOptions, ReasoningFormat,
    Tool, ToolFormat,
};

fn format(name: &str) -> ToolFormat {
    name.parse().unwrap()
}

fn known(names: &[&str]) -> KnownTools {
    let tool = |&name: &&str| Tool {
        name: name.to_owned(),
        description: None,
        parameters: None,
        strict: None,
    };
    KnownTools::from(names.iter().map(tool).collect::<Arc<[Tool]>>())
}

fn options() -> ParserOptions {
    ParserOptions {
        reasoning: "qwen3".parse().unwrap(),
        tools: format("hermes"),
        id_seed: Some(1),
        ..ParserOptions::default()
    }
}

fn parse(text: &str) -> ParsedMessage {
    OutputParser::parse(options(), text)
}

/// Content, then `name arguments` of each call.
fn flat(message: &ParsedMessage) -> (&str, Vec<String>) {
    let calls = message.tool_calls.iter().map(|c| format!("{} {}", c.name, c.arguments)).collect();
    (message.content.as_deref().unwrap_or(""), calls)
}

#[track_caller]
fn expect(text: &str, content: &str, calls: &[&str]) {
    let message = parse(text);
    let (got_content, got_calls) = flat(&message);
    assert_eq!(got_content, content, "content of {text:?}");
    assert_eq!(got_calls, calls, "calls of {text:?}");
}

/// What is not a call comes through byte for byte.
#[track_caller]
fn untouched(text: &str) {
    expect(text, text, &[]);
}

const LS: &str = r#"<tool_call>{"name":"bash","arguments":{"command":"ls"}}</tool_call>"#;

#[test]
fn calls_are_found() {
    expect(LS, "", &[r#"bash {"command":"ls"}"#]);
    let two = format!("{LS}\n{LS}\n");
    expect(&two, "", &[r#"bash {"command":"ls"}"#, r#"bash {"command":"ls"}"#]);
    let ids: Vec<String> = parse(&two).tool_calls.into_iter().map(|c| c.id).collect();
    assert_ne!(ids[0], ids[1]);
    expect(
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": {\"b\": [1, {\"c\": \"}\\\"{\"}]}}}\n</tool_call>",
        "",
        &["f {\"a\": {\"b\": [1, {\"c\": \"}\\\"{\"}]}}"],
    );
    // Arguments first, in a string, absent, empty, by another name.
    expect(
        r#"<tool_call>{"arguments": {"a": 1.50}, "name": "f"}</tool_call>"#,
        "",
        &[r#"f {"a": 1.50}"#],
    );
    expect(r#"<tool_call>{"name":"f","arguments":"{\"k\":1}"}</tool_call>"#, "", &[r#"f {"k":1}"#]);
    expect(r#"<tool_call>{"name":"f"}</tool_call>"#, "", &["f {}"]);
    expect(r#"<tool_call>{"name":"f","arguments":{}}</tool_call>"#, "", &["f {}"]);
    expect(r#"<tool_call>{"name":"f","parameters":{"a":1}}</tool_call>"#, "", &[r#"f {"a":1}"#]);
    // Members that nobody needs, before and after.
    expect(
        r#"<tool_call>{"id":7,"name":"f","arguments":{"a":1},"x":"}"}</tool_call>!"#,
        "!",
        &[r#"f {"a":1}"#],
    );
    expect(
        r#"<tool_call>{"name":"f","arguments":{"a":1},"x":"}"}</tool_call>!"#,
        "!",
        &[r#"f {"a":1}"#],
    );
    // The tag inside a string belongs to the string.
    expect(
        r#"<tool_call>{"name":"f","arguments":{"a":"</tool_call>"}}</tool_call>"#,
        "",
        &[r#"f {"a":"</tool_call>"}"#],
    );
}

#[test]
fn text_around_calls_is_content() {
    expect(&format!("OK calling: {LS}"), "OK calling:", &[r#"bash {"command":"ls"}"#]);
    expect(&format!("A\n{LS}\nB"), "A\n\nB", &[r#"bash {"command":"ls"}"#]);
    expect(&format!(" {LS} B "), "B ", &[r#"bash {"command":"ls"}"#]);
    let filler = "x".repeat(2000);
    expect(&format!("{filler}{LS}"), &filler, &[r#"bash {"command":"ls"}"#]);
}

#[test]
fn what_is_no_call_is_untouched() {
    for text in [
        "",
        "  \n ",
        "prose",
        "{not valid json}",
        "<tool_call>{not valid json}</tool_call>",
        "<tool_call>\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>",
        r#"[TOOL_CALLS]{"name":"read"}"#,
        r#"<tool_call>{"name":"","arguments":{}}</tool_call>"#,
        r#"<tool_call>{"name":"f","arguments":42}</tool_call>"#,
        r#"<tool_call>{"name":"f","arguments":null}</tool_call>"#,
        r#"<tool_call>{"name":"f","arguments":[1]}</tool_call>"#,
        r#"<tool_call>{"name":"f","arguments":"not json"}</tool_call>"#,
        r#"<tool_call>{"name":5,"arguments":{}}</tool_call>"#,
        r#"<tool_call>{"arguments":{"a":1}}</tool_call>"#,
        "<tool_call>",
        "<tool_call>\n",
        "<tool_call>{\"name\": \"f\", \"argu",
        "a <tool_cal b",
        "<tool_call> <tool_call>{ <tool_call>{\"",
        "tail <tool_c",
        "# Title\n\n* a < b\n\n```html\n<p>\n```\n \n",
    ] {
        untouched(text);
    }
    // A broken call does not hide the next.
    expect(&format!("<tool_call>{{\"a\" {LS}"), "<tool_call>{\"a\"", &[r#"bash {"command":"ls"}"#]);
}

#[test]
fn unclosed_and_badly_closed_calls() {
    let call = r#"{"name":"f","arguments":{"a":1}}"#;
    for end in ["", "\n", "</tool_c", "}", "}\n</tool_call>", "\n</tool_call>\n"] {
        expect(&format!("<tool_call>{call}{end}"), "", &[r#"f {"a":1}"#]);
    }
    expect(&format!("<tool_call>{call}\nDone."), "Done.", &[r#"f {"a":1}"#]);
    expect(&format!("<tool_call>{call}<tool_call>{call}"), "", &[r#"f {"a":1}"#, r#"f {"a":1}"#]);
    expect(r#"<tool_call>{"name":"f","arguments":{"a":1}</tool_call>x"#, "x", &[r#"f {"a":1}"#]);
}

#[test]
fn broken_arguments_stand_once_told() {
    expect(
        r#"<tool_call>{"name":"f","arguments":{"a": 'x'}}</tool_call>!"#,
        "!",
        &["f {\"a\": 'x'}"],
    );
    expect(r#"<tool_call>{"name":"f","arguments":{"a": "#, "", &["f {\"a\": "]);
    expect(r#"<tool_call>{"name":"f","arguments":{"a": 1</tool_call>!"#, "!", &["f {\"a\": 1"]);
    expect(
        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": \"open\n</tool_call>!",
        "!",
        &["f {\"a\": \"open"],
    );
    expect(
        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\": \"1\n\n</tool<<\n\"}}</tool_call>!",
        "!",
        &["f {\"a\": \"1\\n\\n</tool<<\\n\"}"],
    );
}

#[test]
fn unknown_names_stay_content() {
    let known = |names: &[&str]| ParserOptions { known_tools: known(names), ..options() };
    assert_eq!(OutputParser::parse(known(&["bash"]), LS).tool_calls.len(), 1);
    for names in [&[][..], &["bas"], &["bash2"]] {
        let message = OutputParser::parse(known(names), LS);
        assert_eq!(message.content.as_deref(), Some(LS));
        assert!(message.tool_calls.is_empty());
    }
}

#[test]
fn reasoning() {
    let table = [
        // single, only, none, several, unclosed, empty, several lines
        ("<think>a</think>b", Some("a"), Some("b")),
        ("<think>a</think>", Some("a"), None),
        ("Hello! 👋", None, Some("Hello! 👋")),
        ("<think>a</think>b<think>c</think> d", Some("a\nc"), Some("b d")),
        ("<think>a\nb", Some("a\nb"), None),
        ("<think></think>b", None, Some("b")),
        ("<think>\n\n</think>\n\nb", None, Some("b")),
        ("<think>\na\n\nb\n</think>\n\nc\n", Some("a\n\nb"), Some("c\n")),
        ("\n<think>a</think>b", Some("a"), Some("b")),
        ("a </think> b", None, Some("a </think> b")),
        ("<think>a <think> b</think>c", Some("a <think> b"), Some("c")),
        ("<thin", None, Some("<thin")),
        ("<think>a</thi", Some("a</thi"), None),
    ];
    for (text, reasoning, content) in table {
        let message = parse(text);
        assert_eq!(message.reasoning.as_deref(), reasoning, "{text:?}");
        assert_eq!(message.content.as_deref(), content, "{text:?}");
    }
    let message = parse(&format!("<think>{LS}</think>\n\n{LS}"));
    assert_eq!(message.reasoning.as_deref(), Some(LS));
    assert_eq!(message.tool_calls.len(), 1);
    assert_eq!(message.content, None);
}

#[test]
fn output_that_begins_inside_reasoning() {
    let open = ParserOptions { starts_in_reasoning: true, ..options() };
    let reasoning: ReasoningFormat = "deepseek_r1".parse().unwrap();
    let starts_in_reasoning = reasoning.starts_in("<|Assistant|>");
    let r1 = ParserOptions { reasoning, starts_in_reasoning, ..options() };
    for options in [open, r1] {
        for text in ["a</think>\n\nb", "<think>\na\n</think>b"] {
            let message = OutputParser::parse(options.clone(), text);
            assert_eq!(message.reasoning.as_deref(), Some("a"));
            assert_eq!(message.content.as_deref(), Some("b"));
        }
    }
    let qwen3: ReasoningFormat = "qwen3".parse().unwrap();
    assert!(qwen3.starts_in("<|im_start|>assistant\n<think>\n"));
    assert!(!qwen3.starts_in("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
    assert!(!qwen3.starts_in("what is <think>?<|im_end|>"));
    assert!(!reasoning.starts_in("<|Assistant|><think>\n\n</think>"));
    assert!(!ReasoningFormat::NONE.starts_in("<think>"));
}

#[test]
fn without_formats_everything_is_content() {
    let text = format!("<think>a</think> {LS} ");
    let message = OutputParser::parse(ParserOptions::default(), &text);
    assert_eq!(message.content, Some(text.clone()));
    let only_tools = ParserOptions { reasoning: ReasoningFormat::NONE, ..options() };
    let message = OutputParser::parse(only_tools, &text);
    assert_eq!(message.content.as_deref(), Some("<think>a</think>"));
    assert_eq!(message.tool_calls.len(), 1);
}

#[test]
fn calls_are_told_while_they_are_written() {
    let mut parser = OutputParser::new(options());
    assert_eq!(parser.push("To list "), vec![Delta::Content("To list".to_owned())]);
    assert_eq!(parser.push("files:\n<tool"), vec![Delta::Content(" files:".to_owned())]);
    assert_eq!(parser.push("_call>\n{\"name\": \"ls\", \"arguments\": "), vec![]);
    let deltas = parser.push("{\"path\"");
    assert!(matches!(&deltas[0], Delta::ToolCallStart { index: 0, name, id }
        if name == "ls" && id.starts_with("call_") && id.len() == 29));
    let fragment = |text: &str| Delta::ToolCallArguments { index: 0, fragment: text.to_owned() };
    assert_eq!(deltas[1..], [fragment("{\"path\"")]);
    assert_eq!(parser.push(": \"/t"), vec![fragment(": \"/t")]);
    assert_eq!(parser.push("mp\"}}"), vec![fragment("mp\"}")]);
    assert_eq!(parser.push("\n</tool_call>"), vec![]);
    assert_eq!(parser.finish(), vec![]);
}

#[test]
fn format_names() {
    for name in ToolFormat::names() {
        assert_eq!(name.parse::<ToolFormat>().unwrap().to_string(), name);
    }
    for name in ReasoningFormat::names() {
        assert_eq!(name.parse::<ReasoningFormat>().unwrap().to_string(), name);
    }
    let error = "llama9".parse::<ToolFormat>().unwrap_err();
    assert!(matches!(error, ChatError::UnknownFormat { .. }));
    let begin = "there is no tool-call parser named \"llama9\"; choose from none, cohere, ";
    assert!(error.to_string().starts_with(begin), "{error}");
    assert!("x".parse::<ReasoningFormat>().unwrap_err().to_string().contains("qwen3"));
    let detect = |template, model| ReasoningFormat::detect(template, model).to_string();
    assert_eq!(detect("{{ '</think>' }}", ""), "qwen3");
    assert_eq!(detect("{{ '</think>' }}", "glm4_moe"), "glm45");
    assert_eq!(detect("", "glm4_moe"), "none");
}

/// Every way to cut a text in two, and one character at a time.
#[test]
fn every_cut_gives_the_same() {
    let texts = [
        format!("<think>\nhm <tool_call>\n</think>\n\nOK: {LS}\nand {LS}"),
        "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"\n</tool_call>x</tool_call>".to_owned(),
        "<tool_call>{\"x\": 1, \"y\" <tool_call>{\"name\":\"f\"}</tool_call> ü".to_owned(),
    ];
    for text in &texts {
        let whole = parse(text);
        for (at, _) in text.char_indices() {
            assert_eq!(streamed(options(), &[&text[..at], &text[at..]]), whole, "{text:?} at {at}");
        }
        let chars: Vec<String> = text.chars().map(String::from).collect();
        let pieces: Vec<&str> = chars.iter().map(String::as_str).collect();
        assert_eq!(streamed(options(), &pieces), whole);
    }
}

/// Texts made of what the parser looks for.
fn texts() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("<think>"),
        Just("</think>"),
        Just("<tool_call>"),
        Just("</tool_call>"),
        Just("{\"name\": \"f\", \"arguments\": {"),
        Just("{\"arguments\": {\"a\": \"b\"}, \"name\": \"g\"}"),
        Just("{\"name\": \"h\", \"arguments\": \"{\\\"k\\\": 1}\"}"),
        Just(LS),
        Just("\"a\": 1}}"),
        Just("}"),
        Just("{"),
        Just("\""),
        Just("\\"),
        Just(","),
        Just("\n"),
        Just(" "),
        Just("<"),
        Just("word"),
        Just("é👋"),
    ];
    proptest::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn cutting_changes_nothing(text in texts(), cuts in proptest::collection::vec(0usize..400, 0..12), open: bool) {
        let options = ParserOptions { starts_in_reasoning: open, ..options() };
        let pieces = cut(&text, cuts);
        prop_assert_eq!(streamed(options.clone(), &pieces), OutputParser::parse(options, &text));
    }

    /// Where there is neither reasoning nor a call, nothing is lost.
    #[test]
    fn fallback_is_lossless(text in texts()) {
        let message = parse(&text);
        if message.tool_calls.is_empty() && !text.contains("<think>") {
            prop_assert_eq!(message.content.unwrap_or_default(), text);
        }
    }
}

#[test]
fn tags_that_are_special_tokens_reach_the_parser_and_never_the_content() {
    use taper_chat::{TextOptions, TextStream};
    let mut json = common::byte_level_json();
    json["added_tokens"][1]["special"] = true.into();
    let mut close = json["added_tokens"][1].clone();
    (close["id"], close["content"]) = (262.into(), "</tool_call>".into());
    json["added_tokens"].as_array_mut().unwrap().push(close);
    let tokenizer = common::build(&json);
    let run = |text: &str, known: &str| {
        let mut options = ParserOptions {
            tools: format("hermes"),
            known_tools: self::known(&[known]),
            ..ParserOptions::default()
        };
        let mut text_options = TextOptions::default();
        text_options.keep_tags(&tokenizer, &mut options);
        let mut stream = TextStream::new(&tokenizer, &text_options, &[]).unwrap();
        let mut parser = OutputParser::new(options);
        let mut message = ParsedMessage::default();
        for id in tokenizer.encode(text, false).unwrap() {
            let token =
                taper_base::GeneratedToken { id, logprobs: None, stops: false, open: false };
            let step = stream.push(&token).unwrap();
            parser.push(&step.text).into_iter().for_each(|delta| message.apply(delta));
        }
        parser.finish().into_iter().for_each(|delta| message.apply(delta));
        message
    };
    let text = "hi<|end|><tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call></tool_call>";
    let message = run(text, "f");
    assert_eq!((message.content.as_deref(), message.tool_calls.len()), (Some("hi"), 1));
    let message = run(text, "g");
    assert_eq!(message.content.as_deref(), Some("hi{\"name\": \"f\", \"arguments\": {}}"));
    assert!(message.tool_calls.is_empty());
}
