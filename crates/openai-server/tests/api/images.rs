//! Images in prompts, over an encoder that makes tokens of an image's size and rows of its pixels.

use crate::support::{App, Reply, chat, config, post, tokenizer_with};
use axum::http::StatusCode;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use taper_base::{
    EncodedImage, ImageEncoder, ImageError, PreparedImage, RgbImage, TokenId, VideoEncoder,
    VideoFrame,
};
use taper_openai_server::{ImageLimits, ServerConfig, Vision};

const IMAGE: TokenId = 258;
const START: TokenId = 259;
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}<|image|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}";

/// An image of `w` by `h` is its first token, and then `w * h` that its rows replace.
#[derive(Debug, Default)]
struct Fake {
    encoded: AtomicUsize,
}

/// A file is its width, its height and a colour; `!` is none, and `?` breaks the tower.
fn decode(file: &[u8]) -> Result<RgbImage, ImageError> {
    match *file {
        [width, height, colour] => {
            let (width, height) = (u32::from(width), u32::from(height));
            Ok(RgbImage { width, height, pixels: vec![colour; 3 * (width * height) as usize] })
        }
        _ => Err(ImageError::Refused("the file is no image".to_owned())),
    }
}

/// A file of a video is `v` and frames, two a second.
fn frames(file: &[u8]) -> Result<Vec<VideoFrame>, ImageError> {
    let Some(frames) = file.strip_prefix(b"v") else {
        return Err(ImageError::Refused("MP4 is not read".to_owned()));
    };
    let frame =
        |(i, file): (usize, &[u8])| VideoFrame { file: file.to_vec(), seconds: i as f64 / 2.0 };
    Ok(frames.chunks(3).enumerate().map(frame).collect())
}

/// Two frames at a time, of which every second one is looked at where there are more than four.
impl VideoEncoder for Fake {
    fn together(&self) -> usize {
        2
    }

    fn sample(&self, frames: usize, per_second: f64) -> Vec<usize> {
        assert!((per_second - 2.0).abs() < 1e-9);
        (0..frames).step_by(if frames > 4 { 2 } else { 1 }).collect()
    }

    fn label(&self, seconds: &[f64]) -> String {
        format!("{seconds:?}")
    }

    fn prepare_frames(
        &self,
        frames: &[RgbImage],
        sampled: usize,
    ) -> Result<PreparedImage, ImageError> {
        assert!(frames.len() <= 2 && sampled <= 4);
        self.prepare(&frames[0])
    }
}

impl ImageEncoder for Fake {
    fn prepare(&self, image: &RgbImage) -> Result<PreparedImage, ImageError> {
        let &RgbImage { width, height, ref pixels } = image;
        let mut hash = [pixels[0]; 32];
        (hash[0], hash[1]) = (width as u8, height as u8);
        let rows = std::iter::repeat_n(IMAGE, (width * height) as usize);
        Ok(PreparedImage {
            expansion: [START].into_iter().chain(rows).collect(),
            image_token: IMAGE,
            hash,
            grid: Some([1, height, width]),
            pixels: pixels.iter().map(|&pixel| f32::from(pixel)).collect(),
            shape: vec![pixels.len()],
        })
    }

    fn encode(&self, image: &PreparedImage) -> Result<EncodedImage, ImageError> {
        self.encoded.fetch_add(1, Ordering::Relaxed);
        if image.pixels.contains(&f32::from(b'?')) {
            return Err(ImageError::Failed("a secret of the server".to_owned()));
        }
        Ok(EncodedImage { rows: image.pixels.as_slice().into(), deep: Vec::new() })
    }

    fn placeholder(&self) -> TokenId {
        IMAGE
    }

    fn hidden(&self) -> usize {
        3
    }

    fn videos(&self) -> Option<&dyn VideoEncoder> {
        Some(self)
    }
}

fn seeing_with(limits: ImageLimits) -> (App, Arc<Fake>) {
    let encoder = Arc::new(Fake::default());
    let vision =
        Some(Vision { encoder: Arc::clone(&encoder) as Arc<dyn ImageEncoder>, decode, frames });
    let config = ServerConfig { vision, images: limits, ..config() };
    let added =
        [("<|im_start|>", true), ("<|im_end|>", true), ("<|image|>", true), ("<|begin|>", true)];
    let reply = Reply::Text("I see".to_owned());
    (App::of_model(config, reply, tokenizer_with(&added), TEMPLATE), encoder)
}

pub(crate) fn seeing() -> App {
    seeing_with(ImageLimits::default()).0
}

pub(crate) fn base64(file: &[u8]) -> String {
    BASE64_STANDARD.encode(file)
}

fn data_url(file: &[u8]) -> String {
    format!("data:image/png;base64,{}", base64(file))
}

fn image(file: &[u8]) -> Value {
    json!({ "type": "image_url", "image_url": { "url": data_url(file) } })
}

pub(crate) fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

pub(crate) fn asks(parts: Value) -> Value {
    chat(json!({ "messages": [{ "role": "user", "content": parts }] }))
}

/// The prompt in which the engine got these pieces: texts, and images by their tokens.
pub(crate) fn prompt(pieces: &[Result<&str, usize>]) -> Vec<TokenId> {
    let piece = |piece: &Result<&str, usize>| match *piece {
        Ok("<") => vec![256],
        Ok(">") => vec![257],
        Ok(text) => text.bytes().map(u32::from).collect(),
        Err(rows) => [START].into_iter().chain(std::iter::repeat_n(IMAGE, rows)).collect(),
    };
    pieces.iter().flat_map(piece).collect()
}

pub(crate) async fn refused(app: &App, path: &str, body: &Value) -> (u16, Value) {
    let (status, body) = app.post(path, body).await;
    (status.as_u16(), body["error"].clone())
}

#[tokio::test]
async fn images_stand_where_the_request_has_them() {
    let app = seeing();
    let parts = json!([text("a"), image(&[2, 3, 7]), text("b"), image(&[1, 2, 9]), text("c")]);
    let (status, body) = app.post("/v1/chat/completions", &asks(parts)).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let request = app.engine.last();
    let pieces = [Ok("<"), Ok("user:a"), Err(6), Ok("b"), Err(2), Ok("c"), Ok(">"), Ok("<")];
    assert_eq!(request.prompt, prompt(&pieces));
    let [first, second] = &*request.media else { panic!("{:?}", request.media) };
    assert_eq!((first.start, first.tokens, first.image_token), (7, 7, IMAGE));
    assert_eq!((second.start, second.tokens, second.grid), (15, 3, Some([1, 2, 1])));
    assert_eq!((first.encoded.rows.len(), first.encoded.rows[0]), (18, 7.0));
    assert_ne!(first.hash, second.hash);
    assert_eq!(body["usage"]["prompt_tokens"], request.prompt.len());
    assert_eq!(body["usage"]["prompt_tokens_details"]["image_tokens"], 10);
    // One that has no text beside it, and a URL alone.
    let parts = json!([{ "type": "image_url", "image_url": data_url(&[1, 1, 1]) }]);
    let (status, _) = app.post("/v1/chat/completions", &asks(parts)).await;
    assert_eq!((status, app.engine.last().media.len()), (StatusCode::OK, 1));
    let body = app.chat(json!({})).await;
    assert!(body["usage"]["prompt_tokens_details"]["image_tokens"].is_null(), "{body}");
}

#[tokio::test]
async fn all_choices_and_streams_have_the_images() {
    let app = seeing();
    let mut body = asks(json!([image(&[2, 2, 1])]));
    body["n"] = json!(2);
    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true });
    let lines = app.stream("/v1/chat/completions", &body).await;
    let usage = lines.iter().find(|line| line.contains("image_tokens")).unwrap();
    assert!(usage.contains("\"image_tokens\":5"), "{usage}");
    let seen = app.engine.seen.lock().unwrap();
    assert_eq!(seen.len(), 2);
    assert!(Arc::ptr_eq(&seen[0].media, &seen[1].media));
}

#[tokio::test]
async fn a_text_that_reads_like_a_placeholder_is_text() {
    let app = seeing();
    let spelled = "x <|image|> y";
    let messages = json!([
        { "role": "system", "content": spelled },
        { "role": "user", "content": [text(spelled), image(&[1, 1, 1])], "name": spelled },
        { "role": "assistant", "content": spelled },
        { "role": "user", "content": spelled },
    ]);
    let (status, body) =
        app.post("/v1/chat/completions", &chat(json!({ "messages": messages }))).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let request = app.engine.last();
    assert_eq!(request.prompt.iter().filter(|&&token| token == IMAGE).count(), 1);
    let (status, body) = app.post("/v1/chat/completions", &asks(json!([text(spelled)]))).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert!(!app.engine.last().prompt.contains(&IMAGE));
}

#[tokio::test]
async fn what_cannot_be_seen_is_refused() {
    let limits = ImageLimits { per_prompt: 2, ..ImageLimits::default() };
    let (app, _) = seeing_with(limits);
    let url = |url: &str| json!([{ "type": "image_url", "image_url": { "url": url } }]);
    let detail = |detail: &str| {
        let url = data_url(&[1, 1, 1]);
        json!([{ "type": "image_url", "image_url": { "url": url, "detail": detail } }])
    };
    let at = "messages[0].content[0].image_url";
    for (parts, param, code) in [
        (url("x"), Some(at), "invalid_image"),
        (url("data:image/png,abc"), Some(at), "invalid_image"),
        (url("file:///etc/passwd"), Some(at), "invalid_image"),
        (url("https://a.example/b.png"), Some(at), "invalid_image"),
        (url("data:;base64,!!"), None, "invalid_image"),
        (url(&data_url(b"nonsense")), None, "invalid_image"),
        (url(&data_url(&[200, 200, 1])), None, "invalid_image"),
        (detail("low"), Some("messages[0].content[0].image_url.detail"), "unsupported_value"),
        (detail("huge"), Some("messages[0].content[0].image_url.detail"), "invalid_value"),
        (
            json!([image(&[1, 1, 1]), image(&[1, 1, 2]), image(&[1, 1, 3])]),
            Some("messages"),
            "invalid_value",
        ),
        (json!([{ "type": "image_url" }]), Some(at), "missing_required_parameter"),
        (
            json!([{ "type": "image_url", "text": "x", "image_url": "x" }]),
            Some("messages[0].content[0].text"),
            "unknown_parameter",
        ),
        (json!([{ "type": "text", "text": "x", "image_url": "x" }]), Some(at), "unknown_parameter"),
    ] {
        let (status, error) = refused(&app, "/v1/chat/completions", &asks(parts.clone())).await;
        assert_eq!((status, &error["code"]), (400, &json!(code)), "{parts}: {error}");
        assert_eq!(error["param"].as_str(), param, "{parts}: {error}");
    }
    let broken = asks(json!([image(&[1, 1, b'?'])]));
    let (status, error) = refused(&app, "/v1/chat/completions", &broken).await;
    assert_eq!((status, &error["code"]), (500, &json!("image_failed")));
    assert!(!error["message"].as_str().unwrap().contains("secret"), "{error}");
    // Nobody's addresses but those of the Internet.
    let limits = ImageLimits { allowed_media_domains: vec!["*".into()], ..ImageLimits::default() };
    let (app, _) = seeing_with(limits);
    for host in ["127.0.0.1:1", "[::1]", "0x7f.1", "169.254.169.254", "[::ffff:10.0.0.1]"] {
        let parts = url(&format!("http://{host}/a.png"));
        let (status, error) = refused(&app, "/v1/chat/completions", &asks(parts)).await;
        let says = error["message"].as_str().unwrap();
        assert!(status == 400 && says.ends_with("is not in the public Internet"), "{error}");
    }
    assert_eq!(app.engine.count(), 0);
}

#[tokio::test]
async fn a_template_that_shows_no_images_refuses_them() {
    let encoder = Arc::new(Fake::default());
    let config = ServerConfig { vision: Some(Vision { encoder, decode, frames }), ..config() };
    let added = [("<|im_start|>", true), ("<|im_end|>", true), ("<|image|>", true)];
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let reply = Reply::Text("x".to_owned());
    let app = App::of_model(config, reply, tokenizer_with(&added), template);
    let body = asks(json!([image(&[1, 1, 1])]));
    let (status, error) = refused(&app, "/v1/chat/completions", &body).await;
    assert_eq!((status, &error["code"]), (400, &json!("invalid_image")), "{error}");
    assert_eq!(app.engine.count(), 0);
}

#[tokio::test]
async fn a_model_of_texts_takes_no_images() {
    let app = App::text("x");
    let anthropic = json!({ "type": "image",
        "source": { "type": "base64", "media_type": "image/png", "data": "AAAA" } });
    let responses = json!({ "type": "input_image", "image_url": "data:;base64,AAAA" });
    for (path, body) in [
        ("/v1/chat/completions", asks(json!([image(&[1, 1, 1])]))),
        (
            "/v1/messages",
            json!({ "max_tokens": 5, "messages": [{ "role": "user", "content": [anthropic] }] }),
        ),
        ("/v1/responses", json!({ "input": [{ "role": "user", "content": [responses] }] })),
        (
            "/api/chat",
            json!({ "messages": [{ "role": "user", "content": "x", "images": ["AAAA"] }] }),
        ),
        ("/api/generate", json!({ "prompt": "x", "images": ["AAAA"] })),
    ] {
        let (status, body) = app.post(path, &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}: {body}");
        assert!(body.to_string().contains("this model does not take images"), "{path}: {body}");
    }
    assert_eq!(app.engine.count(), 0);
}

#[tokio::test]
async fn anthropic_has_them_in_messages_and_in_results() {
    let app = seeing();
    let source = json!({ "type": "base64", "media_type": "image/png", "data": base64(&[1, 2, 3]) });
    let block = json!({ "type": "image", "source": source });
    let result = json!({ "type": "tool_result", "tool_use_id": "t",
        "content": [{ "type": "text", "text": "here" }, block] });
    let call = json!({ "type": "tool_use", "id": "t", "name": "f", "input": {} });
    let messages = json!([
        { "role": "user", "content": [block, { "type": "text", "text": "go" }] },
        { "role": "assistant", "content": [call] },
        { "role": "user", "content": [result] },
    ]);
    let mut body = json!({ "max_tokens": 20, "messages": messages });
    let (status, answer) = app.post("/v1/messages", &body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let request = app.engine.last();
    assert_eq!(request.media.len(), 2);
    let pieces = [
        Ok("<"),
        Ok("user:"),
        Err(2),
        Ok("go"),
        Ok(">"),
        Ok("<"),
        Ok("assistant:"),
        Ok(">"),
        Ok("<"),
        Ok("tool:here"),
        Err(2),
        Ok(">"),
        Ok("<"),
    ];
    assert_eq!(request.prompt, prompt(&pieces));
    assert_eq!(answer["usage"]["input_tokens"], request.prompt.len());
    body.as_object_mut().unwrap().remove("max_tokens");
    let (_, count) = app.post("/v1/messages/count_tokens", &body).await;
    assert_eq!(count, json!({ "input_tokens": request.prompt.len() }));
    for source in [
        json!({ "type": "file", "file_id": "f" }),
        json!({ "type": "url", "url": "https://a.example/b.png" }),
        json!({ "type": "url", "url": "https://a.example/b.png", "data": "AAAA" }),
        json!({ "type": "base64", "media_type": "image/png" }),
    ] {
        let block = json!({ "type": "image", "source": source });
        let body = json!({ "max_tokens": 5, "messages": [{ "role": "user", "content": [block] }] });
        let (status, error) = refused(&app, "/v1/messages", &body).await;
        let says = error["message"].as_str().unwrap();
        assert!(status == 400 && says.contains("messages[0].content[0].source"), "{error}");
    }
}

#[tokio::test]
async fn responses_have_them_and_go_on_from_them() {
    let app = seeing();
    let part =
        json!({ "type": "input_image", "image_url": data_url(&[1, 2, 3]), "detail": "auto" });
    let said = json!({ "type": "input_text", "text": "look" });
    let output = json!({ "type": "function_call_output", "call_id": "c", "output": [part] });
    let call = json!({ "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" });
    let input = json!([{ "role": "user", "content": [said, part] }, call, output]);
    let (status, first) = app.post("/v1/responses", &json!({ "input": input })).await;
    assert_eq!((status, app.engine.last().media.len()), (StatusCode::OK, 2), "{first}");
    let body = json!({ "input": "and?", "previous_response_id": first["id"] });
    let (status, body) = app.post("/v1/responses", &body).await;
    assert_eq!((status, app.engine.last().media.len()), (StatusCode::OK, 2), "{body}");
    for (part, param) in [
        (json!({ "type": "input_image", "file_id": "f" }), "input[0].content[0].file_id"),
        (json!({ "type": "input_image" }), "input[0].content[0].image_url"),
        (json!({ "type": "input_image", "image_url": "x" }), "input[0].content[0]"),
        (
            json!({ "type": "input_text", "text": "x", "image_url": "x" }),
            "input[0].content[0].image_url",
        ),
    ] {
        let body = json!({ "input": [{ "role": "user", "content": [part] }] });
        let (status, error) = refused(&app, "/v1/responses", &body).await;
        assert_eq!((status, error["param"].as_str()), (400, Some(param)), "{error}");
    }
}

#[tokio::test]
async fn ollama_has_them_before_the_text() {
    let app = seeing();
    let images = json!([base64(&[1, 2, 3]), base64(&[1, 1, 3])]);
    let message = json!({ "role": "user", "content": "look", "images": images });
    for (path, body) in [
        ("/api/chat", json!({ "stream": false, "messages": [message] })),
        ("/api/generate", json!({ "stream": false, "prompt": "look", "images": images })),
    ] {
        let (status, body) = app.post(path, &body).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        let request = app.engine.last();
        let pieces = [Ok("<"), Ok("user:"), Err(2), Err(1), Ok("look"), Ok(">"), Ok("<")];
        assert_eq!(request.prompt, prompt(&pieces), "{path}");
        assert_eq!(body["prompt_eval_count"], request.prompt.len());
    }
    let (_, shown) = app.post("/api/show", &json!({ "model": "mock" })).await;
    assert!(shown["capabilities"].as_array().unwrap().contains(&json!("vision")), "{shown}");
    let raw = json!({ "prompt": "x", "raw": true, "images": images });
    assert_eq!(app.post("/api/generate", &raw).await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn an_image_is_encoded_once() {
    let (app, encoder) = seeing_with(ImageLimits::default());
    let body = asks(json!([image(&[2, 2, 5]), image(&[2, 2, 5]), image(&[2, 2, 6])]));
    for _ in 0..2 {
        let (status, answer) = app.post("/v1/chat/completions", &body).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
    }
    assert_eq!(encoder.encoded.load(Ordering::Relaxed), 2);
    let (_, page) = app.get("/metrics").await;
    for line in ["images_total", "image_tokens_total", "image_cache_hits_total"] {
        let value = page.lines().find(|l| l.starts_with(&format!("taper:{line}{{")));
        let value = value.and_then(|line| line.rsplit(' ').next()).unwrap();
        let expected = match line {
            "images_total" => "6",
            "image_tokens_total" => "30",
            _ => "4",
        };
        assert_eq!(value, expected, "{line}");
    }
    let limits = ImageLimits { cache_bytes: 0, ..ImageLimits::default() };
    let (app, encoder) = seeing_with(limits);
    app.send(post("/v1/chat/completions", &body.to_string())).await;
    assert_eq!(encoder.encoded.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn models_say_whether_they_take_images() {
    let (seeing, blind) = (seeing(), App::text("x"));
    let of = |page: String| -> Value { serde_json::from_str(&page).unwrap() };
    let models = of(seeing.get("/v1/models").await.1);
    let takes = &models["data"][0]["architecture"]["input_modalities"];
    assert_eq!(*takes, json!(["text", "image"]));
    assert_eq!(of(seeing.get("/health").await.1)["modalities"], json!({ "vision": true }));
    let models = of(blind.get("/v1/models").await.1);
    assert!(models["data"][0]["architecture"].is_null());
    assert!(!blind.get("/metrics").await.1.contains("taper:image"));
    let tokenize = json!({ "messages": [{ "role": "user", "content": [image(&[1, 1, 1])] }] });
    assert_eq!(seeing.post("/tokenize", &tokenize).await.0, StatusCode::BAD_REQUEST);
}
