//! Budgets of reasoning.

use crate::support::{marked_model, model, schema};
use serde_json::json;
use taper_base::{Constraint, End, SharedGrammar};
use taper_grammar::{Content, Output, Reasoning};

const THINK: Reasoning =
    Reasoning { begins: &["<think>"], ends: &["</think>"], open: false, budget: None };
/// Marks of several tokens.
const LONG: Reasoning = Reasoning {
    begins: &["<think>", "Here is my thought process:"],
    ends: &["</think>", "Here is my response:"],
    ..THINK
};

fn grammar(reasoning: Reasoning, content: Option<&Content>) -> SharedGrammar {
    let output = Output { reasoning: Some(reasoning), content, calls: None };
    model().grammars.output(&output).unwrap()
}

fn number() -> Content {
    let asked = json!({ "type": "object", "properties": { "n": { "type": "integer" } },
                        "required": ["n"], "additionalProperties": false });
    schema(&asked, true)
}

/// Writes a text, and forced tokens where they come; what was written.
fn write(constraint: &mut dyn Constraint, text: &str) -> String {
    let tokenizer = &model().tokenizer;
    let mut written = String::new();
    for token in tokenizer.encode(text, false).unwrap() {
        let allowed = constraint.mask().unwrap().is_none_or(|mask| mask.has(token));
        assert!(allowed, "{written} + {}", tokenizer.token_text(token));
        constraint.accept(token).unwrap();
        written += &tokenizer.token_text(token);
        let forced = constraint.forced();
        for token in &forced {
            assert_eq!(constraint.mask().unwrap().unwrap().count(), 1);
            constraint.accept(*token).unwrap();
            written += &tokenizer.token_text(*token);
        }
        if !forced.is_empty() {
            break;
        }
    }
    written
}

fn tokens(text: &str) -> u32 {
    model().tokenizer.encode(text, false).unwrap().len() as u32
}

#[test]
fn reasoning_ends_by_force() {
    let thoughts = "Let me think about it.";
    for (content, open) in
        [(None, true), (Some(number()), true), (None, false), (Some(number()), false)]
    {
        let reasoning = Reasoning { open, budget: Some(tokens(thoughts)), ..THINK };
        let mut constraint = grammar(reasoning, content.as_ref()).start();
        let begin = if open { "" } else { "<think>" };
        let all = format!("{begin}{thoughts}</think>");
        assert_eq!(write(&mut *constraint, &format!("{begin}{thoughts} And more.")), all);
        assert_eq!(constraint.end() == End::May, content.is_none());
        assert!("{\"n\":5}".starts_with(&write(&mut *constraint.fork(), "{\"n\":5}")));
        assert!(constraint.mask().unwrap().is_some(), "no more thinking");
        let think = model().tokenizer.token_id("<think>").unwrap();
        assert!(!constraint.mask().unwrap().unwrap().has(think));
    }
}

/// Reasoning that ends in time is left alone, and what is left of its budget is for another block.
#[test]
fn reasoning_within_its_budget_is_free() {
    let reasoning = Reasoning { budget: Some(tokens("One two.") + 2), ..THINK };
    let mut constraint = grammar(reasoning, None).start();
    let text = "<think>One two.</think>Yes.\n<think>";
    assert_eq!(write(&mut *constraint, text), text);
    let two = model().tokenizer.encode("abcdefg hij", false).unwrap();
    let two = model().tokenizer.decode(&two[..2], false).unwrap();
    assert_eq!(write(&mut *constraint, "abcdefg hij"), format!("{two}</think>"));
}

#[test]
fn no_reasoning_at_all() {
    let think = model().tokenizer.token_id("<think>").unwrap();
    let closed = grammar(Reasoning { budget: Some(0), ..THINK }, None);
    let mut constraint = closed.start();
    assert!(constraint.mask().unwrap().is_some_and(|mask| !mask.has(think)));
    assert_eq!(write(&mut *constraint, "Yes."), "Yes.");
    let open = grammar(Reasoning { budget: Some(0), open: true, ..THINK }, None);
    let mut constraint = open.start();
    assert_eq!(constraint.mask().unwrap().unwrap().count(), 1);
    assert_eq!(write(&mut *constraint, "</think>Yes."), "</think>Yes.");
}

/// Marks of several tokens begin reasoning and end it, each by its own.
#[test]
fn marks_of_several_tokens() {
    for (begin, end) in LONG.begins.iter().zip(LONG.ends) {
        let reasoning = Reasoning { budget: Some(tokens(" One two.")), ..LONG };
        let mut constraint = grammar(reasoning, None).start();
        let text = format!("{begin} One two. Three four.");
        assert_eq!(write(&mut *constraint, &text), format!("{begin} One two.{end}"));
        assert_eq!(write(&mut *constraint, "So be it."), "So be it.");
    }
}

/// Marks that are special tokens.
#[test]
fn special_marks() {
    let model = marked_model();
    let reasoning = Reasoning {
        begins: &["<|tool_call_start|>"],
        ends: &["<|tool_call_end|>"],
        open: false,
        budget: Some(1),
    };
    let output = Output { reasoning: Some(reasoning), ..Output::default() };
    let mut constraint = model.grammars.output(&output).unwrap().start();
    let [begin, end] = ["<|tool_call_start|>", "<|tool_call_end|>"]
        .map(|mark| model.tokenizer.token_id(mark).unwrap());
    constraint.accept(begin).unwrap();
    assert!(constraint.forced().is_empty());
    constraint.accept(5).unwrap();
    assert_eq!(constraint.forced(), [end]);
    assert!(constraint.fork().accept(5).is_err());
}
