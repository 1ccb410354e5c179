//! Tool calls: whole and streamed, the round trip, and the switches.

use crate::support::{App, Reply, chat, config, joined};
use axum::http::StatusCode;
use serde_json::{Value, json};
use taper_chat::ToolFormat;
use taper_openai_server::ServerConfig;

const CALL: &str =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";

fn tools() -> Value {
    json!([{ "type": "function", "function": {
        "name": "get_weather", "description": "Get a weather.",
        "parameters": { "type": "object", "properties": { "city": { "type": "string" } } } } }])
}

#[tokio::test]
async fn a_round_trip() {
    let app = App::text(CALL);
    let body = app.chat(json!({ "tools": tools(), "tool_choice": "auto" })).await;
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{body}");
    assert_eq!(choice["message"]["content"], Value::Null);
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(
        (&call["type"], &call["function"]["name"]),
        (&json!("function"), &json!("get_weather"))
    );
    let arguments = call["function"]["arguments"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(arguments).unwrap(), json!({ "city": "Paris" }));

    app.engine.say(Reply::Text("It is sunny.".into()));
    let body = json!({ "tools": tools(), "messages": [
        { "role": "user", "content": "Weather in Paris?" },
        choice["message"],
        { "role": "tool", "tool_call_id": call["id"], "content": "sunny" },
    ] });
    let (status, answer) = app.post("/v1/chat/completions", &body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(answer["choices"][0]["message"]["content"], "It is sunny.");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert!(answer["choices"][0]["message"].get("tool_calls").is_none());
}

#[tokio::test]
async fn calls_stream_as_deltas() {
    let app = App::text(&format!("Sure. {CALL}"));
    let chunks = app.chunks(json!({ "tools": tools() })).await;
    assert_eq!(joined(&chunks, 0, "content").trim(), "Sure.");
    let calls = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["tool_calls"].as_array());
    let calls: Vec<&Value> = calls.flatten().collect();
    assert!(calls.iter().all(|c| c["index"] == 0));
    let first = calls.first().expect("a call");
    assert!(first["id"].as_str().unwrap().starts_with("call_"));
    assert_eq!(first["function"]["name"], "get_weather");
    assert_eq!((&first["type"], &first["function"]["arguments"]), (&json!("function"), &json!("")));
    assert!(
        calls[1..].iter().all(|c| c.get("id").is_none() && c["function"].get("name").is_none())
    );
    let arguments: String =
        calls.iter().map(|c| c["function"]["arguments"].as_str().unwrap()).collect();
    assert_eq!(serde_json::from_str::<Value>(&arguments).unwrap(), json!({ "city": "Paris" }));
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn without_parallel_calls_the_first_is_the_last() {
    // A second call, and then the engine goes on for ever.
    let app = App::new(Reply::Hold(format!("{CALL}\n{CALL}")));
    let fields = json!({ "tools": tools(), "parallel_tool_calls": false });
    let body = app.chat(fields.clone()).await;
    assert_eq!(body["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(body["choices"][0]["finish_reason"], "tool_calls");
    let chunks = app.chunks(fields).await;
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(app.engine.held_open(), 0);
    app.engine.say(Reply::Text(format!("{CALL}\n{CALL}")));
    let body = app.chat(json!({ "tools": tools() })).await;
    let calls = body["choices"][0]["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert_ne!(calls[0]["id"], calls[1]["id"]);
}

#[tokio::test]
async fn a_call_that_is_cut_short_ends_by_length() {
    let app = App::text(CALL);
    let body = app.chat(json!({ "tools": tools(), "max_tokens": 70 })).await;
    assert_eq!(body["choices"][0]["finish_reason"], "length", "{body}");
}

#[tokio::test]
async fn with_none_the_model_sees_no_tools_and_calls_are_text() {
    let app = App::text(CALL);
    let body = app.chat(json!({ "tools": tools(), "tool_choice": "none" })).await;
    assert_eq!(body["choices"][0]["message"]["content"], CALL);
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    let shown: Vec<u32> = "get_weather".bytes().map(u32::from).collect();
    let shows = |prompt: &[u32]| prompt.windows(shown.len()).any(|w| w == shown);
    assert!(!shows(&app.engine.last().prompt));
    app.chat(json!({ "tools": tools() })).await;
    assert!(shows(&app.engine.last().prompt));
    app.chat(json!({ "tools": [] })).await;
}

#[tokio::test]
async fn auto_needs_a_parser_and_the_switch() {
    let no_parser = ServerConfig { tool_format: ToolFormat::NONE, ..config() };
    let switched_off = ServerConfig { enable_auto_tool_choice: false, ..config() };
    for config in [no_parser, switched_off] {
        let app = App::with(config, Reply::Text("x".into()));
        let (status, body) =
            app.post("/v1/chat/completions", &chat(json!({ "tools": tools() }))).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert_eq!(body["error"]["param"], "tools");
        app.chat(json!({ "tools": tools(), "tool_choice": "none" })).await;
        app.chat(json!({})).await;
    }
}

/// The model's own format is Hermes's.
#[tokio::test]
async fn calls_in_another_format_are_recovered_unless_that_is_turned_off() {
    let leaked = r#"[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]"#;
    let app = App::text(leaked);
    let body = app.chat(json!({ "tools": tools() })).await;
    let choice = &body["choices"][0];
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&Value::Null, &json!("tool_calls"))
    );
    let call = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(
        (&call["name"], &call["arguments"]),
        (&json!("get_weather"), &json!(r#"{"city": "Paris"}"#))
    );
    let chunks = app.chunks(json!({ "tools": tools() })).await;
    assert_eq!(joined(&chunks, 0, "content"), "");
    let calls = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["tool_calls"].as_array());
    assert_eq!(calls.flatten().filter(|c| c.get("id").is_some()).count(), 1);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    // Only the choice that leaks changes, and without tools none does.
    let body = app.chat(json!({ "tools": tools(), "tool_choice": "none" })).await;
    assert_eq!(body["choices"][0]["message"]["content"], leaked);
    let off = ServerConfig { tool_call_recovery: false, ..config() };
    let app = App::with(off, Reply::Text(leaked.into()));
    let body = app.chat(json!({ "tools": tools() })).await;
    assert_eq!(body["choices"][0]["message"]["content"], leaked);
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
}
