//! `qwen3_coder`.

use crate::{cuts_change_nothing, expect, options, untouched};
use serde_json::{Value, json};
use taper_chat::{KnownTools, OutputParser, ParserOptions};

#[test]
fn qwen3_coder_calls() {
    let check =
        |text: &str, content: &str, calls: &[&str]| expect("qwen3_coder", text, content, calls);
    let weather = "<tool_call>\n<function=get_weather>\n<parameter=city>\nDallas\n</parameter>\n\
                   <parameter=days>\n2\n</parameter>\n</function>\n</tool_call>";
    let parsed = r#"get_weather {"city": "Dallas", "days": 2}"#;
    check(weather, "", &[parsed]);
    check(&weather.replace('\n', ""), "", &[parsed]);
    check(&format!("Sure! {weather}"), "Sure!", &[parsed]);
    check(&format!("{weather}\n{weather}"), "", &[parsed; 2]);
    check(&format!("{weather} Done."), "Done.", &[parsed]);
    check("<tool_call>\n<function=f>\n</function>\n</tool_call>", "", &["f {}"]);
    check("<tool_call><function=f></tool_call>", "", &["f {}"]);
    // Tags that are forgotten: the outer one, the closing ones.
    let inner = weather.replace("<tool_call>\n", "");
    check(&format!("Now.\n\n{inner}"), "Now.", &[parsed]);
    check(&inner.replace("\n</tool_call>", ""), "", &[parsed]);
    check(&weather.replace("</function>\n", ""), "", &[parsed]);
    check(&weather.replacen("\n</parameter>", "", 1), "", &[parsed]);
    check(&weather.replace("2\n</parameter>", "2"), "", &[parsed]);
    check(&weather.replace("\n</tool_call>", &format!("\n{weather}")), "", &[parsed; 2]);
    let two = inner.replace("\n</tool_call>", "").repeat(2);
    check(&format!("<tool_call>{two}</tool_call>"), "", &[parsed; 2]);
    // The same value may hold any other tag, quotes and line breaks.
    check(
        "<tool_call><function=write_file><parameter=content>\n    # <tool_call> \"\\\" </b>\n\n<\n\t格\u{1}\n\n</parameter></function></tool_call>",
        "",
        &[
            "write_file {\"content\": \"    # <tool_call> \\\"\\\\\\\" </b>\\n\\n<\\n\\t格\\u0001\\n\"}",
        ],
    );
    for (value, text) in [("", r#""""#), ("\n", r#""""#), ("\n\n", r#""""#), ("\n\n\n", r#""\n""#)]
    {
        let call = format!("<function=f><parameter=s>{value}</parameter></function>");
        check(&call, "", &[&format!("f {{\"s\": {text}}}")]);
    }
}

#[test]
fn qwen3_coder_values_have_the_types_of_the_schema() {
    let call = |key: &str, value: &str| {
        let text = format!(
            "<tool_call>\n<function=types>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>"
        );
        cuts_change_nothing(&options("qwen3_coder"), &text);
        let message = OutputParser::parse(options("qwen3_coder"), &text);
        let arguments = &message.tool_calls.first().unwrap_or_else(|| panic!("{text}")).arguments;
        serde_json::from_str::<Value>(arguments).unwrap()[key].clone()
    };
    for (key, value, expected) in [
        ("int", "42", json!(42)),
        ("float", "2.75", json!(2.75)),
        ("bool", "true", json!(true)),
        ("object", "{\"width\": 10, \n \"height\": 20}", json!({ "width": 10, "height": 20 })),
        ("list", "[\"a\", {\"b\": false}]", json!(["a", { "b": false }])),
        ("nullable", "null", Value::Null),
        ("nullable", "hello world", json!("hello world")),
        ("union", "{\"a\": 1}", json!({ "a": 1 })),
        ("union", "{not valid json", json!("{not valid json")),
        ("unit", "celsius", json!("celsius")),
        ("unheard_of", "42", json!("42")),
    ] {
        assert_eq!(call(key, value), expected, "{key} {value}");
    }
    // Without known tools every value is a string.
    let free = ParserOptions { known_tools: KnownTools::any(), ..options("qwen3_coder") };
    let text = "<tool_call><function=x><parameter=n>1</parameter></function></tool_call>";
    let message = OutputParser::parse(free, text);
    assert_eq!(message.tool_calls[0].arguments, r#"{"n": "1"}"#);
}

#[test]
fn what_is_no_call_of_qwen3_coder_is_untouched() {
    for text in [
        "",
        "<tool",
        "<tool_call>",
        "<tool_call> prose",
        "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
        "<tool_call>\n<function=nobody>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f\n<parameter=a>1</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\nWait",
        "<tool_call>\n<function=f>\n",
        "<tool_call>\n<function=f>\n<parameter=a",
        "<function=f><parameter=a\n",
        "<function=f><parameter=<",
        "<function=>",
        "</function></tool_call>",
    ] {
        untouched("qwen3_coder", text);
    }
    // A broken call does not hide the next.
    let call = "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>";
    for broken in ["Use <tool_call>\n<function=f", "Use <tool_call>\n<function=f>\n or <function=f"]
    {
        expect("qwen3_coder", &format!("{broken}{call}"), broken, &[r#"f {"a": 1}"#]);
    }
    // Text between parameters ends a call that is told, and is content.
    let stray = "<tool_call><function=f><parameter=a>1</parameter> and";
    expect("qwen3_coder", stray, "and", &[r#"f {"a": 1}"#]);
    let stray = "<function=f><parameter=a>1</parameter><parameter=s\n";
    expect("qwen3_coder", stray, "<parameter=s\n", &[r#"f {"a": 1}"#]);
    // An output that ends inside a value leaves JSON that nobody can take for a call.
    let open = |text: &str, call: &str| expect("qwen3_coder", text, "", &[call]);
    open("<function=f><parameter=s>ab\n</para", "f {\"s\": \"ab\\n</para");
    open("<function=f><parameter=a>4", "f {\"a\": 4");
    open("<function=f><parameter=a>4</parameter>\n</func", "f {\"a\": 4}");
}
