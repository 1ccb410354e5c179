//! The description of the API: `/openapi.json` and `/docs`.

use crate::support::{App, Reply, config};
use axum::http::StatusCode;
use serde_json::Value;
use taper_openai_server::{ApiKeys, ServerConfig, route_table};

async fn document(app: &App) -> Value {
    let (status, body) = app.get("/openapi.json").await;
    assert_eq!(status, StatusCode::OK);
    serde_json::from_str(&body).unwrap()
}

/// Everything that a `$ref` names.
fn references<'a>(value: &'a Value, all: &mut Vec<&'a str>) {
    match value {
        Value::Object(members) => {
            all.extend(members.get("$ref").and_then(Value::as_str));
            members.values().for_each(|member| references(member, all));
        }
        Value::Array(list) => list.iter().for_each(|one| references(one, all)),
        _ => {}
    }
}

#[tokio::test]
async fn every_route_is_described_and_every_reference_is_found() {
    let document = document(&App::text("x")).await;
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    let mut described: Vec<_> = paths.keys().map(String::as_str).collect();
    let mut routes: Vec<_> = route_table().into_iter().map(|(path, _)| path).collect();
    // OpenAPI has no word for the rest of a path.
    routes.iter_mut().filter(|path| path.contains("{*id}")).for_each(|p| *p = "/v1/models/{id}");
    described.sort_unstable();
    routes.sort_unstable();
    assert_eq!(described, routes);
    let mut all = Vec::new();
    references(&document, &mut all);
    assert!(all.len() > 100);
    for reference in all {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

#[tokio::test]
async fn fields_have_their_types() {
    let document = document(&App::text("x")).await;
    let schemas = &document["components"]["schemas"];
    let chat = &schemas["ChatCompletionRequest"];
    assert_eq!(chat["required"], serde_json::json!(["messages"]));
    assert_eq!(chat["additionalProperties"], false);
    for name in ["messages", "temperature", "stop", "functions", "user", "bad_words", "priority"] {
        assert!(chat["properties"].get(name).is_some(), "{name}");
    }
    assert_eq!(chat["properties"]["temperature"]["maximum"], 2);
    assert_eq!(schemas["CompletionRequest"]["required"], serde_json::json!(["prompt"]));
    assert!(schemas["Role"].to_string().contains("\"developer\""));
    assert!(schemas["ChatChunk"]["properties"].get("choices").is_some());
    // Who must send a key is told so.
    let operation = |document: &Value| document["paths"]["/v1/models"]["get"].clone();
    assert!(operation(&document).get("security").is_none());
    let keys = ServerConfig { api_keys: ApiKeys::new(["k"]).unwrap(), ..config() };
    let guarded = self::document(&App::with(keys, Reply::Text("x".into()))).await;
    assert!(operation(&guarded).get("security").is_some());
    assert!(guarded["paths"]["/health"]["get"].get("security").is_none());
}

#[tokio::test]
async fn other_apis_are_described_too() {
    let document = document(&App::text("x")).await;
    let schemas = &document["components"]["schemas"];
    let message = &schemas["MessagesRequest"];
    assert_eq!(message["required"], serde_json::json!(["messages", "max_tokens"]));
    assert_eq!(schemas["CountTokensRequest"]["required"], serde_json::json!(["messages"]));
    let response = &schemas["ResponsesRequest"];
    for (request, names) in [
        (message, &["system", "thinking", "output_config", "stop_sequences", "metadata"][..]),
        (response, &["input", "reasoning", "previous_response_id", "metadata", "max_tool_calls"]),
    ] {
        assert_eq!(request["additionalProperties"], false);
        for name in names {
            let field = &request["properties"][name];
            // A field is described by its type or by a schema that others share.
            let kinds = ["type", "$ref", "anyOf", "enum"];
            assert!(kinds.iter().any(|kind| field.get(kind).is_some()), "{name}: {field}");
        }
    }
    // Answers and events: every member of a response that the server gives stands in its schema.
    let app = App::text("<think>hm</think>Hi");
    let body = serde_json::json!({ "max_tokens": 5, "input": "Hi",
                                   "messages": [{ "role": "user", "content": "Hi" }] });
    for (path, without, schema) in [
        ("/v1/messages", "input", "MessageResponse"),
        ("/v1/messages/count_tokens", "input", "TokenCount"),
        ("/v1/responses", "messages", "Response"),
    ] {
        let mut body = body.clone();
        let fields = body.as_object_mut().unwrap();
        fields.remove(without);
        if path != "/v1/messages" {
            fields.remove("max_tokens");
        }
        let (status, answer) = app.post(path, &body).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        let known = &schemas[schema]["properties"];
        for name in answer.as_object().unwrap().keys() {
            assert!(known.get(name).is_some(), "{name} of {schema}: {known}");
        }
        for name in schemas[schema]["required"].as_array().unwrap() {
            assert!(answer.get(name.as_str().unwrap()).is_some(), "{name} of {schema}");
        }
    }
    assert!(schemas["MessageEvent"].to_string().contains("content_block_delta"));
    assert!(schemas["ResponseEvent"].to_string().contains("response.output_text.delta"));
    assert!(schemas["AnthropicErrorDetail"].to_string().contains("overloaded_error"));
    let query = &document["paths"]["/v1/responses/{id}/input_items"]["get"]["parameters"];
    assert!(query.as_array().unwrap().iter().any(|one| one["name"] == "limit"));
}

#[tokio::test]
async fn the_page_loads_and_runs_nothing() {
    let (status, page) = App::text("x").get("/docs").await;
    assert_eq!(status, StatusCode::OK);
    for part in ["/v1/chat/completions", "ChatCompletionRequest", "context_length_exceeded"] {
        assert!(page.contains(part), "{part}");
    }
    for part in ["<script", "http://", "https://", "src=", "@import", "url("] {
        assert!(!page.contains(part), "{part}");
    }
}
