//! Keys with names, scopes and limits.

use crate::support::{App, Reply, chat, config, post};
use axum::http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use taper_openai_server::{ApiKey, ApiKeys, Scope, ServerConfig};

fn named(key: &str, scopes: &[Scope]) -> ApiKey {
    ApiKey { name: key.to_owned(), scopes: scopes.to_vec(), ..ApiKey::of(key) }
}

fn app(keys: &ApiKeys) -> App {
    let config = ServerConfig { api_keys: keys.clone(), allow_adapter_updates: true, ..config() };
    App::with(config, Reply::Text("x".into()))
}

async fn ask(app: &App, key: &str, path: &str) -> (u16, HeaderMap, Value) {
    let mut request = post(path, &chat(json!({})).to_string());
    if path == "/metrics" {
        *request.method_mut() = axum::http::Method::GET;
    }
    request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    let (status, headers, text) = app.send(request).await;
    (status.as_u16(), headers, serde_json::from_str(&text).unwrap_or_default())
}

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn scopes_open_their_routes_and_no_others() {
    let keys = ApiKeys::of([
        named("user", &[Scope::Inference]),
        named("prometheus", &[Scope::Metrics]),
        named("root", &[Scope::Inference, Scope::Metrics, Scope::Admin]),
        ApiKey::of("plain"),
    ]);
    let app = app(&keys);
    for (key, statuses) in [
        // Chat, an adapter (of a body that is none), metrics.
        ("user", [200, 403, 403]),
        ("prometheus", [403, 403, 200]),
        ("root", [200, 400, 200]),
        ("plain", [200, 400, 200]),
        ("nobody", [401, 401, 401]),
    ] {
        for (path, expected) in [CHAT, "/v1/load_lora_adapter", "/metrics"].iter().zip(statuses) {
            let (status, _, body) = ask(&app, key, path).await;
            assert_eq!(status, expected, "{key} {path}: {body}");
            if status == 403 {
                assert_eq!(body["error"]["code"], "insufficient_permissions");
                assert!(body["error"]["message"].as_str().unwrap().contains("missing scopes"));
            }
        }
    }
    // Without such a key, the page is open.
    keys.replace([ApiKey::of("plain")]);
    assert_eq!(app.get("/metrics").await.0, StatusCode::OK);
}

#[tokio::test]
async fn requests_and_tokens_of_a_key_have_limits() {
    let few = ApiKey { requests_per_minute: Some(2), ..named("few", &[Scope::Inference]) };
    let short = ApiKey { tokens_per_day: Some(1), ..named("short", &[Scope::Inference]) };
    let keys = ApiKeys::of([few, short]);
    let app = app(&keys);
    assert_eq!(ask(&app, "few", CHAT).await.0, 200);
    assert_eq!(ask(&app, "few", CHAT).await.0, 200);
    let (status, headers, body) = ask(&app, "few", CHAT).await;
    assert_eq!((status, &body["error"]["code"]), (429, &json!("rate_limit_exceeded")));
    let wait: u64 = headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((29..=30).contains(&wait), "{wait}");
    assert_eq!(ask(&app, "short", CHAT).await.0, 200);
    let (status, headers, body) = ask(&app, "short", CHAT).await;
    assert_eq!((status, &body["error"]["code"]), (429, &json!("insufficient_quota")));
    assert!(headers.contains_key("retry-after"));
    let page = app.get("/metrics").await.1;
    let prompt = app.engine.last().prompt.len() + 2;
    for line in [
        "taper:api_key_requests_total{model_name=\"mock\",api_key=\"few\"} 2".to_owned(),
        "taper:api_key_refused_total{model_name=\"mock\",api_key=\"few\"} 1".to_owned(),
        format!("taper:api_key_tokens_total{{model_name=\"mock\",api_key=\"short\"}} {prompt}"),
    ] {
        assert!(page.lines().any(|l| l == line), "{line} not in\n{page}");
    }
}

#[tokio::test]
async fn the_queue_is_shared_among_keys() {
    let keys = ApiKeys::new(["a", "b"]).unwrap();
    let app = app(&keys);
    let mut clients = Vec::new();
    for key in ["a", "b", "a"] {
        assert_eq!(ask(&app, key, CHAT).await.0, 200);
        clients.push(app.engine.last().client.unwrap());
    }
    assert_eq!(clients[0], clients[2]);
    assert_ne!(clients[0], clients[1]);
    // One key says nothing of who asks.
    keys.replace([ApiKey::of("a")]);
    let mut alone = Vec::new();
    for _ in 0..2 {
        assert_eq!(ask(&app, "a", CHAT).await.0, 200);
        alone.push(app.engine.last().client.unwrap());
    }
    assert_ne!(alone[0], alone[1]);
}
