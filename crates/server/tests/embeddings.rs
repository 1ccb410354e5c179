//! `/v1/embeddings` of a server whose model makes vectors of texts.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Server, chat, fails};
use serde_json::{Value, json};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/embedders/qwen3");

fn vectors(reply: &Value) -> Vec<Vec<f64>> {
    let data = reply["data"].as_array().unwrap().iter().enumerate();
    data.map(|(i, one)| {
        assert_eq!((&one["object"], &one["index"]), (&json!("embedding"), &json!(i)));
        serde_json::from_value(one["embedding"].clone()).unwrap()
    })
    .collect()
}

#[test]
fn texts_become_vectors() {
    let server = Server::start(&[MODEL]);
    let ask = |input: Value, more: Value| {
        let mut body = json!({ "model": "qwen3", "input": input });
        more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        server.ask("/v1/embeddings", &body)
    };
    let expected = std::fs::read(format!("{MODEL}/expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    let reply = ask(expected["texts"].clone(), json!({ "user": "x", "encoding_format": "float" }));
    assert_eq!((&reply["object"], &reply["model"]), (&json!("list"), &json!("qwen3")));
    let got = vectors(&reply);
    let want: Vec<Vec<f64>> = serde_json::from_value(expected["plain"].clone()).unwrap();
    for (got, want) in got.iter().zip(&want) {
        assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 2e-5));
    }
    assert_eq!(got.len(), want.len());
    // The first text in other forms.
    let text = expected["texts"][0].as_str().unwrap();
    assert_eq!(vectors(&ask(json!(text), json!({})))[0], got[0]);
    let tokens = server.ask("/tokenize", &json!({ "prompt": text }));
    let usage = ask(json!(text), json!({}))["usage"].clone();
    assert_eq!(usage, json!({ "prompt_tokens": tokens["count"], "total_tokens": tokens["count"] }));
    for input in [tokens["tokens"].clone(), json!([tokens["tokens"]])] {
        assert_eq!(vectors(&ask(input, json!({})))[0], got[0]);
    }
    let short = vectors(&ask(json!(text), json!({ "dimensions": 8 })));
    let length: f64 = short[0].iter().map(|x| x * x).sum();
    assert!(short[0].len() == 8 && (length - 1.0).abs() < 1e-5);
    let coded = ask(json!(text), json!({ "encoding_format": "base64" }));
    assert_eq!(
        coded["data"][0]["embedding"].as_str().unwrap().len(),
        (32usize * 4).div_ceil(3) * 4
    );
    for (body, param, code) in [
        (json!({ "input": [] }), "input", "context_length_exceeded"),
        (json!({ "input": "" , "dimensions": 0 }), "dimensions", "invalid_value"),
        (json!({ "input": "x", "dimensions": 33 }), "dimensions", "invalid_value"),
        (json!({ "input": "x".repeat(300) }), "input", "context_length_exceeded"),
        (json!({ "input": [[1, 2], [99999]] }), "input", "unknown_token"),
        (json!({ "input": "x", "encoding_format": "int8" }), "encoding_format", "invalid_value"),
        (json!({ "input": 3 }), "input", "invalid_type"),
        (json!({ "model": "qwen3" }), "input", "missing_required_parameter"),
        (json!({ "input": "x", "what": 1 }), "what", "unknown_parameter"),
    ] {
        let reply = server.post("/v1/embeddings", &body);
        let error = &reply.json()["error"];
        assert_eq!(
            (reply.status, &error["param"], &error["code"]),
            (400, &json!(param), &json!(code)),
            "{body}"
        );
    }
    let reply = server.post("/v1/chat/completions", &chat("x", json!({})));
    assert!(reply.status == 400, "{}", reply.body);
    let reply = server.post("/v1/completions", &json!({ "prompt": "x" }));
    assert!(reply.status == 400 && reply.body.contains("no_generation"), "{}", reply.body);
    assert_eq!(server.get("/metrics").status, 200);
}

#[test]
fn other_models_make_none() {
    let reply = Server::shared().post("/v1/embeddings", &json!({ "input": "x" }));
    assert!(reply.status == 400 && reply.body.contains("no_vectors"), "{}", reply.body);
    let error = fails(&["serve", MODEL, "--port", "0", "--enable-lora"]);
    assert!(error.contains("take no adapters"), "{error}");
}
