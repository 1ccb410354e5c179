//! The scripted engine, the byte tokenizer, and how tests talk to the server.

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Method, Request, StatusCode},
};
use http_body_util::BodyExt;
use serde_json::{Map, Value, json};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use taper_base::{
    Drafting, Engine, EngineInfo, EngineStats, Event, EventSink, ExpertStats, FinishReason,
    GenRequest, GeneratedToken, GenerationError, SubmitError, TokenId, TokenLogprob, TokenLogprobs,
};
use taper_chat::{ChatTemplate, ReasoningFormat, Tokenizer, ToolFormat};
use taper_openai_server::{AppState, ServerConfig, router};
use tower::ServiceExt;

pub(crate) const EOS: TokenId = 257;
pub(crate) const VOCAB: u32 = 262;

/// What the engine does with a request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// Says this, then the end-of-sequence token; `max_tokens` cuts it short.
    Text(String),
    /// Says these tokens, then the end-of-sequence token.
    Tokens(Vec<TokenId>),
    /// Says a number that follows from the seed.
    Seed,
    /// Refuses.
    Refuse(SubmitError),
    /// Says this and fails.
    Fail(String, GenerationError),
    /// Says this and goes away without an end.
    Gone(String),
    /// Says this and then nothing, and keeps the sink in `held`.
    Hold(String),
    /// Panics.
    Panic,
}

#[derive(Debug)]
pub(crate) struct Mock {
    info: EngineInfo,
    /// Used one after the other; the last stays.
    pub(crate) replies: Mutex<Vec<Reply>>,
    pub(crate) seen: Mutex<Vec<GenRequest>>,
    pub(crate) held: Mutex<Vec<Box<dyn EventSink>>>,
    pub(crate) cached: Mutex<u32>,
    pub(crate) dead: AtomicBool,
    /// How long its step has taken.
    pub(crate) step: Mutex<Duration>,
}

impl Mock {
    pub(crate) fn new(reply: Reply, max_model_len: u32) -> Self {
        Self {
            info: EngineInfo {
                max_model_len,
                vocab_size: VOCAB,
                eos_token_ids: vec![EOS],
                kv_cache_dtype: "f16".to_owned(),
                kv_bits: vec![],
                kv_capacity_tokens: 320,
                kv_capacity_bytes: 4096,
                kv_exact_bytes: 96,
                prefix_caching: true,
                weight_bytes: 1000,
                drafting: Drafting::default(),
                kv_recall_pages: 0,
            },
            replies: Mutex::new(vec![reply]),
            seen: Mutex::default(),
            held: Mutex::default(),
            cached: Mutex::new(0),
            dead: AtomicBool::new(false),
            step: Mutex::default(),
        }
    }

    pub(crate) fn last(&self) -> GenRequest {
        self.seen.lock().unwrap().last().expect("a request reached the engine").clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    pub(crate) fn say(&self, reply: Reply) {
        *self.replies.lock().unwrap() = vec![reply];
    }

    pub(crate) fn held_open(&self) -> usize {
        self.held.lock().unwrap().iter().filter(|s| !s.is_closed()).count()
    }
}

fn logprobs(id: TokenId, top: Option<u8>) -> Option<TokenLogprobs> {
    let top = top?;
    // One letter is unlikely.
    let first = if id == u32::from(b'Z') { -4.5 } else { -0.5 };
    let entry =
        |i: u8| TokenLogprob { id: (id + u32::from(i)) % 256, logprob: first - f32::from(i) };
    let top = (0..top).map(entry).collect();
    Some(TokenLogprobs { chosen: entry(0), top, rank: None })
}

fn bytes(text: &str) -> impl Iterator<Item = TokenId> {
    text.bytes().map(u32::from)
}

impl Engine for Mock {
    fn submit(
        &self,
        request: GenRequest,
        mut events: Box<dyn EventSink>,
    ) -> Result<(), SubmitError> {
        self.seen.lock().unwrap().push(request.clone());
        let reply = {
            let mut replies = self.replies.lock().unwrap();
            if replies.len() > 1 { replies.remove(0) } else { replies[0].clone() }
        };
        assert!(!matches!(reply, Reply::Panic), "a planted panic");
        if let Reply::Refuse(error) = reply {
            return Err(error);
        }
        if request.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        events.send(Event::Started { cached_tokens: *self.cached.lock().unwrap() });
        if let Some(top) = request.prompt_logprobs {
            let entries = request.prompt.iter().enumerate();
            let entries =
                entries.map(|(i, id)| if i == 0 { None } else { logprobs(*id, Some(top)) });
            events.send(Event::Prompt(entries.collect()));
        }
        let says: Vec<TokenId> = match &reply {
            Reply::Text(t) | Reply::Fail(t, _) | Reply::Gone(t) | Reply::Hold(t) => {
                bytes(t).collect()
            }
            Reply::Tokens(tokens) => tokens.clone(),
            Reply::Seed => bytes(&format!("{:x}", request.sampling.seed)).collect(),
            Reply::Refuse(_) | Reply::Panic => unreachable!(),
        };
        let mut left = request.stop.max_tokens.unwrap_or(u32::MAX);
        let ends = matches!(reply, Reply::Text(_) | Reply::Tokens(_) | Reply::Seed);
        for id in says.into_iter().chain(ends.then_some(EOS)) {
            if left == 0 {
                events.send(Event::Finished(FinishReason::Length));
                return Ok(());
            }
            left -= 1;
            let stops = id == EOS || request.stop.token_ids.contains(&id);
            let logprobs = logprobs(id, request.sampling.logprobs);
            events.send(Event::Token(GeneratedToken { id, logprobs, stops, open: false }));
            if stops {
                break;
            }
        }
        match reply {
            Reply::Text(_) | Reply::Tokens(_) | Reply::Seed => {
                events.send(Event::Finished(FinishReason::Stop));
            }
            Reply::Fail(_, error) => events.send(Event::Failed(error)),
            Reply::Hold(_) => self.held.lock().unwrap().push(events),
            Reply::Gone(_) | Reply::Refuse(_) | Reply::Panic => {}
        }
        Ok(())
    }

    fn info(&self) -> &EngineInfo {
        &self.info
    }

    fn is_alive(&self) -> bool {
        !self.dead.load(Ordering::Relaxed)
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            running: 2,
            waiting: 3,
            kv_blocks_used: 5,
            kv_blocks_idle: 3,
            kv_blocks_total: 20,
            kv_exact_blocks_used: 12,
            kv_exact_blocks_total: 40,
            kv_used_bytes: 1100,
            kv_exact_bytes: 100,
            step_prompt_tokens: 256,
            prompt_tokens: 101,
            generation_tokens: 202,
            masked_tokens: 31,
            forced_tokens: 13,
            mask_time: Duration::from_millis(1500),
            mask_wait: Duration::from_millis(250),
            preemptions: 4,
            cancelled: 1,
            steps: 77,
            failed_steps: 2,
            restarts: 1,
            step_time: *self.step.lock().unwrap(),
            steps_by_tokens: [70, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0],
            step_tokens: 3200,
            kv_evictions: 6,
            kv_evicted_tokens: 768,
            recall_steps: 50,
            recall_attended_pages: 600,
            recall_skipped_pages: 5400,
            recall_choices: 7,
            kv_cold_pages: 80,
            kv_evicted_pages: 120,
            kv_recalled_pages: 40,
            kv_streamed_pages: 15,
            kv_recall_wait: Duration::from_millis(750),
            disk_written_blocks: 16,
            disk_written_bytes: 4096,
            disk_hit_tokens: 96,
            drafts: 9,
            draft_tokens: 40,
            accepted_draft_tokens: 23,
            accepted_per_position: [9, 7, 5, 2, 0, 0, 0, 0],
            draft_time: Duration::from_millis(125),
            experts: Some(ExpertStats {
                slots: 40,
                floor_slots: 30,
                slot_bytes: 4096,
                experts: 64,
                resident: 38,
                active: 6,
                read_bytes: 81_920,
                hits: 70,
                misses: 20,
                prefetch_useful: 5,
                prefetch_wasted: 3,
                retries: 1,
                shrunk: 2,
                tokens: 15,
                stall: Duration::from_millis(750),
            }),
        }
    }
}

/// GPT-2's letters for bytes: printable bytes stand for themselves, the others follow after 255.
fn byte_letters() -> Vec<char> {
    let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256;
    (0..256)
        .map(|b| {
            let code = if printable(b) { b } else { next };
            next += u32::from(!printable(b));
            char::from_u32(code).unwrap()
        })
        .collect()
}

/// Tokens 0 to 255 are bytes; added tokens follow.
pub(crate) fn tokenizer() -> Tokenizer {
    let added =
        ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"];
    let added: Vec<(&str, bool)> =
        added.iter().enumerate().map(|(i, text)| (*text, i < 2)).collect();
    tokenizer_with(&added)
}

/// A tokenizer with these added tokens, some of which are special.
pub(crate) fn tokenizer_with(added: &[(&str, bool)]) -> Tokenizer {
    let vocab: Map<String, Value> =
        byte_letters().iter().enumerate().map(|(b, c)| (c.to_string(), json!(b))).collect();
    let added: Vec<Value> = added
        .iter()
        .enumerate()
        .map(|(i, (text, special))| {
            json!({ "id": 256 + i, "content": text, "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false, "special": special })
        })
        .collect();
    let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null,
        "decoder": byte_level,
        "model": { "type": "BPE", "dropout": null, "unk_token": null,
                   "continuing_subword_prefix": null, "end_of_word_suffix": null,
                   "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": [] },
    });
    Tokenizer::from_bytes(json.to_string().as_bytes(), None).unwrap()
}

/// ChatML with tools, Hermes style.
pub(crate) const TEMPLATE: &str = r#"{%- if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}
{%- for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} {{ c.function.arguments }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if reasoning_effort is defined %}[{{ reasoning_effort }}]{% endif %}{% if enable_thinking is defined and enable_thinking is true %}<think>
{% endif %}{% if mood is defined %}({{ mood }}){% endif %}{% endif %}"#;

pub(crate) fn config() -> ServerConfig {
    ServerConfig {
        served_model_names: vec!["mock".to_owned(), "org/mock".to_owned()],
        tool_format: "hermes".parse::<ToolFormat>().unwrap(),
        reasoning_format: "qwen3".parse::<ReasoningFormat>().unwrap(),
        ..ServerConfig::default()
    }
}

pub(crate) struct App {
    pub(crate) router: Router,
    pub(crate) engine: Arc<Mock>,
    pub(crate) state: AppState,
}

impl App {
    pub(crate) fn new(reply: Reply) -> Self {
        Self::with(config(), reply)
    }

    pub(crate) fn text(text: &str) -> Self {
        Self::new(Reply::Text(text.to_owned()))
    }

    pub(crate) fn with(config: ServerConfig, reply: Reply) -> Self {
        Self::of_model(config, reply, tokenizer(), TEMPLATE)
    }

    pub(crate) fn of_model(
        config: ServerConfig,
        reply: Reply,
        tokenizer: Tokenizer,
        template: &str,
    ) -> Self {
        Self::of_context(config, reply, tokenizer, template, 4096)
    }

    pub(crate) fn of_context(
        config: ServerConfig,
        reply: Reply,
        tokenizer: Tokenizer,
        template: &str,
        max_model_len: u32,
    ) -> Self {
        let engine = Arc::new(Mock::new(reply, max_model_len));
        let template = ChatTemplate::from_source(template, Some("<s>"), Some("</s>")).unwrap();
        let state = AppState::new(engine.clone(), tokenizer, Some(template), config);
        Self { router: router(state.clone()), engine, state }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> (StatusCode, HeaderMap, String) {
        send(&self.router, request).await
    }

    pub(crate) async fn get(&self, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let (status, _, body) = self.send(request).await;
        (status, body)
    }

    pub(crate) async fn post_text(&self, path: &str, body: &str) -> (StatusCode, Value) {
        let (status, _, text) = self.send(post(path, body)).await;
        (status, serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")))
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        self.post_text(path, &body.to_string()).await
    }

    /// A chat that must succeed, with one user message and these fields.
    pub(crate) async fn chat(&self, fields: Value) -> Value {
        let (status, body) = self.post("/v1/chat/completions", &chat(fields)).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        body
    }

    /// A stream's `data:` lines.
    pub(crate) async fn stream(&self, path: &str, body: &Value) -> Vec<String> {
        let (status, headers, text) = self.send(post(path, &body.to_string())).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        assert_eq!(headers["content-type"], "text/event-stream");
        assert_eq!(headers["cache-control"], "no-cache");
        assert_eq!(headers["x-accel-buffering"], "no");
        assert!(text.ends_with("\n\n"), "{text:?}");
        let events = text.trim_end().split("\n\n");
        events.map(|e| e.strip_prefix("data: ").expect(e).to_owned()).collect()
    }

    /// A stream that ends well, as chunks.
    pub(crate) async fn chunks(&self, fields: Value) -> Vec<Value> {
        let mut body = chat(fields);
        body["stream"] = json!(true);
        let mut lines = self.stream("/v1/chat/completions", &body).await;
        assert_eq!(lines.pop().as_deref(), Some("[DONE]"));
        lines.iter().map(|l| serde_json::from_str(l).unwrap()).collect()
    }
}

pub(crate) async fn send(
    router: &Router,
    request: Request<Body>,
) -> (StatusCode, HeaderMap, String) {
    let response = router.clone().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    (parts.status, parts.headers, String::from_utf8(bytes.to_vec()).unwrap())
}

pub(crate) fn post(path: &str, body: &str) -> Request<Body> {
    Request::builder()
        .method(Method::POST)
        .uri(path)
        .header("content-type", "application/json")
        .body(Body::from(body.to_owned()))
        .unwrap()
}

/// One user message and these fields.
pub(crate) fn chat(fields: Value) -> Value {
    let mut body = json!({ "model": "mock", "messages": [{ "role": "user", "content": "Hi" }] });
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// All of one delta field of one choice, put together.
pub(crate) fn joined(chunks: &[Value], index: u64, field: &str) -> String {
    let choices = chunks.iter().flat_map(|c| c["choices"].as_array().unwrap());
    let own = choices.filter(|c| c["index"] == index);
    own.filter_map(|c| c["delta"][field].as_str()).collect()
}
