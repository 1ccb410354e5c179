//! One line for each request, and its id.

use crate::support::{App, Reply, chat, post};
use axum::http::StatusCode;
use serde_json::json;
use std::{
    io,
    sync::{Arc, Mutex},
};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

fn logging(lines: &Lines) -> tracing::subscriber::DefaultGuard {
    let subscriber = tracing_subscriber::fmt()
        .with_writer(lines.clone())
        .with_ansi(false)
        .with_max_level(tracing::Level::INFO);
    tracing::subscriber::set_default(subscriber.finish())
}

#[tokio::test]
async fn each_request_has_a_line_and_an_id() {
    let lines = Lines::default();
    let _guard = logging(&lines);
    let app = App::text("Hello");
    let secret = "attack at dawn";
    let body = chat(json!({ "messages": [{ "role": "user", "content": secret }] }));
    let (_, headers, _) = app.send(post("/v1/chat/completions", &body.to_string())).await;
    let id = headers["x-request-id"].to_str().unwrap();
    let prompt = app.engine.last().prompt.len();
    let line = lines.take();
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.contains("POST /v1/chat/completions 200 in "), "{line}");
    assert!(line.contains(&format!("{prompt} prompt tokens, 6 output tokens, {id}")), "{line}");
    assert!(!line.contains(secret) && !line.contains("went away"), "{line}");

    // Streams are logged when they end.
    let mut body = body;
    body["stream"] = json!(true);
    app.stream("/v1/chat/completions", &body).await;
    let line = lines.take();
    assert!(line.contains("6 output tokens") && !line.contains("went away"), "{line}");

    // Refusals too, and what a client calls its request.
    for (given, kept) in [("mine-1", true), ("two words", false), ("", false)] {
        let mut request = post("/v1/chat/completions", &json!({ "messages": secret }).to_string());
        request.headers_mut().insert("x-request-id", given.parse().unwrap());
        let (status, headers, _) = app.send(request).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert_eq!(headers["x-request-id"] == given, kept);
        let line = lines.take();
        assert!(line.contains(" 400 in ") && !line.contains(secret), "{line}");
        assert_eq!(line.contains("mine-1"), kept, "{line}");
    }
    app.get("/health").await;
    assert_eq!(lines.take(), "", "health checks are not worth a line");
    app.get("/v1/models").await;
    assert!(lines.take().contains("GET /v1/models 200"));
}

#[tokio::test]
async fn a_client_that_goes_away_is_logged_so() {
    let lines = Lines::default();
    let _guard = logging(&lines);
    let app = App::new(Reply::Hold("abc".into()));
    for (fields, status) in [(json!({}), "499"), (json!({ "stream": true }), "200")] {
        let request = post("/v1/chat/completions", &chat(fields).to_string());
        let answer = tower::ServiceExt::oneshot(app.router.clone(), request);
        let waiting = tokio::time::timeout(std::time::Duration::from_millis(300), answer).await;
        drop(waiting);
        let line = lines.take();
        assert!(line.contains(&format!(" {status} in ")), "{line}");
        assert!(line.contains("the client went away"), "{line}");
    }
}
