//! Reasoning, free text and tool calls around a grammar.

use crate::support::{model, schema};
use serde_json::{Value, json};
use taper_base::{Constraint, End, SharedGrammar};
use taper_chat::{Tool, ToolFormat};
use taper_grammar::{CallRules, GrammarError, Output, Reasoning};

const THINK: Reasoning =
    Reasoning { begins: &["<think>"], ends: &["</think>"], open: false, budget: None };

fn tools(strict: bool) -> Vec<Tool> {
    let tool = |name: &str, parameters: Value| Tool {
        name: name.to_owned(),
        description: None,
        parameters: Some(parameters),
        strict: Some(strict),
    };
    vec![
        tool(
            "get_weather",
            json!({ "type": "object", "required": ["city", "days"], "additionalProperties": false,
                    "properties": { "city": { "type": "string" }, "days": { "type": "integer" },
                                    "unit": { "enum": ["C", "F"] } } }),
        ),
        tool(
            "send",
            json!({ "type": "object", "required": ["to"], "additionalProperties": false,
                    "properties": { "to": { "type": "array", "minItems": 1, "maxItems": 2,
                                            "items": { "type": "integer" } } } }),
        ),
        tool("stop", json!({ "type": "object", "properties": {}, "additionalProperties": false })),
    ]
}

fn format(name: &str) -> ToolFormat {
    name.parse().unwrap()
}

fn calls(format: ToolFormat, tools: &[Tool], required: bool, many: bool) -> SharedGrammar {
    let calls = Some(CallRules { format, tools, required, many });
    model().grammars.output(&Output { calls, ..Output::default() }).unwrap()
}

fn feed(constraint: &mut dyn Constraint, text: &str) -> usize {
    let tokens = model().tokenizer.encode(text, false).unwrap();
    for (i, token) in tokens.iter().enumerate() {
        let allowed = constraint.mask().unwrap().is_none_or(|mask| mask.has(*token));
        if !allowed {
            return i;
        }
        constraint.accept(*token).unwrap();
    }
    tokens.len()
}

fn fits(constraint: &mut dyn Constraint, text: &str) -> bool {
    let tokens = model().tokenizer.encode(text, false).unwrap();
    feed(constraint, text) == tokens.len()
}

/// Free text is free; behind an opener only a call may follow, and behind a call text again.
#[test]
fn free_text_and_calls_alternate() {
    let tools = tools(true);
    let grammar = calls(format("hermes"), &tools, false, true);
    let mut constraint = grammar.start();
    assert!(fits(&mut *constraint, "Some text, {\"a\": 1} <tool"));
    assert_eq!(constraint.end(), End::May);
    let mut constraint = grammar.start();
    assert!(fits(&mut *constraint, "Some text.\n<tool_call>"));
    assert_eq!(constraint.end(), End::No);
    assert!(!fits(&mut *constraint.fork(), "nonsense"));
    assert!(!fits(&mut *constraint.fork(), "\n{\"name\": \"other\""));
    let call = "\n{\"name\": \"send\", \"arguments\": {\"to\": [1, 2]}}\n</tool_call>";
    assert!(fits(&mut *constraint, call));
    assert_eq!(constraint.end(), End::May);
    assert!(fits(&mut *constraint, " and more"));
    let one = calls(format("hermes"), &tools, false, false);
    let mut constraint = one.start();
    assert!(fits(&mut *constraint, &format!("<tool_call>{call}")));
    assert_eq!(constraint.end(), End::Must);
}

/// The grammar begins behind the reasoning; an output cannot end inside it.
#[test]
fn the_grammar_begins_behind_reasoning() {
    let asked = json!({ "type": "object", "properties": { "n": { "type": "integer" } },
                        "required": ["n"], "additionalProperties": false });
    let content = schema(&asked, true);
    let output = |open| Output {
        reasoning: Some(Reasoning { open, ..THINK }),
        content: Some(&content),
        calls: None,
    };
    let grammar = |open| model().grammars.output(&output(open)).unwrap();
    let mut constraint = grammar(true).start();
    assert!(fits(&mut *constraint, "Let me think { about </thi it.\n"));
    let eos = model().eos;
    assert!(constraint.mask().unwrap().is_some_and(|mask| !mask.has(eos)));
    assert_eq!(constraint.end(), End::No);
    assert!(fits(&mut *constraint, "</think>"));
    assert!(!fits(&mut *constraint.fork(), "Sure"));
    assert!(fits(&mut *constraint.fork(), "\n\n{\"n\":"));
    assert!(fits(&mut *constraint, "{\"n\":5}"));
    assert_ne!(constraint.end(), End::No);
    // A model may think first, or not at all.
    let mut constraint = grammar(false).start();
    assert!(!fits(&mut *constraint.fork(), "Sure"));
    assert!(fits(&mut *constraint.fork(), "{\"n\":5}"));
    if model().tokenizer.encode("<think>", false).unwrap().len() == 1 {
        assert!(fits(&mut *constraint, "<think>Hm.</think>{\"n\":5}"));
    }
}

/// Tools beside a format of the content: one or the other.
#[test]
fn content_or_a_call() {
    let tools = tools(false);
    let asked = json!({ "type": "object", "properties": { "n": { "type": "integer" } },
                        "required": ["n"], "additionalProperties": false });
    let content = schema(&asked, true);
    let rules = CallRules { format: format("hermes"), tools: &tools, required: false, many: true };
    let output = Output { reasoning: None, content: Some(&content), calls: Some(rules) };
    let grammar = model().grammars.output(&output).unwrap();
    assert!(fits(&mut *grammar.start(), "{\"n\":5}"));
    assert!(fits(
        &mut *grammar.start(),
        "<tool_call>\n{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>"
    ));
    assert!(!fits(&mut *grammar.start(), "Hello"));
}

#[test]
fn errors_name_the_tool_and_the_format() {
    let mut tools = tools(true);
    tools[1].parameters = Some(json!({ "type": "object", "properties": { "a": { "not": {} } } }));
    let rules = |format, tools| CallRules { format, tools, required: true, many: true };
    let of = |calls| model().grammars.output(&Output { calls: Some(calls), ..Output::default() });
    let error = of(rules(format("hermes"), &tools)).unwrap_err();
    assert!(matches!(error, GrammarError::Tool { index: 1, .. }), "{error:?}");
    assert!(error.to_string().contains("#/properties/a/not"), "{error}");
    let error = of(rules(ToolFormat::NONE, &tools)).unwrap_err();
    assert!(matches!(error, GrammarError::Format { format: "none" }));
    // What is not strict is left out.
    let mut lenient = tools.clone();
    lenient[1].strict = None;
    assert!(of(rules(format("hermes"), &lenient)).is_ok());
}

#[test]
fn a_grammar_is_prepared_once() {
    let content = schema(&json!({ "type": "object", "title": "only here" }), true);
    let before = model().grammars.cache_hits();
    for _ in 0..3 {
        crate::support::grammar(&content).unwrap();
    }
    assert!(model().grammars.cache_hits() >= before + 2);
}
