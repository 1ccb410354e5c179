//! OpenAI's Responses API: answers, items, tools and what is refused.

use crate::support::{App, Reply, config, tokenizer};
use axum::http::StatusCode;
use serde_json::{Value, json};
use taper_openai_server::ServerConfig;

const CALL: &str =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";

/// An input of one text and these fields.
pub(crate) fn body(fields: Value) -> Value {
    let mut body = json!({ "model": "mock", "input": "Hi" });
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

pub(crate) fn tools() -> Value {
    json!([{ "type": "function", "name": "get_weather", "description": "Get a weather.",
        "parameters": { "type": "object", "properties": { "city": { "type": "string" } } } }])
}

pub(crate) async fn create(app: &App, fields: Value) -> Value {
    let (status, answer) = app.post("/v1/responses", &body(fields)).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer
}

/// The prompt that the engine got.
pub(crate) fn prompt(app: &App) -> String {
    tokenizer().decode(&app.engine.last().prompt, false).unwrap()
}

#[tokio::test]
async fn an_answer_of_text() {
    let app = App::text("Hello there");
    *app.engine.cached.lock().unwrap() = 4;
    let fields = json!({ "instructions": "Be nice.", "max_output_tokens": 100, "temperature": 0.5,
        "metadata": { "a": "b" }, "user": "u", "include": ["file_search_call.results"] });
    let answer = create(&app, fields).await;
    let id = answer["id"].as_str().unwrap();
    assert!(id.starts_with("resp_"), "{id}");
    for (field, value) in [
        ("object", json!("response")),
        ("status", json!("completed")),
        ("error", Value::Null),
        ("incomplete_details", Value::Null),
        ("instructions", json!("Be nice.")),
        ("max_output_tokens", json!(100)),
        ("temperature", json!(0.5)),
        ("metadata", json!({ "a": "b" })),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("text", json!({ "format": { "type": "text" } })),
        ("parallel_tool_calls", json!(true)),
        ("truncation", json!("disabled")),
        ("store", json!(true)),
        ("background", json!(false)),
    ] {
        assert_eq!(answer[field], value, "{field}: {answer}");
    }
    let item = &answer["output"][0];
    assert_eq!(
        (&item["type"], &item["role"], &item["status"]),
        (&json!("message"), &json!("assistant"), &json!("completed"))
    );
    let part =
        json!({ "type": "output_text", "text": "Hello there", "annotations": [], "logprobs": [] });
    assert_eq!(item["content"], json!([part]));
    let request = app.engine.last();
    let usage = &answer["usage"];
    assert_eq!(usage["input_tokens"], request.prompt.len());
    assert_eq!(usage["input_tokens_details"]["cached_tokens"], 4);
    assert_eq!(
        (&usage["output_tokens"], &usage["output_tokens_details"]["reasoning_tokens"]),
        (&json!(12), &json!(0))
    );
    assert_eq!(request.stop.max_tokens, Some(100));
    assert!(prompt(&app).contains("system\nBe nice.<|im_end|>\n<|im_start|>user\nHi<|im_end|>"));
}

#[tokio::test]
async fn an_answer_that_is_cut_off() {
    let app = App::text("Hello there");
    let answer = create(&app, json!({ "max_output_tokens": 5 })).await;
    assert_eq!(answer["status"], "incomplete");
    assert_eq!(answer["incomplete_details"], json!({ "reason": "max_output_tokens" }));
    assert_eq!(answer["output"][0]["status"], "incomplete");
    assert_eq!(answer["output"][0]["content"][0]["text"], "Hello");
}

#[tokio::test]
async fn a_round_trip_of_tools_and_reasoning() {
    let app = App::text(&format!("Hm.</think>\nLet me look.\n{CALL}\n{CALL}"));
    let kwargs = json!({ "enable_thinking": true }).as_object().unwrap().clone();
    let thinks = ServerConfig { default_chat_template_kwargs: kwargs, ..config() };
    let app = App::with(thinks, app.engine.replies.lock().unwrap()[0].clone());
    let fields =
        json!({ "tools": tools(), "store": false, "include": ["reasoning.encrypted_content"] });
    let answer = create(&app, fields.clone()).await;
    let output = answer["output"].as_array().unwrap();
    let kinds: Vec<_> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call", "function_call"], "{answer}");
    assert_eq!(output[0]["content"], json!([{ "type": "reasoning_text", "text": "Hm." }]));
    assert_eq!(output[0]["summary"], json!([]));
    assert!(answer["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 1);
    assert_eq!(
        (&output[2]["name"], &output[2]["arguments"]),
        (&json!("get_weather"), &json!("{\"city\": \"Paris\"}"))
    );

    let mut one = fields.clone();
    one["parallel_tool_calls"] = json!(false);
    assert_eq!(create(&app, one).await["output"].as_array().unwrap().len(), 3);
    let mut summed = fields;
    summed["reasoning"] = json!({ "summary": "auto", "effort": "high" });
    let summed = create(&app, summed).await;
    assert_eq!(summed["output"][0]["summary"], json!([{ "type": "summary_text", "text": "Hm." }]));
    assert_eq!(summed["reasoning"], json!({ "summary": "auto", "effort": "high" }));
    assert!(prompt(&app).contains("assistant\n[high]"), "{}", prompt(&app));

    app.engine.say(Reply::Text("</think>Sunny.".into()));
    let mut input = vec![json!({ "role": "user", "content": "Weather?" })];
    input.extend(output.iter().cloned());
    let result = |i: usize, output: Value| json!({ "type": "function_call_output", "call_id": answer["output"][i]["call_id"], "output": output });
    input.push(result(2, json!("sun")));
    input.push(result(3, json!([{ "type": "input_text", "text": "rain" }])));
    let answer = create(&app, json!({ "tools": tools(), "input": input })).await;
    assert_eq!(answer["output"][0]["content"][0]["text"], "Sunny.");
    let prompt = prompt(&app);
    let call = "<tool_call>get_weather {'city': 'Paris'}</tool_call>";
    let (_, end) = prompt.split_once("assistant\nLet me look.").unwrap();
    let end = end.trim_start();
    assert!(end.starts_with(&format!("{call}{call}<|im_end|>\n<|im_start|>tool\nsun<|im_end|>\n<|im_start|>tool\nrain<|im_end|>")), "{end}");
}

/// As Codex declares the tools of its agents.
#[tokio::test]
async fn functions_of_a_namespace() {
    let said =
        "<tool_call>\n{\"name\": \"crm__get_user\", \"arguments\": {\"id\": 7}}\n</tool_call>";
    let app = App::text(said);
    let mut tools = tools();
    let function =
        |name: &str| json!({ "type": "function", "name": name, "description": "Get it." });
    tools.as_array_mut().unwrap().push(json!({ "type": "namespace", "name": "crm",
        "description": "Customers.", "tools": [function("get_user"), function("get_order")] }));
    let answer = create(&app, json!({ "tools": tools })).await;
    let shown = prompt(&app);
    for text in
        ["\"get_weather\"", "\"crm__get_user\"", "Customers.\\nGet it.", "\"crm__get_order\""]
    {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    let call = &answer["output"][0];
    assert_eq!(
        (&call["type"], &call["namespace"], &call["name"], &call["arguments"]),
        (&json!("function_call"), &json!("crm"), &json!("get_user"), &json!("{\"id\": 7}"))
    );
    assert_eq!(answer["tools"], tools);

    // The call comes back, from the caller or from what is kept.
    app.engine.say(Reply::Text("Ann.".into()));
    let result =
        json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "Ann" });
    let user = json!({ "role": "user", "content": "Hi" });
    create(&app, json!({ "tools": tools, "input": [user, call, result] })).await;
    assert!(
        prompt(&app).contains("<tool_call>crm__get_user {'id': 7}</tool_call>"),
        "{}",
        prompt(&app)
    );
    let own = prompt(&app);
    let id = answer["id"].clone();
    create(&app, json!({ "tools": tools, "input": [result], "previous_response_id": id })).await;
    assert_eq!(prompt(&app), own);

    // A choice has no field for a namespace.
    app.engine.say(Reply::Text(said.into()));
    let choice = json!({ "type": "function", "name": "get_user" });
    let answer = create(&app, json!({ "tools": tools, "tool_choice": choice })).await;
    assert_eq!(answer["output"][0]["namespace"], "crm", "{answer}");
}

#[tokio::test]
async fn grammars_and_choices() {
    let app = App::text("{}");
    let schema = json!({ "type": "object", "properties": {} });
    for fields in [
        json!({ "text": { "format": { "type": "json_object" } } }),
        json!({ "text": { "format": { "type": "json_schema", "name": "x", "schema": schema, "strict": true } } }),
        json!({ "tools": tools(), "tool_choice": "required" }),
        json!({ "tools": tools(), "tool_choice": { "type": "function", "name": "get_weather" } }),
        json!({ "tools": tools(), "tool_choice": { "type": "allowed_tools", "mode": "required",
            "tools": [{ "type": "function", "name": "get_weather" }] } }),
    ] {
        create(&app, fields.clone()).await;
        assert!(app.engine.last().grammar.is_some(), "{fields}");
    }
    create(&app, json!({ "tools": tools(), "tool_choice": "none" })).await;
    assert!(app.engine.last().grammar.is_none() && !prompt(&app).contains("get_weather"));
    let fields = json!({ "include": ["message.output_text.logprobs"], "top_logprobs": 2 });
    let answer = create(&app, fields).await;
    let logprobs = answer["output"][0]["content"][0]["logprobs"].as_array().unwrap();
    assert_eq!((logprobs.len(), logprobs[0]["top_logprobs"].as_array().unwrap().len()), (2, 2));
}

#[tokio::test]
async fn the_oldest_exchanges_are_left_out_where_that_is_asked_for() {
    let app = App::text("Hi");
    let mut input = vec![json!({ "role": "developer", "content": "Stay." })];
    for i in 0..9 {
        input.push(
            json!({ "role": "user", "content": format!("question {i} {}", "x".repeat(600)) }),
        );
        input.push(json!({ "role": "assistant", "content": format!("answer {i}") }));
    }
    input.push(json!({ "role": "user", "content": "last" }));
    let mut fields = json!({ "input": input, "truncation": "auto", "max_output_tokens": 50 });
    let answer = create(&app, fields.clone()).await;
    assert_eq!(answer["truncation"], "auto");
    let prompt = prompt(&app);
    let tokens = app.engine.last().prompt.len();
    assert!(tokens + 50 <= 4096 && tokens > 3000, "{tokens}");
    assert!(prompt.contains("Stay.") && prompt.contains("question 8") && prompt.contains("last"));
    let first = prompt.split_once("question ").unwrap().1;
    assert!(!prompt.contains("question 0") && prompt.contains(&format!("answer {}", &first[..1])));
    // The mock takes any length; the truth is in the prompt.
    fields["truncation"] = json!("disabled");
    create(&app, fields).await;
    assert!(app.engine.last().prompt.len() > 4096);
}

/// Fields on top of a good request, and the field and code that the response must name.
fn refused() -> Vec<(Value, &'static str, &'static str)> {
    let item = |item: Value| json!({ "input": [item] });
    let tool = |fields: Value| {
        let mut tool = tools()[0].clone();
        tool.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({ "tools": [tool] })
    };
    let format = |format: Value| json!({ "text": { "format": format } });
    vec![
        (json!({ "input": null }), "input", "missing_required_parameter"),
        (json!({ "input": [] }), "input", "missing_required_parameter"),
        (json!({ "input": 5 }), "input", "invalid_type"),
        (item(json!({ "content": "x" })), "input[0].role", "missing_required_parameter"),
        (item(json!({ "role": "robot", "content": "x" })), "input[0].role", "invalid_value"),
        (item(json!({ "role": "user" })), "input[0].content", "missing_required_parameter"),
        (item(json!({ "role": "user", "content": [] })), "input[0].content", "invalid_value"),
        (
            item(json!({ "role": "user", "content": "x", "mood": 1 })),
            "input[0].mood",
            "unknown_parameter",
        ),
        (
            item(json!({ "role": "user", "content": "x", "call_id": "c" })),
            "input[0].call_id",
            "unknown_parameter",
        ),
        (
            item(
                json!({ "role": "user", "content": [{ "type": "input_image", "image_url": "x" }] }),
            ),
            "input[0].content[0]",
            "unsupported_value",
        ),
        (item(json!({ "type": "computer_call", "id": "x" })), "input[0].type", "unsupported_value"),
        (item(json!({ "type": "item_reference", "id": "x" })), "input[0].id", "invalid_value"),
        (
            item(json!({ "type": "function_call", "name": "f" })),
            "input[0].call_id",
            "missing_required_parameter",
        ),
        (
            item(json!({ "type": "function_call_output", "call_id": "c" })),
            "input[0].output",
            "missing_required_parameter",
        ),
        (tool(json!({ "type": "web_search" })), "tools[0].type", "unsupported_value"),
        (tool(json!({ "type": "namespace" })), "tools[0].tools", "missing_required_parameter"),
        (tool(json!({ "tools": [] })), "tools[0].tools", "unknown_parameter"),
        (
            tool(json!({ "type": "namespace", "name": "", "tools": [] })),
            "tools[0].name",
            "missing_required_parameter",
        ),
        (
            tool(json!({ "type": "namespace", "tools": [{ "type": "custom", "name": "a" }] })),
            "tools[0].tools[0].type",
            "unsupported_value",
        ),
        (
            tool(json!({ "type": "namespace", "tools": [tools()[0], tools()[0]] })),
            "tools",
            "invalid_value",
        ),
        (tool(json!({ "name": "" })), "tools[0].name", "invalid_value"),
        (tool(json!({ "defer_loading": true })), "tools[0].defer_loading", "unsupported_value"),
        (tool(json!({ "async": true })), "tools[0].async", "unsupported_value"),
        (
            tool(json!({ "strict": true, "parameters": { "not": {} } })),
            "tools[0].parameters",
            "unsupported_schema",
        ),
        (json!({ "tool_choice": "required" }), "tool_choice", "invalid_value"),
        (json!({ "tools": tools(), "tool_choice": "any" }), "tool_choice", "invalid_value"),
        (
            json!({ "tools": tools(), "tool_choice": { "type": "file_search" } }),
            "tool_choice.type",
            "unsupported_value",
        ),
        (
            json!({ "tools": tools(), "tool_choice": { "type": "function", "name": "f" } }),
            "tool_choice.name",
            "invalid_value",
        ),
        (format(json!({ "type": "yaml" })), "text.format.type", "invalid_value"),
        (
            format(json!({ "type": "json_schema", "name": "x" })),
            "text.format.schema",
            "missing_required_parameter",
        ),
        (format(json!({ "type": "text", "schema": {} })), "text.format.schema", "invalid_value"),
        (
            format(
                json!({ "type": "json_schema", "name": "x", "strict": true, "schema": { "not": {} } }),
            ),
            "text.format.schema",
            "unsupported_schema",
        ),
        (json!({ "text": { "verbosity": "high" } }), "text.verbosity", "unsupported_value"),
        (json!({ "reasoning": { "effort": "huge" } }), "reasoning.effort", "invalid_value"),
        (json!({ "reasoning": { "summary": "long" } }), "reasoning.summary", "invalid_value"),
        (json!({ "include": ["thoughts"] }), "include[0]", "invalid_value"),
        (json!({ "top_logprobs": 2 }), "top_logprobs", "invalid_value"),
        (json!({ "truncation": "some" }), "truncation", "invalid_value"),
        (json!({ "max_output_tokens": 0 }), "max_output_tokens", "invalid_value"),
        (json!({ "temperature": 3 }), "temperature", "invalid_value"),
        (
            json!({ "stream_options": { "include_obfuscation": false } }),
            "stream_options",
            "invalid_value",
        ),
        (json!({ "background": true, "store": false }), "background", "invalid_value"),
        (json!({ "background": true, "stream": true }), "background", "unsupported_value"),
        (json!({ "conversation": "c" }), "conversation", "unsupported_parameter"),
        (json!({ "prompt": { "id": "p" } }), "prompt", "unsupported_parameter"),
        (json!({ "metadata": "x" }), "metadata", "invalid_type"),
        (json!({ "messages": [] }), "messages", "unknown_parameter"),
        (json!({ "previous_response_id": 5 }), "previous_response_id", "invalid_type"),
    ]
}

#[tokio::test]
async fn errors_name_the_field() {
    let app = App::text("Hi");
    for (fields, param, code) in refused() {
        let (status, answer) = app.post("/v1/responses", &body(fields.clone())).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{fields}: {answer}");
        let error = &answer["error"];
        assert_eq!(
            (&error["param"], &error["code"]),
            (&json!(param), &json!(code)),
            "{fields}: {answer}"
        );
    }
    assert_eq!(app.engine.count(), 0);
    let nothing = json!({ "conversation": null, "context_management": [], "max_tool_calls": 3,
        "service_tier": "auto", "prompt_cache_key": "k", "text": { "verbosity": "medium" } });
    create(&app, nothing).await;
}
