//! What is written under masks validates, and what validates can be written.

use crate::{
    schemas,
    support::{Random, Walk, grammar, model, schema, takes, validates, walk},
};
use serde_json::json;
use taper_grammar::Content;

/// Of 300 schemas as JSONSchemaBench has them, every one that is accepted.
#[test]
fn outputs_of_accepted_schemas_validate() {
    let mut random = Random(1);
    let (mut accepted, mut whole, mut open) = (0, 0, 0);
    let mut refused = Vec::new();
    for _ in 0..300 {
        let asked = schemas::schema(&mut random);
        let grammar = match grammar(&schema(&asked, true)) {
            Ok(grammar) => grammar,
            Err(error) => {
                refused.push(error.to_string());
                continue;
            }
        };
        accepted += 1;
        for free in [0, 3, 15] {
            let force = random.one_in(2);
            match walk(grammar.start(), &mut random, free, force) {
                Walk::Whole(text) => {
                    whole += 1;
                    let valid = validates(&asked, &text);
                    assert_eq!(valid, Ok(()), "{text}\n{asked}");
                }
                Walk::Open => open += 1,
                Walk::Failed(text, error) => panic!("{error}: {text}\n{asked}"),
            }
        }
    }
    println!("{accepted} of 300 schemas accepted, {whole} outputs valid, {open} without an end");
    assert!(accepted >= 290, "{refused:#?}");
    assert!(open * 20 < whole, "{open} of {whole} outputs have no end");
}

/// Any token of a mask, anywhere in an output, leads to an output that validates: 50 schemas, 200
/// prefixes each. And examples that validate, written by somebody else, can be written under masks.
#[test]
fn masks_allow_what_can_be_completed_and_nothing_else() {
    let mut random = Random(2);
    let (mut prefixes, mut examples) = (0, 0);
    let mut refused = Vec::new();
    for _ in 0..50 {
        let asked = schemas::schema(&mut random);
        let Ok(grammar) = grammar(&schema(&asked, true)) else { continue };
        for i in 0..200 {
            let walked = walk(grammar.start(), &mut random, i % 40, false);
            prefixes += 1;
            match walked {
                Walk::Whole(text) => {
                    assert_eq!(validates(&asked, &text), Ok(()), "{text}\n{asked}");
                }
                Walk::Open => {}
                Walk::Failed(text, error) => panic!("{error}: {text}\n{asked}"),
            }
        }
        for _ in 0..20 {
            let Some(value) = schemas::example(&asked, &asked, &mut random) else { continue };
            let text = value.to_string();
            if validates(&asked, &text).is_err() {
                continue;
            }
            examples += 1;
            let (taken, ends) = takes(&grammar, &text);
            if taken < text.len() || !ends {
                refused.push(format!("{}|{}", &text[..taken], &text[taken..]));
            }
        }
    }
    println!(
        "{prefixes} prefixes, {examples} examples, of which {} cannot be written",
        refused.len()
    );
    assert!(examples > 300);
    assert_eq!(refused, Vec::<String>::new());
}

#[test]
fn any_object_is_one_and_numbers_stay_in_range() {
    let grammar = grammar(&Content::JsonObject).unwrap();
    let mut random = Random(3);
    for free in (0..60).map(|i| i / 2) {
        if let Walk::Whole(text) = walk(grammar.start(), &mut random, free, false) {
            assert_eq!(validates(&json!({ "type": "object" }), &text), Ok(()), "{text}");
        }
    }
    for (text, good) in [
        ("{}", true),
        (r#"{"a":[1,-2.5,{"b":null}],"é":"x\n"}"#, true),
        ("[1]", false),
        (r#"{"a":1e999}"#, false),
        (r#"{"a": 1}"#, false),
    ] {
        assert_eq!(
            takes(&grammar, text),
            (if good { text.len() } else { takes(&grammar, text).0 }, good)
        );
    }
}

#[test]
fn regular_expressions_choices_and_grammars() {
    let cases = [
        (
            Content::Regex("[0-9]{3}-(ab|cd)+/x".into()),
            &["123-abcd/x"][..],
            &["12-ab/x", "123-/x"][..],
        ),
        (
            Content::Choice(vec!["yes".into(), "no".into(), "no way".into()]),
            &["yes", "no", "no way"],
            &["", "no ", "yesno"],
        ),
        (
            Content::Grammar("start: \"a\" NUMBER (\",\" NUMBER)*\nNUMBER: /[0-9]+/".into()),
            &["a1", "a1,22"],
            &["a", "a1,"],
        ),
        (
            Content::Grammar("root ::= \"a\" n (\",\" n)*\nn ::= [0-9]+".into()),
            &["a1", "a1,22"],
            &["a", "a1,"],
        ),
    ];
    for (content, good, bad) in cases {
        let grammar = grammar(&content).unwrap();
        for text in good {
            assert_eq!(takes(&grammar, text), (text.len(), true), "{content:?}");
        }
        for text in bad {
            let (taken, ends) = takes(&grammar, text);
            assert!(taken < text.len() || !ends, "{text:?} {content:?}");
        }
    }
}

/// Forced tokens are those that would be sampled, and there are some.
#[test]
fn forced_tokens_are_many_in_objects() {
    let asked = json!({ "type": "object", "additionalProperties": false,
        "required": ["first_name", "last_name", "age", "active", "kind"],
        "properties": { "first_name": { "type": "string", "maxLength": 8 },
            "last_name": { "type": "string", "maxLength": 8 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150 },
            "active": { "type": "boolean" }, "kind": { "enum": ["small", "large"] } } });
    let grammar = grammar(&schema(&asked, true)).unwrap();
    let mut constraint = grammar.start();
    let (mut sampled, mut forced) = (0, 0);
    let mut random = Random(4);
    while constraint.end() != taper_base::End::Must {
        let mask = constraint.mask().unwrap().unwrap();
        let allowed: Vec<_> =
            (0..model().tokenizer.vocab_size() as u32).filter(|t| mask.has(*t)).collect();
        constraint.accept(*random.of(&allowed)).unwrap();
        sampled += 1;
        for token in constraint.forced() {
            constraint.accept(token).unwrap();
            forced += 1;
        }
    }
    println!("{sampled} tokens sampled, {forced} forced");
    assert!(forced * 3 >= sampled, "a quarter of all tokens: {sampled} sampled, {forced} forced");
}
