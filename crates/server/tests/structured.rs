//! Structured output and forced tool calls over HTTP, checked by an independent validator. The demo
//! model serves.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::Server;
use serde_json::{Value, json};

fn person() -> Value {
    json!({ "type": "object", "additionalProperties": false,
        "required": ["name", "age", "active", "kind", "tags"],
        "properties": {
            "name": { "type": "string", "maxLength": 12 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150 },
            "active": { "type": "boolean" },
            "kind": { "enum": ["small", "large"] },
            "tags": { "type": "array", "maxItems": 2, "items": { "type": "string", "maxLength": 6 } } } })
}

fn tools(strict: bool) -> Value {
    let tool = |name: &str, parameters: Value| {
        json!({ "type": "function", "function": { "name": name, "description": format!("Do {name}."),
                "parameters": parameters, "strict": strict } })
    };
    json!([
        tool(
            "get_weather",
            json!({ "type": "object", "required": ["city", "days"],
            "additionalProperties": false,
            "properties": { "city": { "type": "string", "maxLength": 12 },
                            "days": { "type": "integer", "minimum": 1, "maximum": 9 } } })
        ),
        tool(
            "send_mail",
            json!({ "type": "object", "required": ["to", "urgent"],
            "additionalProperties": false,
            "properties": { "to": { "type": "string", "format": "email" },
                            "urgent": { "type": "boolean" } } })
        ),
        tool(
            "set_timer",
            json!({ "type": "object", "required": ["minutes"],
            "additionalProperties": false,
            "properties": { "minutes": { "type": "number", "minimum": 0, "maximum": 60 } } })
        ),
    ])
}

fn schema_format(schema: &Value) -> Value {
    json!({ "type": "json_schema", "json_schema": { "name": "x", "strict": true, "schema": schema } })
}

fn assert_valid(schema: &Value, text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let validator = jsonschema::options().should_validate_formats(true).build(schema).unwrap();
    assert!(validator.is_valid(&value), "{text}");
}

/// What a stream adds up to: content, and name and arguments of each call.
fn gathered(chunks: &[Value]) -> (String, Vec<(String, String)>) {
    let (mut content, mut calls) = (String::new(), Vec::new());
    for chunk in chunks {
        let delta = &chunk["choices"][0]["delta"];
        content += delta["content"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            calls.resize(calls.len().max(index + 1), Default::default());
            let (name, arguments): &mut (String, String) = &mut calls[index];
            *name += call["function"]["name"].as_str().unwrap_or_default();
            *arguments += call["function"]["arguments"].as_str().unwrap_or_default();
        }
    }
    (content, calls)
}

fn whole(answer: &Value) -> (String, Vec<(String, String)>) {
    let message = &answer["choices"][0]["message"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let call =
        |call: &Value| (text(&call["function"]["name"]), text(&call["function"]["arguments"]));
    (text(&message["content"]), calls.map(call).collect())
}

fn check_calls(calls: &[(String, String)]) {
    assert!(!calls.is_empty());
    for (name, arguments) in calls {
        let tools = tools(true);
        let tool = tools.as_array().unwrap().iter().find(|t| t["function"]["name"] == json!(name));
        assert_valid(&tool.unwrap()["function"]["parameters"], arguments);
    }
}

fn with(fields: Value, more: Value) -> Value {
    let (Value::Object(mut fields), Value::Object(more)) = (fields, more) else {
        panic!("fields are objects")
    };
    fields.extend(more);
    fields.into()
}

/// Prompts at temperature 1, whole and streamed.
fn objects(server: &Server, prompts: u64) {
    for seed in 0..prompts {
        let fields = json!({ "response_format": schema_format(&person()), "temperature": 1.0,
            "seed": seed, "max_tokens": 300, "enable_thinking": false });
        let text = format!("Describe person number {seed} as JSON.");
        let answer = server.chat(&text, fields.clone());
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
        let (content, _) = whole(&answer);
        assert_valid(&person(), &content);
        let body = common::chat(&text, fields);
        let streamed = gathered(&server.stream("/v1/chat/completions", &body).chunks());
        assert_eq!(streamed, (content, Vec::new()));
    }
}

fn forced_calls(server: &Server, prompts: u64) {
    for seed in 0..prompts {
        let fields = json!({ "tools": tools(false), "tool_choice": "required", "temperature": 1.0,
            "seed": seed, "max_tokens": 300, "enable_thinking": false, "parallel_tool_calls": false });
        let text = format!("Do what you like, number {seed}.");
        let answer = server.chat(&text, fields.clone());
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
        let (content, calls) = whole(&answer);
        assert_eq!(content, "");
        check_calls(&calls);
        let body = common::chat(&text, fields);
        let streamed = gathered(&server.stream("/v1/chat/completions", &body).chunks());
        assert_eq!(streamed, (content, calls));
    }
}

#[test]
fn objects_of_a_schema_whole_and_streamed() {
    let server = Server::shared();
    objects(&server, 8);
    assert!(server.metric("taper:forced_tokens_total") > 0.0);
    assert!(server.metric("taper:masked_tokens_total") > 0.0);
    assert!(server.metric("taper:grammar_mask_seconds_total") > 0.0);
    assert!(server.metric("taper:grammar_mask_wait_seconds_total") >= 0.0);
}

#[test]
fn required_calls_whole_and_streamed() {
    forced_calls(&Server::shared(), 8);
}

#[test]
fn several_choices_each_with_the_sampling_that_was_asked_for() {
    let server = Server::shared();
    for sampling in [
        json!({ "temperature": 1.3, "top_k": 5, "n": 4 }),
        json!({ "temperature": 0.9, "top_p": 0.5, "min_p": 0.01, "n": 2 }),
        json!({ "temperature": 0, "repetition_penalty": 1.3, "frequency_penalty": 0.5 }),
        json!({ "temperature": 1.0, "logit_bias": { "5": 50.0 }, "typical_p": 0.9 }),
    ] {
        let fields = json!({ "response_format": schema_format(&person()), "seed": 5,
            "max_tokens": 400, "enable_thinking": false });
        let answer = server.chat("A person.", with(fields, sampling.clone()));
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices.len() as u64, sampling["n"].as_u64().unwrap_or(1));
        for choice in choices {
            assert_eq!(choice["finish_reason"], "stop", "{choice}");
            assert_valid(&person(), choice["message"]["content"].as_str().unwrap());
        }
    }
}

/// With log probabilities every token is sampled; the text is the same.
#[test]
fn forced_tokens_are_those_that_would_be_sampled() {
    let server = Server::shared();
    for seed in 0..4 {
        let fields = json!({ "response_format": schema_format(&person()), "seed": seed,
            "temperature": 1.0, "max_tokens": 400, "enable_thinking": false });
        let plain = server.chat("Somebody.", fields.clone());
        let told =
            server.chat("Somebody.", with(fields, json!({ "logprobs": true, "top_logprobs": 2 })));
        assert_eq!(whole(&plain), whole(&told));
        let entries = told["choices"][0]["logprobs"]["content"].as_array().unwrap();
        assert_eq!(plain["usage"]["completion_tokens"], told["usage"]["completion_tokens"]);
        assert!(entries.iter().all(|e| e["logprob"].as_f64().unwrap() <= 0.0));
        let text: String = entries.iter().map(|e| e["token"].as_str().unwrap()).collect();
        assert_eq!(text, whole(&told).0);
    }
}

#[test]
fn the_grammar_begins_behind_reasoning_in_streams_too() {
    let server = Server::shared();
    let fields = json!({ "response_format": schema_format(&person()), "temperature": 0,
        "max_tokens": 600, "enable_thinking": true });
    let answer = server.chat("What is 12 + 30?", fields.clone());
    let message = &answer["choices"][0]["message"];
    if answer["choices"][0]["finish_reason"] == "stop" {
        assert_valid(&person(), message["content"].as_str().unwrap());
    } else {
        // It never stopped thinking.
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(message["content"], "");
    }
    let body = common::chat("What is 12 + 30?", fields);
    let streamed = gathered(&server.stream("/v1/chat/completions", &body).chunks());
    assert_eq!(streamed.0, message["content"].as_str().unwrap());
}

#[test]
fn named_functions_strict_tools_and_content_beside_tools() {
    let server = Server::shared();
    for seed in 0..4 {
        let base = json!({ "tools": tools(true), "temperature": 1.0, "seed": seed,
            "max_tokens": 300, "enable_thinking": false });
        let named = json!({ "tool_choice": { "type": "function", "function": { "name": "set_timer" } },
            "parallel_tool_calls": false });
        let (content, calls) = whole(&server.chat("Now!", with(base.clone(), named)));
        assert_eq!((content.as_str(), calls.len(), calls[0].0.as_str()), ("", 1, "set_timer"));
        check_calls(&calls);
        let allowed = json!({ "tool_choice": { "type": "allowed_tools", "allowed_tools": {
            "mode": "required", "tools": [{ "type": "function", "function": { "name": "send_mail" } }] } } });
        let answer = server.chat("Now!", with(base.clone(), allowed));
        let (_, calls) = whole(&answer);
        if answer["choices"][0]["finish_reason"] == "tool_calls" {
            assert!(calls.iter().all(|(name, _)| name == "send_mail"), "{calls:?}");
            check_calls(&calls);
        }
        // Free text, or calls that follow their schemas.
        let auto = server.chat("Please get a weather with city Paris.", base.clone());
        if auto["choices"][0]["finish_reason"] == "tool_calls" {
            check_calls(&whole(&auto).1);
        }
        let either = json!({ "response_format": schema_format(&person()) });
        let answer = server.chat("Please get a weather with city Paris.", with(base, either));
        let (content, calls) = whole(&answer);
        match (answer["choices"][0]["finish_reason"].as_str().unwrap(), calls.is_empty()) {
            ("tool_calls", false) => check_calls(&calls),
            ("stop", true) => assert_valid(&person(), &content),
            other => assert_eq!(other.0, "length", "{answer}"),
        }
    }
}

#[test]
fn choices_expressions_and_grammars_on_both_routes() {
    let server = Server::shared();
    let chat = |fields: Value| {
        let fields = with(json!({ "enable_thinking": false, "max_tokens": 60 }), fields);
        whole(&server.chat("Say something.", fields)).0
    };
    for seed in 0..3 {
        let seeded = |fields: Value| with(json!({ "seed": seed, "temperature": 1.0 }), fields);
        let one = chat(seeded(json!({ "guided_choice": ["yes", "no", "no idea"] })));
        assert!(["yes", "no", "no idea"].contains(&one.as_str()), "{one}");
        let two = chat(seeded(json!({ "structured_outputs": { "regex": "[A-F]{4}-[0-9]{2}" } })));
        assert!(two.len() == 7 && two.as_bytes()[4] == b'-', "{two}");
        let three =
            chat(seeded(json!({ "guided_grammar": "root ::= \"<\" [a-c]{1,20} \">\"{1,2}" })));
        assert!(
            three.starts_with('<') && three.trim_end_matches('>').len() < three.len(),
            "{three}"
        );
        let object = chat(seeded(
            json!({ "response_format": { "type": "json_object" }, "max_tokens": 400 }),
        ));
        if object.ends_with('}') {
            let value: Value =
                serde_json::from_str(&object).unwrap_or_else(|e| panic!("{e}: {object}"));
            assert!(value.is_object());
        }
        let fields =
            seeded(json!({ "prompt": "An object: ", "guided_json": person(), "max_tokens": 400 }));
        let answer = server.ask("/v1/completions", &fields);
        assert_valid(&person(), answer["choices"][0]["text"].as_str().unwrap());
    }
}

/// A stop string ends an output only where its grammar may end, and one that cannot be completed in
/// time ends by its length.
#[test]
fn every_output_ends() {
    let server = Server::shared();
    let fields = json!({ "response_format": schema_format(&person()), "temperature": 0,
        "max_tokens": 300, "enable_thinking": false });
    let plain = whole(&server.chat("A person.", fields.clone())).0;
    let stopped =
        server.chat("A person.", with(fields.clone(), json!({ "stop": ["\"age\"", ",", "{"] })));
    assert_eq!(whole(&stopped).0, plain);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let short = server.chat("A person.", with(fields.clone(), json!({ "max_tokens": 3 })));
    assert_eq!(short["choices"][0]["finish_reason"], "length");
    assert_eq!(short["usage"]["completion_tokens"], 3);
    assert!(plain.starts_with(&whole(&short).0));
    // No end-of-sequence token may be chosen, and the object ends all the same.
    let endless = server.chat("A person.", with(fields.clone(), json!({ "ignore_eos": true })));
    assert_eq!(
        (whole(&endless).0, &endless["choices"][0]["finish_reason"]),
        (plain, &json!("stop"))
    );
    // A value that never ends.
    let forever = json!({ "$ref": "#/$defs/a", "$defs": { "a": { "type": "object", "required": ["a"],
        "additionalProperties": false, "properties": { "a": { "$ref": "#/$defs/a" } } } } });
    let fields =
        with(fields, json!({ "response_format": schema_format(&forever), "max_tokens": 40 }));
    let answer = server.chat("A person.", fields);
    assert_eq!(answer["choices"][0]["finish_reason"], "length", "{answer}");
    server.wait_until_idle();
}

/// Alone or in a batch of many kinds, an output is the same.
#[test]
fn an_output_does_not_depend_on_the_batch() {
    let server = Server::shared();
    let fields = |seed: u64| match seed % 3 {
        0 => json!({ "response_format": schema_format(&person()), "seed": seed, "max_tokens": 200,
                     "temperature": 1.0, "enable_thinking": false }),
        1 => {
            json!({ "tools": tools(true), "tool_choice": "required", "seed": seed, "max_tokens": 200,
                     "temperature": 1.0, "enable_thinking": false })
        }
        _ => {
            json!({ "seed": seed, "max_tokens": 60, "temperature": 1.0, "enable_thinking": false })
        }
    };
    let ask = |seed| whole(&server.chat("Tell me.", fields(seed)));
    let alone: Vec<_> = (0..6).map(ask).collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6).map(|seed| scope.spawn(move || ask(seed))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(alone, together);
}
