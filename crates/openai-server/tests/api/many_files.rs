//! Several models in one server: Ollama's API, downloads, and what is deleted.

use crate::{
    many::{Many, settings},
    support::send,
};
use axum::{
    body::Body,
    http::{Method, Request, StatusCode},
};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::{sync::atomic::Ordering, time::Duration};
use taper_openai_server::ModelsConfig;
use tower::ServiceExt;

fn lines(text: &Value) -> Vec<Value> {
    text.as_str().unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn ollama_lists_shows_and_runs_them() {
    let many = Many::new(&[("a", 10), ("b", 12)], settings(20));
    let tags = many.get("/api/tags").await;
    let names: Vec<_> = tags["models"].as_array().unwrap().iter().map(|m| &m["name"]).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(tags["models"][1]["size"], 12);
    assert_eq!(tags["models"][0]["details"]["family"], "mock");
    assert_eq!(many.get("/api/ps").await["models"], json!([]));
    // A model is described without being loaded.
    let (status, shown) = many.post("/api/show", &json!({ "model": "b:latest" })).await;
    assert_eq!((status, &shown["details"]["family"]), (StatusCode::OK, &json!("arch-of-b")));
    assert_eq!(shown["model_info"]["arch-of-b.context_length"], 4096);
    assert!(many.shelf.loads.lock().unwrap().is_empty());
    let ask = json!({ "model": "a:latest", "prompt": "Hi", "stream": false, "keep_alive": "1h" });
    let (status, answer) = many.post("/api/generate", &ask).await;
    assert_eq!((status, &answer["response"]), (StatusCode::OK, &json!("I am a")));
    let ps = many.get("/api/ps").await;
    assert_eq!((&ps["models"][0]["name"], &ps["models"][0]["size"]), (&json!("a"), &json!(10)));
    assert!(ps["models"][0]["expires_at"].as_str().unwrap().starts_with("20"));
    // Zero unloads it; below zero keeps it for good.
    let keep = |keep: Value| json!({ "model": "a", "keep_alive": keep });
    many.post("/api/generate", &keep(json!(-1))).await;
    assert!(
        many.get("/api/ps").await["models"][0]["expires_at"].as_str().unwrap().starts_with("9999")
    );
    many.post("/api/chat", &keep(json!(0))).await;
    for _ in 0..400 {
        if many.states().await["a"] == "unloaded" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(many.get("/api/ps").await["models"], json!([]));
    let (status, refused) = many.post("/api/chat", &keep(json!("soon"))).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(refused["error"].as_str().unwrap().contains("keep_alive"), "{refused}");
    let (status, missing) = many.post("/api/chat", &json!({ "model": "zz", "messages": [] })).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(missing["error"].as_str().unwrap().contains("zz"));
    // It is a field of Ollama's API alone.
    let other = json!({ "model": "a", "prompt": "x", "keep_alive": 1 });
    assert_eq!(many.post("/v1/completions", &other).await.1["error"]["code"], "unknown_parameter");
}

#[tokio::test]
async fn a_download_tells_how_far_it_is_and_is_there_at_once() {
    let many = Many::new(&[], settings(20));
    let (status, text) = many.post("/api/pull", &json!({ "model": "org/new" })).await;
    assert_eq!(status, StatusCode::OK);
    let lines = lines(&text);
    assert_eq!(lines[0], json!({ "status": "pulling manifest" }));
    let file = |completed| json!({ "status": "pulling model.safetensors", "digest": "model.safetensors", "total": 100, "completed": completed });
    assert_eq!(lines[1..lines.len() - 1], [file(10), file(100)]);
    assert_eq!(lines.last(), Some(&json!({ "status": "success" })));
    assert_eq!(many.ask("org/new").await.1, "I am org/new");
    assert_eq!(many.metric("taper:model_downloaded_bytes_total ").await, ["90"]);
    let whole = |model: &str| json!({ "name": model, "stream": false });
    let (status, body) = many.post("/api/pull", &whole("org/new")).await;
    assert_eq!((status, body), (StatusCode::OK, json!({ "status": "success" })));
    let (status, body) = many.post("/api/pull", &whole("org/broken")).await;
    assert_eq!(
        (status, &body["error"]),
        (StatusCode::BAD_GATEWAY, &json!("the model 'org/broken': the hub is down"))
    );
    assert_eq!(many.post("/api/pull", &whole("x")).await.0, StatusCode::BAD_REQUEST);
    let (_, text) = many.post("/api/pull", &json!({ "model": "org/broken" })).await;
    let last = self::lines(&text).pop().unwrap();
    assert_eq!(last, json!({ "error": "the model 'org/broken': the hub is down" }));
}

#[tokio::test]
async fn a_download_ends_when_its_client_goes() {
    let many = Many::new(&[], settings(20));
    let request = crate::support::post("/api/pull", &json!({ "model": "org/endless" }).to_string());
    let response = many.router.clone().oneshot(request).await.unwrap();
    let mut body = response.into_body();
    assert!(body.frame().await.is_some());
    drop(body);
    for _ in 0..2000 {
        if many.shelf.stopped.load(Ordering::Relaxed) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the download goes on");
}

#[tokio::test]
async fn a_loaded_model_is_not_deleted() {
    let many = Many::new(&[("a", 10), ("org/b", 10)], settings(20));
    many.ask("a").await;
    let delete =
        async |path: &'static str, body: Value| many.send(Method::DELETE, path, &body).await;
    let named = |name: &str| json!({ "model": name });
    let (status, _, body) = delete("/api/delete", named("a")).await;
    assert_eq!((status, body.contains("unload it first")), (StatusCode::CONFLICT, true), "{body}");
    many.post("/models/unload", &named("a")).await;
    assert_eq!(delete("/api/delete", named("a")).await.0, StatusCode::OK);
    assert_eq!(delete("/api/delete", named("a")).await.0, StatusCode::NOT_FOUND);
    let request = Request::delete("/v1/models/org/b").body(Body::empty()).unwrap();
    let (status, _, body) = send(&many.router, request).await;
    assert_eq!((status, body.contains("\"deleted\":true")), (StatusCode::OK, true), "{body}");
    assert_eq!(many.get("/v1/models").await["data"], json!([]));
}

#[tokio::test]
async fn a_model_that_is_being_unloaded_is_deleted_when_it_is() {
    let many = Many::new(&[("a", 10)], settings(20));
    let named = json!({ "model": "a" });
    for _ in 0..50 {
        many.ask("a").await;
        many.post("/api/generate", &json!({ "model": "a", "keep_alive": 0 })).await;
        while many.states().await["a"] == "loaded" {
            tokio::task::yield_now().await;
        }
        let (status, _, body) = many.send(Method::DELETE, "/api/delete", &named).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        many.shelf.models.lock().unwrap().insert("a".to_owned(), 10);
    }
}

#[tokio::test]
async fn files_stay_as_they_are_unless_a_flag_allows_more() {
    let many = Many::new(&[("a", 10)], ModelsConfig { allow_updates: false, ..settings(20) });
    let body = json!({ "model": "a" });
    for (method, path) in [
        (Method::POST, "/api/pull"),
        (Method::DELETE, "/api/delete"),
        (Method::DELETE, "/v1/models/a"),
    ] {
        let (status, _, text) = many.send(method, path, &body).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{path}: {text}");
    }
    assert_eq!(many.get("/v1/models").await["data"][0]["can_update"], false);
    assert_eq!(many.states().await.len(), 1);
}
