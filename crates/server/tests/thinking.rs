//! Thinking budgets over HTTP. The demo model serves; it thinks when it is asked to.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Server, http::joined};
use serde_json::{Value, json};

const QUESTION: &str = "What is 345 + 678?";

fn with(fields: Value, more: Value) -> Value {
    let (Value::Object(mut fields), Value::Object(more)) = (fields, more) else {
        panic!("fields are objects")
    };
    fields.extend(more);
    fields.into()
}

fn thinks(more: Value) -> Value {
    with(json!({ "enable_thinking": true, "max_tokens": 200, "temperature": 0 }), more)
}

fn text<'a>(answer: &'a Value, name: &str) -> &'a str {
    answer["choices"][0]["message"][name].as_str().unwrap_or_default()
}

fn reasoning_tokens(answer: &Value) -> u64 {
    answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap()
}

/// Reasoning is cut at the budget, to the token, and what there is of it is as without one.
#[test]
fn reasoning_ends_after_its_budget_and_the_answer_follows() {
    let server = Server::shared();
    let free = server.chat(QUESTION, thinks(json!({})));
    let all = reasoning_tokens(&free);
    assert!(all > 10, "{free}");
    for budget in [1, 2, 5, 9, all, all + 100] {
        for field in ["max_thinking_tokens", "thinking_token_budget"] {
            let answer = server.chat(QUESTION, thinks(json!({ field: budget })));
            assert_eq!(reasoning_tokens(&answer), budget.min(all), "{answer}");
            let (cut, whole) =
                (text(&answer, "reasoning_content"), text(&free, "reasoning_content"));
            assert!(whole.starts_with(cut.trim_end()), "{cut} / {whole}");
            assert!(!text(&answer, "content").is_empty(), "{answer}");
            assert!(!text(&answer, "content").contains("think>"), "{answer}");
            assert_eq!(
                budget >= all,
                text(&answer, "content") == text(&free, "content") && cut == whole
            );
        }
    }
}

#[test]
fn no_thinking_at_all() {
    let server = Server::shared();
    for fields in [json!({}), json!({ "temperature": 1.0, "seed": 3 })] {
        let fields = thinks(with(fields, json!({ "max_thinking_tokens": 0 })));
        let answer = server.chat(QUESTION, fields);
        assert_eq!(text(&answer, "reasoning_content"), "", "{answer}");
        assert_eq!(reasoning_tokens(&answer), 0);
        assert!(!text(&answer, "content").is_empty(), "{answer}");
    }
}

#[test]
fn streams_equal_wholes_and_seeds_hold() {
    let server = Server::shared();
    for seed in 0..4 {
        let fields = thinks(json!({ "temperature": 1.0, "seed": seed, "max_tokens": 80,
            "max_thinking_tokens": 3 + seed * 4 }));
        let whole = server.chat(QUESTION, fields.clone());
        let again = server.chat(QUESTION, fields.clone());
        assert_eq!(whole["choices"], again["choices"]);
        assert_eq!(whole["usage"], again["usage"]);
        assert!(reasoning_tokens(&whole) <= 3 + seed * 4);
        let options = json!({ "stream_options": { "include_usage": true } });
        let body = common::chat(QUESTION, with(fields, options));
        let chunks = server.stream("/v1/chat/completions", &body).chunks();
        for name in ["content", "reasoning_content"] {
            assert_eq!(joined(&chunks, name), text(&whole, name));
        }
        assert_eq!(chunks.last().unwrap()["usage"], whole["usage"]);
    }
}

/// A schema, or a call that must be, begins behind reasoning that was cut.
#[test]
fn a_grammar_begins_behind_reasoning_that_was_cut() {
    let server = Server::shared();
    let schema = json!({ "type": "object", "additionalProperties": false, "required": ["n"],
        "properties": { "n": { "type": "integer", "minimum": 0, "maximum": 2000 } } });
    let format = json!({ "type": "json_schema",
        "json_schema": { "name": "x", "strict": true, "schema": schema } });
    let tools =
        json!([{ "type": "function", "function": { "name": "add", "parameters": schema } }]);
    let before = server.metric("taper:forced_tokens_total");
    for budget in [0, 4, 12] {
        let budget = json!({ "max_thinking_tokens": budget, "temperature": 1.0, "seed": budget });
        let asked = with(json!({ "response_format": format }), budget.clone());
        let answer = server.chat(QUESTION, thinks(asked));
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
        let value: Value = serde_json::from_str(text(&answer, "content")).unwrap();
        assert!(value["n"].as_u64().is_some_and(|n| n <= 2000), "{answer}");
        assert!(reasoning_tokens(&answer) <= budget["max_thinking_tokens"].as_u64().unwrap());
        let asked =
            json!({ "tools": tools, "tool_choice": "required", "parallel_tool_calls": false });
        let answer = server.chat(QUESTION, thinks(with(asked, budget.clone())));
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{answer}");
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        let value: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert!(value["n"].as_u64().is_some_and(|n| n <= 2000), "{answer}");
    }
    assert!(server.metric("taper:forced_tokens_total") > before);
}

/// With log probabilities every token is sampled, forced ones too.
#[test]
fn log_probabilities_change_nothing() {
    let server = Server::shared();
    let fields = thinks(json!({ "max_thinking_tokens": 7 }));
    let plain = server.chat(QUESTION, fields.clone());
    let told = server.chat(QUESTION, with(fields, json!({ "logprobs": true })));
    assert_eq!(plain["choices"][0]["message"], told["choices"][0]["message"]);
    assert_eq!(plain["usage"], told["usage"]);
}
