//! The server and the demo model over HTTP: what a client sees.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Server, chat, http::joined};
use serde_json::{Value, json};

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().expect("content")
}

fn tools() -> Value {
    let city = json!({ "type": "object", "properties": { "city": { "type": "string" } },
                       "required": ["city"] });
    json!([{ "type": "function", "function": {
        "name": "get_weather", "description": "Get a weather.", "parameters": city } }])
}

const TOOL_PROMPT: &str = "Please get a weather with city Paris.";

#[test]
fn the_demo_model_says_what_it_has_learned() {
    let server = Server::shared();
    let answer = server.chat("Hello!", json!({}));
    assert_eq!(content(&answer), "Hello! How can I help you today?");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["model"], "taper-demo");
    let usage = |name: &str| answer["usage"][name].as_u64().unwrap();
    assert_eq!(usage("total_tokens"), usage("prompt_tokens") + usage("completion_tokens"));
    let capital = server.chat("What is the capital of France?", json!({}));
    assert_eq!(content(&capital), "The capital of France is Paris.");
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "taper-demo");
    for path in ["/health", "/ready", "/version", "/metrics"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    assert_eq!(server.get("/v1/nothing").status, 404);
}

#[test]
fn reasoning_comes_apart_from_the_answer() {
    let kwargs = json!({ "max_tokens": 200, "chat_template_kwargs": { "enable_thinking": true } });
    let answer = Server::shared().chat("What is 345 + 678?", kwargs);
    let message = &answer["choices"][0]["message"];
    assert!(!content(&answer).contains("think>"), "{answer}");
    assert!(content(&answer).contains("345 + 678 = 1023"), "{answer}");
    // Digit by digit, with the carry.
    let reasoning = message["reasoning_content"].as_str().expect("reasoning");
    assert!(reasoning.contains("5 + 8 + 0 = 13") && !reasoning.contains("think>"), "{answer}");
    let details = &answer["usage"]["completion_tokens_details"];
    assert!(details["reasoning_tokens"].as_u64().is_some_and(|n| n > 10), "{answer}");
}

#[test]
fn a_stream_says_what_the_whole_answer_says() {
    let server = Server::shared();
    for text in ["Hello!", "Count to ten.", "Tell me a joke."] {
        let whole = server.chat(text, json!({}));
        let body = chat(text, json!({ "stream_options": { "include_usage": true } }));
        let chunks = server.stream("/v1/chat/completions", &body).chunks();
        assert_eq!(joined(&chunks, "content"), content(&whole));
        assert_eq!(chunks.last().unwrap()["usage"], whole["usage"]);
        assert!(chunks.len() > 4, "token by token");
    }
}

#[test]
fn completions_whole_streamed_and_scored() {
    let server = Server::shared();
    let body = json!({ "prompt": "The borrow checker", "max_tokens": 12, "temperature": 0 });
    let whole = server.ask("/v1/completions", &body);
    let text = whole["choices"][0]["text"].as_str().unwrap();
    let chunks = server.stream("/v1/completions", &body).chunks();
    assert_eq!(joined(&chunks, "text"), text);
    let mut scored = body;
    scored["echo"] = json!(true);
    scored["logprobs"] = json!(1);
    let scored = server.ask("/v1/completions", &scored);
    assert_eq!(scored["choices"][0]["text"], json!(format!("The borrow checker{text}")));
    let logprobs = scored["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
    assert!(logprobs[0].is_null() && logprobs[1..].iter().all(Value::is_number));
    let prompts = json!({ "prompt": ["Rust is", "A string"], "max_tokens": 3, "n": 2, "seed": 1 });
    let several = server.ask("/v1/completions", &prompts);
    assert_eq!(several["choices"].as_array().unwrap().len(), 4);
}

#[test]
fn tokens_there_and_back() {
    let server = Server::shared();
    let body = json!({ "prompt": "Ein Test: 你好, naïve 🙂", "add_special_tokens": false });
    let tokens = server.ask("/tokenize", &body);
    let count = tokens["tokens"].as_array().unwrap().len();
    assert_eq!(tokens["count"], count);
    let text = server.ask("/detokenize", &json!({ "tokens": tokens["tokens"] }));
    assert_eq!(text["prompt"], body["prompt"]);
}

#[test]
fn a_tool_is_called_and_its_result_used() {
    let server = Server::shared();
    let answer = server.chat(TOOL_PROMPT, json!({ "tools": tools(), "max_tokens": 200 }));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "get_weather");
    let arguments: Value =
        serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({ "city": "Paris" }));
    let messages = json!([
        { "role": "user", "content": TOOL_PROMPT },
        choice["message"],
        { "role": "tool", "tool_call_id": call["id"], "content": "{\"result\": \"sunny\"}" },
    ]);
    let last = server.chat("", json!({ "messages": messages, "tools": tools() }));
    assert_eq!(last["choices"][0]["finish_reason"], "stop", "{last}");
    assert!(content(&last).contains("get_weather"), "{last}");

    let body = chat(TOOL_PROMPT, json!({ "tools": tools(), "max_tokens": 200 }));
    let chunks = server.stream("/v1/chat/completions", &body).chunks();
    let deltas = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["tool_calls"].as_array());
    let pieces = deltas.flatten().filter_map(|c| c["function"]["arguments"].as_str());
    let streamed: Value = serde_json::from_str(&pieces.collect::<String>()).unwrap();
    assert_eq!(streamed, arguments);
    assert!(joined(&chunks, "content").trim().is_empty(), "the call is not text too");
}

/// SwiftLM's regression sequence for its prompt cache, over every kind of cache.
#[test]
fn big_small_big_big_answers_alike_and_counts_what_it_reused() {
    let mixed = r#"{"kv_scheme": {"default": "turbo4", "layers": {"0": "f16", "-1": "taper3"}}}"#;
    for (flag, cache, unit) in [
        ("--kv-cache-dtype", "auto", 32),
        ("--kv-cache-dtype", "taper4", 32),
        ("--additional-config", mixed, 32),
    ] {
        let server = Server::start(&[flag, cache]);
        let off = Server::start(&[flag, cache, "--no-enable-prefix-caching"]);
        let big = "apple ".repeat(700);
        let ask = |server: &Server, text: &str| {
            server.chat(text, json!({ "max_tokens": 30, "temperature": 0 }))
        };
        let cached = |answer: &Value| {
            answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
        };
        let mut hits = 0;
        for (i, text) in [&big, "What is today?", &big, &big].into_iter().enumerate() {
            let (got, want) = (ask(&server, text), ask(&off, text));
            assert_eq!(content(&got), content(&want), "{cache}, request {}", i + 1);
            assert_eq!(cached(&want), 0);
            let prompt = got["usage"]["prompt_tokens"].as_u64().unwrap();
            let reused = if i < 2 { 0 } else { (prompt - 1) / unit * unit };
            assert_eq!(cached(&got), reused, "{cache}, request {} of {prompt} tokens", i + 1);
            hits += reused;
        }
        assert_eq!(server.metric("vllm:prefix_cache_hits_total"), hits as f64);
        assert_eq!(off.metric("vllm:prefix_cache_hits_total"), 0.0);
        let exact = server.metric("taper:kv_cache_exact_capacity_bytes");
        assert_eq!(exact > 0.0, cache != "auto");
    }
}

/// Choices share the full blocks of their prompt, and each writes into blocks of its own.
#[test]
fn choices_share_their_prompt_and_say_what_they_say_without_sharing() {
    for cache in ["auto", "taper4"] {
        let flags = ["--kv-cache-dtype", cache, "--kv-recent-tokens", "32"];
        let server = Server::start(&flags);
        let off = Server::start(&[&flags[..], &["--no-enable-prefix-caching"]].concat());
        let text =
            format!("Continue this text: {}", "The borrow checker makes sure that ".repeat(30));
        let fields = json!({ "n": 4, "temperature": 1.5, "seed": 7, "max_tokens": 50 });
        let texts = |answer: &Value| -> Vec<String> {
            let choices = answer["choices"].as_array().unwrap().iter();
            choices.map(|c| c["message"]["content"].as_str().unwrap().to_owned()).collect()
        };
        let (got, want) = (server.chat(&text, fields.clone()), off.chat(&text, fields.clone()));
        assert_eq!(texts(&got), texts(&want), "{cache}");
        let different: std::collections::BTreeSet<_> = texts(&got).into_iter().collect();
        assert!(different.len() > 2, "{cache}: the draws differ: {different:?}");
        let prompt = got["usage"]["prompt_tokens"].as_u64().unwrap();
        let shared = (prompt - 1) / 32 * 32;
        assert!(shared > 96 && !prompt.is_multiple_of(32), "{prompt} tokens end within a block");
        let computed = server.metric("vllm:prompt_tokens_total") as u64;
        assert_eq!(computed, prompt + 3 * (prompt - shared), "{cache}: computed once");
        // What one choice wrote is no other's: the prompt's own blocks still say the same.
        assert_eq!(texts(&server.chat(&text, fields)), texts(&want), "{cache}");
    }
}

/// SwiftLM's field, where the server was started with caches for it.
#[test]
fn kv_bits_choose_a_cache_or_are_refused() {
    let offers = r#"{"kv_bits": {"8": "affine8", "4": "taper4"}}"#;
    let server = Server::start(&["--additional-config", offers]);
    let text = "What is 12 + 30?";
    let ask = |bits: Value| {
        server.post(
            "/v1/chat/completions",
            &common::chat(text, json!({ "kv_bits": bits, "temperature": 0 })),
        )
    };
    let plain = server.chat(text, json!({ "temperature": 0 }));
    for bits in [json!(4), json!(8), json!(16), Value::Null] {
        let reply = ask(bits.clone());
        assert_eq!(reply.status, 200, "{bits}");
        assert_eq!(content(&reply.json()), content(&plain), "{bits}: this much each cache keeps");
    }
    for (bits, code) in [
        (json!(3), "invalid_kv_bits"),
        (json!(0), "invalid_kv_bits"),
        (json!(-4), "invalid_value"),
        (json!("4"), "invalid_type"),
    ] {
        let reply = ask(bits.clone());
        assert_eq!(
            (reply.status, reply.json()["error"]["code"].as_str()),
            (400, Some(code)),
            "{bits}"
        );
        assert_eq!(reply.json()["error"]["param"], "kv_bits");
    }
    let message = ask(json!(3)).json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("16 or 8 or 4"), "{message}");
    let info = server.get("/metrics").body;
    assert!(info.contains("kv_bits=\"4\",cache_dtype=\"taper4\"} 1"), "{info}");
}

/// Prefixes outlive the server, in a directory; what is damaged there is computed again.
#[test]
fn a_restarted_server_finds_its_prefixes_on_disk() {
    for (cache, unit) in [("auto", 32), ("taper4", 32)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        let flags = ["--kv-cache-dtype", cache, "--kv-offloading-dir", path];
        let text = "apple ".repeat(700);
        let ask = |flags: &[&str]| {
            let mut server = Server::start(flags);
            let answer = server.chat(&text, json!({ "max_tokens": 30, "temperature": 0 }));
            let hits = server.metric("taper:disk_prefix_cache_hits_total");
            server.signal("-TERM");
            assert!(server.wait().success());
            let cached =
                answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
            assert_eq!(hits as u64, cached, "all that is cached came from disk");
            let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
            (content(&answer).to_owned(), cached, (prompt - 1) / unit * unit)
        };
        let (first, cached, _) = ask(&flags);
        assert_eq!(cached, 0, "{cache}");
        let (second, cached, whole) = ask(&flags);
        assert_eq!((&second, cached), (&first, whole), "{cache}: all of it from disk");
        let other = ["--kv-cache-dtype", "turbo4", "--kv-offloading-dir", path];
        assert_eq!(ask(&other).1, 0, "another codec's rows are not used");
        for entry in std::fs::read_dir(dir.path()).unwrap() {
            let file = entry.unwrap().path();
            let bytes = std::fs::read(&file).unwrap();
            std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
        }
        let (third, cached, _) = ask(&flags);
        assert_eq!((&third, cached), (&first, 0), "{cache}: damaged files are not used");
        let (fourth, cached, whole) = ask(&flags);
        assert_eq!((&fourth, cached), (&first, whole), "{cache}: and were written anew");
    }
}

#[test]
fn a_seed_is_honoured() {
    let server = Server::shared();
    let text = "Continue this text: The borrow checker makes sure that references";
    let draw = |seed: u64| {
        let fields = json!({ "temperature": 1.5, "seed": seed, "max_tokens": 16 });
        content(&server.chat(text, fields)).to_owned()
    };
    assert_eq!(draw(42), draw(42));
    assert!((1..6).any(|seed| draw(seed) != draw(42)));
}

/// Fields on top of a good chat, and the parameter and code that the response names.
fn malformed() -> Vec<(Value, &'static str, &'static str)> {
    let (kind, value) = ("invalid_type", "invalid_value");
    let (unknown, lacks) = ("unknown_parameter", "missing_required_parameter");
    let message = |m: Value| json!({ "messages": [m] });
    vec![
        (json!({ "messages": null }), "messages", kind),
        (json!({ "messages": [] }), "messages", value),
        (json!({ "messages": {} }), "messages", kind),
        (json!({ "messages": [1] }), "messages[0]", kind),
        (message(json!({ "content": "x" })), "messages[0].role", lacks),
        (message(json!({ "role": "robot", "content": "x" })), "messages[0].role", value),
        (message(json!({ "role": "user" })), "messages[0].content", lacks),
        (message(json!({ "role": "user", "content": 5 })), "messages[0].content", kind),
        (message(json!({ "role": "user", "content": [] })), "messages[0].content", value),
        (
            message(json!({ "role": "user", "content": "x", "mood": 1 })),
            "messages[0].mood",
            unknown,
        ),
        (message(json!({ "role": "tool", "content": "x" })), "messages[0].tool_call_id", lacks),
        (json!({ "temperature": 3 }), "temperature", value),
        (json!({ "temperature": "hot" }), "temperature", kind),
        (json!({ "top_p": 0 }), "top_p", value),
        (json!({ "top_k": 1.5 }), "top_k", kind),
        (json!({ "min_p": 2 }), "min_p", value),
        (json!({ "repetition_penalty": 0 }), "repetition_penalty", value),
        (json!({ "presence_penalty": 2.5 }), "presence_penalty", value),
        (json!({ "frequency_penalty": -3 }), "frequency_penalty", value),
        (json!({ "logit_bias": { "99999": 1 } }), "logit_bias.99999", value),
        (json!({ "logit_bias": [1] }), "logit_bias", kind),
        (json!({ "seed": 1.5 }), "seed", kind),
        (json!({ "stop": 5 }), "stop", kind),
        (json!({ "stop": "" }), "stop", value),
        (json!({ "stop_token_ids": [99999] }), "stop_token_ids[0]", value),
        (json!({ "max_tokens": 0 }), "max_tokens", value),
        (json!({ "max_tokens": "many" }), "max_tokens", kind),
        (json!({ "max_tokens": 1, "min_tokens": 2 }), "min_tokens", value),
        (json!({ "n": 0 }), "n", value),
        (json!({ "n": 1000 }), "n", value),
        (json!({ "logprobs": 3 }), "logprobs", kind),
        (json!({ "top_logprobs": 3 }), "top_logprobs", value),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs", value),
        (json!({ "stream": "yes" }), "stream", kind),
        (json!({ "stream_options": {} }), "stream_options", value),
        (json!({ "tools": "f" }), "tools", kind),
        (json!({ "tool_choice": "auto" }), "tool_choice", value),
        (json!({ "chat_template_kwargs": 1 }), "chat_template_kwargs", kind),
        (json!({ "user": 5 }), "user", kind),
        (json!({ "guided_json": { "not": {} } }), "guided_json", "unsupported_schema"),
        (json!({ "temprature": 1 }), "temprature", unknown),
    ]
}

#[test]
fn malformed_requests_are_refused_by_name_and_the_server_lives() {
    let server = Server::shared();
    let path = "/v1/chat/completions";
    let refused = |reply: common::http::Reply, status: u16, code: &str, case: &str| {
        assert_eq!(reply.status, status, "{case}\n{}", reply.body);
        let error = reply.json()["error"].clone();
        assert_eq!(error["code"], code, "{case}\n{error}");
        assert!(error["message"].is_string() && error["type"].is_string());
        error
    };
    let cases = malformed();
    assert!(cases.len() > 40);
    for (fields, param, code) in cases {
        let case = fields.to_string();
        let error = refused(server.post(path, &chat("Hi", fields)), 400, code, &case);
        assert_eq!(error["param"], param, "{case}\n{error}");
    }
    let deep = "[".repeat(100_000);
    for (body, code) in [
        ("", "invalid_json"),
        ("{\"messages\": [}", "invalid_json"),
        ("\u{1}\u{2}", "invalid_json"),
        (deep.as_str(), "invalid_json"),
        ("[]", "invalid_type"),
    ] {
        refused(server.post_text(path, body), 400, code, &body[..body.len().min(20)]);
    }
    let long = chat(&"word ".repeat(400_000), json!({}));
    refused(server.post(path, &long), 400, "context_length_exceeded", "a long prompt");
    let other = chat("Hi", json!({ "model": "gpt-4" }));
    refused(server.post(path, &other), 404, "model_not_found", "another model");
    refused(server.post("/v1/completions", &json!({})), 400, "missing_required_parameter", "{}");
    let tokens = json!({ "prompt": [1, 99_999_999] });
    assert_eq!(server.post("/v1/completions", &tokens).status, 400);
    assert_eq!(server.get(path).status, 405);
    assert_eq!(content(&server.chat("Hello!", json!({}))), "Hello! How can I help you today?");
}

#[test]
fn a_body_beyond_the_limit_is_refused() {
    let server = Server::start(&["--max-body-mib", "1", "--api-key", "secret"]);
    let long = chat(&"x".repeat(2 << 20), json!({}));
    let reply = server.post("/v1/chat/completions", &long);
    assert!([401, 413].contains(&reply.status), "{}", reply.status);
    let reply = server.post("/v1/chat/completions", &chat("Hi", json!({})));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (401, &json!("invalid_api_key")));
    assert_eq!(server.get("/health").status, 200);
}
