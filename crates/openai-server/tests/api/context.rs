//! Texts that are put behind a conversation.

use crate::support::{App, Reply, TEMPLATE, chat, config, tokenizer_with};
use axum::http::StatusCode;
use serde_json::json;
use std::sync::{Arc, Mutex};
use taper_openai_server::{ContextSource, Retrieved};

/// Notes what it is asked for.
#[derive(Debug, Default)]
struct Notes(Mutex<Vec<String>>);

impl ContextSource for Notes {
    fn retrieve(
        &self,
        _: &str,
        _: u32,
        tokens: &dyn Fn(&str) -> usize,
        markers: &[String],
    ) -> Retrieved {
        assert!(tokens("two words") > tokens(""));
        *self.0.lock().unwrap() = markers.to_vec();
        Retrieved { status: "empty", ..Retrieved::default() }
    }
}

/// DeepSeek's marks of turns are added tokens that do not count as special.
#[tokio::test]
async fn every_added_token_and_every_tag_of_a_call_is_a_marker() {
    let notes = Arc::new(Notes::default());
    let mut config = config();
    config.context = Some(Arc::clone(&notes) as Arc<dyn ContextSource>);
    let added = [
        ("<|im_start|>", true),
        ("<|im_end|>", true),
        ("<｜Assistant｜>", false),
        ("<arg_key>", false),
        ("   ", false),
        ("word", false),
    ];
    let app = App::of_model(config, Reply::Text("b".into()), tokenizer_with(&added), TEMPLATE);
    let (status, answer) = app.post("/v1/chat/completions", &chat(json!({}))).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let markers = notes.0.lock().unwrap();
    let has = |text: &str| markers.iter().any(|marker| marker == text);
    assert!(has("<|im_end|>") && has("<｜Assistant｜>") && has("<arg_key>"), "{markers:?}");
    assert!(has("<｜") && has("<minimax:") && has("</parameter>"), "{markers:?}");
    assert!(!has("   ") && !has("word"), "blanks and words mark nothing: {markers:?}");
}
