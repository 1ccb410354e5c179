//! What other servers take, and clients therefore send.

use crate::support::{App, chat, post};
use axum::{body::Body, http::StatusCode};
use flate2::{
    Compression,
    write::{GzEncoder, ZlibEncoder},
};
use serde_json::{Value, json};
use std::io::Write;

fn prompt(app: &App) -> String {
    let bytes = app.engine.last().prompt.into_iter().filter_map(|t| u8::try_from(t).ok());
    String::from_utf8(bytes.collect()).unwrap()
}

#[tokio::test]
async fn two_names_of_one_field_may_both_be_there() {
    let app = App::text("x");
    let said = |fields: Value| {
        let mut message = json!({ "role": "assistant", "content": "42" });
        message.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({ "messages": [message, { "role": "user", "content": "Hi" }] })
    };
    for fields in [
        said(json!({ "reasoning": "a", "reasoning_content": "a" })),
        said(json!({ "reasoning": null, "reasoning_content": "a" })),
        said(json!({ "reasoning": "a", "reasoning_content": null })),
        said(json!({ "reasoning": null, "reasoning_content": null })),
        json!({ "max_tokens": 4, "max_completion_tokens": 4 }),
        json!({ "max_tokens": null, "max_completion_tokens": 4 }),
    ] {
        app.chat(fields).await;
    }
    for fields in [
        json!({ "repeat_penalty": 1.5 }),
        json!({ "repetition_penalty": 1.5, "repeat_penalty": 1.5 }),
        json!({ "repetition_penalty": null, "repeat_penalty": 1.5 }),
    ] {
        app.chat(fields).await;
        assert_eq!(app.engine.last().sampling.repetition_penalty, 1.5);
    }
    for fields in [json!({ "think": true }), json!({ "think": true, "enable_thinking": true })] {
        app.chat(fields).await;
        assert!(app.engine.last().prompt.contains(&258));
    }
}

#[tokio::test]
async fn harmless_fields_are_known_by_name() {
    let app = App::text("x");
    let note = json!({ "type": "ephemeral" });
    app.chat(json!({
        "cache_prompt": true, "cache_control": note, "provider_specific_fields": {},
        "use_beam_search": false, "best_of": 1, "echo": false, "length_penalty": 1.0,
        "functions": [], "priority": 0, "include_reasoning": true,
        "metadata": { "deep": [{ "er": [1, "a", null, 2.5, true] }] },
        "tools": [{ "type": "function", "cache_control": note,
                    "function": { "name": "f", "strict": true, "parameters": {} } }],
        "messages": [
            { "role": "user", "cache_control": note,
              "content": [{ "type": "text", "text": "Hi", "cache_control": note }] },
            { "role": "assistant", "content": null, "provider_specific_fields": { "a": 1 },
              "tool_calls": [{ "id": "c", "type": "function", "provider_specific_fields": {},
                               "function": { "name": "f", "arguments": "{}" } }] },
            { "role": "tool", "tool_call_id": "c", "content": "1" },
        ],
    }))
    .await;
    assert!(prompt(&app).contains("\"strict\":true") || prompt(&app).contains("\"strict\": true"));
}

#[tokio::test]
async fn whole_numbers_may_have_a_point() {
    let app = App::text("x");
    app.chat(json!({ "max_tokens": 2.0, "n": 1.0, "top_k": -1.0, "seed": 7.0 })).await;
    let request = app.engine.last();
    assert_eq!((request.stop.max_tokens, request.sampling.seed), (Some(2), 7));
}

#[tokio::test]
async fn calls_from_before_there_were_several() {
    let app = App::text("x");
    app.chat(json!({ "messages": [
        { "role": "user", "content": "Weather?" },
        { "role": "assistant", "content": null,
          "function_call": { "name": "weather", "arguments": "{}" } },
        { "role": "function", "name": "weather", "content": "sunny" },
    ] }))
    .await;
    let prompt = prompt(&app);
    assert!(prompt.contains("weather {}") && prompt.contains("tool\nsunny"), "{prompt}");
}

#[tokio::test]
async fn marks_and_halves_of_characters() {
    let app = App::text("x");
    let body =
        |text: &str| format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"{text}\"}}]}}");
    for (text, expected) in
        [("a\\ud83d", "a\u{fffd}"), ("\\ude00b", "\u{fffd}b"), ("\\ud83d\\ude00", "\u{1f600}")]
    {
        let (status, answer) = app.post_text("/v1/chat/completions", &body(text)).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert!(prompt(&app).contains(expected), "{}", prompt(&app));
    }
    let marked = format!("\u{feff}{}", body("Hi"));
    assert_eq!(app.post_text("/v1/chat/completions", &marked).await.0, StatusCode::OK);
}

#[tokio::test]
async fn compressed_bodies_are_read_under_the_limit() {
    let app = App::text("x");
    let send = async |encoding: &str, bytes: Vec<u8>| {
        let mut request = post("/v1/chat/completions", "").map(|_| Body::from(bytes));
        request.headers_mut().insert("content-encoding", encoding.parse().unwrap());
        let (status, _, text) = app.send(request).await;
        let answer: Value = serde_json::from_str(&text).unwrap();
        (status.as_u16(), answer["error"]["code"].as_str().unwrap_or_default().to_owned())
    };
    let gzip = |text: &str| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let body = chat(json!({})).to_string();
    assert_eq!(send("gzip", gzip(&body)).await.0, 200);
    let mut deflate = ZlibEncoder::new(Vec::new(), Compression::default());
    deflate.write_all(body.as_bytes()).unwrap();
    assert_eq!(send("deflate", deflate.finish().unwrap()).await.0, 200);
    // 64 MiB come out of 64 KiB.
    let bomb = gzip(&" ".repeat(64 << 20));
    assert!(bomb.len() < 100_000);
    assert_eq!(send("gzip", bomb).await, (413, "body_too_large".into()));
    assert_eq!(send("gzip", body.clone().into()).await, (400, "unreadable_body".into()));
    assert_eq!(send("br", body.clone().into()).await, (415, "unsupported_encoding".into()));
    assert_eq!(send("identity", body.into()).await.0, 200);
}
