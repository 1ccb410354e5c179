//! `--models-dir`: real models that come and go.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;
#[path = "../../hub/tests/stand_in/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
mod stand_in;

use common::{Server, chat, fails};
use serde_json::{Value, json};
use stand_in::{Fault, StandIn};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

const KV_BYTES: u64 = 2 << 20;

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo")
}

/// Copies of the demo model, by these names.
fn copies(names: &[&str]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in names {
        let to = dir.path().join(name);
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(demo()).unwrap() {
            let from = entry.unwrap().path();
            fs::copy(&from, to.join(from.file_name().unwrap())).unwrap();
        }
    }
    dir
}

fn start(dir: &TempDir, more: &[&str], variables: &[(&str, &str)]) -> Server {
    let kv = KV_BYTES.to_string();
    let dir = dir.path().to_str().unwrap();
    let mut args = vec!["--models-dir", dir, "--kv-cache-memory-bytes", &kv];
    args.extend(more);
    Server::start_in(&args, variables)
}

/// All values of a metric, by their labels.
fn metrics(server: &Server, name: &str) -> BTreeMap<String, f64> {
    let page = server.get("/metrics").body;
    let of = |line: &str| {
        let (labels, value) = line.strip_prefix(name)?.rsplit_once(' ')?;
        Some((labels.to_owned(), value.parse().ok()?))
    };
    page.lines().filter_map(of).collect()
}

/// The value of a metric of no model.
fn metric(server: &Server, name: &str) -> f64 {
    metrics(server, name)[""]
}

fn states(server: &Server) -> BTreeMap<String, String> {
    let list = server.get("/v1/models").json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let cards = list["data"].as_array().unwrap().iter();
    cards.map(|card| (text(&card["id"]), text(&card["status"]["value"]))).collect()
}

fn label(model: &str) -> String {
    format!("{{model_name=\"{model}\"}}")
}

/// Bytes that a copy of the demo model takes.
fn bytes_of_one() -> u64 {
    let dir = copies(&["m0"]);
    let server = start(&dir, &[], &[]);
    server.ask("/models/load", &json!({ "model": "m0" }));
    let taken = server.get("/v1/models").json()["data"][0]["memory_bytes"].as_u64().unwrap();
    assert!(taken > KV_BYTES, "weights count too");
    taken
}

/// One of many requests; every other model has a turn.
fn ask(server: &Server, i: usize, model: &str) {
    let text = format!("What is {i} + 1?");
    let fields = json!({ "model": model, "max_tokens": 3 + i % 5 });
    match i % 5 {
        0 => {
            let answer = server.chat(&text, fields);
            assert_eq!(answer["model"], model);
        }
        1 => {
            let chunks = server.stream("/v1/chat/completions", &chat(&text, fields)).chunks();
            assert_eq!(chunks[0]["model"], model);
        }
        2 => {
            let body = json!({ "model": model, "prompt": text, "max_tokens": 4 });
            assert_eq!(server.ask("/v1/completions", &body)["model"], model);
        }
        3 => {
            let messages = json!([{ "role": "user", "content": text }]);
            let options = json!({ "num_predict": 4 });
            let body = json!({ "model": model, "messages": messages, "stream": false, "options": options });
            assert_eq!(server.ask("/api/chat", &body)["model"], model);
        }
        _ => {
            let body = json!({ "model": model, "prompt": text });
            assert!(server.ask("/tokenize", &body)["count"].as_u64().unwrap() > 0);
        }
    }
}

#[test]
fn three_models_share_the_memory_of_two() {
    const CLIENTS: usize = 8;
    const REQUESTS: usize = 200;
    let one = bytes_of_one();
    let limit = one * 5 / 2;
    let dir = copies(&["m0", "m1", "m2"]);
    let server = start(&dir, &["--models-memory", &limit.to_string()], &[]);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let server = &server;
                scope.spawn(move || {
                    for i in (client..REQUESTS).step_by(CLIENTS) {
                        let model = (i.wrapping_mul(2_654_435_761) >> 7) % 3;
                        ask(server, i, &format!("m{model}"));
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert!(metric(&server, "taper:models_memory_bytes") <= limit as f64);
                assert!(metric(&server, "taper:models_loaded") <= 2.0);
                thread::sleep(Duration::from_millis(20));
            }
        });
        let ended: Vec<_> = clients.into_iter().map(thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|end| end.expect("every request is answered"));
    });
    let sum = |name: &str| metrics(&server, name).values().sum::<f64>();
    assert_eq!(sum("taper:model_requests_total"), REQUESTS as f64);
    assert_eq!(sum("taper:model_load_failures_total"), 0.0);
    assert_eq!(sum("taper:model_requests{"), 0.0, "nothing is held");
    let (loads, unloads) = (sum("taper:model_loads_total"), sum("taper:model_unloads_total"));
    assert!(loads > 3.0 && loads - unloads == 2.0, "{loads} loads, {unloads} unloads");
    let peak = metric(&server, "taper:models_memory_peak_bytes");
    assert!(peak > one as f64 && peak <= limit as f64, "{peak} of {limit}");
    // One after the other: the one whose last use is the longest ago goes.
    for _ in 0..4 {
        let uses = metrics(&server, "taper:model_last_use");
        let oldest = uses.iter().min_by(|a, b| a.1.total_cmp(b.1)).unwrap().0.clone();
        let absent = (0..3).map(|i| format!("m{i}")).find(|m| !uses.contains_key(&label(m)));
        let absent = absent.expect("one is not loaded");
        ask(&server, 0, &absent);
        let uses = metrics(&server, "taper:model_last_use");
        assert!(!uses.contains_key(&oldest) && uses.contains_key(&label(&absent)), "{uses:?}");
    }
    println!("{loads} loads for {REQUESTS} requests, {peak} of {limit} bytes at most");
}

#[test]
fn every_kind_of_model_is_found_and_named() {
    let dir = copies(&["org/demo", "other/demo"]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let to = dir.path().join("vectors");
    copy_all(&root.join("embedders/qwen3"), &to);
    let args = ["--model-alias", "gpt-4o=org/demo", "--pin-model", "vectors"];
    let server = start(&dir, &args, &[]);
    let states = states(&server);
    let names: Vec<_> = states.keys().map(String::as_str).collect();
    assert_eq!(names, ["org/demo", "other/demo", "vectors"]);
    assert_eq!(states["vectors"], "loaded");
    assert_eq!(
        server.chat("Hello", json!({ "model": "gpt-4o", "max_tokens": 2 }))["model"],
        "gpt-4o"
    );
    let embed = json!({ "model": "vectors", "input": "a text" });
    let vectors = server.ask("/v1/embeddings", &embed);
    assert!(vectors["data"][0]["embedding"].as_array().unwrap().len() > 1);
    let show = server.ask("/api/show", &json!({ "model": "other/demo" }));
    assert!(show["capabilities"].as_array().unwrap().contains(&json!("completion")), "{show}");
    assert!(show["model_info"]["general.parameter_count"].as_u64().unwrap() > 1000);
    let show = server.ask("/api/show", &json!({ "model": "vectors" }));
    assert_eq!(show["capabilities"], json!(["embedding"]));
    assert_eq!(
        server.post("/v1/chat/completions", &chat("x", json!({ "model": "no" }))).status,
        404
    );
    assert_eq!(server.post("/v1/chat/completions", &chat("x", json!({}))).status, 400);
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_all(&path, &target);
        } else {
            fs::copy(&path, target).unwrap();
        }
    }
}

#[test]
fn a_model_beside_the_directory_is_the_default_and_stays() {
    let dir = copies(&["m0"]);
    let demo = demo();
    let server = start(&dir, &[demo.to_str().unwrap(), "--keep-alive", "0"], &[]);
    let first = server.chat("Hello", json!({ "max_tokens": 2 }));
    assert_eq!(first["model"], "demo");
    server.chat("Hello", json!({ "max_tokens": 2, "model": "m0" }));
    let start = Instant::now();
    while states(&server)["m0"] != "unloaded" {
        assert!(start.elapsed() < Duration::from_secs(30));
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(states(&server)["demo"], "loaded");
    let idle = metrics(&server, "taper:model_unloads_total");
    assert_eq!(idle[r#"{model_name="m0",reason="idle"}"#], 1.0);
}

#[test]
fn a_damaged_model_fails_by_itself() {
    let dir = copies(&["good", "bad", "odd"]);
    fs::write(dir.path().join("bad/model.safetensors"), b"nothing").unwrap();
    fs::write(dir.path().join("odd/config.json"), r#"{"model_type": "unheard-of"}"#).unwrap();
    let server = start(&dir, &[], &[]);
    for name in ["bad", "odd"] {
        let reply = server.post("/v1/chat/completions", &chat("x", json!({ "model": name })));
        assert_eq!(
            (reply.status, &reply.json()["error"]["code"]),
            (500, &json!("model_load_failed"))
        );
        assert_eq!(server.post("/api/show", &json!({ "model": name })).status, 500);
    }
    server.chat("Hello", json!({ "model": "good", "max_tokens": 2 }));
    assert_eq!(metrics(&server, "taper:model_load_failures_total")[&label("bad")], 1.0);
}

#[test]
fn a_model_of_the_hub_arrives_answers_and_is_deleted() {
    let names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    let files: Vec<_> =
        names.iter().map(|name| (*name, fs::read(demo().join(name)).unwrap())).collect();
    let files: Vec<_> = files.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
    let hub = StandIn::new(&files);
    // The connection breaks once: the download goes on where it was.
    hub.faults("model.safetensors", &[Fault::Cut(100_000)]);
    let dir = copies(&["m0"]);
    let endpoint = hub.config().endpoint;
    let variables = [("HF_ENDPOINT", endpoint.as_str()), ("HF_HUB_OFFLINE", ""), ("HF_TOKEN", "")];
    let server = start(&dir, &["--allow-model-updates"], &variables);
    let pulled = server.post("/api/pull", &json!({ "model": "hf.co/org/name:latest" }));
    assert_eq!(pulled.status, 200);
    let lines: Vec<Value> = pulled.body.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.last().unwrap(), &json!({ "status": "success" }), "{lines:?}");
    assert!(
        hub.seen().iter().any(|seen| seen.range.is_some()),
        "it went on, and did not begin anew"
    );
    let answer = server.chat("Hello", json!({ "model": "org/name", "max_tokens": 2 }));
    assert_eq!(answer["model"], "org/name");
    let delete = |model: &str| {
        common::http::send(&server.address, "DELETE", &format!("/v1/models/{model}"), None).status
    };
    assert_eq!(delete("org/name"), 409, "it is loaded");
    server.ask("/models/unload", &json!({ "model": "org/name" }));
    assert_eq!((delete("org/name"), delete("org/name"), delete("../m0")), (200, 404, 404));
    assert!(!dir.path().join("models--org--name").exists());
    // Damaged files are no model.
    hub.faults("model.safetensors", &[Fault::Damage]);
    let damaged = server.post("/api/pull", &json!({ "model": "org/name", "stream": false }));
    assert_eq!(damaged.status, 502, "{}", damaged.body);
    assert_eq!(states(&server).len(), 1);
    let none = server.post("/api/pull", &json!({ "model": "org/none", "stream": false }));
    assert_eq!(none.status, 400, "{}", none.body);
}

#[test]
fn flags_that_contradict_are_refused() {
    let dir = copies(&["m0"]);
    let at = dir.path().to_str().unwrap();
    let serve = |more: &[&str]| {
        let mut args = vec!["serve", "--port", "0", "--models-dir", at];
        args.extend(more);
        fails(&args)
    };
    assert!(serve(&["--pin-model", "zz"]).contains("zz"));
    assert!(serve(&["--enable-lora"]).contains("--enable-lora"));
    assert!(serve(&["--served-model-name", "x"]).contains("--model-alias"));
    assert!(serve(&["--pin-model", "m0", "--models-memory", "1KiB"]).contains("m0"));
    assert!(fails(&["serve", "--port", "0", "--models-dir", "/nowhere"]).contains("/nowhere"));
}
