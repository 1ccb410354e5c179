//! Bodies that would cost more than they are worth, and neighbours that must not notice.

use crate::support::{App, Reply, chat, config, post};
use axum::http::StatusCode;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use taper_openai_server::ServerConfig;

/// A server that takes bodies of 64 MiB.
fn app() -> App {
    App::with(ServerConfig { max_body_bytes: 64 << 20, ..config() }, Reply::Text("x".into()))
}

async fn refused(app: &App, path: &str, body: &str, code: &str) {
    let (status, answer) = app.post_text(path, body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    assert_eq!(answer["error"]["code"], code, "{answer}");
    assert!(answer.to_string().len() < 4000, "an error does not repeat megabytes");
}

#[tokio::test]
async fn stop_strings_are_bounded_in_bytes() {
    let app = app();
    let long = json!({ "prompt": "Hi", "n": 32, "stop": ["a".repeat(8 << 20)] });
    refused(&app, "/v1/completions", &long.to_string(), "invalid_value").await;
    let many = json!({ "prompt": "Hi", "stop": vec!["a".repeat(300); 16] });
    refused(&app, "/v1/completions", &many.to_string(), "invalid_value").await;
    let some = json!({ "prompt": "Hi", "n": 2, "stop": ["a".repeat(4000)] });
    assert_eq!(app.post("/v1/completions", &some).await.0, StatusCode::OK);
}

#[tokio::test]
async fn stop_tokens_are_a_set() {
    let app = app();
    let ids =
        |n: usize| format!("{{\"prompt\": \"Hi\", \"stop_token_ids\": [{}7]}}", "7,".repeat(n));
    refused(&app, "/v1/completions", &ids(10_000_000), "too_many_values").await;
    let (status, _) = app.post_text("/v1/completions", &ids(1_000_000)).await;
    assert_eq!((status, app.engine.last().stop.token_ids.len()), (StatusCode::OK, 1));
}

#[tokio::test]
async fn bodies_of_many_values_are_refused_before_they_are_built() {
    let app = app();
    let many = |head: &str, one: &str, tail: &str| {
        format!("{head}{}{tail}", vec![one; 1_000_000].join(","))
    };
    let user = r#"{"role":"user","content":""}"#;
    for (path, body) in [
        ("/tokenize", many("{\"messages\":[", "{}", "]}")),
        ("/v1/chat/completions", many("{\"messages\":[", user, "]}")),
        ("/v1/chat/completions", many("{\"messages\":[],\"x\":[", "[]", "]}")),
        ("/v1/chat/completions", many("{\"chat_template_kwargs\":{\"a\":[", "1", "]}}")),
        ("/v1/chat/completions", many("{", "\"\":0", "}")),
        ("/detokenize", format!("{{\"tokens\":[{}1]}}", "1,".repeat(5_000_000))),
    ] {
        let start = Instant::now();
        refused(&app, path, &body, "too_many_values").await;
        assert!(start.elapsed() < Duration::from_secs(5));
    }
    refused(
        &app,
        "/detokenize",
        &json!({ "tokens": vec![1; 1_100_000] }).to_string(),
        "invalid_value",
    )
    .await;
}

#[tokio::test]
async fn texts_that_cannot_fit_are_not_tokenized() {
    let app = app();
    // No token is longer than the 12 bytes of `</tool_call>`, and 4096 fit.
    let text = "word ".repeat(10_000);
    let parts = json!([{ "type": "text", "text": text }]);
    for (path, body) in [
        ("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": text }] })),
        ("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": parts }] })),
        ("/v1/completions", json!({ "prompt": text })),
        ("/tokenize", json!({ "prompt": text })),
        ("/tokenize", json!({ "messages": [{ "role": "user", "content": text }] })),
    ] {
        refused(&app, path, &body.to_string(), "context_length_exceeded").await;
    }
    let short = json!({ "prompt": "word ".repeat(9_000) });
    assert_eq!(app.post("/tokenize", &short).await.0, StatusCode::OK);
}

#[tokio::test]
async fn errors_do_not_repeat_what_was_sent() {
    let app = app();
    let long = "x".repeat(1 << 20);
    for body in [
        chat(json!({ "messages": [{ "role": long, "content": "" }] })),
        chat(json!({ "temperature": long })),
        chat(json!({ long.clone(): 1 })),
        chat(json!({ "tool_choice": long })),
    ] {
        let (status, _, text) = app.send(post("/v1/chat/completions", &body.to_string())).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(text.len() < 4000, "{}", text.len());
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert!(answer["error"]["message"].is_string());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn health_answers_while_large_bodies_are_read() {
    let app = app();
    let tokens = json!({ "tokens": vec![65; 1_000_000] }).to_string();
    let work: Vec<_> = (0..4)
        .map(|_| {
            let (router, request) = (app.router.clone(), post("/detokenize", &tokens));
            tokio::spawn(tower::ServiceExt::oneshot(router, request))
        })
        .collect();
    let mut slowest = Duration::ZERO;
    while work.iter().any(|w| !w.is_finished()) {
        let start = Instant::now();
        let router = app.router.clone();
        let request = axum::http::Request::get("/health").body(axum::body::Body::empty()).unwrap();
        // On the one async thread, as everything else is.
        let health = tokio::spawn(tower::ServiceExt::oneshot(router, request));
        assert_eq!(health.await.unwrap().unwrap().status(), StatusCode::OK);
        slowest = slowest.max(start.elapsed());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    for done in work {
        assert_eq!(done.await.unwrap().unwrap().status(), StatusCode::OK);
    }
    // 50 ms, and what a machine that runs other tests may add.
    assert!(slowest < Duration::from_millis(500), "{slowest:?}");
}
