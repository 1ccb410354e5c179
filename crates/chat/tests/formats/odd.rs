//! Odd outputs of single formats, written by hand.

use crate::{expect, untouched};

#[test]
fn python_literals() {
    let check = |inner: &str, arguments: &str| {
        expect("pythonic", &format!("[types({inner})]"), "", &[&format!("types {arguments}")]);
    };
    check("", "{}");
    check("int=1_000, float=.5", r#"{"int": 1000, "float": 0.5}"#);
    check("int=+1, float=1., object={}", r#"{"int": 1, "float": 1.0, "object": {}}"#);
    check(
        "list=(1, 'a',), object={'k': [1, 2,], 3: None,}",
        r#"{"list": [1, "a"], "object": {"k": [1, 2], "3": null}}"#,
    );
    check(r#"unit="a\x41é\U0001F600\n\'\"\\\q""#, r#"{"unit": "aAé😀\n'\"\\\\q"}"#);
    check("unit='''it's\n\"two\" lines'''", r#"{"unit": "it's\n\"two\" lines"}"#);
    check("unit='', object={'': ''}", r#"{"unit": "", "object": {"": ""}}"#);
    check(
        "\n  int = 1 ,\n  bool = true, nullable=null\n",
        r#"{"int": 1, "bool": true, "nullable": null}"#,
    );
    check("unit=celsius", r#"{"unit": "celsius"}"#);
    expect(
        "pythonic",
        "[f(a=1), get_weather(city='x')] and [f()]",
        "and",
        &["f {\"a\": 1}", "get_weather {\"city\": \"x\"}", "f {}"],
    );
    // Broken arguments stand once told; what broke them is text.
    expect("pythonic", "[f(a=1 + 2)]", "+ 2)]", &["f {\"a\": 1"]);
    expect("pythonic", "[f(a=[1, 'x", "", &["f {\"a\": [1, \"x"]);
    for text in [
        "[",
        "[]",
        "[f",
        "[f]",
        "[f](url)",
        "[f(",
        "[f(x)]",
        "[f(1)]",
        "[nobody(a=1)]",
        "[ ] todo",
        "see [1] and [get_weather](x)",
        "[[f(",
        "arr[f(2)]",
        "[f({'a': 1})]",
    ] {
        untouched("pythonic", text);
    }
    expect("olmo3", "<function_calls>f(a=1)</function_calls>", "", &["f {\"a\": 1}"]);
    expect(
        "olmo3",
        "Hi\n<function_calls>\nf(a=null)\n\nf(a=true)\n",
        "Hi",
        &["f {\"a\": null}", "f {\"a\": true}"],
    );
    expect("llama4_pythonic", "<|python_start|>[f(a=1)] x", "x", &["f {\"a\": 1}"]);
    expect("llama4_pythonic", "[f(a=1)]", "", &["f {\"a\": 1}"]);
}

#[test]
fn gemma_literals() {
    let check = |inner: &str, arguments: &str| {
        let text = format!("<|tool_call>call:types{{{inner}}}<tool_call|>");
        expect("gemma4", &text, "", &[&format!("types {arguments}")]);
    };
    check("", "{}");
    check("int:1,unit:<|\"|>a \"b\" {c}, <|d<|\"|>", r#"{"int": 1, "unit": "a \"b\" {c}, <|d"}"#);
    check("int:<|\"|>7<|\"|>,bool:<|\"|>true<|\"|>", r#"{"int": 7, "bool": true}"#);
    // A text without quotes, and a number where a string belongs.
    check("unit:12,nullable:two words", r#"{"unit": "12", "nullable": "two words"}"#);
    check(
        "object:{k:<|\"|>v<|\"|>,n:[1,{m:null}]},list:[]",
        r#"{"object": {"k": "v", "n": [1, {"m": null}]}, "list": []}"#,
    );
    expect("gemma4", "<|tool_call>call:f{a:1}", "", &["f {\"a\": 1}"]);
    expect(
        "gemma4",
        "<|tool_call>call:f{a:1}<tool_call|><|tool_call>call:f{}<tool_call|>",
        "",
        &["f {\"a\": 1}", "f {}"],
    );
    expect("gemma4", "<|tool_call>call:f{s:<|\"|>ab<|", "", &["f {\"s\": \"ab<|"]);
    for text in [
        "<|tool_call>",
        "<|tool_call>call:",
        "<|tool_call>call:f",
        "<|tool_call>call:nobody{}",
        "<|tool_call>f{}<tool_call|>",
        "<|tool_call>call:f{a}",
    ] {
        untouched("gemma4", text);
    }
    let call = "<start_function_call>call:f{s:<escape>a, b<escape>,a:2}<end_function_call>";
    expect("functiongemma", call, "", &["f {\"s\": \"a, b\", \"a\": 2}"]);
}

#[test]
fn names_before_arguments() {
    // DeepSeek V3 without the outer tags, and without the fence.
    let call = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n{\"a\": 1}<｜tool▁call▁end｜>";
    expect("deepseek_v3", call, "", &["f {\"a\": 1}"]);
    expect(
        "deepseek_v3",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1<｜tool▁call▁end｜>x",
        "x",
        &["f {\"a\": 1"],
    );
    untouched("deepseek_v3", "<｜tool▁calls▁begin｜>f{\"a\": 1}");
    untouched("deepseek_v31", "<｜tool▁call▁begin｜>nobody<｜tool▁sep｜>{}");
    expect(
        "kimi_k2",
        "<|tool_call_begin|>f:3<|tool_call_argument_begin|>{}<|tool_call_end|>ok",
        "ok",
        &["f {}"],
    );
    untouched("kimi_k2", "<|tool_calls_section_begin|><|tool_calls_section_end|>");
}

#[test]
fn parameters_between_tags() {
    let say = |style: &str, text: &str, content: &str, calls: &[&str]| {
        expect(style, text, content, calls);
    };
    say("glm45", "<tool_call>f\n</tool_call>", "", &["f {}"]);
    say("glm47", "<tool_call>f</tool_call>x", "x", &["f {}"]);
    say(
        "glm45",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>a\nb</arg_value>\n<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>",
        "",
        &["get_weather {\"city\": \"a\\nb\", \"days\": 2}"],
    );
    untouched("glm45", "<tool_call>nobody\n</tool_call>");
    untouched("glm45", "<tool_call>f");
    say(
        "deepseek_v32",
        "<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"x\" string=\"false\">[1, {\"y\": 2}]</｜DSML｜parameter><｜DSML｜parameter name=\"a\" string=\"true\">7</｜DSML｜parameter></｜DSML｜invoke>",
        "",
        &["f {\"x\": [1, {\"y\": 2}], \"a\": \"7\"}"],
    );
    say(
        "deepseek_v32",
        "<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\"></｜DSML｜invoke></｜DSML｜tool_calls>",
        "",
        &["f {}"],
    );
    say(
        "minimax_m2",
        "<invoke name=\"f\"><parameter name=\"s\">\n x \n</parameter></invoke>",
        "",
        &["f {\"s\": \"\\n x \\n\"}"],
    );
    untouched("minimax_m2", "<minimax:tool_call>\n<invoke name=\"nobody\">\n</invoke>");
    say(
        "step3",
        "<steptml:invoke name=\"f\"><steptml:parameter name=\"a\">4</steptml:parameter></steptml:invoke>",
        "",
        &["f {\"a\": 4}"],
    );
}
