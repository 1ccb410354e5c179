//! The legacy route: prompts of every kind, echo, log probabilities, streams.

use crate::support::{App, Reply, config};
use axum::http::StatusCode;
use serde_json::{Value, json};
use taper_openai_server::{AppState, router};

async fn complete(app: &App, body: Value) -> Value {
    let (status, answer) = app.post("/v1/completions", &body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer
}

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[tokio::test]
async fn the_whole_shape_without_a_template() {
    let app = App::text(" Paris.");
    let body = complete(&app, json!({ "model": "mock", "prompt": "The capital" })).await;
    assert!(body["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(body["object"], "text_completion");
    let choice =
        json!({ "text": " Paris.", "index": 0, "logprobs": null, "finish_reason": "stop" });
    assert_eq!(body["choices"], json!([choice]));
    assert_eq!(body["usage"]["prompt_tokens"], 11);
    assert_eq!(body["usage"]["completion_tokens"], 8);
    let request = app.engine.last();
    assert_eq!(request.prompt, ids("The capital"));
    assert_eq!(request.stop.max_tokens, Some(16));
}

#[tokio::test]
async fn prompts_of_every_kind() {
    let app = App::text("x");
    for (prompt, expected) in [
        (json!("ab"), vec![ids("ab")]),
        (json!(["ab", "c"]), vec![ids("ab"), ids("c")]),
        (json!([97, 98]), vec![ids("ab")]),
        (json!([[97], [98, 99]]), vec![ids("a"), ids("bc")]),
    ] {
        app.engine.seen.lock().unwrap().clear();
        let body = complete(&app, json!({ "prompt": prompt, "n": 2, "best_of": 2 })).await;
        let choices = body["choices"].as_array().unwrap();
        let indices: Vec<u64> = choices.iter().map(|c| c["index"].as_u64().unwrap()).collect();
        assert_eq!(indices, (0..2 * expected.len() as u64).collect::<Vec<_>>());
        let seen: Vec<Vec<u32>> =
            app.engine.seen.lock().unwrap().iter().map(|r| r.prompt.clone()).collect();
        let twice: Vec<Vec<u32>> = expected.iter().flat_map(|p| [p.clone(), p.clone()]).collect();
        assert_eq!(seen, twice);
        let tokens: usize = expected.iter().map(Vec::len).sum();
        assert_eq!(body["usage"]["prompt_tokens"], tokens);
    }
}

#[tokio::test]
async fn echo_and_logprobs() {
    let app = App::text("cd");
    let body = complete(&app, json!({ "prompt": "ab", "echo": true, "logprobs": 1 })).await;
    let choice = &body["choices"][0];
    assert_eq!(choice["text"], "abcd");
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "b", "c", "d"]));
    assert_eq!(logprobs["token_logprobs"], json!([null, -0.5, -0.5, -0.5]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 3]));
    assert_eq!(logprobs["top_logprobs"][0], Value::Null);
    assert_eq!(logprobs["top_logprobs"][3], json!({ "d": -0.5 }));
    let body = complete(&app, json!({ "prompt": [97, 98], "echo": true })).await;
    assert_eq!(body["choices"][0]["text"], "abcd");
    assert_eq!(app.engine.last().prompt_logprobs, None);
    let body = complete(&app, json!({ "prompt": "ab", "logprobs": 0 })).await;
    assert_eq!(body["choices"][0]["logprobs"]["tokens"], json!(["c", "d"]));
}

#[tokio::test]
async fn offsets_count_characters() {
    let app = App::text("é!");
    let body = complete(&app, json!({ "prompt": "ü", "echo": true, "logprobs": 0 })).await;
    assert_eq!(body["choices"][0]["text"], "üé!");
    assert_eq!(body["choices"][0]["logprobs"]["text_offset"], json!([0, 1, 1, 2, 2]));
}

#[tokio::test]
async fn scoring_a_prompt_generates_nothing() {
    let app = App::new(Reply::Hold("never".into()));
    let fields = json!({ "prompt": "abc", "echo": true, "logprobs": 0, "max_tokens": 0 });
    let body = complete(&app, fields.clone()).await;
    let choice = &body["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("abc"), &json!("length")));
    assert_eq!(choice["logprobs"]["token_logprobs"], json!([null, -0.5, -0.5]));
    assert_eq!(body["usage"]["completion_tokens"], 0);
    assert_eq!(app.engine.held_open(), 0);
    let mut streamed = fields;
    streamed["stream"] = json!(true);
    let lines = app.stream("/v1/completions", &streamed).await;
    let chunk: Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!(&chunk["choices"][0], choice);
}

#[tokio::test]
async fn streams_have_one_shape() {
    let app = App::text("cd");
    let body = json!({ "prompt": ["a", "b"], "stream": true, "echo": true, "logprobs": 0,
                       "stream_options": { "include_usage": true } });
    let mut lines = app.stream("/v1/completions", &body).await;
    assert_eq!(lines.pop().as_deref(), Some("[DONE]"));
    let mut chunks: Vec<Value> = lines.iter().map(|l| serde_json::from_str(l).unwrap()).collect();
    let usage = chunks.pop().unwrap();
    assert_eq!((&usage["choices"], &usage["usage"]["total_tokens"]), (&json!([]), &json!(8)));
    assert!(chunks.iter().all(|c| c["object"] == "text_completion" && c["id"] == usage["id"]));
    for (index, text) in [(0, "acd"), (1, "bcd")] {
        let own: Vec<&Value> =
            chunks.iter().map(|c| &c["choices"][0]).filter(|c| c["index"] == index).collect();
        let joined: String = own.iter().map(|c| c["text"].as_str().unwrap()).collect();
        assert_eq!(joined, text);
        let tokens = own.iter().filter_map(|c| c["logprobs"]["tokens"].as_array());
        assert_eq!(tokens.flatten().count(), 3);
        let (last, others) = own.split_last().unwrap();
        assert_eq!(last["finish_reason"], "stop");
        assert!(others.iter().all(|c| c["finish_reason"].is_null()));
    }
}

#[tokio::test]
async fn a_model_without_a_template_completes() {
    let app = App::text("x");
    let state = AppState::new(app.engine.clone(), crate::support::tokenizer(), None, config());
    let app = App { router: router(state.clone()), state, engine: app.engine };
    complete(&app, json!({ "prompt": "a" })).await;
    let (status, body) = app.post("/v1/chat/completions", &crate::support::chat(json!({}))).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(body["error"]["code"], "no_chat_template");
}
