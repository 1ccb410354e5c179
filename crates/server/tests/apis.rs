//! One model behind three APIs: they say the same. The demo model serves.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::Server;
use serde_json::{Value, json};

const WEATHER: &str = "Please get a weather with city Paris.";

fn parameters() -> Value {
    json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] })
}

/// Fields of a request without thinking, by each API.
fn messages(text: &str) -> Value {
    json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 200, "temperature": 0 })
}

fn response(text: &str) -> Value {
    json!({ "input": text, "max_output_tokens": 200, "temperature": 0, "reasoning": { "effort": "none" } })
}

#[test]
fn text_is_the_same_by_each_api() {
    let server = Server::shared();
    let fields = json!({ "max_tokens": 200, "temperature": 0, "enable_thinking": false });
    let chat = server.chat("Hello!", fields);
    let text = &chat["choices"][0]["message"]["content"];
    let message = server.ask("/v1/messages", &messages("Hello!"));
    assert_eq!(&message["content"], &json!([{ "type": "text", "text": text }]));
    let response = server.ask("/v1/responses", &response("Hello!"));
    assert_eq!(&response["output"][0]["content"][0]["text"], text, "{response}");
    let tokens = &chat["usage"]["completion_tokens"];
    assert_eq!(&message["usage"]["output_tokens"], tokens);
    assert_eq!(&response["usage"]["output_tokens"], tokens);
    let mut count = messages("Hello!");
    for field in ["max_tokens", "temperature"] {
        count.as_object_mut().unwrap().remove(field);
    }
    let count = server.ask("/v1/messages/count_tokens", &count);
    assert_eq!(count["input_tokens"], chat["usage"]["prompt_tokens"]);
}

#[test]
fn a_call_and_its_result_by_each_api() {
    let server = Server::shared();
    let mut message = messages(WEATHER);
    message["tools"] = json!([{ "name": "get_weather", "description": "Get a weather.",
        "input_schema": parameters() }]);
    let called = server.ask("/v1/messages", &message);
    assert_eq!(called["stop_reason"], "tool_use", "{called}");
    let call = called["content"].as_array().unwrap().last().unwrap();
    assert_eq!(call["input"], json!({ "city": "Paris" }));
    let history = message["messages"].as_array_mut().unwrap();
    history.push(json!({ "role": "assistant", "content": called["content"] }));
    history.push(json!({ "role": "user", "content": [
        { "type": "tool_result", "tool_use_id": call["id"], "content": "sunny" }] }));
    let told = server.ask("/v1/messages", &message);
    assert_eq!(told["stop_reason"], "end_turn", "{told}");

    let mut first = response(WEATHER);
    first["tools"] = json!([{ "type": "function", "name": "get_weather",
        "description": "Get a weather.", "parameters": parameters() }]);
    let called = server.ask("/v1/responses", &first);
    let call = called["output"].as_array().unwrap().last().unwrap();
    assert_eq!(call["type"], "function_call", "{called}");
    let mut next = first;
    next["previous_response_id"] = called["id"].clone();
    next["input"] = json!([{ "type": "function_call_output", "call_id": call["call_id"],
        "output": "sunny" }]);
    let response = server.ask("/v1/responses", &next);
    assert_eq!(response["output"][0]["content"][0]["text"], told["content"][0]["text"]);
}
