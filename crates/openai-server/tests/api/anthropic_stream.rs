//! Streams of Anthropic's Messages API: typed events, in order.

use crate::{
    anthropic::{body, tools},
    support::{App, Reply, config, post},
};
use axum::http::StatusCode;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::time::Duration;
use taper_base::GenerationError;
use taper_openai_server::ServerConfig;
use tower::ServiceExt;

/// The events of a stream, each with a name that is its type.
async fn events(app: &App, mut fields: Value) -> Vec<Value> {
    fields["stream"] = json!(true);
    let (status, headers, text) = app.send(post("/v1/messages", &body(fields).to_string())).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert_eq!(headers["content-type"], "text/event-stream");
    let one = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap_or_else(|| panic!("{event}"));
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(data["type"], name.strip_prefix("event: ").unwrap());
        data
    };
    text.trim_end().split("\n\n").map(one).collect()
}

/// The types, those of repeated deltas once.
fn types(events: &[Value]) -> Vec<&str> {
    let mut types: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    types.dedup();
    types
}

/// What the deltas of a block add up to.
fn joined(events: &[Value], index: usize, field: &str) -> String {
    let own = events.iter().filter(|event| event["index"] == index);
    own.filter_map(|event| event["delta"][field].as_str()).collect()
}

const BLOCK: [&str; 3] = ["content_block_start", "content_block_delta", "content_block_stop"];

#[tokio::test]
async fn a_text() {
    let app = App::text("Hello there");
    *app.engine.cached.lock().unwrap() = 3;
    let events = events(&app, json!({})).await;
    let mut expected = vec!["message_start", "ping"];
    expected.extend(BLOCK);
    expected.extend(["message_delta", "message_stop"]);
    assert_eq!(types(&events), expected);
    let start = &events[0]["message"];
    assert_eq!((&start["content"], &start["stop_reason"]), (&json!([]), &Value::Null));
    assert_eq!(start["usage"]["cache_read_input_tokens"], 3);
    assert_eq!(events[2]["content_block"], json!({ "type": "text", "text": "" }));
    assert_eq!(joined(&events, 0, "text"), "Hello there");
    let end = &events[events.len() - 2];
    assert_eq!(end["delta"], json!({ "stop_reason": "end_turn", "stop_sequence": null }));
    assert_eq!(
        (&end["usage"]["output_tokens"], &end["usage"]["cache_read_input_tokens"]),
        (&json!(12), &json!(3))
    );
}

#[tokio::test]
async fn thinking_text_and_calls() {
    let call = |city: &str| {
        format!(
            "<tool_call>\n{{\"name\": \"get_weather\", \"arguments\": {{\"city\": \"{city}\"}}}}\n</tool_call>"
        )
    };
    let app = App::text(&format!("Hm.</think>\n\nLook.\n{}\n{}", call("Paris"), call("Rome")));
    let fields = json!({ "tools": tools(), "thinking": { "type": "adaptive" },
        "context_management": { "edits": [] } });
    let all = events(&app, fields.clone()).await;
    let mut expected = vec!["message_start", "ping"];
    (0..4).for_each(|_| expected.extend(BLOCK));
    expected.extend(["message_delta", "message_stop"]);
    assert_eq!(types(&all), expected);
    assert_eq!(joined(&all, 0, "thinking"), "Hm.");
    assert!(!joined(&all, 0, "signature").is_empty());
    assert_eq!(joined(&all, 1, "text").trim(), "Look.");
    for (index, city) in [(2, "Paris"), (3, "Rome")] {
        let start = all.iter().find(|e| e["index"] == index).unwrap();
        assert_eq!(start["content_block"]["name"], "get_weather");
        assert_eq!(start["content_block"]["input"], json!({}));
        let input: Value = serde_json::from_str(&joined(&all, index, "partial_json")).unwrap();
        assert_eq!(input, json!({ "city": city }));
    }
    let end = &all[all.len() - 2];
    assert_eq!(end["delta"]["stop_reason"], "tool_use");
    assert_eq!(end["context_management"], json!({ "applied_edits": [] }));
    // The same as a whole answer.
    let (_, whole) = app.post("/v1/messages", &body(fields)).await;
    assert_eq!(whole["content"].as_array().unwrap().len(), 4);
    assert_eq!(whole["content"][1]["text"], joined(&all, 1, "text"));
    assert_eq!(whole["usage"], end["usage"]);
}

#[tokio::test]
async fn stop_sequences_and_errors_end_it() {
    let app = App::text("one two three");
    let all = events(&app, json!({ "stop_sequences": [" three"] })).await;
    assert_eq!(joined(&all, 0, "text"), "one two");
    let end = &all[all.len() - 2]["delta"];
    assert_eq!(*end, json!({ "stop_reason": "stop_sequence", "stop_sequence": " three" }));

    app.engine.say(Reply::Fail("on".into(), GenerationError::EngineDead));
    let all = events(&app, json!({})).await;
    let last = all.last().unwrap();
    assert_eq!(
        (&last["type"], &last["error"]["type"]),
        (&json!("error"), &json!("overloaded_error"))
    );
    assert_eq!(joined(&all, 0, "text"), "on");
}

#[tokio::test]
async fn silence_is_filled_with_pings_until_the_client_goes() {
    let config = ServerConfig { keep_alive: Duration::from_millis(20), ..config() };
    let app = App::with(config, Reply::Hold(String::new()));
    let request = post("/v1/messages", &body(json!({ "stream": true })).to_string());
    let mut response = app.router.clone().oneshot(request).await.unwrap().into_body();
    let frame = response.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(frame, "event: ping\ndata: {\"type\": \"ping\"}\n\n");
    assert_eq!(app.engine.held_open(), 1);
    drop(response);
    assert_eq!(app.engine.held_open(), 0);
}
