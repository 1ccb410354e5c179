//! Chat responses that come whole: parameters, shapes, usage, log probabilities.

use crate::support::{App, Reply, chat, config};
use axum::http::StatusCode;
use serde_json::{Value, json};
use taper_base::{ErrorId, GenerationError, SamplingParams, SubmitError};
use taper_chat::ReasoningFormat;
use taper_openai_server::ServerConfig;

#[tokio::test]
async fn the_whole_shape() {
    let app = App::text("Hello!");
    *app.engine.cached.lock().unwrap() = 7;
    let body = app.chat(json!({})).await;
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(body["object"], "chat.completion");
    assert_eq!(body["model"], "mock");
    assert!(body["created"].as_u64().unwrap() > 1_600_000_000);
    assert_eq!(
        body["choices"],
        json!([{ "index": 0,
                 "message": { "role": "assistant", "content": "Hello!", "refusal": null },
                 "logprobs": null, "finish_reason": "stop" }])
    );
    let prompt = app.engine.last().prompt.len();
    // Six bytes and the stop token.
    assert_eq!(
        body["usage"],
        json!({ "prompt_tokens": prompt, "completion_tokens": 7, "total_tokens": prompt + 7,
                "prompt_tokens_details": { "cached_tokens": 7 },
                "completion_tokens_details": { "reasoning_tokens": 0 } })
    );
}

#[tokio::test]
async fn every_parameter_reaches_the_engine() {
    let app = App::text("x");
    app.chat(json!({
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "typical_p": 0.95,
        "repetition_penalty": 1.1, "presence_penalty": 0.25, "frequency_penalty": -0.25,
        "logit_bias": { "65": -100, "66": 5.5 }, "seed": 42, "max_tokens": 99, "min_tokens": 2,
        "stop_token_ids": [11, 10, 11], "ignore_eos": true, "logprobs": true, "top_logprobs": 3,
        "user": "me", "metadata": { "a": "b" }, "store": false, "service_tier": "auto",
        "safety_identifier": "s", "prompt_cache_key": "k", "prompt_cache_retention": "24h",
        "response_format": { "type": "text" }, "modalities": ["text"], "n": 1,
        "stream": false, "parallel_tool_calls": true,
    }))
    .await;
    let request = app.engine.last();
    assert_eq!(
        request.sampling,
        SamplingParams {
            temperature: 0.5,
            top_p: 0.9,
            top_k: 40,
            min_p: 0.05,
            typical_p: 0.95,
            repetition_penalty: 1.1,
            presence_penalty: 0.25,
            frequency_penalty: -0.25,
            logit_bias: vec![(65, -100.0), (66, 5.5)],
            seed: 42,
            logprobs: Some(3),
        }
    );
    assert_eq!(request.stop.max_tokens, Some(99));
    assert_eq!(request.stop.min_tokens, 2);
    assert_eq!(&*request.stop.token_ids, [10, 11]);
    assert!(request.stop.ignore_eos);
}

#[tokio::test]
async fn a_salt_reaches_the_engine_and_an_empty_one_is_refused() {
    let app = App::text("Hello!");
    app.chat(json!({ "cache_salt": "team" })).await;
    assert_eq!(app.engine.last().cache_salt.as_deref(), Some("team"));
    for salt in [json!(""), json!("x".repeat(257)), json!(7)] {
        let body = chat(json!({ "cache_salt": salt }));
        assert_eq!(app.post("/v1/chat/completions", &body).await.0, 400);
    }
}

#[tokio::test]
async fn drafts_can_be_limited_and_predicted() {
    let app = App::text("Hello!");
    app.chat(json!({})).await;
    let request = app.engine.last();
    assert_eq!((request.max_draft_tokens, &*request.prediction), (None, &[][..]));
    app.chat(json!({ "max_draft_tokens": 0 })).await;
    assert_eq!(app.engine.last().max_draft_tokens, Some(0));
    let parts = json!([{ "type": "text", "text": "He" }, { "type": "text", "text": "llo" }]);
    for content in [json!("Hello"), parts] {
        let body =
            app.chat(json!({ "prediction": { "type": "content", "content": content } })).await;
        assert_eq!(app.engine.last().prediction.len(), 5);
        let details = &body["usage"]["completion_tokens_details"];
        assert_eq!(details["accepted_prediction_tokens"], 0, "{body}");
        assert_eq!(details["rejected_prediction_tokens"], 0, "{body}");
    }
    for prediction in [
        json!("Hello"),
        json!({ "type": "content" }),
        json!({ "type": "text", "content": "Hello" }),
        json!({ "type": "content", "content": 7 }),
        json!({ "type": "content", "content": [{ "type": "image_url", "text": "x" }] }),
    ] {
        let body = chat(json!({ "prediction": prediction }));
        assert_eq!(app.post("/v1/chat/completions", &body).await.0, 400, "{prediction}");
    }
}

#[tokio::test]
async fn what_a_request_leaves_out_comes_from_the_model() {
    let default_sampling =
        SamplingParams { temperature: 0.6, top_k: 20, top_p: 0.95, ..SamplingParams::default() };
    let config = ServerConfig { default_sampling, ..config() };
    let app = App::with(config, Reply::Text("x".into()));
    app.chat(json!({ "top_p": 0.5, "temperature": null, "stop": null, "tools": null })).await;
    let first = app.engine.last();
    assert_eq!((first.sampling.temperature, first.sampling.top_k), (0.6, 20));
    assert_eq!(first.sampling.top_p, 0.5);
    assert_eq!(first.stop.max_tokens, None);
    // -1 is vLLM's word for all; without a seed every request draws its own.
    app.chat(json!({ "top_k": -1 })).await;
    assert_eq!(app.engine.last().sampling.top_k, 0);
    assert_ne!(app.engine.last().sampling.seed, first.sampling.seed);
}

#[tokio::test]
async fn seeds_repeat_and_choices_differ() {
    let app = App::new(Reply::Seed);
    let texts = |body: &Value| -> Vec<String> {
        let choices = body["choices"].as_array().unwrap();
        choices.iter().map(|c| c["message"]["content"].as_str().unwrap().to_owned()).collect()
    };
    let one = texts(&app.chat(json!({ "seed": 7, "n": 3 })).await);
    assert_eq!(one, texts(&app.chat(json!({ "seed": 7, "n": 3 })).await));
    assert_eq!(one[0], "7");
    assert!(one[0] != one[1] && one[1] != one[2] && one[0] != one[2]);
    // A negative seed is a seed, but for -1, which stands for none.
    assert_eq!(texts(&app.chat(json!({ "seed": -2 })).await), ["fffffffffffffffe"]);
    let random = texts(&app.chat(json!({ "seed": -1 })).await);
    assert_ne!(random, texts(&app.chat(json!({ "seed": -1 })).await));
    let unseeded = texts(&app.chat(json!({})).await);
    assert_ne!(unseeded, texts(&app.chat(json!({})).await));
}

#[tokio::test]
async fn usage_of_several_choices_counts_the_prompt_once() {
    let app = App::text("ab");
    let body = app.chat(json!({ "n": 3 })).await;
    assert_eq!(body["choices"].as_array().unwrap().len(), 3);
    assert_eq!(body["usage"]["prompt_tokens"], app.engine.last().prompt.len());
    assert_eq!(body["usage"]["completion_tokens"], 9);
    assert_eq!(app.engine.count(), 3);
}

#[tokio::test]
async fn finish_reasons_and_limits() {
    let app = App::text("Hello!");
    for field in ["max_tokens", "max_completion_tokens"] {
        let body = app.chat(json!({ field: 3 })).await;
        assert_eq!(body["choices"][0]["finish_reason"], "length");
        assert_eq!(body["choices"][0]["message"]["content"], "Hel");
        assert_eq!(body["usage"]["completion_tokens"], 3);
    }
    app.chat(json!({ "max_tokens": 3, "max_completion_tokens": 3 })).await;
    let body = app.chat(json!({ "stop_token_ids": [u32::from(b'o')] })).await;
    assert_eq!(body["choices"][0]["message"]["content"], "Hell");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!(body["usage"]["completion_tokens"], 5);
}

#[tokio::test]
async fn stop_strings_stop_the_engine() {
    // The engine would go on for ever: only a dropped sink can end it.
    let app = App::new(Reply::Hold("one two three".into()));
    let body = app.chat(json!({ "stop": " two" })).await;
    assert_eq!(body["choices"][0]["message"]["content"], "one");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!(body["usage"]["completion_tokens"], 7);
    assert_eq!(app.engine.held_open(), 0);
    let body =
        app.chat(json!({ "stop": ["x", "three"], "include_stop_str_in_output": true })).await;
    assert_eq!(body["choices"][0]["message"]["content"], "one two three");
}

#[tokio::test]
async fn logprobs_in_the_chat_shape() {
    let app = App::text("Hi");
    let body = app.chat(json!({ "logprobs": true, "top_logprobs": 2 })).await;
    let content = body["choices"][0]["logprobs"]["content"].as_array().unwrap();
    // The stop token has no text and no entry.
    assert_eq!(content.len(), 2);
    assert_eq!(
        content[0],
        json!({ "token": "H", "logprob": -0.5, "bytes": [72],
                "top_logprobs": [{ "token": "H", "logprob": -0.5, "bytes": [72] },
                                 { "token": "I", "logprob": -1.5, "bytes": [73] }] })
    );
    let body = app.chat(json!({ "logprobs": true })).await;
    assert_eq!(body["choices"][0]["logprobs"]["content"][1]["top_logprobs"], json!([]));
    assert_eq!(app.chat(json!({ "logprobs": false })).await["choices"][0]["logprobs"], Value::Null);
}

#[tokio::test]
async fn reasoning_is_told_from_content_and_counted() {
    let app = App::text("because</think>Yes.");
    let body = app.chat(json!({ "enable_thinking": true })).await;
    let message = &body["choices"][0]["message"];
    assert_eq!(message["reasoning_content"].as_str().unwrap().trim(), "because");
    assert_eq!(message["content"], "Yes.");
    let counted = body["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    // A token a byte, and none for the tag.
    assert_eq!(counted, 7);
}

/// A budget becomes rules for the output.
#[tokio::test]
async fn a_thinking_budget_is_a_rule_for_the_output() {
    let app = App::text("because</think>Yes.");
    app.chat(json!({ "enable_thinking": true })).await;
    assert!(app.engine.last().grammar.is_none());
    for fields in [
        json!({ "max_thinking_tokens": 3, "enable_thinking": true }),
        json!({ "thinking_token_budget": 3, "enable_thinking": true }),
        json!({ "max_thinking_tokens": 3, "thinking_token_budget": 3 }),
        json!({ "max_thinking_tokens": 0, "enable_thinking": false }),
    ] {
        app.chat(fields).await;
        assert!(app.engine.last().grammar.is_some());
    }
}

#[tokio::test]
async fn a_thinking_budget_needs_marks_of_reasoning() {
    let mut config = config();
    config.reasoning_format = ReasoningFormat::NONE;
    let app = App::with(config, Reply::Text("x".into()));
    for field in ["max_thinking_tokens", "thinking_token_budget"] {
        let (status, body) = app.post("/v1/chat/completions", &chat(json!({ field: 3 }))).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert_eq!(body["error"]["param"], field);
    }
}

#[tokio::test]
async fn template_variables_and_their_order() {
    let mut config = config();
    config.default_chat_template_kwargs.insert("mood".into(), json!("calm"));
    let app = App::with(config, Reply::Text("x".into()));
    let prompt = |app: &App| {
        let bytes = app.engine.last().prompt.into_iter().filter_map(|t| u8::try_from(t).ok());
        String::from_utf8(bytes.collect()).unwrap()
    };
    app.chat(json!({})).await;
    assert!(prompt(&app).ends_with("(calm)"));
    app.chat(json!({ "chat_template_kwargs": { "mood": ["any", 1], "enable_thinking": true } }))
        .await;
    assert!(prompt(&app).contains("any"));
    assert!(app.engine.last().prompt.contains(&258));
    let kwargs = json!({ "enable_thinking": true });
    app.chat(json!({ "enable_thinking": true, "chat_template_kwargs": kwargs })).await;
    assert!(app.engine.last().prompt.contains(&258));
    app.chat(json!({ "add_generation_prompt": false })).await;
    assert!(!prompt(&app).contains("assistant"));
}

#[tokio::test]
async fn reasoning_effort_is_a_template_variable_and_none_ends_thinking() {
    let mut config = config();
    config.default_chat_template_kwargs.insert("enable_thinking".into(), json!(true));
    let app = App::with(config, Reply::Text("x".into()));
    let prompt = |app: &App| {
        let bytes = app.engine.last().prompt.into_iter().filter_map(|t| u8::try_from(t).ok());
        String::from_utf8(bytes.collect()).unwrap()
    };
    let thinks = |app: &App| app.engine.last().prompt.contains(&258);
    for effort in ["minimal", "low", "medium", "high", "xhigh", "max"] {
        app.chat(json!({ "reasoning_effort": effort })).await;
        assert!(prompt(&app).contains(&format!("[{effort}]")) && thinks(&app), "{effort}");
    }
    app.chat(json!({ "reasoning_effort": "none" })).await;
    assert!(prompt(&app).contains("[none]") && !thinks(&app));
    let kwargs = json!({ "reasoning_effort": "low" });
    app.chat(json!({ "reasoning_effort": "low", "chat_template_kwargs": kwargs })).await;
    assert!(prompt(&app).contains("[low]"));
}

#[tokio::test]
async fn messages_of_every_kind() {
    let app = App::text("ok");
    let body = json!({ "messages": [
        { "role": "system", "content": "s", "name": "n" },
        { "role": "developer", "content": [{ "type": "text", "text": "d" }] },
        { "role": "user", "content": [{ "type": "text", "text": "u1" }, { "type": "text", "text": "u2" }] },
        { "role": "assistant", "content": "a", "refusal": null, "annotations": [], "audio": null,
          "function_call": null, "tool_calls": null, "reasoning_content": "r" },
        { "role": "user", "content": "" },
    ] });
    let (status, answer) = app.post("/v1/chat/completions", &body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    // A request that names no model gets the first.
    assert_eq!(answer["model"], "mock");
    let body = json!({ "model": "org/mock", "continue_final_message": true, "messages": [
        { "role": "user", "content": "Q" }, { "role": "assistant", "content": "The answer" } ] });
    let (status, answer) = app.post("/v1/chat/completions", &body).await;
    assert_eq!((status, &answer["model"]), (StatusCode::OK, &json!("org/mock")), "{answer}");
    let prompt = app.engine.last().prompt;
    let end: Vec<u32> = "The answer".bytes().map(u32::from).collect();
    assert!(prompt.ends_with(&end), "{prompt:?}");
}

#[tokio::test]
async fn unicode_comes_out_whole() {
    let app = App::text("Grüße 👋 日本");
    let body = app.chat(json!({ "logprobs": true })).await;
    assert_eq!(body["choices"][0]["message"]["content"], "Grüße 👋 日本");
    let entries = body["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let bytes = entries.iter().flat_map(|e| e["bytes"].as_array().unwrap());
    let bytes: Vec<u8> = bytes.map(|b| u8::try_from(b.as_u64().unwrap()).unwrap()).collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), "Grüße 👋 日本");
}

#[tokio::test]
async fn engine_errors_have_their_status() {
    let source = std::sync::Arc::new(std::io::Error::other("/secret/path panicked"));
    let id = ErrorId::random();
    let step = GenerationError::Step { id, source: source.clone() };
    let internal = GenerationError::Internal { id, source };
    let share = SubmitError::ClientQueueFull { open: 4, free: 4, limit: 9 };
    let never = SubmitError::NeverFits { need: 9, capacity: 8 };
    let invalid = "invalid_request_error";
    let cases = [
        (Reply::Refuse(SubmitError::QueueFull { limit: 9 }), 429, "rate_limit_error", "queue_full"),
        (Reply::Refuse(SubmitError::ShuttingDown), 503, "server_error", "shutting_down"),
        (
            Reply::Refuse(SubmitError::TooLong { prompt: 9, new: 9, max: 10 }),
            400,
            "invalid_request_error",
            "context_length_exceeded",
        ),
        (Reply::Fail("so ".into(), step), 500, "server_error", "step_failed"),
        (
            Reply::Fail(String::new(), GenerationError::NonFiniteLogits { position: 3 }),
            500,
            "server_error",
            "non_finite_logits",
        ),
        (Reply::Gone("so".into()), 500, "server_error", "engine_gone"),
        (Reply::Fail(String::new(), internal), 500, "server_error", "internal_error"),
        (Reply::Refuse(share), 429, "rate_limit_error", "queue_full"),
        (Reply::Refuse(SubmitError::NoCandidate), 400, invalid, "no_token_left"),
        (Reply::Refuse(SubmitError::EngineDead), 503, "server_error", "engine_dead"),
        (
            Reply::Fail("so ".into(), GenerationError::EngineDead),
            503,
            "server_error",
            "engine_dead",
        ),
        (Reply::Fail(String::new(), never.into()), 400, invalid, "kv_cache_too_small"),
        (
            Reply::Fail("so".into(), GenerationError::NoCandidate { position: 3 }),
            400,
            invalid,
            "no_token_left",
        ),
    ];
    for (reply, status, kind, code) in cases {
        let app = App::new(reply);
        let (got, body) = app.post("/v1/chat/completions", &chat(json!({}))).await;
        assert_eq!(got.as_u16(), status, "{body}");
        assert_eq!((&body["error"]["type"], &body["error"]["code"]), (&json!(kind), &json!(code)));
        let message = body["error"]["message"].as_str().unwrap();
        assert!(!message.is_empty() && !message.contains("secret"), "{message}");
        if matches!(code, "step_failed" | "internal_error") {
            assert!(message.contains(&id.to_string()), "{message}");
        }
        // The server serves on.
        app.engine.say(Reply::Text("fine".into()));
        assert_eq!(app.chat(json!({})).await["choices"][0]["message"]["content"], "fine");
        assert_eq!(app.state.in_flight(), 0);
    }
}

#[tokio::test]
async fn a_choice_that_is_refused_cancels_the_others() {
    let app = App::new(Reply::Hold("x".into()));
    *app.engine.replies.lock().unwrap() =
        vec![Reply::Hold("x".into()), Reply::Refuse(SubmitError::QueueFull { limit: 1 })];
    let (status, _) = app.post("/v1/chat/completions", &chat(json!({ "n": 2 }))).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(app.engine.held_open(), 0);
}

#[tokio::test]
async fn choices_of_one_request_are_one_client() {
    let app = App::text("x");
    app.chat(json!({ "n": 3 })).await;
    app.chat(json!({})).await;
    let clients: Vec<_> = app.engine.seen.lock().unwrap().iter().map(|r| r.client).collect();
    assert!(clients[0].is_some() && clients[..3].iter().all(|c| *c == clients[0]), "{clients:?}");
    assert_ne!(clients[0], clients[3]);
}
