//! Calls in another format than the model's own, whole and streamed. The numbers are those of two
//! lists of cases: one of whole messages (`whole`), one of streams (`stream`).

use crate::support::{App, Reply, chat, config, joined};
use serde_json::{Value, json};
use std::fmt::Write;
use taper_openai_server::ServerConfig;

fn tools() -> Value {
    let tool = |name: &str, key: &str| {
        let properties = json!({ key: { "type": "string" } });
        json!({ "type": "function", "function": { "name": name, "parameters": {
            "type": "object", "properties": properties, "required": [key] } } })
    };
    let any = |name: &str| {
        json!({ "type": "function", "function": { "name": name,
        "parameters": { "type": "object" } } })
    };
    json!([
        tool("get_current_weather", "location"),
        tool("bash", "command"),
        tool("read", "path"),
        any("a"),
        any("b"),
    ])
}

fn app(format: &str, reply: Reply) -> App {
    App::with(ServerConfig { tool_format: format.parse().unwrap(), ..config() }, reply)
}

/// Content, calls and the reason for the end, on one line each.
fn told(content: &Value, calls: &[(String, String)], finish: &Value) -> String {
    let mut told = format!("{:?}", content.as_str().unwrap_or_default());
    for (name, arguments) in calls {
        write!(told, " {name} {arguments}").unwrap();
    }
    format!("{told} {}", finish.as_str().unwrap())
}

fn whole(choice: &Value) -> String {
    let message = &choice["message"];
    let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
    assert_eq!(calls.is_empty(), message.get("tool_calls").is_none());
    // A message of calls alone has `null` for its content.
    assert!(message["content"] != "" || calls.is_empty());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let call = |call: &Value| {
        assert_eq!(call["type"], "function");
        (text(&call["function"]["name"]), text(&call["function"]["arguments"]))
    };
    let calls: Vec<_> = calls.iter().map(call).collect();
    told(&message["content"], &calls, &choice["finish_reason"])
}

fn streamed(chunks: &[Value], index: u64) -> String {
    let choices = chunks.iter().flat_map(|c| c["choices"].as_array().unwrap());
    let own: Vec<&Value> = choices.filter(|c| c["index"] == index).collect();
    let mut calls: Vec<(String, String)> = Vec::new();
    for delta in own.iter().filter_map(|c| c["delta"]["tool_calls"].as_array()).flatten() {
        if let Some(name) = delta["function"]["name"].as_str() {
            assert_eq!(delta["index"], calls.len());
            calls.push((name.to_owned(), String::new()));
        }
        let arguments = delta["function"]["arguments"].as_str().unwrap();
        calls.last_mut().unwrap().1.push_str(arguments);
    }
    let ends: Vec<_> = own.iter().filter(|c| !c["finish_reason"].is_null()).collect();
    assert_eq!(ends.len(), 1, "one chunk ends a choice");
    told(&json!(joined(chunks, index, "content")), &calls, &ends[0]["finish_reason"])
}

const BASH: &str = r#"<tool_call>{"name":"bash","arguments":{"command":"ls"}}</tool_call>"#;
const PHI: &str = r#"<|tool_calls|>[{"name":"bash", "arguments":{"command":"ls"}}]<|/tool_calls|>"#;
const LS: &str = r#""" bash {"command":"ls"} tool_calls"#;

/// What a case expects.
enum Then {
    /// This, as `told` puts it.
    Is(&'static str),
    /// The model's text as it is.
    Untouched,
}

use Then::{Is, Untouched};

/// What the case is, the model's text and what becomes of it.
fn cases() -> Vec<(&'static str, String, Then)> {
    let call = |name: &str, arguments: &str| {
        format!(r#"<tool_call>{{"name":"{name}","arguments":{arguments}}}</tool_call>"#)
    };
    let bash = |arguments: &str| call("bash", arguments);
    let filler = |more: usize| "x".repeat(BASH.len() + more);
    let paris =
        r#"[{"name":"get_current_weather","arguments":{"location":"Paris","format":"celsius"}}]"#;
    let xml = "<tool_call>\n<function=bash>\n<parameter=command>\nls -la /tmp\n</parameter>\n</function>\n</tool_call>";
    let markdown = "# Phi\n\n1. *a* < b\n\n| a | b |\n| - | - |\n\n```rust\nfn main() {}\n```\n";
    vec![
        (
            "whole 1: between marks of phi",
            format!("<|tool_calls|>{paris}<|/tool_calls|>"),
            Is(r#""" get_current_weather {"location":"Paris","format":"celsius"} tool_calls"#),
        ),
        ("whole 2: JSON in a tag", BASH.into(), Is(LS)),
        (
            "whole 3: XML in a tag",
            xml.into(),
            Is(r#""" bash {"command": "ls -la /tmp"} tool_calls"#),
        ),
        (
            "whole 4: behind a mark of Mistral's",
            r#"[TOOL_CALLS][{"name":"read","arguments":{"path":"/etc/hosts"}}]"#.into(),
            Is(r#""" read {"path":"/etc/hosts"} tool_calls"#),
        ),
        (
            "whole 5: two tags",
            format!("{}\n{}", call("a", "{}"), call("b", "{}")),
            Is(r#""" a {} b {} tool_calls"#),
        ),
        (
            "whole 6: arguments that are a string of JSON",
            call("a", r#""{\"k\":1}""#),
            Is(r#""" a {"k":1} tool_calls"#),
        ),
        (
            "whole 7: words before the tag stay",
            format!("OK calling: {BASH}"),
            Is(r#""OK calling:" bash {"command":"ls"} tool_calls"#),
        ),
        ("whole 9: more other text than call", format!("{BASH}{}", filler(10)), Untouched),
        ("whole 9: a call at the end of long prose", "x".repeat(2000) + BASH, Untouched),
        ("whole 10: nothing", String::new(), Untouched),
        ("whole 10: blanks", "  \n ".into(), Untouched),
        ("whole 10: prose", "Nothing to call.".into(), Untouched),
        ("whole 10: braces without JSON", "{not valid json}".into(), Untouched),
        (
            "whole 10: braces without JSON in a tag",
            "<tool_call>{not valid json}</tool_call>".into(),
            Untouched,
        ),
        ("whole 10: XML without a function", xml.replace("function=", ""), Untouched),
        ("whole 10: no list behind the mark", "[TOOL_CALLS]{obj}".into(), Untouched),
        ("whole 10: no name", call("", r#"{"command":"ls"}"#), Untouched),
        ("whole 10: a number for arguments", bash("42"), Untouched),
        ("whole 10: null for arguments", bash("null"), Untouched),
        ("whole 10: a string without JSON", bash("\"not json\""), Untouched),
        (
            "whole 10: no JSON between marks of phi",
            "<|tool_calls|>[not valid json]<|/tool_calls|>".into(),
            Untouched,
        ),
        ("whole 15: healthy Markdown", markdown.into(), Untouched),
        ("stream 2: prose", "To list files use ls.".into(), Untouched),
        ("stream 3: marks of phi in pieces", PHI.into(), Is(LS)),
        ("stream 7: a short answer", "Hi there".into(), Untouched),
    ]
}

/// The engine gives one byte a token, so that every mark comes in pieces (`stream 4`).
#[tokio::test]
async fn leaked_calls_whole_and_streamed() {
    for format in ["phi4_mini_json", "gemma4"] {
        for (case, text, then) in cases() {
            let app = app(format, Reply::Text(text.clone()));
            let expected = match then {
                Is(told) => told.to_owned(),
                Untouched => format!("{text:?} stop"),
            };
            let body = app.chat(json!({ "tools": tools() })).await;
            assert_eq!(whole(&body["choices"][0]), expected, "{format}: {case}");
            let chunks = app.chunks(json!({ "tools": tools() })).await;
            assert_eq!(streamed(&chunks, 0), expected, "{format}: {case}, streamed");
        }
        // Whole 8: as much other text as call.
        let filler = "x".repeat(BASH.len());
        let app = app(format, Reply::Text(format!("{BASH}{filler}")));
        let expected = format!(r#"{filler:?} bash {{"command":"ls"}} tool_calls"#);
        let body = app.chat(json!({ "tools": tools() })).await;
        assert_eq!(whole(&body["choices"][0]), expected);
        assert_eq!(streamed(&app.chunks(json!({ "tools": tools() })).await, 0), expected);
    }
}

/// Stream 1: what is in the model's own format, or not for the parser at all, comes as it is.
#[tokio::test]
async fn texts_of_another_parser_stream_as_they_are() {
    for (format, text) in [("hermes", "<|tool_calls|>[{\"name\": \"x"), ("hermes", "a <b> {c}\n")] {
        let app = app(format, Reply::Text(text.into()));
        let chunks = app.chunks(json!({ "tools": tools() })).await;
        assert_eq!(streamed(&chunks, 0), format!("{text:?} stop"));
    }
}

/// Whole 11 and stream 6: a call that was read properly keeps its place, and what leaked is text.
#[tokio::test]
async fn a_call_of_the_models_own_format_counts_alone() {
    let own = r#"functools[{"name":"b","arguments":{}}]"#;
    let app = app("phi4_mini_json", Reply::Text(format!("{own}\n{BASH}")));
    let expected = format!("{BASH:?} b {{}} tool_calls");
    let body = app.chat(json!({ "tools": tools() })).await;
    assert_eq!(whole(&body["choices"][0]), expected);
    assert_eq!(streamed(&app.chunks(json!({ "tools": tools() })).await, 0), expected);
}

/// Whole 13 and stream 5: a call that is cut off is text. Whole 12: no reason but `stop` becomes
/// `tool_calls`. The list has `content_filter` there, which this server never gives; `length` is
/// what else there is.
#[tokio::test]
async fn what_is_cut_off_ends_by_length() {
    for (text, expected) in [
        (PHI, format!("{:?} length", &PHI[..40])),
        // All of the call is there, and no room for the end.
        (BASH, format!("{:?} length", &BASH[..40])),
    ] {
        let app = app("phi4_mini_json", Reply::Text(text.into()));
        let fields = json!({ "tools": tools(), "max_tokens": 40 });
        let body = app.chat(fields.clone()).await;
        assert_eq!(whole(&body["choices"][0]), expected);
        assert_eq!(streamed(&app.chunks(fields).await, 0), expected);
    }
    let app = app("phi4_mini_json", Reply::Text(BASH.into()));
    // The tag of the end is a token of its own, but the engine of these tests speaks in bytes.
    let fields = json!({ "tools": tools(), "max_tokens": BASH.len() });
    let body = app.chat(fields.clone()).await;
    let expected = r#""" bash {"command":"ls"} length"#;
    assert_eq!(whole(&body["choices"][0]), expected);
    assert_eq!(streamed(&app.chunks(fields).await, 0), expected);
}

/// Whole 14: each choice is judged alone.
#[tokio::test]
async fn of_two_choices_the_one_that_leaks_is_rewritten() {
    let app = app("phi4_mini_json", Reply::Text(String::new()));
    let fields = json!({ "tools": tools(), "n": 2 });
    let say = || {
        let replies = [BASH, "Just text."].map(|text| Reply::Text(text.into()));
        *app.engine.replies.lock().unwrap() = replies.into();
    };
    say();
    let body = app.chat(fields.clone()).await;
    let text = "\"Just text.\" stop";
    assert_eq!([0, 1].map(|i| whole(&body["choices"][i])), [LS, text]);
    say();
    let chunks = app.chunks(fields).await;
    assert_eq!([0, 1].map(|i| streamed(&chunks, i)), [LS, text]);
}

/// Stream 8 and 9: text that was sent is never followed by a second end, and the counts come
/// before `[DONE]`.
#[tokio::test]
async fn counts_come_before_the_end_of_a_leaked_call_too() {
    for text in [BASH, "Hi there"] {
        let app = app("phi4_mini_json", Reply::Text(text.into()));
        let mut body =
            chat(json!({ "tools": tools(), "stream_options": { "include_usage": true } }));
        body["stream"] = json!(true);
        let lines = app.stream("/v1/chat/completions", &body).await;
        assert_eq!(lines.last().unwrap(), "[DONE]");
        let counts: Value = serde_json::from_str(&lines[lines.len() - 2]).unwrap();
        assert_eq!(counts["choices"], json!([]));
        // One token a byte, and the end.
        assert_eq!(counts["usage"]["completion_tokens"], text.len() + 1);
        assert_eq!(counts["usage"]["prompt_tokens"], app.engine.last().prompt.len());
    }
    // The engine goes away: what was said is there, and no `[DONE]` says that it was all.
    let app = app("phi4_mini_json", Reply::Gone("Hi there".into()));
    let mut body = chat(json!({ "tools": tools() }));
    body["stream"] = json!(true);
    let lines = app.stream("/v1/chat/completions", &body).await;
    assert!(lines.iter().all(|line| line != "[DONE]"));
    let chunks: Vec<Value> = lines.iter().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert!(chunks.last().unwrap().get("error").is_some());
    assert_eq!(joined(&chunks[..chunks.len() - 1], 0, "content"), "Hi there");
}
