//! Calls in another format than the model's own: the cases of vllm-swift's response rewriter, whole
//! and streamed, and what else models write by mistake.

use crate::{
    cuts_change_nothing,
    pieces::streamed,
    tool,
    writers::{Call, WRITERS},
};
use serde_json::{Value, json};
use std::sync::Arc;
use taper_chat::{KnownTools, OutputParser, ParsedMessage, ParserOptions, ToolFormat};

fn tools() -> KnownTools {
    let string = json!({ "type": "string" });
    let required = |name: &str, key: &str| {
        let mut tool = tool(name, &json!({ key: string }));
        tool.parameters.as_mut().unwrap()["required"] = json!([key]);
        tool
    };
    KnownTools::from(Arc::from([
        required("get_current_weather", "location"),
        required("bash", "command"),
        required("read", "path"),
        tool("a", &json!({ "k": { "type": "integer" }, "l": { "type": "array" } })),
        tool("b", &json!({})),
    ]))
}

fn options(format: &str) -> ParserOptions {
    ParserOptions {
        reasoning: "qwen3".parse().unwrap(),
        tools: format.parse().unwrap(),
        known_tools: tools(),
        recovery: true,
        id_seed: Some(1),
        ..ParserOptions::default()
    }
}

#[track_caller]
fn parse(format: &str, text: &str) -> ParsedMessage {
    cuts_change_nothing(&options(format), text);
    OutputParser::parse(options(format), text)
}

#[track_caller]
fn recovered(format: &str, text: &str, content: &str, calls: &[&str]) {
    let message = parse(format, text);
    let got: Vec<_> =
        message.tool_calls.iter().map(|c| format!("{} {}", c.name, c.arguments)).collect();
    assert_eq!(got, calls, "calls of {text:?}");
    assert_eq!(message.content.as_deref().unwrap_or(""), content, "content of {text:?}");
}

#[track_caller]
fn untouched(format: &str, text: &str) {
    recovered(format, text, text, &[]);
}

const BASH: &str = r#"<tool_call>{"name":"bash","arguments":{"command":"ls"}}</tool_call>"#;
const LS: &str = r#"bash {"command":"ls"}"#;
const PHI: &str = "phi4_mini_json";

#[test]
fn vllm_swifts_cases() {
    let paris =
        r#"[{"name":"get_current_weather","arguments":{"location":"Paris","format":"celsius"}}]"#;
    let call = r#"get_current_weather {"location":"Paris","format":"celsius"}"#;
    for native in [PHI, "kimi_k2", "gemma4"] {
        recovered(native, &format!("<|tool_calls|>{paris}<|/tool_calls|>"), "", &[call]);
        recovered(native, BASH, "", &[LS]);
        let xml = "<tool_call>\n<function=bash>\n<parameter=command>\nls -la /tmp\n</parameter>\n</function>\n</tool_call>";
        recovered(native, xml, "", &[r#"bash {"command": "ls -la /tmp"}"#]);
        let read = r#"[TOOL_CALLS][{"name":"read","arguments":{"path":"/etc/hosts"}}]"#;
        recovered(native, read, "", &[r#"read {"path":"/etc/hosts"}"#]);
        let two = |a: &str, b: &str| {
            format!(
                "<tool_call>{{\"name\":\"{a}\",\"arguments\":{{}}}}</tool_call>\n<tool_call>{{\"name\":\"{b}\",\"arguments\":{{}}}}</tool_call>"
            )
        };
        recovered(native, &two("a", "b"), "", &["a {}", "b {}"]);
        let text = r#"<tool_call>{"name":"a","arguments":"{\"k\":1}"}</tool_call>"#;
        recovered(native, text, "", &[r#"a {"k":1}"#]);
        recovered(native, &format!("OK calling: {BASH}"), "OK calling:", &[LS]);
        let filler = |more: usize| "x".repeat(BASH.len() + more);
        recovered(native, &format!("{BASH}{}", filler(0)), &filler(0), &[LS]);
        untouched(native, &format!("{BASH}{}", filler(10)));
        untouched(native, &format!("{}{BASH}", "x".repeat(2000)));
        let call = |arguments: &str| {
            format!("<tool_call>{{\"name\":\"bash\",\"arguments\":{arguments}}}</tool_call>")
        };
        for text in [
            "",
            "  \n ",
            "prose",
            "{not valid json}",
            "<tool_call>{not valid json}</tool_call>",
            "<tool_call>\n<bash>\n<parameter=command>\nls\n</parameter>\n</bash>\n</tool_call>",
            r#"[TOOL_CALLS]{"name":"read"}"#,
            "[TOOL_CALLS]{obj}",
            r#"<tool_call>{"name":"","arguments":{"command":"ls"}}</tool_call>"#,
            &call("42"),
            &call("null"),
            &call("\"not json\""),
            "<|tool_calls|>[not valid json]<|/tool_calls|>",
            "# Phi\n\n1. *a* < b\n\n| a | b |\n| - | - |\n\n```rust\nfn main() {}\n```\n",
        ] {
            untouched(native, text);
        }
    }
    // Cut short.
    untouched("hermes", "<|tool_calls|>[{\"name\":\"bash\",\"arguments\":{\"comm");
    // A call of the model's own format comes first: what leaked stays.
    let own = r#"functools[{"name":"b","arguments":{}}]"#;
    recovered(PHI, &format!("{own}\n{BASH}"), BASH, &["b {}"]);
    recovered(PHI, &format!("{BASH}\n{own}"), BASH, &["b {}"]);
}

#[test]
fn vllm_swifts_cases_of_streams() {
    let run = |pieces: &[&str]| {
        let message = streamed(options(PHI), pieces);
        let calls: Vec<_> = message.tool_calls.iter().map(|c| c.name.clone()).collect();
        (message.content.unwrap_or_default(), calls)
    };
    let text = |text: &str| (text.to_owned(), Vec::new());
    assert_eq!(run(&["To list ", "files use ", "ls."]), text("To list files use ls."));
    let bash = (String::new(), vec!["bash".to_owned()]);
    let rest = [r#"[{"name":"bash""#, r#", "arguments":{"command":"ls"}}]"#, "<|/tool_calls|>"];
    assert_eq!(run(&[&["<|tool_calls|>"], &rest[..]].concat()), bash);
    assert_eq!(run(&[&["<|", "tool_calls|>"], &rest[..]].concat()), bash);
    let cut = ["<|tool_calls|>", r#"[{"name":"ba"#];
    assert_eq!(run(&cut), text(&cut.concat()));
    assert_eq!(run(&["Hi there", ""]), text("Hi there"));
    // Prose is not held back.
    let mut parser = OutputParser::new(options(PHI));
    let told: Vec<_> = parser.push("To list files use ls.").into_iter().collect();
    assert_eq!(told, [taper_chat::Delta::Content("To list files use ls.".to_owned())]);
    // What is held back for a call that does not count comes as soon as that is certain.
    let mut parser = OutputParser::new(options(PHI));
    assert!(parser.push(BASH).is_empty());
    assert!(parser.push(&"x".repeat(BASH.len())).is_empty());
    assert!(!parser.push("xxx").is_empty());
}

#[test]
fn every_format_is_recovered_where_another_is_expected() {
    let call = Call {
        name: "a",
        arguments: json!({ "k": 7, "l": [1, "x"] }).as_object().unwrap().clone(),
    };
    let mut formats = Vec::new();
    for writer in WRITERS {
        let format = writer.format.parse::<ToolFormat>().unwrap();
        let leaks = format.get().unwrap().leaks();
        let text = (writer.write)(&[call.clone(), call.clone()]);
        if !leaks.iter().any(|opener| text.starts_with(opener)) {
            continue;
        }
        formats.push(writer.format);
        for native in ["llama3_json", "hermes", "qwen3_coder", "kimi_k2"] {
            let message = parse(native, &text);
            assert_eq!(message.tool_calls.len(), 2, "{} in {native}: {text}", writer.format);
            for got in &message.tool_calls {
                let arguments: Value = serde_json::from_str(&got.arguments).unwrap();
                assert_eq!(
                    (got.name.as_str(), arguments),
                    (call.name, json!(call.arguments)),
                    "{text}"
                );
            }
        }
    }
    assert!(formats.len() > 20, "{formats:?}");
}

#[test]
fn nothing_is_recovered_from_reasoning_code_or_without_tools() {
    let message = parse(PHI, &format!("<think>{BASH}</think>"));
    assert_eq!((message.reasoning.as_deref(), message.tool_calls.len()), (Some(BASH), 0));
    untouched(PHI, &format!("```\n{BASH}\n```"));
    untouched(PHI, &format!("```xml\n{BASH}"));
    untouched(PHI, &format!("`{BASH}`"));
    recovered(PHI, &format!("```\n1\n```\n{BASH}"), "```\n1\n```", &[LS]);
    for change in [
        |o: &mut ParserOptions| o.recovery = false,
        |o: &mut ParserOptions| o.known_tools = KnownTools::any(),
        |o: &mut ParserOptions| o.known_tools = KnownTools::from(Arc::from([])),
        |o: &mut ParserOptions| o.tools = ToolFormat::NONE,
    ] {
        let mut options = options(PHI);
        change(&mut options);
        let message = OutputParser::parse(options, BASH);
        assert_eq!((message.content.as_deref(), message.tool_calls.len()), (Some(BASH), 0));
    }
    // A tool that the request does not offer, or not with these arguments.
    untouched(PHI, &BASH.replace("bash", "sh"));
    untouched(PHI, &BASH.replace("command", "cmd"));
}

#[test]
fn near_misses() {
    for native in ["hermes", PHI] {
        let call = |inner: &str| format!("<tool_call>{inner}</tool_call>");
        let bash = r#"{"name": "bash", "arguments": {"command":"ls"}}"#;
        let b = r#"{"name": "b", "arguments": {}}"#;
        recovered(native, &call(&format!("\n```json\n{bash}\n```\n")), "", &[LS]);
        recovered(native, &call(&format!("```\n{bash}\n```")), "", &[LS]);
        recovered(native, &call(r#"{"name": "b", "arguments": null}"#), "", &["b {}"]);
        untouched(native, &call(r#"{"name": "bash", "arguments": null}"#));
        recovered(native, &call(&format!("{{{bash}}}")), "", &[LS]);
        recovered(
            native,
            &call(r#"{{"name": "bash", "arguments": {{"command":"ls"}}}}"#),
            "",
            &[LS],
        );
        recovered(native, &call(&format!("[{bash}, {b}]")), "", &[LS, "b {}"]);
        recovered(native, &call(&format!("{bash}\n{b}")), "", &[LS, "b {}"]);
        recovered(native, &call(&format!("{bash}, {b}")), "", &[LS, "b {}"]);
        let lines = "{\"name\": \"bash\", \"arguments\": {\"command\":\"ls\npwd\t\\\n\"}}";
        recovered(native, &call(lines), "", &[r#"bash {"command":"ls\npwd\t\n"}"#]);
        let first = "{\"arguments\": {\"command\":\"ls\npwd\"}, \"name\": \"bash\"}";
        recovered(native, &call(first), "", &[r#"bash {"command":"ls\npwd"}"#]);
    }
    // Text in a tag that is no call does not hide the next.
    recovered(
        "hermes",
        &format!("<tool_call>none</tool_call>{BASH}"),
        "<tool_call>none</tool_call>",
        &[LS],
    );
}
