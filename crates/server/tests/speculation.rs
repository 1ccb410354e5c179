//! Drafts over HTTP: the text is the same with and without, also around stop strings, tool calls and schemas, and
//! `/metrics` tells the difference.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Server, chat, fails, taper, text};
use serde_json::{Value, json};
use std::{fs, path::Path};

const PATH: &str = "/v1/chat/completions";

/// A text that invites repetition.
const LIST: &str = "Repeat this list three times, word for word:\n1. The red house stands on the green hill.\n\
                    2. The blue boat lies in the old harbour.\n3. The grey cat sleeps under the warm stove.";

/// An answer without what differs between two of the same.
fn content(mut answer: Value) -> Value {
    for field in ["id", "created", "usage"] {
        answer.as_object_mut().unwrap().remove(field);
    }
    // These are random.
    for call in answer["choices"][0]["message"]["tool_calls"].as_array_mut().into_iter().flatten() {
        call.as_object_mut().unwrap().remove("id");
    }
    answer
}

fn requests() -> Vec<Value> {
    let schema = json!({ "type": "object", "additionalProperties": false, "required": ["items"],
        "properties": { "items": { "type": "array", "minItems": 3, "maxItems": 5, "items": {
            "type": "object", "additionalProperties": false, "required": ["name", "count"],
            "properties": { "name": { "type": "string", "maxLength": 10 },
                            "count": { "type": "integer", "maximum": 9 } } } } } });
    let format = json!({ "type": "json_schema",
        "json_schema": { "name": "x", "strict": true, "schema": schema } });
    let tool = json!({ "type": "function", "function": { "name": "get_weather",
        "parameters": { "type": "object", "required": ["city"], "additionalProperties": false,
            "properties": { "city": { "type": "string", "maxLength": 12 } } } } });
    let mut all = Vec::new();
    for (seed, temperature) in [(1, 0.0), (2, 0.3), (3, 0.8), (4, 1.0)] {
        let with = |mut fields: Value| {
            let own = json!({ "seed": seed, "temperature": temperature, "max_tokens": 90 });
            fields.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
            fields
        };
        all.extend([
            with(json!({})),
            with(json!({ "n": 2, "logprobs": true, "top_logprobs": 3 })),
            with(json!({ "stop": ["harbour", "\n2"], "include_stop_str_in_output": true })),
            with(json!({ "stop": [" the", "e c"] })),
            with(json!({ "response_format": format })),
            with(json!({ "tools": [tool], "tool_choice": "required" })),
            with(json!({ "frequency_penalty": 0.5, "repetition_penalty": 1.1, "top_p": 0.9 })),
            with(json!({ "max_thinking_tokens": 20, "enable_thinking": true })),
            with(json!({ "prediction": { "type": "content", "content": LIST } })),
        ]);
    }
    all
}

#[test]
fn answers_are_the_same_with_and_without_drafts() {
    let server = Server::start(&["--max-num-seqs", "4"]);
    for fields in requests() {
        let asked = chat(LIST, fields.clone());
        let with = server.ask(PATH, &asked);
        let mut off = asked.clone();
        off["max_draft_tokens"] = json!(0);
        let without = server.ask(PATH, &off);
        let details = &with["usage"]["completion_tokens_details"];
        let counted = details["accepted_prediction_tokens"].is_u64();
        assert_eq!(counted, fields["prediction"].is_object(), "{with}");
        let tokens = |answer: &Value| answer["usage"]["completion_tokens"].clone();
        assert_eq!(tokens(&with), tokens(&without), "{fields}");
        assert_eq!(content(with), content(without), "{fields}");
    }
    let drafted = server.metric("vllm:spec_decode_num_draft_tokens_total");
    let accepted = server.metric("vllm:spec_decode_num_accepted_tokens_total");
    assert!(drafted > 0.0 && accepted > 0.0 && accepted <= drafted, "{accepted} of {drafted}");
    assert!(server.metric("vllm:spec_decode_num_drafts_total") <= drafted);
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("method=\"suffix\",num_speculative_tokens=\"8\",reason=\"\""));
}

#[test]
fn drafting_can_be_turned_off() {
    for flags in [["--speculative-config", "null"], ["--num-draft-tokens", "0"]] {
        let server = Server::start(&flags);
        server.ask(PATH, &chat(LIST, json!({ "max_tokens": 60, "temperature": 0 })));
        assert_eq!(server.metric("vllm:spec_decode_num_drafts_total"), 0.0);
        let metrics = server.get("/metrics").body;
        assert!(metrics.contains("method=\"off\""), "{metrics}");
    }
}

#[test]
fn configurations_that_are_not_served_are_refused() {
    for (config, word) in [
        (r#"{"method": "medusa"}"#, "no method"),
        (r#"{"method": "mtp"}"#, "no head"),
        (r#"{"method": "draft_model", "model": "/no/such/model"}"#, "/no/such/model"),
    ] {
        let error = fails(&["run", "--speculative-config", config, "Hello"]);
        assert!(error.contains(word), "{config}: {error}");
    }
    for (config, word) in
        [(r#"{"num_speculative_tokens": -1}"#, "invalid value"), ("suffix", "expected")]
    {
        let output = taper(&["run", "--speculative-config", config, "Hello"], "");
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(word), "{config}: {error}");
    }
}

/// The demo model drafts for itself: the same text, and nearly all drafts are right.
#[test]
fn a_draft_model_changes_no_text() {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/models/demo");
    let with = Server::start(&["--max-num-seqs", "1", "--draft-model", demo]);
    let without = Server::start(&["--max-num-seqs", "1", "--num-draft-tokens", "0"]);
    for (seed, temperature) in [(1, 0.0), (2, 0.7)] {
        let asked =
            chat(LIST, json!({ "max_tokens": 60, "temperature": temperature, "seed": seed }));
        assert_eq!(content(with.ask(PATH, &asked)), content(without.ask(PATH, &asked)));
    }
    assert!(
        with.get("/metrics").body.contains("method=\"draft_model\",num_speculative_tokens=\"4\"")
    );
}

/// A checkpoint's own head drafts for it: the same text, alone and in a batch, and drafts that are right are counted.
#[test]
fn a_head_changes_no_text() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo");
    let model = demo.join("../../../../tests/models/demo-moe-hybrid");
    let dir = tempfile::tempdir().unwrap();
    for file in fs::read_dir(&model).unwrap().map(|file| file.unwrap().path()) {
        fs::copy(&file, dir.path().join(file.file_name().unwrap())).unwrap();
    }
    fs::copy(demo.join("tokenizer.json"), dir.path().join("tokenizer.json")).unwrap();
    let dir = dir.path().to_str().unwrap();
    // Whether a draft is worth a step depends on what the first steps cost, and a busy machine may say no. The next
    // server has learnt nothing.
    assert!((0..20).any(|_| accepted_of_a_head(dir) > 0.0));
}

/// Tokens of a head's drafts that were right, of answers that are compared.
fn accepted_of_a_head(dir: &str) -> f64 {
    let config = r#"{"method": "mtp", "num_speculative_tokens": 2}"#;
    let server = Server::start(&[dir, "--max-num-seqs", "2", "--speculative-config", config]);
    for (seed, temperature) in [(1, 0.0), (2, 0.7)] {
        let fields = json!({ "max_tokens": 70, "temperature": temperature, "seed": seed, "n": 2 });
        let asked = chat(LIST, fields);
        let mut off = asked.clone();
        off["max_draft_tokens"] = json!(0);
        assert_eq!(content(server.ask(PATH, &asked)), content(server.ask(PATH, &off)));
    }
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("method=\"mtp\",num_speculative_tokens=\"2\""), "{metrics}");
    server.metric("vllm:spec_decode_num_accepted_tokens_total")
}
