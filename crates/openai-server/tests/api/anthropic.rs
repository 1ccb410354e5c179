//! Anthropic's Messages API: answers, blocks, tools, thinking, errors and keys.

use crate::support::{App, Reply, TEMPLATE, config, post, tokenizer};
use axum::http::StatusCode;
use serde_json::{Value, json};
use taper_openai_server::{ApiKeys, ServerConfig};

const CALL: &str =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";

/// One user message and these fields.
pub(crate) fn body(fields: Value) -> Value {
    let mut body = json!({ "model": "mock", "max_tokens": 1000,
        "messages": [{ "role": "user", "content": "Hi" }] });
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

pub(crate) fn tools() -> Value {
    json!([{ "name": "get_weather", "description": "Get a weather.",
        "cache_control": { "type": "ephemeral" },
        "input_schema": { "type": "object", "properties": { "city": { "type": "string" } } } }])
}

async fn send(app: &App, fields: Value) -> Value {
    let (status, answer) = app.post("/v1/messages", &body(fields)).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer
}

/// The prompt that the engine got.
fn prompt(app: &App) -> String {
    tokenizer().decode(&app.engine.last().prompt, false).unwrap()
}

#[tokio::test]
async fn an_answer_of_text() {
    let app = App::text("Hello there");
    *app.engine.cached.lock().unwrap() = 4;
    let answer = send(&app, json!({ "temperature": 0.5, "top_k": 7, "top_p": 0.9 })).await;
    assert!(answer["id"].as_str().unwrap().starts_with("msg_"));
    for (field, value) in [("type", "message"), ("role", "assistant"), ("model", "mock")] {
        assert_eq!(answer[field], value);
    }
    assert_eq!(answer["content"], json!([{ "type": "text", "text": "Hello there" }]));
    assert_eq!(
        (&answer["stop_reason"], &answer["stop_sequence"]),
        (&json!("end_turn"), &Value::Null)
    );
    let request = app.engine.last();
    let tokens = request.prompt.len() as u64;
    assert_eq!(
        answer["usage"],
        json!({ "input_tokens": tokens - 4, "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 4, "output_tokens": 12,
                "output_tokens_details": { "thinking_tokens": 0 } })
    );
    assert_eq!(request.stop.max_tokens, Some(1000));
    assert_eq!((request.sampling.temperature, request.sampling.top_k), (0.5, 7));
    let (status, count) = app.post("/v1/messages/count_tokens", &body(json!({}))).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "it has no max_tokens: {count}");
    let mut fields = body(json!({}));
    fields.as_object_mut().unwrap().remove("max_tokens");
    let (_, count) = app.post("/v1/messages/count_tokens", &fields).await;
    assert_eq!(count, json!({ "input_tokens": tokens }));
}

#[tokio::test]
async fn reasons_to_stop() {
    let app = App::text("one two three");
    let answer = send(&app, json!({ "stop_sequences": ["zzz", " three"] })).await;
    assert_eq!(answer["content"][0]["text"], "one two");
    assert_eq!(
        (&answer["stop_reason"], &answer["stop_sequence"]),
        (&json!("stop_sequence"), &json!(" three"))
    );
    let answer = send(&app, json!({ "max_tokens": 3 })).await;
    assert_eq!(
        (&answer["content"][0]["text"], &answer["stop_reason"]),
        (&json!("one"), &json!("max_tokens"))
    );
    // More than the context holds is cut, as with Anthropic's newer models.
    app.engine.say(Reply::Text("x".repeat(5000)));
    let answer = send(&app, json!({ "max_tokens": 100_000 })).await;
    assert_eq!(answer["stop_reason"], "model_context_window_exceeded");
    let room = 4096 - app.engine.last().prompt.len();
    assert_eq!(answer["usage"]["output_tokens"], room);
    app.engine.say(Reply::Text(String::new()));
    assert_eq!(send(&app, json!({})).await["content"], json!([]));
}

#[tokio::test]
async fn a_round_trip_of_tools() {
    let app = App::text(&format!("Let me look.\n{CALL}\n{CALL}"));
    let answer = send(&app, json!({ "tools": tools(), "tool_choice": { "type": "auto" } })).await;
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    let blocks = answer["content"].as_array().unwrap();
    let kinds: Vec<_> = blocks.iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["text", "tool_use", "tool_use"]);
    assert_eq!(blocks[1]["name"], "get_weather");
    assert_eq!(blocks[1]["input"], json!({ "city": "Paris" }));
    let choice = json!({ "type": "auto", "disable_parallel_tool_use": true });
    let one = send(&app, json!({ "tools": tools(), "tool_choice": choice })).await;
    assert_eq!(
        (one["content"].as_array().unwrap().len(), &one["stop_reason"]),
        (2, &json!("tool_use"))
    );

    app.engine.say(Reply::Text("Sunny.".into()));
    let result = |i: usize, content: Value| {
        json!({ "type": "tool_result", "tool_use_id": blocks[i]["id"], "content": content,
                "cache_control": { "type": "ephemeral" } })
    };
    let mut failed = result(2, json!("no such city"));
    failed["is_error"] = json!(true);
    let messages = json!([
        { "role": "user", "content": "Weather?" },
        { "role": "assistant", "content": blocks },
        { "role": "user", "content": [
            { "type": "text", "text": "Well?" },
            result(1, json!([{ "type": "text", "text": "sun" }, { "type": "text", "text": "18" }])),
            failed ] },
    ]);
    let answer = send(&app, json!({ "tools": tools(), "messages": messages })).await;
    assert_eq!(answer["content"][0]["text"], "Sunny.");
    let prompt = prompt(&app);
    let (_, end) = prompt.split_once("assistant\nLet me look.").unwrap();
    assert_eq!(
        end,
        "<tool_call>get_weather {'city': 'Paris'}</tool_call>\
         <tool_call>get_weather {'city': 'Paris'}</tool_call><|im_end|>\n\
         <|im_start|>tool\nsun\n18<|im_end|>\n<|im_start|>tool\nError: no such city<|im_end|>\n\
         <|im_start|>user\nWell?<|im_end|>\n<|im_start|>assistant\n"
    );
    assert!(prompt.contains("\"parameters\": {\"type\": \"object\""), "{prompt}");
}

/// The search is a tool of the client's, as in Claude Code.
#[tokio::test]
async fn deferred_tools_are_there_once_a_search_has_found_them() {
    let app = App::text("Hello");
    let mut tools = tools();
    tools.as_array_mut().unwrap().extend(["get_time", "get_stock"].map(
        |name| json!({ "name": name, "input_schema": { "type": "object" }, "defer_loading": true }),
    ));
    let shown = |app: &App| {
        ["get_weather", "get_time", "get_stock"]
            .map(|name| prompt(app).contains(&format!("\"{name}\"")))
    };
    send(&app, json!({ "tools": tools })).await;
    assert_eq!(shown(&app), [true, false, false], "{}", prompt(&app));
    let messages = json!([
        { "role": "user", "content": "What time is it?" },
        { "role": "assistant", "content": [
            { "type": "tool_use", "id": "a", "name": "get_weather", "input": {} }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "a", "content": [
            { "type": "tool_reference", "tool_name": "get_time" }] }] },
    ]);
    send(&app, json!({ "tools": tools, "messages": messages })).await;
    assert_eq!(shown(&app), [true, true, false], "{}", prompt(&app));
    assert!(prompt(&app).contains("The tool get_time can be called now."), "{}", prompt(&app));
    app.engine.say(Reply::Text(
        "<tool_call>{\"name\": \"get_stock\", \"arguments\": {}}</tool_call>".into(),
    ));
    let choice = json!({ "type": "tool", "name": "get_stock" });
    let answer = send(&app, json!({ "tools": tools, "tool_choice": choice })).await;
    assert_eq!(answer["content"][0]["name"], "get_stock", "{answer}");
}

#[tokio::test]
async fn choices_of_tools() {
    let app = App::text("Hi");
    send(&app, json!({ "tools": tools(), "tool_choice": { "type": "none" } })).await;
    assert!(!prompt(&app).contains("get_weather") && app.engine.last().grammar.is_none());
    for choice in [json!({ "type": "any" }), json!({ "type": "tool", "name": "get_weather" })] {
        send(&app, json!({ "tools": tools(), "tool_choice": choice })).await;
        assert!(app.engine.last().grammar.is_some());
    }
    let format = json!({ "type": "json_schema", "schema": { "type": "object", "properties": {} } });
    send(&app, json!({ "output_config": { "effort": "low", "format": format } })).await;
    assert!(app.engine.last().grammar.is_some());
    assert!(prompt(&app).ends_with("[low]"), "{}", prompt(&app));
    send(&app, json!({ "output_format": format })).await;
    assert!(app.engine.last().grammar.is_some());
}

#[tokio::test]
async fn thinking_is_asked_for_shown_and_sent_back() {
    let app = App::text("Let me see.</think>\n\nFour.");
    for kind in ["enabled", "adaptive"] {
        let answer = send(&app, json!({ "thinking": { "type": kind } })).await;
        assert!(prompt(&app).ends_with("assistant\n<think>\n"));
        let thinking = &answer["content"][0];
        assert_eq!(thinking["type"], "thinking", "{answer}");
        assert_eq!(thinking["thinking"], "Let me see.");
        assert!(!thinking["signature"].as_str().unwrap().is_empty());
        assert_eq!(answer["content"][1], json!({ "type": "text", "text": "Four." }));
        assert!(answer["usage"]["output_tokens_details"]["thinking_tokens"].as_u64().unwrap() > 8);
    }
    let hidden = json!({ "thinking": { "type": "adaptive", "display": "omitted" } });
    let answer = send(&app, hidden).await;
    assert_eq!(answer["content"][0]["thinking"], "");
    assert_eq!(answer["content"][1]["text"], "Four.");

    app.engine.say(Reply::Text("Four.".into()));
    for fields in [json!({}), json!({ "thinking": { "type": "disabled" } })] {
        let answer = send(&app, fields).await;
        assert_eq!(answer["content"], json!([{ "type": "text", "text": "Four." }]));
        assert!(prompt(&app).ends_with("assistant\n"));
    }
    let history = json!([
        { "role": "user", "content": "2+2" },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "hm", "signature": "x" },
            { "type": "redacted_thinking", "data": "secret" },
            { "type": "text", "text": "4", "citations": null } ] },
        { "role": "user", "content": "sure?" },
    ]);
    send(&app, json!({ "messages": history })).await;
    assert!(prompt(&app).contains("assistant\n4<|im_end|>"), "{}", prompt(&app));
    // The server's own default of thinking stands where a request says nothing.
    let kwargs = json!({ "enable_thinking": true }).as_object().unwrap().clone();
    let config = ServerConfig { default_chat_template_kwargs: kwargs, ..config() };
    let app = App::with(config, Reply::Text("a</think>b".into()));
    assert_eq!(send(&app, json!({})).await["content"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn what_claude_code_sends() {
    let app = App::text("Done.");
    let cached = json!({ "type": "ephemeral", "ttl": "1h" });
    let fields = json!({
        "system": [
            { "type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.0; cch=f00;" },
            { "type": "text", "text": "You are a coder.", "cache_control": cached },
            { "type": "text", "text": "Be brief.", "cache_control": cached },
        ],
        "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "<system-reminder>x</system-reminder>" }] },
            { "role": "user", "content": [{ "type": "text", "text": "Fix it.", "cache_control": cached }] },
            { "role": "system", "content": "Soon gone.", "clear_at": "next_user_message" },
            { "role": "user", "content": "Now." },
        ],
        "tools": tools(),
        "metadata": { "user_id": "user_1_account__session_2" },
        "thinking": { "type": "adaptive" },
        "output_config": { "effort": "high" },
        "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] },
        "betas": ["claude-code-20250219"],
        "service_tier": "auto", "speed": "standard", "inference_geo": null,
        "cache_control": cached,
        "max_tokens": 32000,
    });
    let mut request = post("/v1/messages?beta=true", &body(fields).to_string());
    for (name, value) in [
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "claude-code-20250219,interleaved-thinking-2025-05-14"),
        ("x-api-key", "anything"),
        ("x-app", "cli"),
    ] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    let (status, headers, text) = app.send(request).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert_eq!(headers["request-id"], headers["x-request-id"]);
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["context_management"], json!({ "applied_edits": [] }));
    let prompt = prompt(&app);
    assert!(
        prompt.contains("<|im_start|>system\nYou are a coder.\nBe brief.<|im_end|>"),
        "{prompt}"
    );
    assert!(!prompt.contains("billing") && !prompt.contains("Soon gone"), "{prompt}");
    assert!(
        prompt.contains("user\n<system-reminder>x</system-reminder>Fix it.Now.<|im_end|>"),
        "{prompt}"
    );
}

/// Claude Code says what its agents are in a system message behind the first of the user.
#[tokio::test]
async fn system_messages_amid_a_conversation_where_the_template_takes_none() {
    let fields = json!({ "system": "Head.", "messages": [{ "role": "user", "content": "Fix it." },
        { "role": "system", "content": "Be quick." }] });
    let app = App::text("Done.");
    send(&app, fields.clone()).await;
    assert!(prompt(&app).contains("<|im_start|>system\nBe quick.<|im_end|>"), "{}", prompt(&app));
    let strict = format!(
        "{{%- for m in messages %}}{{% if m.role == 'system' and not loop.first %}}\
         {{{{ raise_exception('System message must be at the beginning.') }}}}{{% endif %}}{{% endfor %}}{TEMPLATE}"
    );
    let app = App::of_model(config(), Reply::Text("Done.".into()), tokenizer(), &strict);
    send(&app, fields).await;
    let expected = "user\nFix it.<system-reminder>\nBe quick.\n</system-reminder><|im_end|>";
    assert!(prompt(&app).contains(expected), "{}", prompt(&app));
}

#[tokio::test]
async fn an_answer_goes_on_where_its_beginning_ends() {
    let app = App::text(" 42");
    let messages = json!([{ "role": "user", "content": "x?" },
        { "role": "assistant", "content": [{ "type": "text", "text": "x is" }] }]);
    let answer = send(&app, json!({ "messages": messages })).await;
    assert_eq!(answer["content"][0]["text"], " 42");
    assert!(prompt(&app).ends_with("assistant\nx is"), "{}", prompt(&app));
}

#[tokio::test]
async fn arguments_that_were_cut_off_are_an_empty_object() {
    let app = App::text(CALL);
    let answer = send(&app, json!({ "tools": tools(), "max_tokens": 58 })).await;
    assert_eq!(answer["stop_reason"], "max_tokens");
    assert_eq!(answer["content"][0]["input"], json!({}), "{answer}");
}

#[tokio::test]
async fn keys_come_in_either_header() {
    let api_keys = ApiKeys::new(["secret"]).unwrap();
    let app = App::with(ServerConfig { api_keys, ..config() }, Reply::Text("Hi".into()));
    let ask = async |path: &str, header: &'static str, value: &str| {
        let mut request = post(path, &body(json!({})).to_string());
        request.headers_mut().insert(header, value.parse().unwrap());
        let (status, _, text) = app.send(request).await;
        (status, serde_json::from_str::<Value>(&text).unwrap())
    };
    for (header, value) in [("x-api-key", "secret"), ("authorization", "Bearer secret")] {
        assert_eq!(ask("/v1/messages", header, value).await.0, StatusCode::OK);
    }
    for (header, value) in
        [("x-api-key", "Secret"), ("authorization", "secret"), ("x-key", "secret")]
    {
        let (status, error) = ask("/v1/messages", header, value).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        assert_eq!(
            (&error["type"], &error["error"]["type"]),
            (&json!("error"), &json!("authentication_error"))
        );
    }
    // Other routes know no such header, and their errors are OpenAI's.
    let (status, error) = ask("/v1/chat/completions", "x-api-key", "secret").await;
    assert_eq!(
        (status, &error["error"]["code"]),
        (StatusCode::UNAUTHORIZED, &json!("invalid_api_key"))
    );
}
