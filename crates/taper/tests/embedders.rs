//! Embedding models and rerankers give what sentence-transformers, or transformers, gives.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use std::{fs, path::PathBuf};
use taper::{EmbedOptions, Embedder, Error, Pooling, Reranker};

fn dir(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/embedders").join(name)
}

fn expected(name: &str) -> Value {
    serde_json::from_slice(&fs::read(dir(name).join("expected.json")).unwrap()).unwrap()
}

fn texts(expected: &Value) -> Vec<String> {
    serde_json::from_value(expected["texts"].clone()).unwrap()
}

fn close(got: &[Vec<f32>], want: &Value, what: &str) {
    let want: Vec<Vec<f32>> = serde_json::from_value(want.clone()).unwrap();
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(&want) {
        let most = got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0.0, f32::max);
        assert!(got.len() == want.len() && most < 2e-5, "{what}: {most}");
    }
}

#[test]
fn vectors_are_those_of_sentence_transformers() {
    for (name, pooling) in
        [("qwen3", Pooling::LastToken), ("gemma3", Pooling::Mean), ("nomic", Pooling::Mean)]
    {
        let (model, expected) =
            (Embedder::load(dir(name).to_str().unwrap()).unwrap(), expected(name));
        let texts = texts(&expected);
        assert_eq!((model.pooling(), model.dimensions(), model.max_tokens()), (pooling, 32, 200));
        let plain = model.embed(&texts).unwrap();
        close(&plain, &expected["plain"], name);
        assert_eq!(model.embed(&texts[1..2]).unwrap()[0], plain[1], "{name}: other texts are seen");
        assert_eq!(model.prompt_names().collect::<Vec<_>>(), ["document", "query"]);
        let query = EmbedOptions::default().prompt(model.prompt("query").unwrap());
        close(&model.embed_with(&texts, &query).unwrap(), &expected["query"], name);
        let short = EmbedOptions::default().dimensions(8);
        close(&model.embed_with(&texts, &short).unwrap(), &expected["short"], name);
        for n in [0, 33] {
            let refused = model.embed_with(&texts, &EmbedOptions::default().dimensions(n));
            assert!(matches!(refused, Err(Error::Dimensions { most: 32, .. })));
        }
        let long = model.embed(&["ok", &"x".repeat(300)]);
        assert!(matches!(long, Err(Error::TextLength { text: 1, most: 200, .. })));
    }
}

#[test]
fn scores_are_those_of_cross_encoders_and_of_qwen() {
    for name in ["bert-reranker", "xlm-roberta-reranker", "modernbert-reranker", "qwen3-reranker"] {
        let (model, expected) =
            (Reranker::load(dir(name).to_str().unwrap()).unwrap(), expected(name));
        let (query, texts) = (expected["query"].as_str().unwrap(), texts(&expected));
        let got = model.score(query, &texts).unwrap();
        close(std::slice::from_ref(&got), &json!([expected["scores"]]), name);
        assert_eq!(
            model.score(query, &texts[2..3]).unwrap(),
            [got[2]],
            "{name}: other texts are seen"
        );
        let ranked = model.rank(query, &texts).unwrap();
        assert!(ranked.windows(2).all(|two| two[0].score >= two[1].score));
        assert_eq!(ranked[0].score, got[ranked[0].index]);
        let told = model.score_by(Some("find cats"), query, &texts);
        match name {
            "qwen3-reranker" => assert!(told.unwrap() != got),
            _ => assert!(matches!(told, Err(Error::NoTask { .. }))),
        }
        let long = model.score(query, &["ok", &"x".repeat(1200)]);
        assert!(matches!(long, Err(Error::TextLength { text: 1, .. })), "{long:?}");
    }
}

/// A copy of a fixture whose config.json has another field.
fn changed(name: &str, field: &str, value: Value) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(dir(name)).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    let path = copy.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config[field] = value;
    fs::write(&path, config.to_string()).unwrap();
    copy
}

#[test]
fn other_models_are_refused_by_name() {
    let three = changed("bert-reranker", "id2label", json!({"0": "a", "1": "b", "2": "c"}));
    let error = Reranker::load(three.path().to_str().unwrap()).unwrap_err().to_string();
    assert!(error.contains("num_labels = 3"), "{error}");
    let error = Reranker::load(dir("gemma3").to_str().unwrap()).map(drop);
    assert!(error.is_err(), "an embedding model has no head");
    let both = taper::Taper::builder(dir("gemma3").to_str().unwrap());
    let both = both.chat_template(taper::ChatTemplateFrom::Nowhere).build().unwrap_err();
    assert!(both.to_string().contains("use_bidirectional_attention"), "{both}");
}
