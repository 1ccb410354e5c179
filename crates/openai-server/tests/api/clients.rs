//! What clients of other local servers send and expect, over a scripted engine. The numbers are
//! those of two lists of cases: one of a server with vLLM's API (`vllm`), one of a server with
//! fields and headers of its own (`own`).

use crate::support::{App, Reply, TEMPLATE, chat, config, joined, post, tokenizer, tokenizer_with};
use axum::{
    body::Body,
    http::{Method, Request},
};
use serde_json::{Value, json};
use taper_openai_server::{AllowedOrigins, ServerConfig};

/// vllm 8: a model that is told not to think opens and closes its reasoning all the same.
#[tokio::test]
async fn empty_reasoning_leaves_no_trace() {
    let app = App::text("<think>\n\n</think>\n\n2 + 2 = 4.");
    let message = &app.chat(json!({})).await["choices"][0]["message"];
    assert_eq!(message["content"], "2 + 2 = 4.");
    assert!(message.get("reasoning_content").is_none_or(Value::is_null), "{message}");
    let chunks = app.chunks(json!({})).await;
    assert_eq!(joined(&chunks, 0, "content"), "2 + 2 = 4.");
    assert_eq!(joined(&chunks, 0, "reasoning_content"), "");
}

/// vllm 17: three turns of an agent, each with a call that is a call.
#[tokio::test]
async fn three_turns_of_an_agent() {
    let tool = |name: &str, key: &str| {
        json!({ "type": "function", "function": { "name": name, "parameters": {
            "type": "object", "properties": { key: { "type": "string" } }, "required": [key] } } })
    };
    let tools = json!([tool("bash", "command"), tool("write", "content"), tool("read", "path")]);
    let code = "fn largest(a: i32, b: i32, c: i32) -> i32 {\n    a.max(b).max(c) // \"c\"\n}\n";
    let turns = [
        ("List the files.", "bash", json!({ "command": "ls -la" })),
        ("Write `largest(a, b, c)`.", "write", json!({ "content": code })),
        ("Review it.", "read", json!({ "path": "largest.rs" })),
    ];
    let app = App::text("x");
    let mut messages = vec![json!({ "role": "system", "content": "You are an agent." })];
    for (ask, name, arguments) in &turns {
        let call = json!({ "name": name, "arguments": arguments });
        app.engine.say(Reply::Text(format!("Well.\n<tool_call>\n{call}\n</tool_call>")));
        messages.push(json!({ "role": "user", "content": ask }));
        let fields = json!({ "messages": messages, "tools": tools });
        let chunks = app.chunks(fields.clone()).await;
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
        let choice = app.chat(fields).await["choices"][0].clone();
        assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
        let call = &choice["message"]["tool_calls"][0];
        assert_eq!(call["function"]["name"], *name);
        let text = call["function"]["arguments"].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), *arguments);
        messages.push(choice["message"].clone());
        messages
            .push(json!({ "role": "tool", "tool_call_id": call["id"], "content": "{\"ok\": 1}" }));
    }
    // The model sees all of it again.
    let prompt = tokenizer().decode(&app.engine.last().prompt, false).unwrap();
    for part in ["List the files.", "ls -la", "largest(a: i32", "Review it.", "{\"ok\": 1}"] {
        assert!(prompt.contains(part), "{part} in {prompt}");
    }
}

const PROGRESS: &str = "x-swiftlm-prefill-progress";

/// own 32, 33, 35 and 36, and the opencode case: a stream has OpenAI's chunks and nothing else, even
/// where a client asks for the other server's events about its prompt. SDKs stumble over them.
#[tokio::test]
async fn streams_have_no_events_of_their_own() {
    let app = App::text("A very long sentence.");
    for (path, mut body) in [
        ("/v1/chat/completions", chat(json!({}))),
        ("/v1/completions", json!({ "prompt": "Hello world." })),
    ] {
        body["stream"] = json!(true);
        let plain = app.stream(path, &body).await.len();
        for value in ["true", "1", " on ", "false"] {
            let mut request = post(path, &body.to_string());
            request.headers_mut().insert(PROGRESS, value.parse().unwrap());
            let (status, _, text) = app.send(request).await;
            assert_eq!(status.as_u16(), 200, "{text}");
            let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
            assert_eq!((lines.len(), lines.last()), (plain, Some(&"data: [DONE]")), "{text}");
            assert!(lines.iter().all(|line| line.starts_with("data: ")), "{text}");
            assert!(!text.contains("prefill_progress"), "{text}");
        }
    }
}

/// own 13, 13b and 34: pages may read what they are allowed to, and may send that header then.
#[tokio::test]
async fn pages_may_send_headers_of_other_servers() {
    let ask = |method: Method, body: Body| {
        let request = Request::builder().method(method).uri("/v1/chat/completions");
        let request = request.header("origin", "http://example.com");
        let request = request.header("content-type", "application/json");
        let request = request.header("access-control-request-method", "POST");
        request.header("access-control-request-headers", PROGRESS).body(body).unwrap()
    };
    let body = || Body::from(chat(json!({})).to_string());
    let app = App::text("x");
    for request in [ask(Method::POST, body()), ask(Method::OPTIONS, Body::empty())] {
        let (status, headers, _) = app.send(request).await;
        // A page of another origin is refused rather than answered unreadably.
        assert_eq!(status.as_u16(), 403);
        assert!(!headers.contains_key("access-control-allow-origin"));
    }
    let allowed_origins = AllowedOrigins::new(["*"]).unwrap();
    let app = App::with(ServerConfig { allowed_origins, ..config() }, Reply::Text("x".into()));
    let (status, headers, _) = app.send(ask(Method::OPTIONS, Body::empty())).await;
    assert!(status.is_success());
    assert_eq!(headers["access-control-allow-origin"], "*");
    let may = headers["access-control-allow-headers"].to_str().unwrap().to_lowercase();
    assert!(may.contains(PROGRESS) || may == "*", "{may}");
    let (status, headers, _) = app.send(ask(Method::POST, body())).await;
    assert_eq!(
        (status.as_u16(), &headers["access-control-allow-origin"]),
        (200, &"*".parse().unwrap())
    );
}

/// Tools and Gemma 4: marks of its channels never show, whichever way they are written.
#[tokio::test]
async fn marks_of_channels_do_not_leak() {
    let config = ServerConfig {
        tool_format: "gemma4".parse().unwrap(),
        reasoning_format: "gemma4".parse().unwrap(),
        ..config()
    };
    let added =
        [("<|im_start|>", true), ("<|im_end|>", true), ("<|channel>", true), ("<channel|>", true)];
    let tools = json!([{ "type": "function", "function": { "name": "web_search", "parameters": {
        "type": "object", "properties": { "query": { "type": "string" } } } } }]);
    let said = "<|channel>thought\nThe user wants news.<channel|>Here is the news.";
    let app = App::of_model(config, Reply::Text(said.into()), tokenizer_with(&added), TEMPLATE);
    for fields in [json!({ "tools": tools, "repetition_penalty": 1.15 }), json!({})] {
        let message = &app.chat(fields.clone()).await["choices"][0]["message"];
        assert_eq!(message["content"], "Here is the news.");
        assert_eq!(message["reasoning_content"], "The user wants news.");
        let chunks = app.chunks(fields).await;
        assert_eq!(joined(&chunks, 0, "content"), "Here is the news.");
    }
    app.engine.say(Reply::Text("Hello! \u{1f44b}".into()));
    assert_eq!(app.chat(json!({})).await["choices"][0]["message"]["content"], "Hello! \u{1f44b}");
}

/// Pictures and sounds: a model of texts refuses them by the name of the part, and says so of
/// routes that it has not.
#[tokio::test]
async fn what_is_no_text_is_refused_by_name() {
    let app = App::text("x");
    let png = "data:image/png;base64,iVBORw0KGgo=";
    let text = json!({ "type": "text", "text": "What is it?" });
    for (case, part) in [
        ("vision", json!({ "type": "image_url", "image_url": { "url": png } })),
        (
            "audio",
            json!({ "type": "input_audio",
                          "input_audio": { "data": "UklGRg==", "format": "wav" } }),
        ),
        ("omni", json!({ "type": "video_url", "video_url": { "url": "https://a.example/b" } })),
        ("a file", json!({ "type": "file", "file": { "file_id": "f" } })),
    ] {
        let parts = json!([text, part]);
        let body = chat(json!({ "messages": [{ "role": "user", "content": parts }] }));
        let (status, answer) = app.post("/v1/chat/completions", &body).await;
        let param = &answer["error"]["param"];
        assert_eq!((status.as_u16(), param), (400, &json!("messages[0].content[1]")), "{case}");
        assert_eq!(answer["error"]["code"], "unsupported_value", "{case}");
    }
    let speech = json!({ "input": "The quick brown fox jumps over the lazy dog.", "voice": "a" });
    for path in ["/v1/audio/speech", "/v1/images/generations"] {
        let (status, answer) = app.post(path, &speech).await;
        assert_eq!((status.as_u16(), &answer["error"]["code"]), (404, &json!("unknown_url")));
    }
    assert_eq!(app.engine.count(), 0);
}

/// Anthropic's Messages API refuses what is no text too: pictures and documents
/// wherever blocks may stand.
#[tokio::test]
async fn blocks_that_are_no_text_are_refused_by_name() {
    let app = App::text("x");
    let text = json!({ "type": "text", "text": "What is it?" });
    let base64 = |kind: &str| json!({ "type": "base64", "media_type": kind, "data": "iVBORw==" });
    let png = json!({ "type": "image", "source": base64("image/png") });
    let url = json!({ "type": "image", "source": { "type": "url", "url": "https://a.example/b" } });
    let file = json!({ "type": "image", "source": { "type": "file", "file_id": "f" } });
    let pdf = json!({ "type": "document", "source": base64("application/pdf"), "title": "a" });
    let plain = json!({ "type": "document", "citations": { "enabled": true }, "source": {
        "type": "text", "media_type": "text/plain", "data": "abc" } });
    let found = json!({ "type": "search_result", "source": "a", "title": "b", "content": [text] });
    let upload = json!({ "type": "container_upload", "file_id": "f" });
    let blocks = [png, url, file, pdf, plain, found, upload];
    for block in &blocks {
        let result = json!({ "type": "tool_result", "tool_use_id": "t", "content": [text, block] });
        let said = |role: &str, content: Value| json!([{ "role": "user", "content": "x" }, { "role": role, "content": content }]);
        for (fields, named) in [
            (json!({ "messages": said("user", json!([text, block])) }), "messages[1].content[1]"),
            (
                json!({ "messages": said("user", json!([result])) }),
                "messages[1].content[0].content[1]",
            ),
            (json!({ "messages": said("assistant", json!([block])) }), "messages[1].content[0]"),
            (json!({ "system": [text, block], "messages": said("user", json!("x")) }), "system[1]"),
        ] {
            for path in ["/v1/messages", "/v1/messages/count_tokens"] {
                let mut body = fields.clone();
                if path == "/v1/messages" {
                    body["max_tokens"] = json!(5);
                }
                let (status, answer) = app.post(path, &body).await;
                let message = answer["error"]["message"].as_str().unwrap();
                assert_eq!(answer["error"]["type"], "invalid_request_error", "{answer}");
                let kind = block["type"].as_str().unwrap();
                assert_eq!(status.as_u16(), 400, "{answer}");
                let named = format!("'{named}'");
                let what = [format!("'{kind}' blocks"), "does not take images".to_owned()];
                let says = what.iter().any(|what| message.contains(what));
                assert!(message.contains(&named) && says, "{named}: {message}");
            }
        }
    }
    assert_eq!(app.engine.count(), 0);
}

/// The Responses API refuses what is no text too: parts of messages and of what
/// tools gave, and items.
#[tokio::test]
async fn items_that_are_no_text_are_refused_by_name() {
    let app = App::text("x");
    let text = json!({ "type": "input_text", "text": "What is it?" });
    for part in [
        json!({ "type": "input_image", "image_url": "data:image/png;base64,iVBORw==" }),
        json!({ "type": "input_image", "file_id": "f", "detail": "high" }),
        json!({ "type": "input_file", "file_data": "JVBERg==", "filename": "a.pdf" }),
        json!({ "type": "input_file", "file_url": "https://a.example/b" }),
        json!({ "type": "input_audio", "input_audio": { "data": "UklGRg==", "format": "wav" } }),
        json!({ "type": "input_video", "video_url": "https://a.example/b" }),
    ] {
        let output = json!({ "type": "function_call_output", "call_id": "c",
                             "output": [text, part] });
        for (item, param) in [
            (json!({ "role": "user", "content": [text, part] }), "input[0].content[1]"),
            (json!({ "role": "assistant", "content": [part] }), "input[0].content[0]"),
            (output, "input[0].output[1]"),
        ] {
            let (status, answer) = app.post("/v1/responses", &json!({ "input": [item] })).await;
            assert_eq!(
                (status.as_u16(), &answer["error"]["param"], &answer["error"]["code"]),
                (400, &json!(param), &json!("unsupported_value")),
                "{item}: {answer}"
            );
        }
    }
    let screen = json!({ "type": "computer_screenshot", "image_url": "data:image/png;base64,iV" });
    for (item, param) in [
        (
            json!({ "type": "image_generation_call", "id": "i", "result": "iVBORw==" }),
            "input[0].type",
        ),
        // The type of the output is looked at first.
        (
            json!({ "type": "computer_call_output", "call_id": "c", "output": screen }),
            "input[0].output",
        ),
    ] {
        let (status, answer) = app.post("/v1/responses", &json!({ "input": [item] })).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!(param)), "{answer}");
    }
    for (fields, param) in [
        (json!({ "tools": [{ "type": "image_generation" }] }), "tools[0].type"),
        (json!({ "image": { "size": "1x1" } }), "image"),
    ] {
        let mut body = fields.clone();
        body["input"] = json!("x");
        let (status, answer) = app.post("/v1/responses", &body).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!(param)), "{answer}");
    }
    assert_eq!(app.engine.count(), 0);
}
