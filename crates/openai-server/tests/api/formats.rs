//! Each format of tool calls, end to end: what a model's own template writes for a call comes back
//! as that call, whole and streamed, though its marks are special tokens.

use crate::support::{App, Reply, chat, config, joined, tokenizer_with};
use axum::http::StatusCode;
use serde_json::{Value, json};
use taper_chat::{Tokenizer, ToolFormat};
use taper_openai_server::ServerConfig;

struct Model {
    template: &'static str,
    format: &'static str,
    /// Added tokens that are special.
    special: &'static [&'static str],
    /// The last of these that stands in a prompt begins the assistant's call.
    begins: &'static str,
    ends: &'static str,
    /// Calls that the template takes in one message.
    calls: usize,
}

const MODELS: [Model; 6] = [
    Model {
        template: include_str!("../../../chat/tests/data/templates/qwen3.jinja"),
        format: "hermes",
        special: &["<|im_start|>", "<|im_end|>"],
        begins: "<|im_start|>assistant\n<tool_call>",
        ends: "<|im_end|>",
        calls: 2,
    },
    Model {
        template: include_str!("../../../chat/tests/data/templates/llama3.1.jinja"),
        format: "llama3_json",
        special: &["<|start_header_id|>", "<|eot_id|>", "<|python_tag|>"],
        begins: "<|start_header_id|>assistant<|end_header_id|>\n\n{",
        ends: "<|eot_id|>",
        calls: 1,
    },
    Model {
        template: include_str!("../../../chat/tests/data/templates/mistral.jinja"),
        format: "mistral",
        special: &["<s>", "</s>", "[TOOL_CALLS]", "[TOOL_RESULTS]"],
        begins: "[TOOL_CALLS]",
        ends: "</s>",
        calls: 2,
    },
    Model {
        template: include_str!("../../../chat/tests/data/templates/mistral_small3.2.jinja"),
        format: "mistral",
        special: &["<s>", "</s>", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[TOOL_RESULTS]"],
        begins: "[/INST][TOOL_CALLS]",
        ends: "</s>",
        calls: 2,
    },
    Model {
        template: include_str!("../../../chat/tests/data/templates/qwen3_coder.jinja"),
        format: "qwen3_coder",
        special: &["<|im_start|>", "<|im_end|>"],
        begins: "<|im_start|>assistant\n<tool_call>",
        ends: "<|im_end|>",
        calls: 2,
    },
    Model {
        template: include_str!("../../../chat/tests/data/templates/qwen3_coder.jinja"),
        format: "qwen3_coder",
        special: &["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"],
        begins: "<|im_start|>assistant\n<tool_call>",
        ends: "<|im_end|>",
        calls: 2,
    },
];

impl Model {
    fn tokenizer(&self) -> Tokenizer {
        // Token 257 is the one that ends a sequence.
        let mut added = vec![("<unused>", true), ("<eos>", true)];
        added.extend(self.special.iter().map(|text| (*text, true)));
        tokenizer_with(&added)
    }

    fn app(&self) -> App {
        let tool_format = ToolFormat::detect(self.template, "");
        assert_eq!(tool_format.to_string(), self.format);
        let config = ServerConfig { tool_format, ..config() };
        App::of_model(config, Reply::Text("Sunny.".into()), self.tokenizer(), self.template)
    }

    /// The calls as the template writes them in a prompt.
    async fn written(&self, app: &App) -> String {
        let calls: Vec<Value> = (0..self.calls)
            .map(|i| {
                json!({ "id": format!("abcDEF12{i}"), "type": "function", "function": {
                    "name": "get_weather", "arguments": arguments(i).to_string() } })
            })
            .collect();
        let mut messages = vec![
            json!({ "role": "user", "content": "Weather?" }),
            json!({ "role": "assistant", "tool_calls": calls }),
        ];
        messages.extend((0..self.calls).map(
            |i| json!({ "role": "tool", "content": "sun", "tool_call_id": format!("abcDEF12{i}") }),
        ));
        let answer = app.chat(json!({ "tools": tools(), "messages": messages })).await;
        assert_eq!(answer["choices"][0]["message"]["content"], "Sunny.");
        let prompt = self.tokenizer().decode(&app.engine.last().prompt, false).unwrap();
        let at = prompt.rfind(self.begins).unwrap_or_else(|| panic!("{prompt}"));
        let header = self.begins.trim_end_matches("[TOOL_CALLS]").trim_end_matches("<tool_call>");
        let call = &prompt[at + header.trim_end_matches('{').len()..];
        call[..call.find(self.ends).unwrap()].to_owned()
    }
}

fn arguments(call: usize) -> Value {
    json!({ "city": format!("Köln \"{call}\" {{[x]}}\n"), "days": call })
}

fn tools() -> Value {
    json!([{ "type": "function", "function": {
        "name": "get_weather", "description": "Get a weather.",
        "parameters": { "type": "object", "properties": {
            "city": { "type": "string" }, "days": { "type": "integer" } } } } }])
}

/// Names and parsed arguments, which must be those of the first calls.
#[track_caller]
fn check(calls: &[(String, String)], expected: usize, context: &str) {
    assert_eq!(calls.len(), expected, "{context}");
    for (i, (name, text)) in calls.iter().enumerate() {
        assert_eq!(name, "get_weather", "{context}");
        let parsed: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert_eq!(parsed, arguments(i), "{context}");
    }
}

fn whole_calls(message: &Value) -> Vec<(String, String)> {
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let of = |call: &Value, field: &str| call["function"][field].as_str().unwrap().to_owned();
    calls.map(|call| (of(call, "name"), of(call, "arguments"))).collect()
}

/// The calls of a stream, and how many chunks their arguments came in.
fn streamed_calls(chunks: &[Value]) -> (Vec<(String, String)>, usize) {
    let deltas = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["tool_calls"].as_array());
    let (mut calls, mut pieces): (Vec<(String, String)>, _) = (Vec::new(), 0);
    for delta in deltas.flatten() {
        let function = &delta["function"];
        if let Some(name) = function["name"].as_str() {
            assert_eq!(delta["index"], calls.len());
            assert!(delta["id"].as_str().unwrap().starts_with("call_"));
            calls.push((name.to_owned(), String::new()));
        } else {
            assert_eq!(delta["index"], calls.len() - 1);
            pieces += 1;
        }
        calls.last_mut().unwrap().1.push_str(function["arguments"].as_str().unwrap());
    }
    (calls, pieces)
}

#[tokio::test]
async fn what_a_template_writes_is_read_as_the_calls_that_it_wrote() {
    for model in &MODELS {
        let app = model.app();
        let written = model.written(&app).await;
        let tokens = |text: &str| model.tokenizer().encode(text, false).unwrap();
        for before in ["", "Let me look.\n"] {
            app.engine.say(Reply::Tokens(tokens(&format!("{before}{written}"))));
            let body = app.chat(json!({ "tools": tools() })).await;
            let choice = &body["choices"][0];
            let context = format!("{}: {before}{written}\n{body}", model.format);
            assert_eq!(choice["finish_reason"], "tool_calls", "{context}");
            let content = choice["message"]["content"].as_str().unwrap_or("");
            assert_eq!(content, before.trim_end(), "{context}");
            check(&whole_calls(&choice["message"]), model.calls, &context);

            let chunks = app.chunks(json!({ "tools": tools() })).await;
            let (calls, pieces) = streamed_calls(&chunks);
            check(&calls, model.calls, &context);
            assert_eq!(joined(&chunks, 0, "content"), before.trim_end(), "{context}");
            assert!(pieces > 10 * model.calls, "{pieces} pieces: {context}");
            assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");

            let fields = json!({ "tools": tools(), "parallel_tool_calls": false });
            let body = app.chat(fields.clone()).await;
            check(&whole_calls(&body["choices"][0]["message"]), 1, &context);
            check(&streamed_calls(&app.chunks(fields).await).0, 1, &context);
        }
    }
}

#[tokio::test]
async fn calls_of_unknown_tools_are_content_without_special_tokens() {
    for model in &MODELS {
        let app = model.app();
        let written = model.written(&app).await.replace("get_weather", "get_time");
        let tokens = model.tokenizer().encode(&written, false).unwrap();
        let plain = model.tokenizer().decode(&tokens, true).unwrap();
        app.engine.say(Reply::Tokens(tokens));
        let body = app.chat(json!({ "tools": tools() })).await;
        let choice = &body["choices"][0];
        assert_eq!(choice["message"]["content"].as_str().unwrap().trim(), plain.trim(), "{body}");
        assert_eq!(choice["finish_reason"], "stop");
        let chunks = app.chunks(json!({ "tools": tools() })).await;
        assert_eq!(joined(&chunks, 0, "content").trim(), plain.trim());
    }
}

#[tokio::test]
async fn a_call_behind_a_special_python_tag() {
    let model = &MODELS[1];
    let app = model.app();
    let call = r#"<|python_tag|>{"name": "get_weather", "parameters": {"city": "Rome"}}"#;
    let tokens = |text: &str| model.tokenizer().encode(text, false).unwrap();
    app.engine.say(Reply::Tokens(tokens(&format!("{call}; {call}"))));
    let body = app.chat(json!({ "tools": tools() })).await;
    let message = &body["choices"][0]["message"];
    assert_eq!((&message["content"], whole_calls(message).len()), (&Value::Null, 2), "{body}");
    // What Llama's built-in tools get is no call, and loses its tag.
    app.engine.say(Reply::Tokens(tokens("<|python_tag|>print(1)")));
    let (status, body) = app.post("/v1/chat/completions", &chat(json!({ "tools": tools() }))).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert_eq!(body["choices"][0]["message"]["content"], "print(1)");
}

#[tokio::test]
async fn a_special_token_that_is_repeated_does_not_show() {
    let model = &MODELS[3];
    let app = model.app();
    let call = r#"[{"name": "get_weather", "arguments": {}}]"#;
    let text = format!("[TOOL_CALLS] [TOOL_CALLS] {call}[ARGS]");
    app.engine.say(Reply::Tokens(model.tokenizer().encode(&text, false).unwrap()));
    let body = app.chat(json!({ "tools": tools() })).await;
    let message = &body["choices"][0]["message"];
    assert_eq!((&message["content"], whole_calls(message).len()), (&Value::Null, 1), "{body}");
}
