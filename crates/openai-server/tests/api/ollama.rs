//! Ollama's API: answers, lines, tools, thinking, options, models and errors.

use crate::support::{App, Reply, config, post, tokenizer};
use axum::http::StatusCode;
use serde_json::{Value, json};
use taper_openai_server::{ApiKeys, ServerConfig};

const CALLS: &str = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>\n\
    <tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";

fn chat(fields: Value) -> Value {
    let mut body = json!({ "model": "mock", "stream": false,
        "messages": [{ "role": "user", "content": "Hi" }] });
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn tools() -> Value {
    json!([{ "type": "function", "function": { "name": "get_weather",
        "parameters": { "type": "object", "properties": { "city": { "type": "string" } } } } }])
}

async fn send(app: &App, path: &str, body: &Value) -> Value {
    let (status, answer) = app.post(path, body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer
}

/// A stream's lines.
async fn lines(app: &App, path: &str, body: &Value) -> Vec<Value> {
    let (status, headers, text) = app.send(post(path, &body.to_string())).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert_eq!(headers["content-type"], "application/x-ndjson");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn prompt(app: &App) -> String {
    tokenizer().decode(&app.engine.last().prompt, false).unwrap()
}

#[tokio::test]
async fn a_whole_answer_has_its_counts() {
    let app = App::text("Hello there");
    let options = json!({ "temperature": 0.5, "top_k": 7, "top_p": 0.9, "num_predict": 20, "seed": 3,
        "num_ctx": 4096, "num_gpu": 99, "repeat_last_n": -1, "mirostat": 0, "stop": "END" });
    let answer = send(&app, "/api/chat", &chat(json!({ "options": options }))).await;
    assert_eq!(answer["message"], json!({ "role": "assistant", "content": "Hello there" }));
    assert_eq!((&answer["done"], &answer["done_reason"]), (&json!(true), &json!("stop")));
    assert_eq!(answer["model"], "mock");
    assert!(answer["created_at"].as_str().unwrap().ends_with('Z'));
    let request = app.engine.last();
    assert_eq!(answer["prompt_eval_count"], request.prompt.len());
    assert_eq!(answer["eval_count"], 12);
    assert!(answer["total_duration"].as_u64() >= answer["prompt_eval_duration"].as_u64());
    assert_eq!(request.stop.max_tokens, Some(20));
    assert_eq!((request.sampling.temperature, request.sampling.top_k), (0.5, 7));
}

#[tokio::test]
async fn a_stream_is_lines_and_the_default() {
    let app = App::text("<think>\nHm.\n</think>\n\nHello there");
    let mut body = chat(json!({ "think": true }));
    body.as_object_mut().unwrap().remove("stream");
    let all = lines(&app, "/api/chat", &body).await;
    let (last, parts) = all.split_last().unwrap();
    assert!(parts.iter().all(|line| line["done"] == false && line.get("eval_count").is_none()));
    let joined = |name: &str| -> String {
        parts.iter().filter_map(|line| line["message"][name].as_str()).collect()
    };
    assert_eq!((joined("content"), joined("thinking").trim()), ("Hello there".into(), "Hm."));
    assert_eq!((&last["done"], &last["message"]["content"]), (&json!(true), &json!("")));
    assert!(last["eval_count"].as_u64() > Some(0));
}

#[tokio::test]
async fn calls_come_whole_and_their_results_find_them() {
    let app = App::text(CALLS);
    let all = lines(&app, "/api/chat", &chat(json!({ "stream": true, "tools": tools() }))).await;
    let calls: Vec<_> =
        all.iter().filter_map(|line| line["message"]["tool_calls"].as_array()).flatten().collect();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0]["function"]["arguments"], json!({ "city": "Paris" }));
    assert_eq!(calls[1]["function"]["index"], 1);
    let whole = send(&app, "/api/chat", &chat(json!({ "tools": tools() }))).await;
    assert_eq!(whole["message"]["tool_calls"].as_array().unwrap().len(), 2);
    // As clients send them back: without ids, with the tool's name.
    let call = |city: &str| json!({ "function": { "name": "get_weather", "arguments": { "city": city } } });
    let messages = json!([
        { "role": "user", "content": "Weather?" },
        { "role": "assistant", "content": "", "tool_calls": [call("Paris"), call("Rome")] },
        { "role": "tool", "content": "rain", "tool_name": "get_weather" },
        { "role": "tool", "content": "sun" },
    ]);
    let app = App::text("Rain.");
    send(&app, "/api/chat", &chat(json!({ "messages": messages, "tools": tools() }))).await;
    assert!(prompt(&app).contains("rain") && prompt(&app).contains("sun"), "{}", prompt(&app));
    let messages = json!([{ "role": "tool", "content": "rain" }]);
    let (status, body) = app.post("/api/chat", &chat(json!({ "messages": messages }))).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(body["error"].as_str().unwrap().contains("no call before it"), "{body}");
}

#[tokio::test]
async fn prompts_are_chats_of_one_message() {
    let app = App::text("Blue.");
    let body = json!({ "model": "mock:latest", "prompt": "Why?", "system": "Be brief.", "stream": false,
        "keep_alive": "5m", "raw": false, "suffix": "", "context": [] });
    let answer = send(&app, "/api/generate", &body).await;
    assert_eq!(answer["response"], "Blue.");
    assert!(answer.get("message").is_none());
    assert!(prompt(&app).contains("Be brief.") && prompt(&app).contains("Why?"));
    let all = lines(&app, "/api/generate", &json!({ "prompt": "Why?" })).await;
    let text: String = all.iter().filter_map(|line| line["response"].as_str()).collect();
    assert_eq!(text, "Blue.");
    let raw = json!({ "prompt": "Why? ", "raw": true, "stream": false });
    assert_eq!(send(&app, "/api/generate", &raw).await["response"], "Blue.");
    assert_eq!(prompt(&app), "Why? ");
    for (fields, named) in [(json!({ "raw": true }), "raw"), (json!({ "suffix": "x" }), "suffix")] {
        let mut body = json!({ "prompt": "Why?", "system": "Be brief." });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let (status, body) = app.post("/api/generate", &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(body["error"].as_str().unwrap().contains(named), "{body}");
    }
    // Without a question, clients ask that the model be loaded.
    for (path, body) in [("/api/generate", json!({ "model": "mock" })), ("/api/chat", json!({}))] {
        let answer = send(&app, path, &body).await;
        assert_eq!((&answer["done"], &answer["done_reason"]), (&json!(true), &json!("load")));
    }
}

#[tokio::test]
async fn outputs_have_the_format_that_is_asked_for() {
    let app = App::text("{}");
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } } });
    for format in [json!("json"), schema] {
        send(&app, "/api/chat", &chat(json!({ "format": format }))).await;
        assert!(app.engine.last().grammar.is_some());
    }
    for format in [json!(""), Value::Null] {
        send(&app, "/api/chat", &chat(json!({ "format": format }))).await;
        assert!(app.engine.last().grammar.is_none());
    }
}

#[tokio::test]
async fn what_is_not_honoured_is_refused_by_name() {
    let app = App::text("x");
    for (fields, named) in [
        (json!({ "format": "xml" }), "format"),
        (json!({ "options": { "num_predict": -3 } }), "options.num_predict"),
        (json!({ "options": { "num_ctx": 100_000 } }), "options.num_ctx"),
        (json!({ "options": { "repeat_last_n": 64 } }), "options.repeat_last_n"),
        (json!({ "options": { "mirostat": 1 } }), "options.mirostat"),
        (json!({ "options": { "tfs_z": 0.5 } }), "options.tfs_z"),
        (json!({ "options": { "penalize_newline": false } }), "options.penalize_newline"),
        (json!({ "options": { "unheard_of": 1 } }), "options.unheard_of"),
        (json!({ "options": { "temperature": 9 } }), "temperature"),
        (json!({ "raw": true }), "raw"),
        (json!({ "images": ["aGk="] }), "images"),
        (json!({ "unheard_of": 1 }), "unheard_of"),
        (json!({ "messages": [{ "role": "user", "images": ["aGk="] }] }), "messages[0].images"),
        (json!({ "messages": [{ "role": "bot" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "user", "thinking": "x" }] }), "messages[0].thinking"),
    ] {
        let (status, body) = app.post("/api/chat", &chat(fields)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{named}: {body}");
        let error = body["error"].as_str().unwrap();
        assert!(error.contains(named), "{named}: {error}");
    }
    assert_eq!(app.engine.count(), 0);
    let (status, body) = app.post("/api/chat", &chat(json!({ "model": "other" }))).await;
    assert_eq!((status, body["error"].is_string()), (StatusCode::NOT_FOUND, true), "{body}");
    let (status, body) = app.post("/api/embed", &json!({ "input": "Hi" })).await;
    assert_eq!((status, body["error"].is_string()), (StatusCode::BAD_REQUEST, true), "{body}");
}

#[tokio::test]
async fn models_are_listed_and_shown() {
    let (architecture, parameters) = ("qwen3".to_owned(), 494_032_768);
    let app =
        App::with(ServerConfig { architecture, parameters, ..config() }, Reply::Text("x".into()));
    for path in ["/api/tags", "/api/ps"] {
        let (status, body) = app.get(path).await;
        assert_eq!(status, StatusCode::OK);
        let model = &serde_json::from_str::<Value>(&body).unwrap()["models"][0];
        assert_eq!((&model["name"], &model["size"]), (&json!("mock"), &json!(1000)));
        assert_eq!(model["details"]["parameter_size"], "494.03M");
        assert_eq!(model["details"]["format"], "safetensors");
        assert_eq!(model["digest"].as_str().unwrap().len(), 64);
        assert_eq!(model["expires_at"].is_string(), path == "/api/ps");
    }
    let shown = send(&app, "/api/show", &json!({ "model": "mock:latest" })).await;
    // Ollama's own client sends all fields.
    let all = json!({ "model": "mock", "name": "", "system": "", "template": "", "options": null,
        "verbose": false });
    assert_eq!(send(&app, "/api/show", &all).await["template"], shown["template"]);
    assert_eq!(shown["model_info"]["qwen3.context_length"], 4096);
    assert_eq!(shown["model_info"]["general.parameter_count"], 494_032_768);
    assert!(shown["capabilities"].as_array().unwrap().contains(&json!("completion")));
    assert!(!shown["template"].as_str().unwrap().is_empty());
    let (status, body) = app.post("/api/show", &json!({ "model": "other" })).await;
    assert_eq!((status, body["error"].is_string()), (StatusCode::NOT_FOUND, true));
    assert!(app.get("/api/version").await.1.contains("version"));
}

#[tokio::test]
async fn keys_are_asked_for_in_the_same_form() {
    let api_keys = ApiKeys::new(["k1"]).unwrap();
    let app = App::with(ServerConfig { api_keys, ..config() }, Reply::Text("x".into()));
    for path in ["/api/tags", "/api/what"] {
        let (status, body) = app.get(path).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        assert!(serde_json::from_str::<Value>(&body).unwrap()["error"].is_string(), "{body}");
    }
}
