//! `/v1/rerank` and `/v1/score`, of rerankers and of embedding models.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Server, fails};
use serde_json::{Value, json};

fn dir(name: &str) -> String {
    format!("{}/../../tests/fixtures/embedders/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn expected(name: &str) -> Value {
    let file = std::fs::read(format!("{}/expected.json", dir(name))).unwrap();
    serde_json::from_slice(&file).unwrap()
}

fn floats(value: &Value) -> Vec<f64> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Scores by their texts' places.
fn scores(reply: &Value) -> Vec<f64> {
    let data = reply["data"].as_array().unwrap().iter().enumerate();
    data.map(|(i, one)| {
        assert_eq!((&one["object"], &one["index"]), (&json!("score"), &json!(i)));
        one["score"].as_f64().unwrap()
    })
    .collect()
}

fn near(got: &[f64], want: &[f64]) -> bool {
    got.len() == want.len() && got.iter().zip(want).all(|(g, w)| (g - w).abs() < 2e-5)
}

/// Some of these scores are equal.
fn falls(results: &[Value]) -> bool {
    let scores: Vec<_> = results.iter().map(|r| r["relevance_score"].as_f64().unwrap()).collect();
    scores.is_sorted_by(|a, b| a >= b)
}

#[test]
fn rerankers_score_as_sentence_transformers_does() {
    for (name, task) in
        [("bert-reranker", "auto"), ("xlm-roberta-reranker", "auto"), ("qwen3-reranker", "score")]
    {
        let server = Server::start(&[&dir(name), "--task", task]);
        let expected = expected(name);
        let (query, texts, want) = (&expected["query"], &expected["texts"], &expected["scores"]);
        let want = floats(want);
        let body = json!({ "text_1": query, "text_2": texts, "user": "x" });
        let reply = server.ask("/v1/score", &body);
        assert!(near(&scores(&reply), &want), "{name}: {reply}");
        assert_eq!((&reply["object"], &reply["model"]), (&json!("list"), &json!(name)));
        assert!(reply["usage"]["total_tokens"].as_u64().unwrap() > 0);
        assert_eq!(server.ask("/score", &body)["data"], reply["data"]);
        let pairs = json!({ "text_1": [query, query], "text_2": [texts[1], texts[0]] });
        let swapped = scores(&server.ask("/v1/score", &pairs));
        assert!(near(&swapped, &[want[1], want[0]]), "{name}: {swapped:?}");
        let body = json!({ "query": query, "documents": texts });
        let reply = server.ask("/v1/rerank", &body);
        assert_eq!(server.ask("/rerank", &body)["results"], reply["results"]);
        let results = reply["results"].as_array().unwrap();
        assert!(results.len() == want.len() && falls(results));
        for result in results {
            let index = result["index"].as_u64().unwrap() as usize;
            assert!(near(&[result["relevance_score"].as_f64().unwrap()], &[want[index]]));
            assert_eq!(result["document"]["text"], texts[index]);
        }
        let documents: Vec<_> =
            texts.as_array().unwrap().iter().map(|text| json!({ "text": text })).collect();
        let some = json!({ "query": query, "documents": documents, "top_n": 2, "return_documents": false });
        let some = server.ask("/v1/rerank", &some);
        assert_eq!(some["results"].as_array().unwrap().len(), 2);
        assert_eq!(some["results"][0]["index"], results[0]["index"]);
        assert!(some["results"][0].get("document").is_none());
        let reply = server.post("/v1/embeddings", &json!({ "input": "x" }));
        assert!(reply.status == 400 && reply.body.contains("no_vectors"), "{}", reply.body);
    }
}

#[test]
fn embedding_models_score_by_cosine() {
    let server = Server::start(&[&dir("qwen3")]);
    let expected = expected("qwen3");
    let vectors: Vec<Vec<f64>> = serde_json::from_value(expected["plain"].clone()).unwrap();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    let want: Vec<f64> = vectors.iter().map(|v| dot(&vectors[0], v)).collect();
    let (first, texts) = (&expected["texts"][0], &expected["texts"]);
    let got = scores(&server.ask("/v1/score", &json!({ "text_1": first, "text_2": texts })));
    assert!(near(&got, &want), "{got:?} {want:?}");
    let reply = server.ask("/v1/rerank", &json!({ "query": first, "documents": texts }));
    let results = reply["results"].as_array().unwrap();
    assert!(results[0]["index"] == 0 && falls(results), "a text is nearest to itself");
    for (path, body, param, code) in [
        ("/v1/score", json!({ "text_1": ["a", "b"], "text_2": "c" }), "text_2", "invalid_value"),
        ("/v1/score", json!({ "text_1": [], "text_2": "c" }), "text_1", "invalid_value"),
        ("/v1/score", json!({ "text_1": "c" }), "text_2", "missing_required_parameter"),
        ("/v1/score", json!({ "text_1": 1, "text_2": "c" }), "text_1", "invalid_type"),
        (
            "/v1/score",
            json!({ "text_1": "a", "text_2": ["b", "x".repeat(300)] }),
            "text_2",
            "context_length_exceeded",
        ),
        ("/v1/rerank", json!({ "query": "a", "documents": [] }), "documents", "invalid_value"),
        ("/v1/rerank", json!({ "query": "a", "documents": [1] }), "documents[0]", "invalid_type"),
        (
            "/v1/rerank",
            json!({ "query": "a", "documents": [{ "title": "b" }] }),
            "documents[0].text",
            "missing_required_parameter",
        ),
        (
            "/v1/rerank",
            json!({ "query": "x".repeat(300), "documents": ["b"] }),
            "query",
            "context_length_exceeded",
        ),
        (
            "/v1/rerank",
            json!({ "query": "a", "documents": vec!["b"; 2049] }),
            "documents",
            "invalid_value",
        ),
        ("/rerank", json!({ "query": "a", "documents": ["b"], "k": 1 }), "k", "unknown_parameter"),
    ] {
        let reply = server.post(path, &body);
        let error = &reply.json()["error"];
        assert_eq!(
            (reply.status, &error["param"], &error["code"]),
            (400, &json!(param), &json!(code)),
            "{}",
            reply.body
        );
    }
}

#[test]
fn models_that_generate_score_nothing() {
    let body = json!({ "query": "a", "documents": ["b"] });
    let reply = Server::shared().post("/v1/rerank", &body);
    assert!(reply.status == 400 && reply.body.contains("no_scores"), "{}", reply.body);
    let error = fails(&["serve", &dir("bert-reranker"), "--port", "0", "--enable-lora"]);
    assert!(error.contains("take no adapters"), "{error}");
}
