//! `suffix`: filling in the middle.

use crate::support::{App, Reply, TEMPLATE, config, tokenizer_with};
use axum::http::StatusCode;
use serde_json::{Value, json};
use taper_base::TokenId;

fn app(added: &[(&str, bool)]) -> App {
    App::of_model(config(), Reply::Text("b".into()), tokenizer_with(added), TEMPLATE)
}

async fn prompt(app: &App, body: Value) -> Vec<TokenId> {
    let (status, answer) = app.post("/v1/completions", &body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(answer["choices"][0]["text"], "b");
    app.engine.last().prompt
}

#[tokio::test]
async fn each_familys_marks_are_found() {
    let body = json!({ "prompt": "a", "suffix": "c" });
    for names in [
        ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
        ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
        ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
        ["▁<PRE>", "▁<SUF>", "▁<MID>"],
        ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ] {
        let app = app(&[("<s>", true), (names[0], true), (names[1], true), (names[2], true)]);
        // The mock's end-of-sequence token has number 257, as the first mark: it is one anyway.
        assert_eq!(prompt(&app, body.clone()).await, [257, 97, 258, 99, 259], "{names:?}");
        let stops = app.engine.last().stop.token_ids;
        assert!(stops.has(257) && stops.has(258) && stops.has(259));
        let tokens = json!({ "prompt": [[97], [98, 99]], "suffix": "cd" });
        assert_eq!(prompt(&app, tokens).await, [257, 98, 99, 258, 99, 100, 259]);
    }
    // Codestral has the suffix first and nothing in the middle.
    let app = app(&[("<s>", true), ("[PREFIX]", true), ("[SUFFIX]", true)]);
    assert_eq!(prompt(&app, body.clone()).await, [258, 99, 257, 97]);
    // It fills in at the tokens that end a file, too.
    let names = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<|endoftext|>"];
    let app = self::app(&names.map(|name| (name, true)));
    assert_eq!(prompt(&app, body.clone()).await, [256, 97, 257, 99, 258]);
    assert!(app.engine.last().stop.token_ids.has(259));
    let mut ignoring = body;
    ignoring["ignore_eos"] = json!(true);
    prompt(&app, ignoring).await;
    assert!(app.engine.last().stop.token_ids.is_empty());
}

#[tokio::test]
async fn what_cannot_be_filled_in_is_refused() {
    let names = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"].map(|name| (name, true));
    let (with, without) = (app(&names), app(&names[..2]));
    for (app, body, param) in [
        (&without, json!({}), "suffix"),
        (&with, json!({ "echo": true }), "echo"),
        (&with, json!({ "truncate_prompt_tokens": 5 }), "truncate_prompt_tokens"),
        (&with, json!({ "suffix": "c".repeat(100_000) }), "suffix"),
        (&with, json!({ "suffix": "c".repeat(4094) }), "prompt"),
    ] {
        let mut all = json!({ "prompt": "a", "suffix": "c" });
        body.as_object().unwrap().iter().for_each(|(name, value)| all[name] = value.clone());
        let (status, answer) = app.post("/v1/completions", &all).await;
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!(param)), "{answer}");
    }
    assert_eq!(prompt(&without, json!({ "prompt": "a", "suffix": "" })).await, [97]);
}
