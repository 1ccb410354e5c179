//! `llama3_json`.

use crate::{expect, options, untouched};
use taper_chat::OutputParser;

#[test]
fn llama3_calls() {
    let check =
        |text: &str, content: &str, calls: &[&str]| expect("llama3_json", text, content, calls);
    let call = r#"{"name": "f", "parameters": {"a": 1}}"#;
    check(call, "", &[r#"f {"a": 1}"#]);
    check(&call.replace("parameters", "arguments"), "", &[r#"f {"a": 1}"#]);
    check(&format!("<|python_tag|>{call}"), "", &[r#"f {"a": 1}"#]);
    check(&format!("<|python_tag|>\n{call}"), "", &[r#"f {"a": 1}"#]);
    check(&format!("Here: {call} More?"), "Here:  More?", &[r#"f {"a": 1}"#]);
    for separator in ["; ", ";", " ; ", ";\n", "\n", "", "; <|python_tag|>"] {
        let three = [call, call, call].join(separator);
        check(&three, "", &[r#"f {"a": 1}"#; 3]);
        check(&format!("\n{three}Done."), "Done.", &[r#"f {"a": 1}"#; 3]);
    }
    check(&format!("{call};"), "", &[r#"f {"a": 1}"#]);
    check(&format!("{call} \n"), "", &[r#"f {"a": 1}"#]);
    let deep = r#"{"a": {"b": [{"c": {"d": "{value} [x] \"}"}}]}}"#;
    check(&format!(r#"{{"name": "f", "parameters": {deep}}}"#), "", &[&format!("f {deep}")]);
    check(r#"{"name": "f", "parameters": {}}"#, "", &["f {}"]);
    // The tool requires none.
    check(r#"{"name": "f", "parameters": null}"#, "", &["f {}"]);
    check(r#"{"type": "function", "name": "f", "parameters": {"a": 1}}"#, "", &[r#"f {"a": 1}"#]);
    check(r#"{"parameters": {"a": 1}, "name": "f"}"#, "", &[r#"f {"a": 1}"#]);
    check(r#"{"name": "f", "parameters": {"a": 1}, "x": 1}!"#, "!", &[r#"f {"a": 1}"#]);
    check(r#"{ "name" : "f" , "parameters" : { "a": 1 } }"#, "", &[r#"f { "a": 1 }"#]);
    // Broken arguments stand once told.
    check(r#"{"name": "f", "parameters": {"a": 1"#, "", &[r#"f {"a": 1"#]);
    check(r#"{"name": "f", "parameters": {"a": 1}"#, "", &[r#"f {"a": 1}"#]);
    check(r#"{"name": "f", "parameters": {"a": 1} x"#, " x".trim(), &[r#"f {"a": 1}"#]);
    check(
        &format!(r#"{{"name": "f", "parameters": {{"a": <|python_tag|>{call}"#),
        "",
        &[r#"f {"a": "#, r#"f {"a": 1}"#],
    );
    // An object that is no call does not hide one that is.
    check(&format!("{{}} {call}"), "{}", &[r#"f {"a": 1}"#]);
    check(&format!(r#"{{"parameters": {call}}}"#), r#"{"parameters": }"#, &[r#"f {"a": 1}"#]);
}

#[test]
fn what_is_no_call_of_llama3_is_untouched() {
    let long = format!(r#"{{"parameters": {{"s": "{}"}}, "name": "f"}}"#, "x".repeat(9000));
    let nested = r#"{"parameters": "#.repeat(2000);
    for text in [
        "",
        "{",
        "{}",
        "{\"",
        "fn main() { println!(\"{x}\"); }",
        r#"{"parameters": {}}"#,
        r#"{"name": "f"}"#,
        r#"{"name": "nobody", "parameters": {}}"#,
        r#"{"name": "", "parameters": {}}"#,
        r#"{"name": "f", "parameters": 42}"#,
        r#"{"name": "f", "parameters": {invalid json}"#,
        r#"{"name": "Ada", "age": 36}"#,
        r#"{"city": "Paris", "days": [1, 2, {"a": {}}]}"#,
        "<|python_tag|>brave_search.call(query=\"x\")",
        "<|python_tag|>",
        "<|python",
        "```json\n\"42\"\n```",
    ] {
        untouched("llama3_json", text);
    }
    // Text that keeps looking like a call is held back, and read again, only so far.
    for text in [long, nested] {
        let message = OutputParser::parse(options("llama3_json"), &text);
        assert_eq!(message.content, Some(text));
    }
}
