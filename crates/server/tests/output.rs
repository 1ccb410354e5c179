//! Standard output that is a closed pipe or a full disk.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{BINARY, model_dir::ModelDir, text, wait};
use std::{
    fs::{File, OpenOptions},
    process::{Command, Output, Stdio},
};

fn full() -> File {
    OpenOptions::new().write(true).open("/dev/full").unwrap()
}

fn run(args: &[&str], out: Stdio, err: Stdio) -> Output {
    let mut child = Command::new(BINARY)
        .args(args)
        .env("HF_HUB_CACHE", concat!(env!("CARGO_MANIFEST_DIR"), "/no-such-cache"))
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .spawn()
        .unwrap();
    wait(&mut child);
    child.wait_with_output().unwrap()
}

/// A pipe that nobody reads.
fn closed() -> Stdio {
    let mut cat = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
    let pipe = cat.stdin.take().unwrap();
    cat.wait().unwrap();
    pipe.into()
}

/// Every command that prints and ends by itself, and one that serves.
fn commands(dir: &ModelDir) -> Vec<Vec<String>> {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let out = dir.file("out");
    vec![
        words("inspect --tensors"),
        words("run Hello! --max-tokens 4"),
        words("kv-report --context 64 --kv-recent-tokens 32 --kv-sink-tokens 0 --codecs taper4"),
        words(
            "kv-report --context 64 --kv-recent-tokens 32 --kv-sink-tokens 0 --codecs f16 --json",
        ),
        [words("convert --group 32"), words(dir.path()), words(out.to_str().unwrap())].concat(),
        words("serve --port 0"),
        words("--help"),
        words("--version"),
    ]
}

#[test]
fn a_full_disk_is_one_line_of_explanation() {
    let dir = ModelDir::new("qwen3-bf16");
    for command in commands(&dir) {
        let args: Vec<_> = command.iter().map(String::as_str).collect();
        let output = run(&args, full().into(), Stdio::piped());
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {err}");
        assert!(!err.contains("panicked"), "{args:?}: {err}");
        let lines = err.lines().filter(|l| l.contains("error: cannot write to standard output"));
        assert_eq!(lines.count(), 1, "{args:?}: {err}");
    }
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let dir = ModelDir::new("qwen3-bf16");
    for command in commands(&dir) {
        let args: Vec<_> = command.iter().map(String::as_str).collect();
        let output = run(&args, closed(), Stdio::piped());
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(141), "{args:?}: {err}");
        assert!(!err.contains("panicked") && !err.contains("error"), "{args:?}: {err}");
    }
}

#[test]
fn standard_error_may_be_full_too() {
    for args in [&["run", "Hello!", "--max-tokens", "2"][..], &["list"]] {
        let output = run(args, Stdio::piped(), full().into());
        assert_eq!(output.status.code(), Some(0), "{args:?}");
    }
    let output = run(&["run", "x", "--model", "/nothing/here"], Stdio::piped(), full().into());
    assert_eq!(output.status.code(), Some(1));
}
