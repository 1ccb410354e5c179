//! Eviction over HTTP and on the command line: it runs, `/metrics` counts it, answers do not depend on company, and
//! statistics come from a file that `taper calibrate` writes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Server, chat, fails, model_dir::ModelDir, taper, text};
use serde_json::{Value, json};
use std::{fs, thread};

const PATH: &str = "/v1/chat/completions";
const NUMBERS: [&str; 8] = [
    "--kv-budget",
    "160",
    "--kv-evict-every",
    "32",
    "--kv-evict-prefix",
    "32",
    "--kv-evict-window",
    "64",
];

fn content(answer: &Value) -> (Value, Value) {
    (
        answer["choices"][0]["message"]["content"].clone(),
        answer["usage"]["completion_tokens"].clone(),
    )
}

fn asked(i: u64) -> Value {
    let fields = json!({ "max_tokens": 260, "ignore_eos": true, "temperature": 0.8, "seed": i });
    chat(&format!("Write a long story about {i} ships and the sea."), fields)
}

#[test]
fn answers_are_cut_alike_alone_and_in_company() {
    for flags in [
        &["--kv-evict", "triattention", "--kv-cache-dtype", "taper4"],
        &["--kv-evict", "window", "--kv-cache-dtype", "f16"],
    ] {
        let server = Server::start(&[&flags[..], &NUMBERS[..]].concat());
        let alone: Vec<_> = (0..4).map(|i| content(&server.ask(PATH, &asked(i)))).collect();
        let (evictions, tokens) = ("taper:kv_evictions_total", "taper:kv_evicted_tokens_total");
        let (before, went) = (server.metric(evictions), server.metric(tokens));
        assert!(before >= 8.0 && went >= 32.0 * before, "{went} in {before}");
        let server = &server;
        let together: Vec<_> = thread::scope(|scope| {
            let ask = |i| scope.spawn(move || content(&server.ask(PATH, &asked(i))));
            let open: Vec<_> = (0..4).map(ask).collect();
            open.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(together, alone, "{flags:?}");
        assert_eq!(server.metric(evictions), 2.0 * before);
    }
    let plain = Server::shared();
    plain.ask(PATH, &asked(0));
    assert_eq!(plain.metric("taper:kv_evictions_total"), 0.0);
}

#[test]
fn statistics_come_from_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let (file, prose) = (dir.path().join("stats.safetensors"), dir.path().join("text.txt"));
    fs::write(&prose, "The ship lay in the harbour, and the sea was calm. ".repeat(60)).unwrap();
    let (file, prose) = (file.to_str().unwrap(), prose.to_str().unwrap());
    let calibrate = ["calibrate", "--text", prose, "--tokens", "300", "-o", file];
    let output = taper(&calibrate, "");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("over 300 tokens"), "{}", text(&output.stdout));
    let flags = ["--kv-evict", "triattention", "--kv-evict-stats", file];
    let server = Server::start(&[&flags[..], &NUMBERS[..]].concat());
    server.ask(PATH, &asked(1));
    assert!(server.metric("taper:kv_evictions_total") > 0.0);
    // Of another model, of none, and of something else.
    let other = ModelDir::new("qwen3-bf16");
    let run = |model: &str, stats: &str| {
        let flags = ["--kv-evict", "triattention", "--kv-evict-stats", stats];
        fails(&[&["run", "--model", model, "--raw"], &flags[..], &["Hello"]].concat())
    };
    let error = run(other.path(), file);
    assert!(error.contains("another model"), "{error}");
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/models/demo");
    let error = run(demo, prose);
    assert!(error.contains("text.txt"), "{error}");
    let error = run(demo, "/no/such/file");
    assert!(error.contains("/no/such/file"), "{error}");
    for (args, word) in [
        (["calibrate", "--text", "/no/such/text", "-o", file], "/no/such/text"),
        (["calibrate", "--text", prose, "-o", "/no/such/dir/x"], "/no/such/dir/x"),
    ] {
        let error = fails(&args);
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn flags_that_do_not_fit_are_refused() {
    for (flags, word) in [
        (&["--kv-evict", "window", "--kv-evict-every", "40"][..], "--kv-evict-every"),
        (&["--kv-evict", "window", "--kv-budget", "200"], "raise --kv-budget"),
        (&["--kv-evict", "window", "--kv-evict-warmup", "9"], "triattention"),
        (
            &["--kv-evict", "window", "--kv-cache-dtype", "taper4", "--kv-evict-window", "8"],
            "--kv-evict-window",
        ),
    ] {
        let error = fails(&[&["run"], flags, &["Hello"]].concat());
        assert!(error.contains(word), "{flags:?}: {error}");
    }
    for flags in [&["--kv-evict", "lru"][..], &["--kv-budget", "2048"], &["--kv-evict-keep-prompt"]]
    {
        let output = taper(&[&["run"], flags, &["Hello"]].concat(), "");
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {}", text(&output.stderr));
    }
    let hybrid = ModelDir::new("qwen3-next-bf16");
    let error = fails(&["run", "--model", hybrid.path(), "--raw", "--kv-evict", "window", "Hello"]);
    assert!(error.contains("recurrent layers") && error.contains("--kv-evict"), "{error}");
}
