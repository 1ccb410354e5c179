//! Grammars that are made to hurt: each is refused in time, with its place where it has one.

use crate::support::{grammar, schema, takes};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use taper_grammar::{Content, GrammarError};

fn refused(content: &Content) -> GrammarError {
    let start = Instant::now();
    let error = grammar(content).expect_err("it is refused");
    assert!(start.elapsed() < Duration::from_millis(3500), "{error}: {:?}", start.elapsed());
    error
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}

#[test]
fn large_and_deep_and_endless() {
    let before = resident_kib();
    let properties: serde_json::Map<_, _> = (0..100_000)
        .map(|i| (format!("property number {i}"), json!({ "type": "string" })))
        .collect();
    let huge = json!({ "type": "object", "properties": properties });
    assert!(matches!(refused(&schema(&huge, true)), GrammarError::TooLarge { .. }));
    let mut deep = json!({ "type": "string" });
    for _ in 0..110 {
        deep = json!({ "type": "array", "items": deep });
    }
    assert!(matches!(refused(&schema(&deep, true)), GrammarError::TooLarge { .. }));
    for regex in ["(a|b|ab)*?(?=x)", "(\\1)", "[", &"(".repeat(10_000), &"a".repeat(5 << 20)] {
        refused(&Content::Regex(regex.to_owned()));
    }
    // Repetitions of repetitions are no more work than one.
    let start = Instant::now();
    let nested = Content::Regex("((((a{1,1000}){1,1000}){1,1000}){1,1000})b".to_owned());
    assert_eq!(takes(&grammar(&nested).unwrap(), "aaab"), (4, true));
    assert!(start.elapsed() < Duration::from_millis(3500), "{:?}", start.elapsed());
    for text in ["start: start", "start: x", "", "{", "start: /(/", "root ::= root"] {
        refused(&Content::Grammar(text.to_owned()));
    }
    // Alternatives that multiply.
    let options: Vec<_> =
        (0..60).map(|i| json!({ "properties": { format!("p{i}"): { "const": i } } })).collect();
    let all: Vec<_> = (0..8).map(|_| json!({ "anyOf": options })).collect();
    refused(&schema(&json!({ "type": "object", "allOf": all }), true));
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 600 << 10, "{grown} KiB more");
}

#[test]
fn recursion_without_an_end_is_refused_or_never_completes() {
    for asked in [
        json!({ "$ref": "#" }),
        json!({ "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } }, "$ref": "#/$defs/a" }),
        json!({ "anyOf": [{ "$ref": "#" }, { "$ref": "#" }] }),
    ] {
        let start = Instant::now();
        if let Ok(grammar) = grammar(&schema(&asked, true)) {
            let mut constraint = grammar.start();
            assert!(constraint.mask().is_err(), "{asked}");
        }
        assert!(start.elapsed() < Duration::from_millis(3500));
    }
}

fn pointer(asked: &Value) -> String {
    match refused(&schema(asked, true)) {
        GrammarError::Unsupported { pointer, .. } | GrammarError::Schema { pointer, .. } => pointer,
        other => panic!("{other:?}"),
    }
}

/// What is refused is named by its place; without `strict` it is left out.
#[test]
fn places_of_what_is_not_supported() {
    let object =
        |name: &str, inner: Value| json!({ "type": "object", "properties": { name: inner } });
    let unsupported = [
        (object("a/b", json!({ "not": { "type": "null" } })), "#/properties/a~1b/not"),
        (
            object("a", json!({ "type": "array", "uniqueItems": true })),
            "#/properties/a/uniqueItems",
        ),
        (json!({ "type": "object", "minProperties": 3 }), "#/minProperties"),
        (
            object("x", json!({ "anyOf": [{}, { "if": {}, "then": false }] })),
            "#/properties/x/anyOf/1/if",
        ),
        (object("x", json!({ "format": "iri" })), "#/properties/x/format"),
        (
            object("x", json!({ "items": { "contains": { "const": 1 } } })),
            "#/properties/x/items/contains",
        ),
        (object("x", json!({ "const": 9_007_199_254_740_993_u64 })), "#/properties/x/const"),
        (
            object("x", json!({ "dependentRequired": { "a": ["b"] } })),
            "#/properties/x/dependentRequired",
        ),
    ];
    for (asked, place) in unsupported {
        assert_eq!(pointer(&asked), place, "{asked}");
        assert!(grammar(&schema(&asked, false)).is_ok(), "{asked}");
    }
    for (asked, place) in [
        (object("x", json!({ "type": "text" })), "#/properties/x/type"),
        (object("x", json!({ "$ref": "#/$defs/none" })), "#/properties/x/$ref"),
        (object("x", json!({ "$ref": "http://a/b" })), "#/properties/x/$ref"),
        (object("x", json!({ "enum": [] })), "#/properties/x/enum"),
        (object("x", json!(7)), "#/properties/x"),
        // What only llguidance knows.
        (object("x", json!({ "type": "string", "pattern": "(?=a)" })), "#/properties/x"),
        (
            object("x", json!({ "oneOf": [{ "type": "integer" }, { "type": "number" }] })),
            "#/properties/x",
        ),
        (json!({ "type": "object", "required": ["a"], "properties": { "a": false } }), "#"),
    ] {
        assert_eq!(pointer(&asked), place, "{asked}");
    }
}

/// A name has one way to be written, so that a property cannot be there twice under two rules.
#[test]
fn no_second_way_to_write_a_name() {
    let asked = json!({ "type": "object", "properties": { "a": { "type": "integer" } },
                        "additionalProperties": { "type": "string" } });
    let grammar = grammar(&schema(&asked, true)).unwrap();
    let (taken, _) = crate::support::takes(&grammar, "{\"a\":1,\"\\u0061\":\"x\"}");
    assert!(taken < 12, "the escape of a letter was taken");
}
