//! Many clients at once, clients that hang up, and the end of the server.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Server, chat, fails, http::joined};
use serde_json::{Value, json};
use std::{fs, thread};

/// Different lengths, different words.
fn prompt(i: usize) -> String {
    let words = ["river", "amber", "castle", "Paris", "lantern", "42", "forge", "quiet"];
    let many: Vec<_> = (0..i % 23 + 1).map(|k| words[(i * 5 + k * 3) % words.len()]).collect();
    format!("Repeat exactly: {} {i}", many.join(" "))
}

fn request(i: usize) -> Value {
    chat(&prompt(i), json!({ "max_tokens": 6 + i % 11, "ignore_eos": true }))
}

#[test]
fn sixty_four_streams_say_what_each_says_alone() {
    const STREAMS: usize = 64;
    let server = Server::start(&[]);
    let path = "/v1/chat/completions";
    let alone: Vec<_> = (0..STREAMS)
        .map(|i| {
            let answer = server.ask(path, &request(i));
            let text = answer["choices"][0]["message"]["content"].clone();
            text.as_str().unwrap_or_default().to_owned()
        })
        .collect();
    let crowd: Vec<_> = thread::scope(|scope| {
        let open: Vec<_> = (0..STREAMS)
            .map(|i| {
                let server = &server;
                scope.spawn(move || joined(&server.stream(path, &request(i)).chunks(), "content"))
            })
            .collect();
        open.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (i, (alone, crowd)) in alone.iter().zip(&crowd).enumerate() {
        assert_eq!(alone, crowd, "request {i}");
    }
    let different: std::collections::HashSet<_> = alone.iter().collect();
    assert!(different.len() > STREAMS / 2, "the prompts were meant to differ");
    server.wait_until_idle();
    let steps = server.metric("taper:engine_steps_total");
    assert!(server.metric("vllm:generation_tokens_total") > steps, "some steps had several");
}

#[test]
fn a_cache_that_is_too_small_for_all_changes_nothing() {
    // Twenty blocks of 32 tokens.
    let bytes = (20 * 32 * 8192).to_string();
    let server = Server::start(&["--max-model-len", "512", "--kv-cache-memory-bytes", &bytes]);
    let path = "/v1/chat/completions";
    let body = |i| chat(&prompt(i), json!({ "max_tokens": 40, "ignore_eos": true }));
    let content = |answer: Value| answer["choices"][0]["message"]["content"].clone();
    let alone: Vec<_> = (0..12).map(|i| content(server.ask(path, &body(i)))).collect();
    assert_eq!(server.metric("vllm:num_preemptions_total"), 0.0);
    let crowd: Vec<_> = thread::scope(|scope| {
        let open: Vec<_> = (0..12)
            .map(|i| {
                let (server, body) = (&server, body(i));
                scope.spawn(move || content(server.ask(path, &body)))
            })
            .collect();
        open.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(crowd, alone);
    assert!(server.metric("vllm:num_preemptions_total") > 0.0);
    server.wait_until_idle();
}

#[test]
fn who_hangs_up_frees_what_was_held() {
    let server = Server::start(&[]);
    let endless = chat("Count to ten.", json!({ "max_tokens": 20_000, "ignore_eos": true }));
    let path = "/v1/chat/completions";
    let mut open: Vec<_> = (0..5).map(|_| server.stream(path, &endless)).collect();
    for stream in &mut open {
        assert_eq!(stream.by_ref().take(3).count(), 3);
    }
    assert_eq!(server.metric("vllm:num_requests_running"), 5.0);
    assert!(server.metric("vllm:kv_cache_usage_perc") > 0.0);
    drop(open);
    server.wait_until_idle();
    // Also a client that waits for the whole response, and goes before it comes.
    let gone = {
        use std::io::Write;
        let mut socket = std::net::TcpStream::connect(&server.address).unwrap();
        let body = endless.to_string();
        write!(
            socket,
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            server.address,
            body.len()
        )
        .unwrap();
        server.wait_for_metric("vllm:num_requests_running", |n| n == 1.0);
        socket
    };
    drop(gone);
    server.wait_until_idle();
    assert_eq!(server.chat("Hello!", json!({}))["choices"][0]["finish_reason"], "stop");
}

#[test]
fn sigterm_lets_running_streams_finish() {
    let mut server = Server::start(&[]);
    let body = chat("Count to ten.", json!({ "max_tokens": 60, "ignore_eos": true }));
    let path = "/v1/chat/completions";
    let mut open: Vec<_> = (0..4).map(|_| server.stream(path, &body)).collect();
    for stream in &mut open {
        stream.next().expect("a first event");
    }
    server.signal("-TERM");
    // What comes now is told so, for as long as anything runs.
    let mut refused = false;
    while let Some(event) = open[0].next().filter(|e| e != "[DONE]") {
        if !refused && !event.is_empty() {
            let ready = server.get("/ready").status;
            assert!([200, 503].contains(&ready));
            if ready == 503 {
                assert_eq!(server.post(path, &body).status, 503);
                refused = true;
            }
        }
    }
    assert!(refused, "the server was draining while the streams ran");
    for stream in open.drain(..).skip(1) {
        let chunks = stream.chunks();
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    }
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn sigterm_ends_an_idle_server_and_an_impatient_one() {
    let mut idle = Server::start(&[]);
    idle.get("/health");
    idle.signal("-INT");
    assert_eq!(idle.wait().code(), Some(0));

    let mut server = Server::start(&["--drain-timeout", "1"]);
    let body = chat("Count to ten.", json!({ "max_tokens": 200_000, "ignore_eos": true }));
    let mut stream = server.stream("/v1/chat/completions", &body);
    stream.next().expect("a first event");
    server.signal("-TERM");
    let last = stream.last().expect("an event that says why");
    assert!(last.contains("shutting_down"), "{last}");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_taken_port_is_said_so() {
    let server = Server::shared();
    let port = server.address.rsplit(':').next().unwrap();
    let error = fails(&["serve", "--port", port]);
    assert!(error.contains("cannot listen on 127.0.0.1") && error.contains(port), "{error}");
    assert!(error.contains("--port"), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_fresh_server_is_small_and_soon_there() {
    let server = Server::start(&[]);
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    println!("ready after {:?}, {} MB resident", server.ready_after, kib * 1024 / 1_000_000);
    assert!(kib * 1024 < 150_000_000, "{line}");
}
