//! `functions` and `function_call`, as they were before tools.

use crate::support::{App, joined};
use serde_json::{Value, json};

const CALL: &str =
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";

fn functions() -> Value {
    json!([{ "name": "weather", "description": "Weather.", "parameters": { "type": "object" } },
           { "name": "other" }])
}

#[tokio::test]
async fn a_call_comes_back_as_it_was_asked_for() {
    let app = App::text(&CALL.repeat(2));
    let body = app.chat(json!({ "functions": functions() })).await;
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "function_call");
    let message = &choice["message"];
    assert_eq!(message["content"], Value::Null);
    assert!(message.get("tool_calls").is_none());
    assert_eq!(
        message["function_call"],
        json!({ "name": "weather", "arguments": "{\"city\": \"Paris\"}" })
    );
    let chunks = app.chunks(json!({ "functions": functions(), "function_call": "auto" })).await;
    let calls: Vec<_> =
        chunks.iter().filter_map(|c| c["choices"][0]["delta"].get("function_call")).collect();
    assert_eq!(calls[0]["name"], "weather");
    let arguments: String = calls.iter().map(|c| c["arguments"].as_str().unwrap()).collect();
    assert_eq!(arguments, "{\"city\": \"Paris\"}");
    assert!(calls[1..].iter().all(|call| call.get("name").is_none()));
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "function_call");
    assert!(chunks.iter().all(|c| c["choices"][0]["delta"].get("tool_calls").is_none()));
}

#[tokio::test]
async fn the_choice_is_the_tools() {
    let app = App::text(CALL);
    app.chat(json!({ "functions": functions(), "function_call": { "name": "weather" } })).await;
    assert!(app.engine.last().grammar.is_some(), "the call is forced");
    let none = json!({ "functions": functions(), "function_call": "none" });
    let body = app.chat(none.clone()).await;
    assert_eq!(body["choices"][0]["message"]["content"], CALL);
    assert_eq!(joined(&app.chunks(none).await, 0, "content"), CALL);
    app.chat(json!({ "functions": [], "function_call": null })).await;
}
