//! vLLM's fields about tokens, and those of the legacy route beside them.

use crate::support::{App, Reply, TEMPLATE, chat, config, tokenizer};
use axum::http::StatusCode;
use serde_json::{Value, json};
use taper_base::SubmitError;

const COMPLETIONS: &str = "/v1/completions";

async fn complete(app: &App, body: Value) -> Value {
    let (status, answer) = app.post(COMPLETIONS, &body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer
}

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

#[tokio::test]
async fn token_ids_of_whole_responses() {
    let app = App::text("ab");
    let body = app.chat(json!({ "return_token_ids": true, "n": 2 })).await;
    assert_eq!(body["prompt_token_ids"], json!(app.engine.last().prompt));
    for choice in body["choices"].as_array().unwrap() {
        assert_eq!(choice["token_ids"], json!([97, 98, 257]), "stop tokens are tokens");
    }
    let body = complete(&app, json!({ "prompt": ["x", "y"], "return_token_ids": true })).await;
    for (choice, prompt) in body["choices"].as_array().unwrap().iter().zip([120, 121]) {
        assert_eq!(choice["prompt_token_ids"], json!([prompt]));
        assert_eq!(choice["token_ids"], json!([97, 98, 257]));
    }
    let body = app.chat(json!({})).await;
    assert!(body.get("prompt_token_ids").is_none());
    assert!(body["choices"][0].get("token_ids").is_none());
}

#[tokio::test]
async fn token_ids_of_streams_are_whole_too() {
    // Some text is held back: the call's beginning, and half of a stop string.
    let app = App::text("so <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>é en");
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let fields = json!({ "return_token_ids": true, "tools": tools, "stop": "end" });
    let chunks = app.chunks(fields.clone()).await;
    assert_eq!(chunks[0]["prompt_token_ids"], json!(app.engine.last().prompt));
    assert!(chunks[1..].iter().all(|chunk| chunk.get("prompt_token_ids").is_none()));
    let streamed: Vec<u64> =
        chunks.iter().flat_map(|chunk| numbers(&chunk["choices"][0]["token_ids"])).collect();
    let whole = app.chat(fields).await;
    assert_eq!(json!(streamed), whole["choices"][0]["token_ids"]);

    let body = json!({ "prompt": "x", "stream": true, "return_token_ids": true, "max_tokens": 99 });
    let mut lines = app.stream(COMPLETIONS, &body).await;
    lines.pop();
    let choice = |line: &String| serde_json::from_str::<Value>(line).unwrap()["choices"][0].clone();
    let choices: Vec<Value> = lines.iter().map(choice).collect();
    assert_eq!(choices[0]["prompt_token_ids"], json!([120]));
    assert!(choices[1..].iter().all(|choice| choice.get("prompt_token_ids").is_none()));
    let all: Vec<u64> = choices.iter().flat_map(|choice| numbers(&choice["token_ids"])).collect();
    assert_eq!(json!(all), whole["choices"][0]["token_ids"]);
}

#[tokio::test]
async fn tokens_by_their_numbers() {
    let app = App::text("ab");
    let fields = json!({ "logprobs": true, "top_logprobs": 1, "return_tokens_as_token_ids": true });
    let body = app.chat(fields).await;
    let entry = &body["choices"][0]["logprobs"]["content"][0];
    assert_eq!((&entry["token"], &entry["bytes"]), (&json!("token_id:97"), &json!([97])));
    assert_eq!(entry["top_logprobs"][0]["token"], "token_id:97");
    let body = json!({ "prompt": "x", "logprobs": 1, "return_tokens_as_token_ids": true });
    let logprobs = &complete(&app, body).await["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["token_id:97", "token_id:98"]));
    assert_eq!(logprobs["top_logprobs"][1], json!({ "token_id:98": -0.5 }));
}

#[tokio::test]
async fn allowed_tokens_and_bad_words_reach_the_engine() {
    let app = App::text("x");
    let fields = json!({ "allowed_token_ids": [65, 66, 257], "bad_words": ["ab", "  c"] });
    app.chat(fields.clone()).await;
    let request = app.engine.last();
    let allowed = request.allowed.unwrap();
    assert_eq!((allowed.count(), allowed.has(257)), (3, true));
    // With a space, a word has one token more here.
    assert_eq!(*request.bad_words, [ids("ab"), ids("c")]);
    let mut body = fields;
    body["prompt"] = json!("x");
    complete(&app, body).await;
    assert_eq!(app.engine.last().bad_words.len(), 2);
    app.chat(json!({ "bad_words": [] })).await;
    assert!(app.engine.last().bad_words.is_empty() && app.engine.last().allowed.is_none());
}

#[tokio::test]
async fn long_prompts_are_cut_from_the_front() {
    let app = App::text("!");
    let (long, mark) = ("x".repeat(300_000), "Zulu");
    let prompt = format!("{long}{mark}");
    for (fields, kept) in [(json!({}), None), (json!({ "truncate_prompt_tokens": 6 }), Some(6))] {
        for prompt in [json!(prompt), json!(ids(&prompt))] {
            let mut body = fields.clone();
            body["prompt"] = prompt;
            let (status, answer) = app.post(COMPLETIONS, &body).await;
            let code = &answer["error"]["code"];
            match kept {
                None => {
                    assert_eq!((status.as_u16(), code), (400, &json!("context_length_exceeded")));
                }
                Some(_) => assert_eq!(app.engine.last().prompt, ids("xxZulu"), "{status} {answer}"),
            }
        }
    }
    let body = json!({ "prompt": prompt, "truncate_prompt_tokens": 3, "echo": true });
    assert_eq!(complete(&app, body).await["choices"][0]["text"], "ulu!");
    let body = json!({ "prompt": "ab", "truncate_prompt_tokens": 3, "echo": true });
    assert_eq!(complete(&app, body).await["choices"][0]["text"], "ab!");
    // As many as leave room.
    let body = json!({ "prompt": prompt, "truncate_prompt_tokens": -1, "max_tokens": 96 });
    complete(&app, body).await;
    assert_eq!(app.engine.last().prompt.len(), 4000);
    let message = json!([{ "role": "user", "content": prompt }]);
    app.chat(json!({ "messages": message, "truncate_prompt_tokens": -1 })).await;
    let last = app.engine.last().prompt;
    let end = tokenizer().encode("Zulu<|im_end|>\n<|im_start|>assistant\n", false).unwrap();
    assert!(last.len() == 4095 && last.ends_with(&end));
    let (status, _) = app.post("/v1/chat/completions", &chat(json!({ "messages": message }))).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn log_probabilities_of_the_prompt() {
    let app = App::text("!");
    let entry = |logprob: f64, rank: Option<u32>, text: &str| json!({ "logprob": logprob, "rank": rank, "decoded_token": text });
    let body = complete(&app, json!({ "prompt": "ab", "prompt_logprobs": 2, "n": 2 })).await;
    for choice in body["choices"].as_array().unwrap() {
        // The engine of these tests knows no ranks; those of the likeliest follow from their order.
        let second = json!({ "98": entry(-0.5, None, "b"), "99": entry(-1.5, Some(2), "c") });
        assert_eq!(choice["prompt_logprobs"], json!([null, second]));
    }
    let body = app.chat(json!({ "prompt_logprobs": 0 })).await;
    let all = body["prompt_logprobs"].as_array().unwrap();
    assert_eq!(all.len(), app.engine.last().prompt.len());
    assert!(all[0].is_null() && all[1].as_object().unwrap().len() == 1);
    // Each of the two fields has as many as it asked for.
    let body = json!({ "prompt": "ab", "echo": true, "logprobs": 1, "prompt_logprobs": 3 });
    let choice = complete(&app, body).await["choices"][0].clone();
    assert_eq!(app.engine.last().prompt_logprobs, Some(3));
    assert_eq!(choice["prompt_logprobs"][1].as_object().unwrap().len(), 3);
    assert_eq!(choice["logprobs"]["top_logprobs"][1], json!({ "b": -0.5 }));
    assert!(app.chat(json!({})).await.get("prompt_logprobs").is_none());
}

#[tokio::test]
async fn reasoning_is_left_out_on_request() {
    let app = App::text("<think>hm</think>yes");
    let fields = json!({ "include_reasoning": false });
    let body = app.chat(fields.clone()).await;
    let message = &body["choices"][0]["message"];
    assert_eq!(message["content"], "yes");
    assert!(message.get("reasoning_content").is_none());
    assert!(body["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);
    let chunks = app.chunks(fields).await;
    assert!(chunks.iter().all(|c| c["choices"][0]["delta"].get("reasoning_content").is_none()));
    assert_eq!(crate::support::joined(&chunks, 0, "content"), "yes");
    let body = app.chat(json!({ "include_reasoning": true })).await;
    assert_eq!(body["choices"][0]["message"]["reasoning_content"], "hm");
}

#[tokio::test]
async fn the_likeliest_of_several_are_returned() {
    let app = App::text("");
    let texts = ["aZ", "Z", "abcd", "aaaZ"];
    let say = || {
        *app.engine.replies.lock().unwrap() =
            texts.iter().map(|text| Reply::Text((*text).to_owned())).collect();
    };
    say();
    let body = complete(&app, json!({ "prompt": "x", "n": 2, "best_of": 4 })).await;
    let texts: Vec<_> = body["choices"].as_array().unwrap().iter().map(|c| &c["text"]).collect();
    assert_eq!(texts, ["abcd", "aaaZ"]);
    assert_eq!(body["choices"][1]["index"], 1);
    assert_eq!(body["choices"][0]["logprobs"], Value::Null);
    assert_eq!(body["usage"]["completion_tokens"], 3 + 2 + 5 + 5, "all of them were generated");
    assert_eq!(body["usage"]["prompt_tokens"], 1);
    say();
    let body = complete(&app, json!({ "prompt": ["x", "y"], "best_of": 2, "logprobs": 1 })).await;
    let texts: Vec<_> = body["choices"].as_array().unwrap().iter().map(|c| &c["text"]).collect();
    assert_eq!(texts, ["aZ", "abcd"], "each prompt has its own");
    assert_eq!(body["choices"][0]["logprobs"]["tokens"], json!(["a", "Z"]));
}

#[tokio::test]
async fn priorities_reach_the_engine_and_are_refused_by_it() {
    let app = App::text("x");
    app.chat(json!({ "priority": -3 })).await;
    assert_eq!(app.engine.last().priority, -3);
    app.engine.say(Reply::Refuse(SubmitError::NoPriorities { asked: -3 }));
    let (status, answer) = app.post("/v1/chat/completions", &chat(json!({ "priority": -3 }))).await;
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("priority")));
}

#[tokio::test]
async fn documents_are_the_templates() {
    let template = format!(
        "{{% for d in documents or [] %}}[{{{{ d.title }}}}: {{{{ d.text }}}}]{{% endfor %}}{TEMPLATE}"
    );
    let app = App::of_model(config(), Reply::Text("x".into()), tokenizer(), &template);
    let prompt = |app: &App| tokenizer().decode(&app.engine.last().prompt, false).unwrap();
    let documents = json!([{ "title": "A", "text": "one" }, { "title": "B", "text": "two" }]);
    app.chat(json!({ "documents": documents })).await;
    assert!(prompt(&app).starts_with("[A: one][B: two]<|im_start|>user"), "{}", prompt(&app));
    app.chat(json!({ "documents": [] })).await;
    assert!(prompt(&app).starts_with("<|im_start|>user"));
    let both = json!({ "documents": documents, "chat_template_kwargs": { "documents": [] } });
    let (status, answer) = app.post("/v1/chat/completions", &chat(both)).await;
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("documents")));
}

#[tokio::test]
async fn special_tokens_have_no_spaces_between_them_here() {
    let app = App::new(Reply::Tokens(vec![256, 256]));
    for spaces in [true, false] {
        let fields =
            json!({ "skip_special_tokens": false, "spaces_between_special_tokens": spaces });
        let body = app.chat(fields).await;
        let content = &body["choices"][0]["message"]["content"];
        assert_eq!(content, "<|im_start|><|im_start|>");
    }
}
