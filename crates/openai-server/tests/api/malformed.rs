//! Requests that are refused, each with its status, field and code; and a good one after them.

use crate::support::{App, Reply, chat, config};
use axum::http::StatusCode;
use serde_json::{Value, json};
use taper_openai_server::ServerConfig;

/// Fields on top of a good chat, and the field and code that the response must name.
fn chats() -> Vec<(Value, &'static str, &'static str)> {
    let message = |m: Value| json!({ "messages": [m] });
    let user = |content: Value| json!({ "messages": [{ "role": "user", "content": content }] });
    // What structs of so many fields would be in other formats than JSON.
    let list = |fields: usize, first: &str| {
        let mut list = vec![Value::Null; fields];
        list[0] = json!(first);
        list[1] = json!("x");
        Value::from(list)
    };
    let tool = |t: Value| json!({ "tools": [t] });
    let f = json!({ "type": "function", "function": { "name": "f" } });
    vec![
        (json!({ "messages": null }), "messages", "invalid_type"),
        (json!({ "max_thinking_tokens": -1 }), "max_thinking_tokens", "invalid_value"),
        (json!({ "max_thinking_tokens": "3" }), "max_thinking_tokens", "invalid_type"),
        (json!({ "thinking_token_budget": 1.5 }), "thinking_token_budget", "invalid_type"),
        (
            json!({ "max_thinking_tokens": 1, "thinking_token_budget": 2 }),
            "thinking_token_budget",
            "invalid_value",
        ),
        (json!({ "messages": "Hi" }), "messages", "invalid_type"),
        (json!({ "messages": [] }), "messages", "invalid_value"),
        (json!({ "messages": ["Hi"] }), "messages[0]", "invalid_type"),
        (json!({ "messages": [[]] }), "messages[0]", "invalid_type"),
        (json!({ "messages": [list(13, "user")] }), "messages[0]", "invalid_type"),
        (user(json!([list(9, "text")])), "messages[0].content[0]", "invalid_type"),
        (tool(list(3, "function")), "tools[0]", "invalid_type"),
        (json!({ "stream_options": [true, null, null] }), "stream_options", "invalid_type"),
        (json!({ "response_format": ["text", null] }), "response_format", "invalid_type"),
        (message(json!({ "content": "x" })), "messages[0].role", "missing_required_parameter"),
        (message(json!({ "role": "robot", "content": "x" })), "messages[0].role", "invalid_value"),
        (message(json!({ "role": 3, "content": "x" })), "messages[0].role", "invalid_type"),
        (message(json!({ "role": "user" })), "messages[0].content", "missing_required_parameter"),
        (
            message(json!({ "role": "assistant" })),
            "messages[0].content",
            "missing_required_parameter",
        ),
        (user(json!(5)), "messages[0].content", "invalid_type"),
        (user(json!([])), "messages[0].content", "invalid_value"),
        (
            user(json!([{ "text": "x" }])),
            "messages[0].content[0].type",
            "missing_required_parameter",
        ),
        (
            user(json!([{ "type": "text" }])),
            "messages[0].content[0].text",
            "missing_required_parameter",
        ),
        (
            user(json!([{ "type": "text", "text": 1 }])),
            "messages[0].content[0].text",
            "invalid_type",
        ),
        (
            user(json!([{ "type": "poem", "text": "x" }])),
            "messages[0].content[0].type",
            "invalid_value",
        ),
        (
            user(
                json!([{ "type": "text", "text": "a" }, { "type": "image_url", "image_url": { "url": "x" } }]),
            ),
            "messages[0].content[1]",
            "unsupported_value",
        ),
        (
            user(
                json!([{ "type": "input_audio", "input_audio": { "data": "", "format": "wav" } }]),
            ),
            "messages[0].content[0]",
            "unsupported_value",
        ),
        (
            user(json!([{ "type": "text", "text": "a", "cache_control": 5 }])),
            "messages[0].content[0].cache_control",
            "invalid_type",
        ),
        (
            message(json!({ "role": "user", "content": "x", "mood": "good" })),
            "messages[0].mood",
            "unknown_parameter",
        ),
        (
            message(json!({ "role": "tool", "content": "x" })),
            "messages[0].tool_call_id",
            "missing_required_parameter",
        ),
        (
            message(json!({ "role": "user", "content": "x", "tool_call_id": "c" })),
            "messages[0].tool_call_id",
            "invalid_value",
        ),
        (
            message(json!({ "role": "user", "content": "x", "tool_calls": [] })),
            "messages[0].tool_calls",
            "invalid_value",
        ),
        (
            message(
                json!({ "role": "assistant", "tool_calls": [{ "id": "a", "function": { "name": "f", "arguments": {} } }] }),
            ),
            "messages[0].tool_calls[0].function.arguments",
            "invalid_type",
        ),
        (
            message(json!({ "role": "assistant", "content": "x", "refusal": "no" })),
            "messages[0].refusal",
            "unsupported_value",
        ),
        (json!({ "temperature": 3 }), "temperature", "invalid_value"),
        (json!({ "temperature": -1 }), "temperature", "invalid_value"),
        (json!({ "temperature": "hot" }), "temperature", "invalid_type"),
        (json!({ "temperature": 1e300 }), "temperature", "invalid_value"),
        (json!({ "top_p": 0 }), "top_p", "invalid_value"),
        (json!({ "top_p": 1.5 }), "top_p", "invalid_value"),
        (json!({ "top_k": -2 }), "top_k", "invalid_value"),
        (json!({ "top_k": 1.5 }), "top_k", "invalid_type"),
        (json!({ "min_p": 2 }), "min_p", "invalid_value"),
        (json!({ "typical_p": 0 }), "typical_p", "invalid_value"),
        (json!({ "repetition_penalty": 0 }), "repetition_penalty", "invalid_value"),
        (json!({ "presence_penalty": 2.5 }), "presence_penalty", "invalid_value"),
        (json!({ "frequency_penalty": -3 }), "frequency_penalty", "invalid_value"),
        (json!({ "logit_bias": { "a": 1 } }), "logit_bias.a", "invalid_value"),
        (json!({ "logit_bias": { "99999": 1 } }), "logit_bias.99999", "invalid_value"),
        (json!({ "logit_bias": { "1": 101 } }), "logit_bias", "invalid_value"),
        (json!({ "logit_bias": [1] }), "logit_bias", "invalid_type"),
        (json!({ "seed": "x" }), "seed", "invalid_type"),
        (json!({ "seed": 1.5 }), "seed", "invalid_type"),
        (json!({ "stop": 5 }), "stop", "invalid_type"),
        (json!({ "stop": ["a", 5] }), "stop[1]", "invalid_type"),
        (json!({ "stop": "" }), "stop", "invalid_value"),
        (json!({ "stop": vec!["x"; 17] }), "stop", "invalid_value"),
        (json!({ "stop_token_ids": [-1] }), "stop_token_ids[0]", "invalid_value"),
        (json!({ "stop_token_ids": [1, 99999] }), "stop_token_ids[1]", "invalid_value"),
        (json!({ "max_tokens": 0 }), "max_tokens", "invalid_value"),
        (json!({ "max_tokens": -1 }), "max_tokens", "invalid_value"),
        (json!({ "max_tokens": "many" }), "max_tokens", "invalid_type"),
        (json!({ "max_completion_tokens": 0 }), "max_completion_tokens", "invalid_value"),
        (
            json!({ "max_tokens": 1, "max_completion_tokens": 2 }),
            "max_completion_tokens",
            "invalid_value",
        ),
        (json!({ "max_tokens": 1, "min_tokens": 2 }), "min_tokens", "invalid_value"),
        (json!({ "n": 0 }), "n", "invalid_value"),
        (json!({ "n": 1000 }), "n", "invalid_value"),
        (json!({ "logprobs": 3 }), "logprobs", "invalid_type"),
        (json!({ "top_logprobs": 3 }), "top_logprobs", "invalid_value"),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs", "invalid_value"),
        (json!({ "stream": "yes" }), "stream", "invalid_type"),
        (json!({ "stream_options": { "include_usage": true } }), "stream_options", "invalid_value"),
        (
            json!({ "stream": true, "stream_options": { "speed": 1 } }),
            "stream_options.speed",
            "unknown_parameter",
        ),
        (
            json!({ "stream": true, "stream_options": { "include_obfuscation": true } }),
            "stream_options.include_obfuscation",
            "unsupported_value",
        ),
        (
            json!({ "response_format": { "type": "json_schema" } }),
            "response_format.json_schema",
            "missing_required_parameter",
        ),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x" } } }),
            "response_format.json_schema.schema",
            "missing_required_parameter",
        ),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x", "strict": true,
                    "schema": { "properties": { "a": { "not": {} } } } } } }),
            "response_format.json_schema.schema",
            "unsupported_schema",
        ),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x",
                    "schema": { "type": "text" } } } }),
            "response_format.json_schema.schema",
            "invalid_schema",
        ),
        (json!({ "guided_json": "{" }), "guided_json", "invalid_value"),
        (json!({ "guided_json": { "if": {} } }), "guided_json", "unsupported_schema"),
        (json!({ "guided_regex": "(" }), "guided_regex", "invalid_grammar"),
        (json!({ "guided_grammar": "start: x" }), "guided_grammar", "invalid_grammar"),
        (json!({ "guided_choice": [] }), "guided_choice", "invalid_grammar"),
        (json!({ "guided_choice": ["a"], "guided_regex": "b" }), "guided_choice", "invalid_value"),
        (json!({ "guided_whitespace_pattern": " " }), "guided_whitespace_pattern", "invalid_value"),
        (json!({ "structured_outputs": {} }), "structured_outputs", "invalid_value"),
        (
            json!({ "structured_outputs": { "structural_tag": "x" } }),
            "structured_outputs.structural_tag",
            "unsupported_value",
        ),
        (json!({ "response_format": { "type": "xml" } }), "response_format.type", "invalid_value"),
        (json!({ "response_format": {} }), "response_format.type", "missing_required_parameter"),
        (json!({ "tools": "f" }), "tools", "invalid_type"),
        (tool(json!({ "type": "web_search" })), "tools[0].type", "unsupported_value"),
        (tool(json!({ "type": "function" })), "tools[0].function", "missing_required_parameter"),
        (
            tool(json!({ "type": "function", "function": {} })),
            "tools[0].function.name",
            "missing_required_parameter",
        ),
        (
            tool(json!({ "type": "function", "function": { "name": "f", "strict": "yes" } })),
            "tools[0].function.strict",
            "invalid_type",
        ),
        (
            tool(json!({ "type": "function", "function": { "name": "f", "speed": 1 } })),
            "tools[0].function.speed",
            "unknown_parameter",
        ),
        (
            json!({ "tools": [f], "tool_choice": { "type": "function", "function": { "name": "g" } } }),
            "tool_choice.function.name",
            "invalid_value",
        ),
        (
            json!({ "tools": [f], "tool_choice": { "type": "custom" } }),
            "tool_choice",
            "invalid_value",
        ),
        (
            tool(json!({ "type": "function", "function": { "name": "f", "strict": true,
                         "parameters": { "propertyNames": { "pattern": "^a" } } } })),
            "tools[0].function.parameters",
            "unsupported_schema",
        ),
        (json!({ "tools": [f], "tool_choice": "maybe" }), "tool_choice", "invalid_value"),
        (json!({ "tools": [f], "tool_choice": 1 }), "tool_choice", "invalid_type"),
        (json!({ "tool_choice": "auto" }), "tool_choice", "invalid_value"),
        (json!({ "modalities": ["text", "audio"] }), "modalities", "unsupported_value"),
        (json!({ "chat_template_kwargs": "x" }), "chat_template_kwargs", "invalid_type"),
        (
            json!({ "chat_template_kwargs": { "messages": [] } }),
            "chat_template_kwargs.messages",
            "invalid_value",
        ),
        (
            json!({ "add_generation_prompt": true, "continue_final_message": true }),
            "continue_final_message",
            "invalid_value",
        ),
        (json!({ "user": 5 }), "user", "invalid_type"),
        (json!({ "metadata": "x" }), "metadata", "invalid_type"),
        (json!({ "functions": [f] }), "functions[0].name", "missing_required_parameter"),
        (json!({ "function_call": "auto" }), "function_call", "invalid_value"),
        (
            json!({ "functions": [{ "name": "f" }], "function_call": "required" }),
            "function_call",
            "invalid_value",
        ),
        (
            json!({ "functions": [{ "name": "f" }], "function_call": { "name": "g" } }),
            "function_call.name",
            "invalid_value",
        ),
        (json!({ "functions": [{ "name": "" }] }), "functions[0].name", "invalid_value"),
        (json!({ "functions": [{ "name": "f" }], "tools": [f] }), "tools", "invalid_value"),
        (json!({ "documents": [{ "text": "x" }] }), "documents", "unsupported_value"),
        (json!({ "documents": ["x"] }), "documents[0]", "invalid_type"),
        (json!({ "allowed_token_ids": [] }), "allowed_token_ids", "invalid_value"),
        (json!({ "allowed_token_ids": [1, 262] }), "allowed_token_ids[1]", "invalid_value"),
        (json!({ "bad_words": ["a", " "] }), "bad_words[1]", "invalid_value"),
        (json!({ "bad_words": vec!["a"; 1025] }), "bad_words", "invalid_value"),
        (json!({ "bad_words": ["a".repeat(20_000)] }), "bad_words", "invalid_value"),
        (json!({ "truncate_prompt_tokens": 0 }), "truncate_prompt_tokens", "invalid_value"),
        (json!({ "truncate_prompt_tokens": -2 }), "truncate_prompt_tokens", "invalid_value"),
        (json!({ "truncate_prompt_tokens": 4097 }), "truncate_prompt_tokens", "invalid_value"),
        (json!({ "prompt_logprobs": -1 }), "prompt_logprobs", "invalid_value"),
        (json!({ "prompt_logprobs": 21 }), "prompt_logprobs", "invalid_value"),
        (json!({ "prompt_logprobs": 1, "stream": true }), "prompt_logprobs", "invalid_value"),
        (json!({ "priority": 2_147_483_648_u32 }), "priority", "invalid_value"),
        (json!({ "return_token_ids": 1 }), "return_token_ids", "invalid_type"),
        (json!({ "best_of": 2 }), "best_of", "unsupported_parameter"),
        (json!({ "suffix": "x" }), "suffix", "unsupported_parameter"),
        (json!({ "use_beam_search": true }), "use_beam_search", "unsupported_parameter"),
        (json!({ "max_tokens": 2.5 }), "max_tokens", "invalid_type"),
        (json!({ "max_tokens": 1e20 }), "max_tokens", "invalid_value"),
        (json!({ "logit_bias": { "07": 1 } }), "logit_bias.07", "invalid_value"),
        (json!({ "logit_bias": { "+7": 1 } }), "logit_bias.+7", "invalid_value"),
        (
            json!({ "stop_token_ids": Vec::from_iter(0..262), "min_tokens": 2 }),
            "stop_token_ids",
            "invalid_value",
        ),
        (
            json!({ "repetition_penalty": 1.1, "repeat_penalty": 1.2 }),
            "repeat_penalty",
            "invalid_value",
        ),
        (json!({ "enable_thinking": true, "think": false }), "think", "invalid_value"),
        (
            json!({ "think": true, "chat_template_kwargs": { "enable_thinking": false } }),
            "chat_template_kwargs.enable_thinking",
            "invalid_value",
        ),
        (json!({ "think": "high" }), "think", "invalid_type"),
        (
            message(
                json!({ "role": "assistant", "content": "x", "reasoning": "a", "reasoning_content": "b" }),
            ),
            "messages[0].reasoning",
            "invalid_value",
        ),
        (
            message(
                json!({ "role": "user", "content": "x", "function_call": { "name": "f", "arguments": "" } }),
            ),
            "messages[0].function_call",
            "invalid_value",
        ),
        (json!({ "reasoning_effort": "much" }), "reasoning_effort", "invalid_value"),
        (json!({ "reasoning_effort": 1 }), "reasoning_effort", "invalid_type"),
        (json!({ "reasoning_effort": "none", "think": true }), "reasoning_effort", "invalid_value"),
        (
            json!({ "reasoning_effort": "low", "chat_template_kwargs": { "reasoning_effort": "high" } }),
            "chat_template_kwargs.reasoning_effort",
            "invalid_value",
        ),
        (json!({ "echo": true }), "echo", "unsupported_parameter"),
        (json!({ "temprature": 1 }), "temprature", "unknown_parameter"),
    ]
}

fn completions() -> Vec<(Value, &'static str, &'static str)> {
    vec![
        (json!({}), "prompt", "missing_required_parameter"),
        (json!({ "prompt": null }), "prompt", "invalid_type"),
        (json!({ "prompt": {} }), "prompt", "invalid_type"),
        (json!({ "prompt": [1, "a"] }), "prompt[1]", "invalid_type"),
        (json!({ "prompt": [-1] }), "prompt[0]", "invalid_type"),
        (json!({ "prompt": [[1], [true]] }), "prompt[1][0]", "invalid_type"),
        (json!({ "prompt": ["a", 1] }), "prompt[1]", "invalid_type"),
        (json!({ "prompt": vec![1; 5000] }), "prompt", "context_length_exceeded"),
        (json!({ "prompt": "" }), "prompt", "empty_prompt"),
        (json!({ "prompt": [] }), "prompt", "empty_prompt"),
        (json!({ "prompt": vec!["a"; 100], "n": 2 }), "prompt", "invalid_value"),
        (json!({ "prompt": "a", "suffix": "b" }), "suffix", "unsupported_value"),
        (json!({ "prompt": "a", "n": 2, "best_of": 1 }), "best_of", "invalid_value"),
        (json!({ "prompt": "a", "best_of": 129 }), "best_of", "invalid_value"),
        (json!({ "prompt": "a", "best_of": 2, "stream": true }), "best_of", "invalid_value"),
        (json!({ "prompt": vec!["a"; 50], "best_of": 3 }), "prompt", "invalid_value"),
        (
            json!({ "prompt": "a", "functions": [{ "name": "f" }] }),
            "functions",
            "unsupported_parameter",
        ),
        (
            json!({ "prompt": "a", "include_reasoning": false }),
            "include_reasoning",
            "unsupported_parameter",
        ),
        (json!({ "prompt": "a", "logprobs": 21 }), "logprobs", "invalid_value"),
        (json!({ "prompt": "a", "logprobs": true }), "logprobs", "invalid_type"),
        (json!({ "prompt": "a", "max_tokens": 0 }), "max_tokens", "invalid_value"),
        (
            json!({ "prompt": "a", "max_completion_tokens": 1 }),
            "max_completion_tokens",
            "unknown_parameter",
        ),
        (json!({ "prompt": "a", "messages": [] }), "messages", "unknown_parameter"),
        (
            json!({ "prompt": "a", "reasoning_effort": "low" }),
            "reasoning_effort",
            "unsupported_parameter",
        ),
    ]
}

fn check(case: &Value, (status, body): &(StatusCode, Value), param: &str, code: &str) {
    let error = &body["error"];
    assert_eq!(status.as_u16(), 400, "{case}\n{body}");
    assert_eq!((&error["param"], &error["code"]), (&json!(param), &json!(code)), "{case}\n{body}");
    assert_eq!(error["type"], "invalid_request_error");
    assert!(error["message"].is_string());
}

#[tokio::test]
async fn each_is_refused_by_name_and_the_server_lives() {
    let app = App::text("fine");
    for (fields, param, code) in chats() {
        let body = chat(fields.clone());
        let answer = app.post("/v1/chat/completions", &body).await;
        check(&fields, &answer, param, code);
    }
    assert_eq!(app.engine.count(), 0, "a malformed request reached the engine");
    for (body, param, code) in completions() {
        let answer = app.post("/v1/completions", &body).await;
        check(&body, &answer, param, code);
    }
    assert_eq!(app.chat(json!({})).await["choices"][0]["message"]["content"], "fine");
    assert_eq!(app.state.in_flight(), 0);
}

#[tokio::test]
async fn what_is_no_json_object() {
    let app = App::text("fine");
    let deep = "[".repeat(100_000);
    for (body, code) in [
        ("", "invalid_json"),
        ("{", "invalid_json"),
        ("{\"messages\": [}", "invalid_json"),
        ("{\"a\": NaN}", "invalid_json"),
        ("not json", "invalid_json"),
        (deep.as_str(), "invalid_json"),
        ("[]", "invalid_type"),
        ("\"x\"", "invalid_type"),
        ("null", "invalid_type"),
        ("5", "invalid_type"),
        ("{\"a\": 1} x", "invalid_json"),
        ("{\"a\": [1, }", "invalid_json"),
    ] {
        let (status, answer) = app.post_text("/v1/chat/completions", body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert_eq!(answer["error"]["code"], code, "{answer}");
        assert_eq!(answer["error"]["param"], Value::Null);
    }
    app.chat(json!({})).await;
}

#[tokio::test]
async fn an_unknown_model_is_not_found() {
    let app = App::text("x");
    for path in ["/v1/chat/completions", "/v1/completions", "/tokenize"] {
        let mut body = chat(json!({ "model": "gpt-4" }));
        if path == "/v1/completions" {
            body = json!({ "model": "gpt-4", "prompt": "x" });
        }
        let (status, answer) = app.post(path, &body).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        assert_eq!(answer["error"]["code"], "model_not_found");
        assert!(answer["error"]["message"].as_str().unwrap().contains("org/mock"));
    }
    let (status, answer) = app.post("/v1/chat/completions", &chat(json!({ "model": 5 }))).await;
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("model")));
}

#[tokio::test]
async fn unknown_fields_can_be_allowed_and_unsupported_ones_cannot() {
    let config = ServerConfig { allow_unknown_fields: true, ..config() };
    let app = App::with(config, Reply::Text("fine".into()));
    app.chat(
        json!({ "frobnicate": 1, "messages": [{ "role": "user", "content": "x", "mood": 1 }] }),
    )
    .await;
    let (status, answer) =
        app.post("/v1/chat/completions", &chat(json!({ "use_beam_search": true }))).await;
    assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!("use_beam_search")));
    // Null is absent.
    app.chat(json!({ "guided_json": null, "functions": null })).await;
}
