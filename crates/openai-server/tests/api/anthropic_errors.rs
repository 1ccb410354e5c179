//! What Anthropic's routes refuse, in Anthropic's form.

use crate::{
    anthropic::{body, tools},
    support::{App, Reply, post},
};
use axum::http::StatusCode;
use serde_json::{Value, json};
use taper_base::{GenerationError, SubmitError};

/// Fields on top of a good request, and what the message must name.
fn refused() -> Vec<(Value, &'static str)> {
    let user = |block: Value| json!({ "messages": [{ "role": "user", "content": [block] }] });
    let assistant = |block: Value| json!({ "messages": [{ "role": "user", "content": "x" }, { "role": "assistant", "content": [block] }] });
    let tool = |fields: Value| {
        let mut tool = tools()[0].clone();
        tool.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({ "tools": [tool] })
    };
    let choice = |choice: Value| json!({ "tools": tools(), "tool_choice": choice });
    vec![
        (json!({ "max_tokens": null }), "'max_tokens'"),
        (json!({ "max_tokens": 0 }), "'max_tokens'"),
        (json!({ "messages": null }), "'messages'"),
        (json!({ "messages": [] }), "'messages'"),
        (json!({ "messages": [{ "role": "tool", "content": "x" }] }), "'messages[0].role'"),
        (json!({ "messages": [{ "role": "user" }] }), "'messages[0].content'"),
        (json!({ "messages": [{ "role": "user", "content": [] }] }), "'messages[0].content'"),
        (
            json!({ "messages": [{ "role": "user", "content": "x", "name": "y" }] }),
            "'messages[0].name'",
        ),
        (
            json!({ "messages": [{ "role": "user", "content": "x", "clear_at": "never" }] }),
            "'messages[0].clear_at'",
        ),
        (
            json!({ "messages": [{ "role": "system", "content": "x", "clear_at": "now" }] }),
            "'messages[0].clear_at'",
        ),
        (user(json!({ "text": "x" })), "'messages[0].content[0].type'"),
        (user(json!({ "type": "text" })), "'messages[0].content[0].text'"),
        (user(json!({ "type": "text", "text": "x", "id": "y" })), "'messages[0].content[0].id'"),
        (
            user(json!({ "type": "text", "text": "x", "mood": "y" })),
            "'messages[0].content[0].mood'",
        ),
        (
            user(json!({ "type": "image", "source": { "type": "base64", "data": "" } })),
            "'messages[0].content[0]'",
        ),
        (user(json!({ "type": "document", "source": {} })), "'messages[0].content[0]'"),
        (
            user(json!({ "type": "tool_use", "id": "a", "name": "b", "input": {} })),
            "'messages[0].content[0]'",
        ),
        (
            user(json!({ "type": "tool_result", "content": "x" })),
            "'messages[0].content[0].tool_use_id'",
        ),
        (
            user(
                json!({ "type": "tool_result", "tool_use_id": "a", "content": [{ "type": "image", "source": {} }] }),
            ),
            "'messages[0].content[0].content[0]'",
        ),
        (
            assistant(json!({ "type": "tool_result", "tool_use_id": "a" })),
            "'messages[1].content[0]'",
        ),
        (assistant(json!({ "type": "server_tool_use", "id": "a" })), "'messages[1].content[0]'"),
        (
            assistant(json!({ "type": "tool_use", "id": "a", "name": "b" })),
            "'messages[1].content[0].input'",
        ),
        (
            assistant(json!({ "type": "tool_use", "id": "a", "name": "b", "input": "x" })),
            "'messages[1].content[0].input'",
        ),
        (
            assistant(json!({ "type": "tool_use", "id": "a", "name": "b", "input": {} })),
            "'messages'",
        ),
        (json!({ "system": 5 }), "'system'"),
        (json!({ "system": [{ "type": "image" }] }), "'system[0]'"),
        (tool(json!({ "type": "web_search_20250305", "max_uses": 5 })), "'tools[0].type'"),
        (tool(json!({ "name": "" })), "'tools[0].name'"),
        (tool(json!({ "input_schema": null })), "'tools[0].input_schema'"),
        (tool(json!({ "defer_loading": true })), "'tools'"),
        (
            user(
                json!({ "type": "tool_result", "tool_use_id": "a", "content": [{ "type": "tool_reference", "tool_name": "nope" }] }),
            ),
            "'messages[0].content[0].content[0].tool_name'",
        ),
        (
            user(
                json!({ "type": "tool_result", "tool_use_id": "a", "content": [{ "type": "tool_reference" }] }),
            ),
            "'messages[0].content[0].content[0].tool_name'",
        ),
        (
            user(json!({ "type": "text", "text": "a", "tool_name": "b" })),
            "'messages[0].content[0].tool_name'",
        ),
        (
            tool(json!({ "allowed_callers": ["code_execution_20250825"] })),
            "'tools[0].allowed_callers'",
        ),
        (tool(json!({ "input_examples": [{}] })), "'tools[0].input_examples'"),
        (tool(json!({ "strict": true, "input_schema": { "not": {} } })), "'tools[0].input_schema'"),
        (json!({ "tool_choice": { "type": "any" } }), "'tool_choice'"),
        (choice(json!({ "type": "required" })), "'tool_choice.type'"),
        (choice(json!({ "type": "tool" })), "'tool_choice.name'"),
        (choice(json!({ "type": "tool", "name": "nope" })), "'tool_choice.name'"),
        (choice(json!({ "type": "any", "name": "get_weather" })), "'tool_choice.name'"),
        (choice(json!("auto")), "'tool_choice'"),
        (json!({ "thinking": { "type": "on" } }), "'thinking.type'"),
        (
            json!({ "thinking": { "type": "disabled", "budget_tokens": 5 } }),
            "'thinking.budget_tokens'",
        ),
        (
            json!({ "thinking": { "type": "enabled", "budget_tokens": 0 } }),
            "'thinking.budget_tokens'",
        ),
        (json!({ "thinking": { "type": "adaptive", "display": "loud" } }), "'thinking.display'"),
        (json!({ "output_config": { "effort": "none" } }), "'output_config.effort'"),
        (
            json!({ "output_config": { "task_budget": { "type": "tokens", "total": 9 } } }),
            "'output_config.task_budget'",
        ),
        (
            json!({ "output_config": { "format": { "type": "text" } } }),
            "'output_config.format.type'",
        ),
        (json!({ "output_format": { "type": "json_schema" } }), "'output_format.schema'"),
        (
            json!({ "output_config": { "format": { "type": "json_schema", "schema": { "not": {} } } } }),
            "'output_config.format.schema'",
        ),
        (
            json!({ "context_management": { "edits": [{ "type": "forget" }] } }),
            "'context_management.edits[0].type'",
        ),
        (json!({ "stop_sequences": [""] }), "'stop_sequences'"),
        (json!({ "stop_sequences": "x" }), "'stop_sequences'"),
        (json!({ "temperature": 3 }), "temperature must"),
        (json!({ "top_p": 0 }), "top_p must"),
        (json!({ "container": "c" }), "'container'"),
        (json!({ "mcp_servers": [{}] }), "'mcp_servers'"),
        (json!({ "fallbacks": [{}] }), "'fallbacks'"),
        (json!({ "metadata": "x" }), "'metadata'"),
        (json!({ "n": 2 }), "'n'"),
    ]
}

#[tokio::test]
async fn errors_name_the_field_in_anthropics_form() {
    let app = App::text("Hi");
    for (fields, named) in refused() {
        let (status, answer) = app.post("/v1/messages", &body(fields.clone())).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{fields}: {answer}");
        assert_eq!(answer["type"], "error", "{fields}: {answer}");
        assert!(answer["request_id"].as_str().unwrap().starts_with("req-"));
        let error = &answer["error"];
        assert_eq!(error["type"], "invalid_request_error", "{fields}: {answer}");
        assert!(error["message"].as_str().unwrap().contains(named), "{fields}: {named}: {answer}");
    }
    assert_eq!(app.engine.count(), 0);
    // What asks for nothing is fine.
    let nothing =
        json!({ "container": null, "mcp_servers": [], "fallbacks": [], "compaction": null });
    assert_eq!(app.post("/v1/messages", &body(nothing)).await.0, StatusCode::OK);
}

#[tokio::test]
async fn every_layer_answers_in_anthropics_form() {
    let app = App::text("Hi");
    let kind = |answer: &Value| answer["error"]["type"].as_str().unwrap_or_default().to_owned();
    let (status, answer) = app.post_text("/v1/messages", "{").await;
    assert_eq!((status, kind(&answer)), (StatusCode::BAD_REQUEST, "invalid_request_error".into()));
    let (status, answer) = app.post("/v1/messages", &body(json!({ "model": "claude" }))).await;
    assert_eq!((status, kind(&answer)), (StatusCode::NOT_FOUND, "not_found_error".into()));
    let (status, answer) = app.post("/v1/messages/batches", &json!({})).await;
    assert_eq!((status, kind(&answer)), (StatusCode::NOT_FOUND, "not_found_error".into()));
    let (status, text) = app.get("/v1/messages").await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (status, kind(&answer)),
        (StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error".into())
    );
    let mut foreign = post("/v1/messages", &body(json!({})).to_string());
    foreign.headers_mut().insert("origin", "https://evil.example".parse().unwrap());
    let (status, headers, text) = app.send(foreign).await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, kind(&answer)), (StatusCode::FORBIDDEN, "permission_error".into()));
    assert_eq!(answer["request_id"], headers["request-id"].to_str().unwrap());
    // A path that only begins alike is OpenAI's.
    let (_, answer) = app.post("/v1/messagesx", &json!({})).await;
    assert_eq!(answer["error"]["code"], "unknown_url");

    let long = json!({ "messages": [{ "role": "user", "content": "x".repeat(5000) }] });
    let (status, answer) = app.post("/v1/messages", &body(long)).await;
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(
        status == StatusCode::BAD_REQUEST && message.starts_with("prompt is too long: 50"),
        "{message}"
    );
    assert!(message.ends_with("tokens > 4096 maximum"), "{message}");
    let (status, answer) = {
        app.engine.say(Reply::Refuse(SubmitError::QueueFull { limit: 3 }));
        app.post("/v1/messages", &body(json!({}))).await
    };
    assert_eq!((status, kind(&answer)), (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error".into()));
    app.engine.say(Reply::Refuse(SubmitError::EngineDead));
    let (status, answer) = app.post("/v1/messages", &body(json!({}))).await;
    assert_eq!(
        (status, kind(&answer)),
        (StatusCode::SERVICE_UNAVAILABLE, "overloaded_error".into())
    );
    app.engine.say(Reply::Fail("Hi".into(), GenerationError::EngineDead));
    let (status, answer) = app.post("/v1/messages", &body(json!({}))).await;
    assert_eq!(
        (status, kind(&answer)),
        (StatusCode::SERVICE_UNAVAILABLE, "overloaded_error".into())
    );
    app.engine.say(Reply::Gone("Hi".into()));
    let (status, answer) = app.post("/v1/messages", &body(json!({}))).await;
    assert_eq!((status, kind(&answer)), (StatusCode::INTERNAL_SERVER_ERROR, "api_error".into()));
}
