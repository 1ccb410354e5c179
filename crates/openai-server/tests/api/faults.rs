//! What fails ends its own request, and what hangs is said.

use crate::{
    serving::start,
    support::{App, Reply, chat, config, post},
};
use axum::http::StatusCode;
use serde_json::{Value, json};
use std::time::Duration;
use taper_base::{GenerationError, SubmitError};
use taper_openai_server::ServerConfig;
use tokio::time::sleep;

#[tokio::test]
async fn a_handler_that_panics_ends_its_own_request() {
    let app = App::with(config(), Reply::Panic);
    for path in ["/v1/chat/completions", "/v1/messages"] {
        let body = chat(json!({ "max_tokens": 4 }));
        let (status, answer) = app.post(path, &body).await;
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR, "{path}: {answer}");
        assert!(answer.to_string().contains("internal error"), "{answer}");
    }
    app.engine.say(Reply::Text("x".into()));
    app.chat(json!({})).await;
}

#[tokio::test]
async fn an_engine_that_was_restarted_says_so() {
    let app = App::with(config(), Reply::Fail(String::new(), GenerationError::Restarted));
    let (status, answer) = app.post("/v1/chat/completions", &chat(json!({}))).await;
    let code = &answer["error"]["code"];
    assert_eq!((status.as_u16(), code), (500, &json!("engine_restarted")));
    let (_, health) = app.get("/health").await;
    let health: Value = serde_json::from_str(&health).unwrap();
    assert_eq!((&health["status"], &health["engine_restarts"]), (&json!("ok"), &json!(1)));
}

#[tokio::test]
async fn a_step_that_hangs_is_said_and_counted_until_it_ends() {
    let config = ServerConfig { step_timeout: Some(Duration::from_millis(40)), ..config() };
    let server = start(config, Reply::Text("x".into()), Duration::from_secs(1)).await;
    let app = &server.app;
    let statuses = async || {
        let mut all = Vec::new();
        for path in ["/health", "/livez", "/readyz", "/ready"] {
            all.push(app.get(path).await.0.as_u16());
        }
        all
    };
    assert_eq!(statuses().await, [200; 4]);
    *app.engine.step.lock().unwrap() = Duration::from_secs(9);
    assert_eq!(statuses().await, [503; 4]);
    assert!(app.get("/health").await.1.contains("a model step hangs"));
    let hung = async || {
        let page = app.get("/metrics").await.1;
        let line = page.lines().find(|line| line.starts_with("taper:engine_hung_steps_total{"));
        line.unwrap().ends_with(" 1")
    };
    while !hung().await {
        sleep(Duration::from_millis(5)).await;
    }
    *app.engine.step.lock().unwrap() = Duration::ZERO;
    assert_eq!(statuses().await, [200; 4]);
    assert!(hung().await, "one step counts once");
}

#[tokio::test]
async fn a_generation_has_a_time_limit() {
    let config = ServerConfig { request_timeout: Some(Duration::from_millis(50)), ..config() };
    let app = App::with(config, Reply::Hold("some".into()));
    let (status, answer) = app.post("/v1/chat/completions", &chat(json!({}))).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (408, &json!("request_timeout")));
    assert_eq!(app.engine.held_open(), 0, "the engine hears of it");
    let lines = app.stream("/v1/chat/completions", &chat(json!({ "stream": true }))).await;
    assert!(lines.last().unwrap().contains("request_timeout"), "{lines:?}");
    app.engine.say(Reply::Text("x".into()));
    app.chat(json!({})).await;
}

#[tokio::test]
async fn who_finds_the_queue_full_is_told_when_to_come_again() {
    let app = App::with(config(), Reply::Text("x".into()));
    let body = chat(json!({})).to_string();
    let full = Reply::Refuse(SubmitError::QueueFull { limit: 9 });
    let wait = async || {
        app.engine.say(full.clone());
        let (status, headers, _) = app.send(post("/v1/chat/completions", &body)).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(wait().await, 60, "nothing has ended yet");
    for _ in 0..30 {
        app.engine.say(Reply::Text("x".into()));
        app.chat(json!({})).await;
    }
    assert_eq!(wait().await, 1);
}
