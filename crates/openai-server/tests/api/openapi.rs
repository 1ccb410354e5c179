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
