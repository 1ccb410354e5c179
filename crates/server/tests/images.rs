//! A model that sees, from a file in a request to the text that transformers writes.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use common::{BINARY, Server};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::{fs, process::Command};

const MODEL: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/vision/qwen3_vl-chat");
const EXACT: [&str; 4] = ["--dtype", "float32", "--kv-cache-dtype", "f32"];

/// The fixture's image as a file, and the prompt's and the answer's tokens.
struct Fixture {
    file: Vec<u8>,
    prompt: Vec<u64>,
    greedy: Vec<u64>,
}

fn fixture() -> Fixture {
    let bytes = fs::read(format!("{MODEL}/expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let ids = |name: &str| -> Vec<u64> {
        let data = file.tensor(name).unwrap().data().to_vec();
        data.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect()
    };
    let image = fs::read(format!("{MODEL}/image.png")).unwrap();
    Fixture { file: image, prompt: ids("input_ids"), greedy: ids("greedy") }
}

/// A BMP file of 24 bits a pixel.
fn bmp(width: usize, height: usize, rgb: &[u8]) -> Vec<u8> {
    let row = (3 * width).next_multiple_of(4);
    let word = |n: usize| u32::try_from(n).unwrap().to_le_bytes();
    let mut file = b"BM".to_vec();
    for n in [54 + row * height, 0, 54, 40, width, height] {
        file.extend(word(n));
    }
    file.extend([1, 0, 24, 0]);
    for n in [0, row * height, 2835, 2835, 0, 0] {
        file.extend(word(n));
    }
    for line in rgb.chunks(3 * width).rev() {
        let mut line: Vec<u8> = line.chunks(3).flat_map(|p| [p[2], p[1], p[0]]).collect();
        line.resize(row, 0);
        file.extend(line);
    }
    file
}

fn body(url: &str, tokens: usize) -> Value {
    json!({
        "messages": [{ "role": "user", "content": [
            { "type": "image_url", "image_url": { "url": url } },
            { "type": "text", "text": "What is this?" },
        ] }],
        "temperature": 0, "max_tokens": tokens, "ignore_eos": true, "return_token_ids": true,
    })
}

#[test]
fn what_is_seen_is_what_transformers_sees() {
    let Fixture { file, prompt, greedy } = fixture();
    let server = Server::start(&[&[MODEL][..], &EXACT].concat());
    let base64 = BASE64_STANDARD.encode(&file);
    let ask = || {
        let url = format!("data:image/png;base64,{base64}");
        server.ask("/v1/chat/completions", &body(&url, greedy.len()))
    };
    let first = ask();
    assert_eq!(first["prompt_token_ids"], json!(prompt));
    assert_eq!(first["choices"][0]["token_ids"], json!(greedy));
    assert_eq!(first["usage"]["prompt_tokens"], prompt.len());
    let again = ask();
    assert_eq!(again["choices"][0], first["choices"][0]);
    let cached = again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached > 0, "{again}");
    let other = bmp(16, 16, &[200; 768]);
    let url = format!("data:image/bmp;base64,{}", BASE64_STANDARD.encode(other));
    let other = server.ask("/v1/chat/completions", &body(&url, greedy.len()));
    assert_ne!(other["choices"][0]["token_ids"], json!(greedy));
    let text = first["choices"][0]["message"]["content"].as_str().unwrap();
    let anthropic = json!({
        "max_tokens": greedy.len(), "temperature": 0,
        "messages": [{ "role": "user", "content": [
            { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": base64 } },
            { "type": "text", "text": "What is this?" },
        ] }],
    });
    let answer = server.ask("/v1/messages", &anthropic);
    let said = answer["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.starts_with(said.trim_end()), "{said:?} of {text:?}");
    let page = server.get("/metrics").body;
    for line in ["taper:images_total", "taper:image_cache_hits_total"] {
        let line = page.lines().find(|l| l.starts_with(line)).unwrap();
        assert!(!line.ends_with(" 0"), "{line}");
    }
    assert!(server.get("/health").body.contains("\"vision\":true"));
}

#[test]
fn the_terminal_shows_images_too() {
    let Fixture { file, greedy, .. } = fixture();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.png");
    fs::write(&path, file).unwrap();
    let server = Server::start(&[&[MODEL][..], &EXACT].concat());
    let tokens = server.ask("/detokenize", &json!({ "tokens": greedy }));
    let run = |image: &str| {
        let args = ["run", "What is this?", "--model", MODEL, "--image", image];
        let tokens = greedy.len().to_string();
        let limits = ["--temperature", "0", "--max-tokens", &tokens];
        Command::new(BINARY).args(args).args(limits).args(EXACT).output().unwrap()
    };
    let shown = run(path.to_str().unwrap());
    let text = String::from_utf8(shown.stdout).unwrap();
    let want = tokens["prompt"].as_str().unwrap();
    assert!(
        !text.trim().is_empty() && want.trim().starts_with(text.trim()),
        "{text:?} of {want:?}"
    );
    let missing = run("/nowhere/image.png");
    assert!(!missing.status.success());
    fs::write(&path, "no image").unwrap();
    let broken = run(path.to_str().unwrap());
    let says = String::from_utf8(broken.stderr).unwrap();
    assert!(!broken.status.success() && says.contains("the image cannot be used"), "{says}");
}

#[test]
fn without_its_tower_a_model_takes_no_images() {
    let server = Server::start(&[MODEL, "--limit-mm-per-prompt", r#"{"image": 0}"#]);
    let reply = server.post("/v1/chat/completions", &body("data:;base64,AAAA", 5));
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("does not take images"), "{}", reply.body);
}
