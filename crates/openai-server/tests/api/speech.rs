//! Speech to text, over a scripted model.

use crate::support::{App, config, tokenizer};
use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};
use taper_base::{
    TranscribeError, TranscribeOptions, Transcriber, Transcript, TranscriptListener,
    TranscriptSegment,
};
use taper_openai_server::{AppState, Model, ServerConfig, router};
use tower::ServiceExt;

/// Writes what is in the file, word by word; one called `wait` takes until it is let go or nobody waits.
#[derive(Debug, Default)]
struct Scripted {
    seen: Mutex<Vec<TranscribeOptions>>,
    open: Mutex<bool>,
    opened: Condvar,
    cancelled: Mutex<usize>,
}

impl Scripted {
    fn let_go(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

impl Transcriber for Scripted {
    fn max_tokens(&self) -> usize {
        448
    }

    fn vocab_size(&self) -> u32 {
        262
    }

    fn check(&self, options: &TranscribeOptions) -> Result<(), TranscribeError> {
        match options.language.as_deref() {
            Some("klingon") => Err(TranscribeError::Language("klingon".to_owned())),
            _ if options.prompt.as_deref() == Some("<|x|>") => Err(TranscribeError::Prompt),
            _ => Ok(()),
        }
    }

    fn transcribe(
        &self,
        file: &[u8],
        options: &TranscribeOptions,
        listener: &mut dyn TranscriptListener,
    ) -> Result<Transcript, TranscribeError> {
        self.seen.lock().unwrap().push(options.clone());
        let text = String::from_utf8_lossy(file).into_owned();
        match text.as_str() {
            "noise" => return Err(TranscribeError::Sound("it is none of WAV".to_owned())),
            "panic" => panic!("a bug of a model"),
            "fail" => {
                let error = std::io::Error::other("secret path");
                return Err(TranscribeError::Failed(Arc::new(error)));
            }
            _ => {}
        }
        let mut segments = Vec::new();
        for (i, word) in text.split_whitespace().enumerate() {
            let segment = TranscriptSegment {
                seek: 0,
                start: i as f64,
                end: i as f64 + 0.5,
                text: format!(" {word}"),
                tokens: vec![i as u32],
                temperature: 0.0,
                avg_logprob: -0.5,
                compression_ratio: 1.0,
                no_speech_prob: 0.25,
            };
            listener.window(false);
            listener.segment(&segment);
            segments.push(segment);
            let mut open = self.open.lock().unwrap();
            while word == "wait" && !*open {
                if listener.is_gone() {
                    *self.cancelled.lock().unwrap() += 1;
                    return Err(TranscribeError::Cancelled);
                }
                open = self.opened.wait_timeout(open, Duration::from_millis(5)).unwrap().0;
            }
        }
        Ok(Transcript {
            language: "de".to_owned(),
            language_name: "german".to_owned(),
            duration: 8.25,
            text,
            segments,
        })
    }
}

struct Speech {
    router: Router,
    model: Arc<Scripted>,
}

impl Speech {
    fn with(config: ServerConfig) -> Self {
        let model = Arc::new(Scripted::default());
        let transcriber = Arc::clone(&model) as Arc<dyn Transcriber>;
        let state = AppState::from(Model::of_transcriber(transcriber, tokenizer(), config));
        Self { router: router(state), model }
    }

    fn new() -> Self {
        Self::with(config())
    }

    async fn send(&self, request: Request<Body>) -> (StatusCode, String, String) {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let kind = parts.headers.get("content-type").map(|v| v.to_str().unwrap().to_owned());
        let body = body.collect().await.unwrap().to_bytes();
        (parts.status, kind.unwrap_or_default(), String::from_utf8(body.to_vec()).unwrap())
    }

    async fn ask(&self, path: &str, fields: &[(&str, &str)]) -> (StatusCode, String, String) {
        self.send(form(path, fields)).await
    }

    /// Asks for a refusal.
    async fn refusal(&self, path: &str, fields: &[(&str, &str)]) -> (StatusCode, Value) {
        let (status, _, body) = self.ask(path, fields).await;
        let body: Value = serde_json::from_str(&body).unwrap();
        (status, body["error"].clone())
    }
}

const SAY: &str = "/v1/audio/transcriptions";
const TRANSLATE: &str = "/v1/audio/translations";

fn form(path: &str, fields: &[(&str, &str)]) -> Request<Body> {
    let mut body = String::new();
    for (name, value) in fields {
        let file = if *name == "file" { "; filename=\"a.wav\"" } else { "" };
        body += &format!(
            "--edge\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n{value}\r\n"
        );
    }
    body += "--edge--\r\n";
    Request::post(path)
        .header("content-type", "multipart/form-data; boundary=edge")
        .body(Body::from(body))
        .unwrap()
}

#[tokio::test]
async fn every_format_has_its_shape() {
    let app = Speech::new();
    let ask = async |format: &str| {
        app.ask(SAY, &[("file", "Guten Tag"), ("model", "mock"), ("response_format", format)]).await
    };
    let (status, kind, body) = app.ask(SAY, &[("file", "Guten Tag")]).await;
    assert_eq!((status, kind.as_str()), (StatusCode::OK, "application/json"));
    let usage = json!({ "type": "duration", "seconds": 9 });
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body, json!({ "text": "Guten Tag", "usage": usage }));
    let (_, kind, body) = ask("text").await;
    assert_eq!((kind.as_str(), body.as_str()), ("text/plain; charset=utf-8", "Guten Tag\n"));
    let (_, _, body) = ask("srt").await;
    assert!(body.starts_with("1\n00:00:00,000 --> 00:00:00,500\nGuten\n\n2\n"), "{body}");
    let (_, _, body) = ask("vtt").await;
    assert!(body.starts_with("WEBVTT\n\n00:00.000 --> 00:00.500\nGuten\n\n"), "{body}");
    let (_, _, body) = ask("verbose_json").await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&body["task"], &body["language"]), (&json!("transcribe"), &json!("german")));
    assert_eq!((&body["duration"], &body["usage"]), (&json!(8.25), &usage));
    assert_eq!(
        body["segments"][1],
        json!({ "id": 1, "seek": 0, "start": 1.0, "end": 1.5, "text": " Tag", "tokens": [1], "temperature": 0.0,
                "avg_logprob": -0.5, "compression_ratio": 1.0, "no_speech_prob": 0.25 })
    );
    let (_, _, body) =
        app.ask(TRANSLATE, &[("file", "Tag"), ("response_format", "verbose_json")]).await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&body["task"], &body["language"]), (&json!("translate"), &json!("english")));
}

#[tokio::test]
async fn fields_reach_the_model() {
    let app = Speech::new();
    let fields = [
        ("language", "de"),
        ("prompt", "Also,"),
        ("temperature", "0.5"),
        ("response_format", "verbose_json"),
        ("timestamp_granularities[]", "segment"),
        ("stream", "false"),
        ("file", "Tag"),
    ];
    assert_eq!(app.ask(SAY, &fields).await.0, StatusCode::OK);
    let expected = TranscribeOptions {
        language: Some("de".to_owned()),
        prompt: Some("Also,".to_owned()),
        translate: false,
        temperature: Some(0.5),
    };
    assert_eq!(app.model.seen.lock().unwrap()[0], expected);
    app.ask(TRANSLATE, &[("temperature", "0"), ("prompt", ""), ("file", "x")]).await;
    let expected = TranscribeOptions { translate: true, ..TranscribeOptions::default() };
    assert_eq!(app.model.seen.lock().unwrap()[1], expected);
}

#[tokio::test]
async fn what_is_not_honoured_is_refused() {
    let app = Speech::new();
    for (path, name, value, code) in [
        (SAY, "response_format", "diarized_json", "invalid_value"),
        (SAY, "temperature", "1.5", "invalid_value"),
        (SAY, "temperature", "NaN", "invalid_value"),
        (SAY, "temperature", "warm", "invalid_value"),
        (SAY, "stream", "maybe", "invalid_value"),
        (SAY, "language", "klingon", "invalid_value"),
        (SAY, "prompt", "<|x|>", "invalid_value"),
        (SAY, "timestamp_granularities[]", "segment", "invalid_value"),
        (SAY, "timestamp_granularities[]", "word", "unsupported_value"),
        (SAY, "include[]", "logprobs", "unsupported_parameter"),
        (SAY, "chunking_strategy", "auto", "unsupported_parameter"),
        (SAY, "frobnicate", "1", "unknown_parameter"),
        (TRANSLATE, "language", "de", "unknown_parameter"),
        (TRANSLATE, "stream", "true", "unknown_parameter"),
    ] {
        let (status, error) = app.refusal(path, &[("file", "Tag"), (name, value)]).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{name}");
        assert_eq!((&error["code"], &error["param"]), (&json!(code), &json!(name)), "{error}");
    }
    let (_, error) = app.refusal(SAY, &[("prompt", "x")]).await;
    assert_eq!(
        (&error["code"], &error["param"]),
        (&json!("missing_required_parameter"), &json!("file"))
    );
    let (_, error) = app.refusal(SAY, &[("file", "a"), ("file", "b")]).await;
    assert_eq!(error["param"], "file");
    let streams = [("file", "a"), ("stream", "true"), ("response_format", "srt")];
    assert_eq!(app.refusal(SAY, &streams).await.1["param"], "response_format");
    let (status, error) = app.refusal(SAY, &[("file", "a"), ("model", "other")]).await;
    assert_eq!((status, &error["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")));
    assert_eq!(app.model.seen.lock().unwrap().len(), 0);
    let lenient = Speech::with(ServerConfig { allow_unknown_fields: true, ..config() });
    assert_eq!(lenient.ask(SAY, &[("file", "a"), ("frobnicate", "1")]).await.0, StatusCode::OK);
}

#[tokio::test]
async fn bodies_that_are_no_forms_are_refused() {
    let app = Speech::new();
    let post = |kind: &str, body: &'static str| {
        Request::post(SAY).header("content-type", kind).body(Body::from(body)).unwrap()
    };
    let status = async |request| app.send(request).await.0;
    assert_eq!(status(post("application/json", "{}")).await, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(status(post("multipart/form-data", "")).await, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let edge = "multipart/form-data; boundary=edge";
    for body in
        ["", "--edge", "hello", "--edge\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nx"]
    {
        assert_eq!(status(post(edge, body)).await, StatusCode::BAD_REQUEST, "{body}");
    }
    let many: Vec<_> = (0..70).map(|_| ("timestamp_granularities[]", "segment")).collect();
    assert_eq!(app.refusal(SAY, &many).await.1["code"], "too_many_values");
    let small = Speech::with(ServerConfig { max_audio_bytes: 100, ..config() });
    let long = "x".repeat(101);
    let (status, error) = small.refusal(SAY, &[("file", &long)]).await;
    assert_eq!((status, &error["code"]), (StatusCode::PAYLOAD_TOO_LARGE, &json!("body_too_large")));
    let longer = "x".repeat(200_000);
    assert_eq!(small.refusal(SAY, &[("file", &longer)]).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    let prompt = "x".repeat(65_000 + 1000);
    assert_eq!(app.refusal(SAY, &[("prompt", &prompt)]).await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn segments_stream_as_events() {
    let app = Speech::new();
    let (status, kind, body) = app.ask(SAY, &[("file", "Guten Tag"), ("stream", "true")]).await;
    assert_eq!((status, kind.as_str()), (StatusCode::OK, "text/event-stream"));
    let events: Vec<Value> = body
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    assert_eq!(
        json!(events),
        json!([
            { "type": "transcript.text.delta", "delta": "Guten" },
            { "type": "transcript.text.delta", "delta": " Tag" },
            { "type": "transcript.text.done", "text": "Guten Tag",
              "usage": { "type": "duration", "seconds": 9 } },
        ])
    );
    let (_, _, body) = app.ask(SAY, &[("file", "fail"), ("stream", "true")]).await;
    assert!(body.contains("\"code\":\"transcript_failed\"") && !body.contains("secret"), "{body}");
}

#[tokio::test]
async fn failures_are_told_and_the_worker_lives_on() {
    let app = Speech::new();
    let (status, error) = app.refusal(SAY, &[("file", "noise")]).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!((&error["code"], &error["param"]), (&json!("invalid_audio"), &json!("file")));
    for (file, code) in [("fail", "transcript_failed"), ("panic", "internal_error")] {
        let (status, error) = app.refusal(SAY, &[("file", file)]).await;
        assert_eq!((status, &error["code"]), (StatusCode::INTERNAL_SERVER_ERROR, &json!(code)));
        assert!(!error.to_string().contains("secret"));
    }
    assert_eq!(app.ask(SAY, &[("file", "Tag")]).await.0, StatusCode::OK);
    let page = app.send(Request::get("/metrics").body(Body::empty()).unwrap()).await.2;
    for line in [
        "transcripts_total{model_name=\"mock\"} 1",
        "transcripts_failed_total{model_name=\"mock\"} 3",
        "audio_seconds_total{model_name=\"mock\"} 8.25",
        "transcripts_waiting{model_name=\"mock\"} 0",
    ] {
        assert!(page.contains(&format!("taper:{line}\n")), "{line} in {page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_is_bounded_and_clients_that_leave_make_room() {
    let app = Speech::with(ServerConfig { max_waiting_audio: 1, ..config() });
    let start = |file: &'static str| {
        tokio::spawn(app.router.clone().oneshot(form(SAY, &[("file", file), ("stream", "true")])))
    };
    // One is at work, one waits.
    let first = start("wait").await.unwrap().unwrap();
    while app.model.seen.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let second = start("Tag").await.unwrap().unwrap();
    let (status, error) = app.refusal(SAY, &[("file", "too late")]).await;
    assert_eq!((status, &error["code"]), (StatusCode::TOO_MANY_REQUESTS, &json!("queue_full")));
    // The one at work goes; the one that waits is served.
    drop(first);
    let body = second.into_body().collect().await.unwrap().to_bytes();
    assert!(String::from_utf8_lossy(&body).contains("transcript.text.done"));
    assert_eq!(*app.model.cancelled.lock().unwrap(), 1);
    app.model.let_go();
    assert_eq!(app.ask(SAY, &[("file", "wait")]).await.0, StatusCode::OK);
}

#[tokio::test]
async fn models_do_what_they_are_for() {
    let app = Speech::new();
    let post = |path: &str, body: Value| {
        let request = Request::post(path).header("content-type", "application/json");
        request.body(Body::from(body.to_string())).unwrap()
    };
    let messages = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
    for (path, body, code) in [
        ("/v1/chat/completions", messages, "no_chat_template"),
        ("/v1/completions", json!({ "prompt": "Hi" }), "no_generation"),
        ("/v1/embeddings", json!({ "input": "Hi" }), "no_vectors"),
    ] {
        let (status, _, body) = app.send(post(path, body)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
        assert!(body.contains(code), "{path}: {body}");
    }
    let models = app.send(Request::get("/v1/models").body(Body::empty()).unwrap()).await.2;
    assert!(models.contains("\"input_modalities\":[\"audio\"]"), "{models}");
    let text = App::text("x");
    let (status, _, body) = text.send(form(SAY, &[("file", "Tag")])).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(body.contains("no_transcripts"), "{body}");
}
