//! Models that are damaged: each is refused in words that name the file, or fails the request that
//! meets the damage and no other.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Server, fails, model_dir::ModelDir};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

const DENSE: &str = "qwen3-bf16";
const SHARDED: &str = "qwen3-sharded";
const SHARD: &str = "model-00001-of-00003.safetensors";

/// Breaks a model, and expects these words in the one line that the server says.
fn refused(fixture: &str, damage: impl Fn(&ModelDir), words: &[&str]) {
    let dir = ModelDir::new(fixture);
    damage(&dir);
    let error = fails(&["serve", dir.path(), "--port", "0"]);
    for word in words {
        assert!(error.contains(word), "{word:?} is not in: {error}");
    }
    let said = |w: &str| error.matches(w).count();
    assert!(said(dir.path()) <= 2, "says it again and again: {error}");
}

fn chat_template(source: &str) -> impl Fn(&ModelDir) {
    let source = source.to_owned();
    move |dir| dir.edit("tokenizer_config.json", |c| c["chat_template"] = json!(source))
}

#[test]
fn weights_that_are_damaged() {
    const FILE: &str = "model.safetensors";
    let half = |dir: &ModelDir| dir.truncate(FILE, |n| n / 2);
    refused(DENSE, half, &[FILE, "damaged or truncated"]);
    refused(DENSE, |dir| dir.truncate(FILE, |_| 100), &[FILE, "damaged or truncated"]);
    refused(DENSE, |dir| dir.truncate(FILE, |_| 0), &[FILE]);
    refused(DENSE, |dir| dir.write(FILE, [0xff; 64]), &[FILE, "damaged or truncated"]);
    refused(DENSE, |dir| dir.remove(FILE), &[FILE, "not a model directory"]);
    refused(SHARDED, |dir| dir.remove(SHARD), &[SHARD, "it has no"]);
    refused(SHARDED, |dir| dir.truncate(SHARD, |n| n - 1), &[SHARD, "damaged or truncated"]);
    const NORM: &str = "model.norm.weight";
    let dtype = |dir: &ModelDir| dir.edit_header(FILE, |h| h[NORM]["dtype"] = json!("I16"));
    refused(DENSE, dtype, &[NORM, "I16"]);
    let rename = |dir: &ModelDir| {
        dir.edit_header(FILE, |h| {
            let tensor = h.as_object_mut().unwrap().remove(NORM).unwrap();
            h["model.other.weight"] = tensor;
        });
    };
    refused(DENSE, rename, &[NORM]);
    let shape = |dir: &ModelDir| dir.edit_header(FILE, |h| h[NORM]["shape"] = json!([2, 64]));
    refused(DENSE, shape, &[NORM, "[2, 64]"]);
}

#[test]
fn configurations_that_are_damaged() {
    const FILE: &str = "config.json";
    let edit = |change: fn(&mut Value)| move |dir: &ModelDir| dir.edit(FILE, change);
    refused(DENSE, |dir| dir.remove(FILE), &[FILE]);
    refused(DENSE, |dir| dir.write(FILE, "{\"model_type\": "), &[FILE]);
    refused(DENSE, edit(|c| c["model_type"] = json!("gpt-9")), &["gpt-9", "qwen3"]);
    refused(DENSE, edit(|c| c["model_type"] = Value::Null), &["model_type"]);
    refused(DENSE, edit(|c| c["hidden_size"] = json!("big")), &[FILE, "qwen3"]);
    refused(DENSE, edit(|c| c["hidden_size"] = json!(256)), &["256"]);
    refused(DENSE, edit(|c| c["num_hidden_layers"] = json!(3)), &["layers.2"]);
    refused(DENSE, edit(|c| c["num_hidden_layers"] = json!(1)), &["does not use"]);
    refused(DENSE, edit(|c| c["num_attention_heads"] = json!(0)), &["num_attention_heads"]);
}

#[test]
fn tokenizers_and_templates_that_are_damaged() {
    let file = "tokenizer.json";
    refused(DENSE, |dir| dir.remove(file), &[file]);
    refused(DENSE, |dir| dir.truncate(file, |n| n / 2), &[file, "not a tokenizer"]);
    refused(DENSE, |dir| dir.write(file, "{\"model\": {}}"), &[file, "not a tokenizer"]);
    let file = "tokenizer_config.json";
    refused(DENSE, |dir| dir.write(file, "{"), &[file]);
    refused(DENSE, chat_template("a\n{% if %}"), &[file, "line 2", "compil"]);
    refused(DENSE, chat_template("{{ messages | frobnicate }}"), &[file, "line 1", "frobnicate"]);
    refused(DENSE, chat_template("{% for i in range(10) %}{{ i.x.y }}{% endfor %}"), &[file]);
    let missing = |dir: &ModelDir| {
        dir.edit(file, |c| drop(c.as_object_mut().unwrap().remove("chat_template")));
    };
    refused(DENSE, missing, &["no chat template", "--chat-template none"]);
    let shape = |dir: &ModelDir| dir.edit(file, |c| c["chat_template"] = json!(5));
    refused(DENSE, shape, &[file, "chat_template"]);
    let own = |dir: &ModelDir| dir.write("chat_template.jinja", "{% endif %}");
    refused(DENSE, own, &["chat_template.jinja", "line 1"]);
}

#[test]
fn settings_that_do_not_fit_the_model() {
    let dir = ModelDir::new(DENSE);
    let with = |flags: &[&str]| fails(&[&["serve", dir.path(), "--port", "0"], flags].concat());
    let error = with(&["--max-model-len", "513"]);
    assert!(error.contains("513") && error.contains("512"), "{error}");
    let error = with(&["--kv-cache-memory-bytes", "10"]);
    assert!(error.contains("KV cache"), "{error}");
    let error = with(&["--kv-cache-dtype", "int1"]);
    assert!(error.contains("int1") && error.contains("f16"), "{error}");
    let error = with(&["--gpu-memory-utilization", "0"]);
    assert!(error.contains("--gpu-memory-utilization"), "{error}");
    let error = with(&["--chat-template", "/nothing/here.jinja"]);
    assert!(error.contains("/nothing/here.jinja"), "{error}");
    let error = fails(&["serve", "/nothing/here", "--port", "0"]);
    assert!(error.contains("/nothing/here"), "{error}");
}

#[test]
fn a_model_without_a_template_serves_completions() {
    let dir = ModelDir::new(DENSE);
    let server = Server::start(&[dir.path(), "--chat-template", "none"]);
    let body = json!({ "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0 });
    assert_eq!(server.ask("/v1/completions", &body)["usage"]["completion_tokens"], 4);
    let reply = server.post("/v1/chat/completions", &common::chat("Hi", json!({})));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (400, &json!("no_chat_template")));
}

#[test]
fn a_server_that_can_answer_no_chat_says_so() {
    let empty = tempfile::NamedTempFile::new().unwrap();
    let empty = empty.path().to_str().unwrap();
    for (flags, why) in
        [(["--max-model-len", "1"], "the context has 1"), (["--chat-template", empty], "nothing")]
    {
        let mut child = Command::new(env!("CARGO_BIN_EXE_taper"))
            .args([&["serve", "--port", "0"], &flags[..]].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let warning = log.find(|line| line.contains("no chat can be answered"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(warning.is_some_and(|w| w.contains(why)), "{flags:?}");
    }
}

#[test]
fn a_template_that_fails_with_tools_serves_chat_without_them() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let source = "{% if tools %}{{ tools.nothing.at_all }}{% endif %}{{ messages }}";
    std::fs::write(file.path(), source).unwrap();
    let server = Server::start(&["--chat-template", file.path().to_str().unwrap()]);
    let short = |fields| common::chat("Hi", fields);
    assert_eq!(server.post("/v1/chat/completions", &short(json!({ "max_tokens": 2 }))).status, 200);
    let tools = json!([{ "type": "function", "function": { "name": "now" } }]);
    let reply = server.post("/v1/chat/completions", &short(json!({ "tools": tools })));
    assert_eq!(reply.status, 400, "{}", reply.body);
}

#[test]
fn a_weight_that_is_no_number_fails_who_meets_it_and_no_other() {
    let dir = ModelDir::new(SHARDED);
    // The embedding of token 7: 64 floats.
    dir.fill(SHARD, "model.embed_tokens.weight", 7 * 256..8 * 256, 0xff);
    let server = Server::start(&[dir.path()]);
    let ask = |tokens: &[u32], stream: bool| {
        let body = json!({ "prompt": tokens, "max_tokens": 3, "temperature": 0, "stream": stream,
                           "logit_bias": { "7": -100 } });
        server.post("/v1/completions", &body)
    };
    let good = ask(&[8, 9], false);
    assert_eq!(good.status, 200, "{}", good.body);
    for _ in 0..3 {
        let bad = ask(&[8, 7], false);
        assert_eq!(bad.status, 500, "{}", bad.body);
        let error = bad.json()["error"].clone();
        assert_eq!(
            (&error["code"], &error["type"]),
            (&json!("non_finite_logits"), &json!("server_error"))
        );
        // A stream has begun with 200; its error comes as an event.
        let streamed = ask(&[8, 7], true);
        assert!(streamed.body.contains("non_finite_logits"), "{}", streamed.body);
        assert_eq!(ask(&[8, 9], false).json()["choices"], good.json()["choices"]);
    }
    server.wait_until_idle();
}
