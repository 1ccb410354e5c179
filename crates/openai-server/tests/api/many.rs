//! Several models in one server: loading, unloading, and who waits for whom.

use crate::support::{EOS, Mock, Reply, TEMPLATE, chat, config, post, send, tokenizer};
use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Method, Request, StatusCode},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, UNIX_EPOCH},
};
use taper_base::{Event, FinishReason, GeneratedToken};
use taper_chat::ChatTemplate;
use taper_openai_server::{
    ApiKeys, Description, KeepAlive, Library, LibraryError, Limits, Listed, Model, Models,
    ModelsConfig, PullStep, ServerConfig, Watch, models_router, route_table,
};

/// A library of scripted engines.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    /// Bytes of each model.
    pub(crate) models: Mutex<BTreeMap<String, u64>>,
    /// Loads so far, in order.
    pub(crate) loads: Mutex<Vec<String>>,
    pub(crate) engines: Mutex<BTreeMap<String, Arc<Mock>>>,
    /// Loads wait while this is set.
    pub(crate) slow: AtomicBool,
    /// Loads fail while this is set.
    pub(crate) broken: AtomicBool,
    /// A download saw that nobody waits for it.
    pub(crate) stopped: AtomicBool,
}

impl Library for Shelf {
    fn list(&self) -> Result<Vec<Listed>, LibraryError> {
        let models = self.models.lock().unwrap().clone();
        let one = |(name, file_bytes): (String, u64)| Listed {
            aliases: if name == "a" { vec!["gpt-4o".to_owned()] } else { vec![] },
            path: PathBuf::from("/models").join(&name),
            file_bytes,
            modified: UNIX_EPOCH + Duration::from_hours(1),
            architecture: "mock".to_owned(),
            gguf: false,
            pinned: name == "pinned",
            name,
        };
        Ok(models.into_iter().map(one).collect())
    }

    fn needs(&self, name: &str, _: u64) -> Result<u64, LibraryError> {
        let found = self.models.lock().unwrap().get(name).copied();
        found.ok_or(LibraryError::Unusable { reason: "gone".to_owned() })
    }

    fn load(
        &self,
        name: &str,
        bytes: u64,
        progress: Box<dyn Fn(u64, u64) + Send + Sync>,
    ) -> Result<Model, LibraryError> {
        self.loads.lock().unwrap().push(name.to_owned());
        progress(bytes / 2, bytes);
        while self.slow.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(5));
        }
        if self.broken.load(Ordering::Relaxed) {
            return Err(LibraryError::Unusable { reason: "no such architecture".to_owned() });
        }
        let engine = Arc::new(Mock::new(Reply::Text(format!("I am {name}")), 4096));
        self.engines.lock().unwrap().insert(name.to_owned(), engine.clone());
        let template = ChatTemplate::from_source(TEMPLATE, Some("<s>"), Some("</s>")).unwrap();
        let names = vec![name.to_owned(), "gpt-4o".to_owned()];
        let config = ServerConfig { served_model_names: names, ..config() };
        Ok(Model::new(engine, tokenizer(), Some(template), config))
    }

    fn describe(&self, name: &str) -> Result<Description, LibraryError> {
        Ok(Description {
            architecture: format!("arch-of-{name}"),
            parameters: 1000,
            weight_bytes: 500,
            context_length: 4096,
            generates: true,
            ..Description::default()
        })
    }

    fn delete(&self, name: &str) -> Result<(), LibraryError> {
        let removed = self.models.lock().unwrap().remove(name);
        removed.map(drop).ok_or(LibraryError::NotOwned)
    }

    fn pull(&self, name: &str, watch: &mut dyn Watch) -> Result<String, LibraryError> {
        match name {
            "org/endless" => loop {
                watch.at(PullStep::File { name: "w".to_owned(), total: 2, completed: 1 });
                if watch.is_gone() {
                    self.stopped.store(true, Ordering::Relaxed);
                    return Err(LibraryError::Cancelled);
                }
                thread::sleep(Duration::from_millis(5));
            },
            "org/new" => {
                watch.at(PullStep::Planned { files: 1, bytes: 100 });
                for completed in [10, 60, 100] {
                    let name = "model.safetensors".to_owned();
                    watch.at(PullStep::File { name, total: 100, completed });
                }
                self.models.lock().unwrap().insert(name.to_owned(), 7);
                Ok(name.to_owned())
            }
            "org/broken" => Err(LibraryError::Hub { reason: "the hub is down".to_owned() }),
            _ => Err(LibraryError::Refused { reason: format!("no {name}") }),
        }
    }
}

pub(crate) struct Many {
    pub(crate) router: Router,
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) models: Models,
}

pub(crate) fn settings(memory_bytes: u64) -> ModelsConfig {
    ModelsConfig {
        limits: Limits { memory_bytes, max_loaded: 9 },
        keep_alive: KeepAlive::FOREVER,
        patience: Duration::from_secs(20),
        default_model: None,
        allow_updates: true,
    }
}

impl Many {
    pub(crate) fn new(models: &[(&str, u64)], settings: ModelsConfig) -> Self {
        Self::with(models, settings, ServerConfig::default())
    }

    fn with(models: &[(&str, u64)], settings: ModelsConfig, config: ServerConfig) -> Self {
        let models = models.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect();
        let shelf = Arc::new(Shelf { models: Mutex::new(models), ..Shelf::default() });
        let models = Models::new(shelf.clone(), config, settings);
        Self { router: models_router(models.clone()), shelf, models }
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: &Value,
    ) -> (StatusCode, HeaderMap, String) {
        let mut request = post(path, &body.to_string());
        *request.method_mut() = method;
        send(&self.router, request).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        let (status, _, text) = self.send(Method::POST, path, body).await;
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let (status, _, text) = send(&self.router, request).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        serde_json::from_str(&text).unwrap_or(Value::String(text))
    }

    /// What a model says.
    pub(crate) async fn ask(&self, model: &str) -> (StatusCode, String) {
        let (status, answer) =
            self.post("/v1/chat/completions", &chat(json!({ "model": model }))).await;
        let said = answer["choices"][0]["message"]["content"].as_str();
        let failed = || answer["error"]["code"].as_str().unwrap_or_default();
        (status, said.unwrap_or_else(failed).to_owned())
    }

    pub(crate) async fn states(&self) -> BTreeMap<String, String> {
        let list = self.get("/v1/models").await;
        let cards = list["data"].as_array().unwrap().iter();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        cards.map(|card| (text(&card["id"]), text(&card["status"]["value"]))).collect()
    }

    /// The values of a metric by model, and by what further labels say.
    pub(crate) async fn metric(&self, name: &str) -> Vec<String> {
        let page = self.get("/metrics").await;
        let lines = page.as_str().unwrap().lines().filter_map(|line| line.strip_prefix(name));
        lines.map(str::to_owned).collect()
    }

    fn loads(&self) -> Vec<String> {
        self.shelf.loads.lock().unwrap().clone()
    }

    fn hold(&self, model: &str) -> Arc<Mock> {
        let engine = self.shelf.engines.lock().unwrap()[model].clone();
        engine.say(Reply::Hold("wait".to_owned()));
        engine
    }
}

/// Ends what an engine holds.
fn release(engine: &Mock) {
    for mut sink in engine.held.lock().unwrap().drain(..) {
        sink.send(Event::Token(GeneratedToken {
            id: EOS,
            logprobs: None,
            stops: true,
            open: false,
        }));
        sink.send(Event::Finished(FinishReason::Stop));
    }
}

async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    for _ in 0..2000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what} does not happen");
}

#[tokio::test]
async fn a_request_loads_the_model_that_it_names_and_the_last_used_stays() {
    let many = Many::new(&[("a", 10), ("b", 10), ("c", 10)], settings(20));
    assert_eq!(many.ask("a").await, (StatusCode::OK, "I am a".to_owned()));
    assert_eq!(many.ask("b").await.1, "I am b");
    assert_eq!(many.ask("gpt-4o").await.1, "I am a");
    assert_eq!(many.ask("c").await.1, "I am c");
    let states = many.states().await;
    assert_eq!([&states["a"], &states["b"], &states["c"]], ["loaded", "unloaded", "loaded"]);
    assert_eq!(many.ask("b").await.1, "I am b");
    assert_eq!(many.states().await["a"], "unloaded");
    assert_eq!(many.loads(), ["a", "b", "c", "b"]);
    let evicted = many.metric("taper:model_unloads_total").await;
    assert!(evicted.contains(&r#"{model_name="a",reason="evicted"} 1"#.to_owned()), "{evicted:?}");
    assert_eq!(many.metric("taper:models_memory_peak_bytes ").await, ["20"]);
    // vLLM's metrics are those of the loaded models, by their names.
    let running = many.metric("vllm:num_requests_running").await;
    assert_eq!(running, [r#"{model_name="b"} 2"#, r#"{model_name="c"} 2"#]);
    let ready = many.get("/health").await;
    assert_eq!(ready["loaded"], json!(["b", "c"]));
}

#[tokio::test]
async fn requests_that_come_during_a_load_wait_for_that_load() {
    let many = Arc::new(Many::new(&[("a", 10), ("b", 10)], settings(20)));
    assert_eq!(many.ask("b").await.1, "I am b");
    many.shelf.slow.store(true, Ordering::Relaxed);
    let waiting: Vec<_> = (0..8)
        .map(|_| {
            let many = Arc::clone(&many);
            tokio::spawn(async move { many.ask("a").await })
        })
        .collect();
    until("the load", async || many.states().await["a"] == "loading").await;
    // Other models answer meanwhile.
    assert_eq!(many.ask("b").await.1, "I am b");
    many.shelf.slow.store(false, Ordering::Relaxed);
    for one in waiting {
        assert_eq!(one.await.unwrap(), (StatusCode::OK, "I am a".to_owned()));
    }
    assert_eq!(many.loads(), ["b", "a"]);
}

#[tokio::test]
async fn a_load_that_fails_is_told_to_all_who_wait_and_tried_again() {
    let many = Arc::new(Many::new(&[("a", 10), ("huge", 21)], settings(20)));
    many.shelf.broken.store(true, Ordering::Relaxed);
    many.shelf.slow.store(true, Ordering::Relaxed);
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let many = Arc::clone(&many);
            tokio::spawn(async move { many.ask("a").await })
        })
        .collect();
    until("the load", async || many.states().await["a"] == "loading").await;
    many.shelf.slow.store(false, Ordering::Relaxed);
    for one in waiting {
        let failed = (StatusCode::INTERNAL_SERVER_ERROR, "model_load_failed".to_owned());
        assert_eq!(one.await.unwrap(), failed);
    }
    many.shelf.broken.store(false, Ordering::Relaxed);
    assert_eq!(many.ask("a").await.1, "I am a");
    assert_eq!(many.ask("huge").await, (StatusCode::BAD_REQUEST, "model_too_large".to_owned()));
    assert_eq!(many.ask("none").await, (StatusCode::NOT_FOUND, "model_not_found".to_owned()));
    let (status, body) = many.post("/v1/chat/completions", &json!({ "messages": [] })).await;
    assert_eq!((status, &body["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("model")));
    assert_eq!(many.states().await["a"], "loaded", "what does not fit evicts nothing");
}

#[tokio::test]
async fn a_model_in_use_is_not_unloaded() {
    let patience = Duration::from_millis(300);
    let many =
        Arc::new(Many::new(&[("a", 10), ("b", 10)], ModelsConfig { patience, ..settings(10) }));
    many.ask("a").await;
    let engine = many.hold("a");
    let held = {
        let many = Arc::clone(&many);
        tokio::spawn(async move { many.ask("a").await })
    };
    until("the request", async || engine.held_open() == 1).await;
    let body = chat(json!({ "model": "b" }));
    let (status, headers, _) = many.send(Method::POST, "/v1/chat/completions", &body).await;
    assert_eq!(
        (status, headers["retry-after"].to_str().unwrap()),
        (StatusCode::SERVICE_UNAVAILABLE, "1")
    );
    assert!(!held.is_finished());
    // It takes requests again, and goes when it is free.
    let waits = {
        let many = Arc::clone(&many);
        tokio::spawn(async move { many.ask("b").await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    release(&engine);
    assert_eq!(held.await.unwrap().1, "wait");
    assert_eq!(waits.await.unwrap().1, "I am b");
    assert_eq!(many.states().await["a"], "unloaded");
}

#[tokio::test]
async fn a_stream_keeps_its_model_and_a_response_in_the_background_too() {
    let many = Arc::new(Many::new(&[("a", 10)], settings(10)));
    many.ask("a").await;
    let engine = many.hold("a");
    let body = json!({ "model": "a", "input": "Hi", "background": true });
    let (status, response) = many.post("/v1/responses", &body).await;
    assert_eq!((status, &response["status"]), (StatusCode::OK, &json!("in_progress")));
    assert_eq!(many.models.in_flight(), 1);
    let unload = {
        let many = Arc::clone(&many);
        tokio::spawn(async move { many.post("/models/unload", &json!({ "model": "a" })).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(many.states().await["a"], "loaded");
    release(&engine);
    drop(engine);
    many.shelf.engines.lock().unwrap().clear();
    // Somebody looks after models that nobody asks for.
    until("the end", async || many.models.in_flight() == 0).await;
    let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
    until("the response", async || many.get(&path).await["status"] == "completed").await;
    let (status, _) = many.post("/models/load", &json!({ "model": "a" })).await;
    assert_eq!(status, StatusCode::OK);
    unload.abort();
    // Responses stay when their model goes.
    assert_eq!(many.get(&path).await["output"][0]["content"][0]["text"], "wait");
}

#[tokio::test]
async fn models_are_loaded_and_unloaded_on_request() {
    let many = Many::new(&[("a", 10), ("b", 10)], settings(20));
    let (status, body) = many.post("/models/load", &json!({ "model": "a", "stream": true })).await;
    let text = body.as_str().unwrap_or_default();
    assert_eq!(status, StatusCode::OK);
    assert!(text.trim_end().ends_with(r#"data: {"model":"a","status":"loaded"}"#), "{text}");
    assert_eq!(many.models.in_flight(), 0);
    let unload = |model: &'static str| json!({ "model": model });
    assert_eq!(
        many.post("/models/unload", &unload("a")).await,
        (StatusCode::OK, json!({ "success": true }))
    );
    assert_eq!(many.states().await["a"], "unloaded");
    let (status, body) = many.post("/models/unload", &unload("a")).await;
    assert_eq!(
        (status, &body["error"]["code"]),
        (StatusCode::BAD_REQUEST, &json!("model_not_loaded"))
    );
    assert_eq!(many.post("/models/unload", &unload("x")).await.0, StatusCode::NOT_FOUND);
    let wrong = json!({ "model": "a", "x": 1 });
    assert_eq!(many.post("/models/load", &wrong).await.1["error"]["code"], "unknown_parameter");
    many.shelf.broken.store(true, Ordering::Relaxed);
    let (_, body) = many.post("/models/load", &json!({ "model": "b", "stream": true })).await;
    let text = body.as_str().unwrap_or_default();
    assert!(text.contains("no such architecture") && text.contains("model_load_failed"), "{text}");
    let counts = many.metric("taper:model_load_failures_total").await;
    assert_eq!(counts, [r#"{model_name="a"} 0"#, r#"{model_name="b"} 1"#]);
}

#[tokio::test]
async fn a_dead_engine_is_loaded_anew() {
    let many = Many::new(&[("a", 10)], settings(20));
    many.ask("a").await;
    let engine = many.shelf.engines.lock().unwrap().remove("a").unwrap();
    engine.dead.store(true, Ordering::Relaxed);
    drop(engine);
    assert_eq!(many.ask("a").await.1, "I am a");
    assert_eq!(many.loads(), ["a", "a"]);
    let failed = many.metric("taper:model_unloads_total").await;
    assert!(failed.contains(&r#"{model_name="a",reason="failed"} 1"#.to_owned()), "{failed:?}");
}

#[tokio::test]
async fn the_default_model_answers_who_names_none_and_pinned_ones_are_there_from_the_start() {
    let default_model = Some("pinned".to_owned());
    let keep_alive = KeepAlive::during(Duration::ZERO);
    let models = [("a", 10), ("pinned", 10)];
    let many = Many::new(&models, ModelsConfig { default_model, keep_alive, ..settings(20) });
    many.models.load_pinned().await.unwrap();
    assert_eq!(many.loads(), ["pinned"]);
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
    let (_, answer) = many.post("/v1/chat/completions", &body).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "I am pinned");
    assert_eq!(many.get("/v1/models").await["data"][0]["id"], "pinned", "it comes first");
    // Others go at once, as they are told to.
    many.ask("a").await;
    until("the unload", async || many.states().await["a"] == "unloaded").await;
    assert_eq!(many.states().await["pinned"], "loaded");
}

#[tokio::test]
async fn every_route_of_one_model_is_there_and_behind_the_key() {
    let api_keys = ApiKeys::new(["k1"]).unwrap();
    let config = ServerConfig { api_keys, ..ServerConfig::default() };
    let many = Many::with(&[("a", 10)], settings(20), config);
    // Adapters and speech belong to one model.
    let of_one = |path: &str| path.contains("lora") || path.contains("audio");
    let routes = route_table().into_iter().filter(|(path, _)| !of_one(path));
    for (path, open) in routes {
        for key in [None, Some("Bearer k1")] {
            let mut request = post(&path.replace("{*id}", "a").replace("{id}", "x"), "{}");
            if let Some(key) = key {
                request.headers_mut().insert("authorization", key.parse().unwrap());
            }
            let (status, _, body) = send(&many.router, request).await;
            let refused = status == StatusCode::UNAUTHORIZED;
            assert_eq!(refused, key.is_none() && !open, "{path}: {body}");
            assert!(!body.contains("unknown_url"), "{path}: {body}");
        }
    }
    assert!(many.loads().is_empty());
}
