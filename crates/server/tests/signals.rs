//! Ctrl-C and SIGTERM end every command, whatever it is busy with.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Server, chat, model_dir::ModelDir, taper_child, text, wait};
use serde_json::json;
use std::{
    fs::{File, OpenOptions},
    os::unix::process::ExitStatusExt,
    process::{Child, Command, ExitStatus, Output},
    time::{Duration, Instant},
};

/// A reader that waits at such a file waits until somebody writes.
fn fifo(dir: &ModelDir) -> String {
    let path = dir.file("endless.jinja").to_str().unwrap().to_owned();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

/// Opens the other end, which is there as soon as the command reads the file.
fn meet(fifo: &str) -> File {
    OpenOptions::new().write(true).open(fifo).unwrap()
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// What a shell would say.
fn status(ended: ExitStatus) -> i32 {
    ended.code().or_else(|| ended.signal().map(|n| 128 + n)).unwrap()
}

fn ended(mut child: Child) -> (i32, Output) {
    let start = Instant::now();
    let code = status(wait(&mut child));
    assert!(start.elapsed() < Duration::from_secs(20), "it took {:?}", start.elapsed());
    (code, child.wait_with_output().unwrap())
}

#[test]
fn a_load_that_never_ends_is_interrupted() {
    for (name, code) in [("-INT", 130), ("-TERM", 143)] {
        for command in ["serve", "chat"] {
            let dir = ModelDir::new("qwen3-bf16");
            let endless = fifo(&dir);
            let port: &[&str] = if command == "serve" { &["--port", "0"] } else { &[] };
            let args = [command, dir.path(), "--chat-template", &endless];
            let child = taper_child(&[&args[..], port].concat());
            let _open = meet(&endless);
            signal(&child, name);
            let (status, output) = ended(child);
            let err = text(&output.stderr);
            assert_eq!(status, code, "{command} {name}: {err}");
            assert!(!err.contains("panicked"), "{err}");
        }
    }
}

/// Whether a thread of this name runs.
#[cfg(target_os = "linux")]
fn has_thread(child: &Child, name: &str) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    let names = tasks.map(|t| std::fs::read_to_string(t.unwrap().path().join("comm")));
    names.filter_map(Result::ok).any(|n| n.trim() == name)
}

#[cfg(target_os = "linux")]
#[test]
fn an_answer_is_interrupted_before_its_first_token_too() {
    use std::io::Write;
    let mut child = taper_child(&["run", "-", "--max-num-batched-tokens", "64"]);
    let long = "Some words that take long to read. ".repeat(8000);
    child.stdin.take().unwrap().write_all(long.as_bytes()).unwrap();
    while !has_thread(&child, "taper-signals") {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        std::thread::sleep(Duration::from_millis(10));
    }
    // The response begins in a moment; before, a signal ends the process with the same status.
    std::thread::sleep(Duration::from_millis(500));
    signal(&child, "-INT");
    let (status, output) = ended(child);
    let err = text(&output.stderr);
    assert_eq!(status, 130, "{err}");
    assert!(err.contains("prompt tokens, 0 tokens") && err.contains(", stopped]"), "{err}");
    assert!(err.contains("error: interrupted"), "{err}");
}

#[test]
fn a_second_signal_does_not_wait_for_what_runs() {
    for (name, code) in [("-INT", 130), ("-TERM", 143)] {
        let mut server = Server::start(&["--drain-timeout", "600"]);
        let body = chat("Count to ten.", json!({ "max_tokens": 200_000, "ignore_eos": true }));
        let mut stream = server.stream("/v1/chat/completions", &body);
        stream.next().expect("a first event");
        server.signal(name);
        let start = Instant::now();
        while server.get("/ready").status != 503 {
            assert!(start.elapsed() < Duration::from_secs(20), "it does not drain");
        }
        server.signal(name);
        assert_eq!(server.wait().code(), Some(code));
    }
}

#[test]
fn a_template_that_takes_long_does_not_hold_up_the_end() {
    let dir = ModelDir::new("qwen3-bf16");
    // Quick for the short messages of the checks at the start.
    let slow = "{% if messages[0].content | length > 20 %}{% for i in range(99999) %}\
                {% for j in range(99999) %}{% endfor %}{% endfor %}{% endif %}\
                {% for m in messages %}{{ m.content }}{% endfor %}";
    dir.edit("tokenizer_config.json", |c| c["chat_template"] = json!(slow));
    let mut server = Server::start(&[dir.path(), "--drain-timeout", "0"]);
    let mut waiting = std::net::TcpStream::connect(&server.address).unwrap();
    let body = chat("A message that is longer than the short ones.", json!({})).to_string();
    use std::io::Write;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        server.address,
        body.len()
    );
    waiting.write_all(head.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    server.signal("-TERM");
    let start = Instant::now();
    assert_eq!(server.wait().code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(20), "it took {:?}", start.elapsed());
}
