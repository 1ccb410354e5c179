//! Streams of chat completions: transcripts, usage, errors on the way.

use crate::support::{App, Reply, chat, joined};
use serde_json::{Value, json};
use taper_base::GenerationError;

#[tokio::test]
async fn the_transcript() {
    let app = App::text("Hi");
    let chunks = app.chunks(json!({})).await;
    let (id, created) = (&chunks[0]["id"], &chunks[0]["created"]);
    assert!(id.as_str().unwrap().starts_with("chatcmpl-"));
    for chunk in &chunks {
        assert_eq!((&chunk["id"], &chunk["created"]), (id, created));
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["model"], "mock");
        // Nobody asked for usage: the field is not even there.
        assert!(chunk.get("usage").is_none());
    }
    let choices: Vec<&Value> = chunks.iter().map(|c| &c["choices"]).collect();
    let choice = |delta: Value, finish: Value| json!([{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish }]);
    assert_eq!(
        choices,
        [
            &choice(json!({ "role": "assistant", "content": "" }), Value::Null),
            &choice(json!({ "content": "H" }), Value::Null),
            &choice(json!({ "content": "i" }), Value::Null),
            &choice(json!({}), json!("stop")),
        ]
    );
}

#[tokio::test]
async fn usage_comes_last_when_asked_for() {
    let app = App::text("Hi");
    let chunks = app.chunks(json!({ "stream_options": { "include_usage": true } })).await;
    let (last, others) = chunks.split_last().unwrap();
    assert!(others.iter().all(|c| c.get("usage") == Some(&Value::Null)));
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 3);
    let whole = app.chat(json!({})).await;
    assert_eq!(last["usage"], whole["usage"]);
    // vLLM's extension: counts on every chunk.
    let options = json!({ "include_usage": true, "continuous_usage_stats": true });
    let chunks = app.chunks(json!({ "stream_options": options })).await;
    let counts: Vec<u64> =
        chunks.iter().map(|c| c["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert!(counts.is_sorted() && counts.last() == Some(&3), "{counts:?}");
}

#[tokio::test]
async fn choices_are_interleaved_by_index() {
    let app = App::new(Reply::Seed);
    let fields = json!({ "n": 3, "seed": 5 });
    let chunks = app.chunks(fields.clone()).await;
    let whole = app.chat(fields).await;
    for index in 0..3 {
        let text = &whole["choices"][index as usize]["message"]["content"];
        assert_eq!(json!(joined(&chunks, index, "content")), *text);
    }
    let all: Vec<&Value> = chunks.iter().map(|c| &c["choices"][0]).collect();
    let finishes = all.iter().filter(|c| c["finish_reason"] == "stop").count();
    let roles = all.iter().filter(|c| c["delta"]["role"] == "assistant").count();
    assert_eq!((finishes, roles), (3, 3));
    // No choice waits until another has ended.
    let first_end = all.iter().position(|c| c["finish_reason"] == "stop").unwrap();
    for index in 0..3 {
        assert!(all[..first_end].iter().any(|c| c["index"] == index));
    }
}

#[tokio::test]
async fn stop_strings_never_leak_and_stop_the_engine() {
    let app = App::new(Reply::Hold("one STOPPER".into()));
    let chunks = app.chunks(json!({ "stop": ["STOP"] })).await;
    assert_eq!(joined(&chunks, 0, "content"), "one ");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
    assert_eq!(app.engine.held_open(), 0);
    // What looked like a stop string and was none comes at the end.
    app.engine.say(Reply::Text("one STO".into()));
    let chunks = app.chunks(json!({ "stop": ["STOP"] })).await;
    assert_eq!(joined(&chunks, 0, "content"), "one STO");
}

#[tokio::test]
async fn logprobs_travel_with_their_text() {
    let app = App::text("Grüße");
    let fields = json!({ "logprobs": true, "top_logprobs": 1, "stop": ["e!"] });
    let chunks = app.chunks(fields.clone()).await;
    let entries = chunks.iter().filter_map(|c| c["choices"][0]["logprobs"]["content"].as_array());
    let entries: Vec<Value> = entries.flatten().cloned().collect();
    let whole = app.chat(fields).await;
    assert_eq!(json!(entries), whole["choices"][0]["logprobs"]["content"]);
    assert_eq!(entries.len(), "Grüße".len());
}

#[tokio::test]
async fn an_error_on_the_way_is_the_last_event() {
    let app =
        App::new(Reply::Fail("so far".into(), GenerationError::NonFiniteLogits { position: 1 }));
    let mut body = chat(json!({}));
    body["stream"] = json!(true);
    let lines = app.stream("/v1/chat/completions", &body).await;
    let last: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "non_finite_logits");
    assert_eq!(last["error"]["type"], "server_error");
    assert!(!lines.iter().any(|l| l == "[DONE]"));
    let chunks: Vec<Value> =
        lines[..lines.len() - 1].iter().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(joined(&chunks, 0, "content"), "so far");
}

#[tokio::test]
async fn reasoning_streams_apart() {
    let app = App::text("hm</think>Yes.");
    let chunks = app.chunks(json!({ "enable_thinking": true })).await;
    assert_eq!(joined(&chunks, 0, "reasoning_content").trim(), "hm");
    assert_eq!(joined(&chunks, 0, "content"), "Yes.");
}
