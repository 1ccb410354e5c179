//! `mistral`.

use crate::{expect, untouched};

#[test]
fn mistral_lists() {
    let list = |inner: &str| format!("[TOOL_CALLS][{inner}]");
    let (f, g) = (r#"{"name": "f", "arguments": {"a": 1}}"#, r#"{"name": "f", "arguments": {}}"#);
    let check = |text: &str, content: &str, calls: &[&str]| expect("mistral", text, content, calls);
    check(&list(f), "", &[r#"f {"a": 1}"#]);
    check(&list(&format!("{f}, {g}")), "", &[r#"f {"a": 1}"#, "f {}"]);
    check(&format!("Hello[TOOL_CALLS] [{f}]"), "Hello", &[r#"f {"a": 1}"#]);
    check(
        r#"[TOOL_CALLS]  [ {"name":"f" , "arguments" : {"a": 3, "s": "]}" } } ]"#,
        "",
        &[r#"f {"a": 3, "s": "]}" }"#],
    );
    // Arguments first, with a name among them; an id; arguments in a string, and none.
    check(&list(r#"{"arguments":{"name": "J"}, "name": "f"}"#), "", &[r#"f {"name": "J"}"#]);
    check(
        &list(r#"{"name": "f", "arguments": {"a": 1}, "id": "123456789"}"#),
        "",
        &[r#"f {"a": 1}"#],
    );
    check(
        &list(&format!(r#"{{"name": "f", "arguments": "{{\"a\": 1}}"}}, {f}"#)),
        "",
        &[r#"f {"a": 1}"#, r#"f {"a": 1}"#],
    );
    check(&list(r#"{"name": "f"}"#), "", &["f {}"]);
    // Text behind, a second list, a repeated opener, an object without a list, a lost bracket.
    check(&format!("{}\nextra data", list(f)), "extra data", &[r#"f {"a": 1}"#]);
    check(&format!("{}{}", list(f), list(g)), "", &[r#"f {"a": 1}"#, "f {}"]);
    check(&format!("[TOOL_CALLS] [TOOL_CALLS] [{f}]"), "[TOOL_CALLS]", &[r#"f {"a": 1}"#]);
    check(&format!("[TOOL_CALLS] {f}, {g}"), &format!(", {g}"), &[r#"f {"a": 1}"#]);
    check(&format!("[TOOL_CALLS] [{f}"), "", &[r#"f {"a": 1}"#]);
    check(&format!("[TOOL_CALLS] [{f}, "), "", &[r#"f {"a": 1}"#]);
    check(&format!("[TOOL_CALLS] [{f}[TOOL_CALLS][{g}]"), "", &[r#"f {"a": 1}"#, "f {}"]);
    // What is no call behind one that is.
    check(&list(&format!("{f}, \"junk\"")), ", \"junk\"]", &[r#"f {"a": 1}"#]);
    let unknown = r#"{"name": "nobody", "arguments": {}}"#;
    check(&list(&format!("{f}, {unknown}")), &format!(", {unknown}]"), &[r#"f {"a": 1}"#]);
    // Broken arguments stand once told; the next call ends them.
    let broken = r#"[TOOL_CALLS][{"name": "f", "arguments": {"a": 1"#;
    check(&format!("{broken}{}", list(g)), "", &["f {\"a\": 1", "f {}"]);
    check(broken, "", &["f {\"a\": 1"]);
    check(&format!("{broken}, [TOO"), "", &["f {\"a\": 1, [TOO"]);
}

#[test]
fn mistral_names_before_arguments() {
    let check = |text: &str, content: &str, calls: &[&str]| expect("mistral", text, content, calls);
    let call = r#"[TOOL_CALLS]f[ARGS]{"a": 1}"#;
    check(call, "", &[r#"f {"a": 1}"#]);
    check(&call.repeat(2), "", &[r#"f {"a": 1}"#; 2]);
    check(&format!("hi{{hi{call}"), "hi{hi", &[r#"f {"a": 1}"#]);
    check(&call.replace("[ARGS]", ""), "", &[r#"f {"a": 1}"#]);
    check(&call.replace("[ARGS]", "[CALL_ID]123456789[ARGS]"), "", &[r#"f {"a": 1}"#]);
    check("[TOOL_CALLS]get_weather[ARGS]{}", "", &["get_weather {}"]);
    check("[TOOL_CALLS] f[ARGS] {\n}", "", &["f {\n}"]);
    // There is no closing tag: the arguments' own bracket ends the call.
    check(&format!("{call}Estimating ..."), "Estimating ...", &[r#"f {"a": 1}"#]);
    let strings = r#"f {"s": "print(\"hi\")\nre.compile(r'{}') [TOOL_CALLS]"}"#;
    check(&format!("[TOOL_CALLS]{}", strings.replacen(' ', "", 1)), "", &[strings]);
    let open = r#"[TOOL_CALLS]f{"s": "print(\"hi\")\nre.compile(r'{}')"#;
    check(open, "", &[r#"f {"s": "print(\"hi\")\nre.compile(r'{}')"#]);
    check(
        &format!(r#"[TOOL_CALLS]f[ARGS]{{"a": [1{call}"#),
        "",
        &[r#"f {"a": [1"#, r#"f {"a": 1}"#],
    );
}

#[test]
fn what_is_no_call_of_mistral_is_untouched() {
    for text in [
        "",
        "a [ b",
        "[TOOL",
        "[TOOL_CALLS]",
        "[TOOL_CALLS][",
        "[TOOL_CALLS] []",
        "[TOOL_CALLS] [, ,",
        "[TOOL_CALLS] not json at all",
        "[TOOL_CALLS] 42",
        r#"[TOOL_CALLS] ["f"]"#,
        r#"[TOOL_CALLS] {"foo": 1}"#,
        r#"[TOOL_CALLS] [{"arguments": {"a": 1}}]"#,
        r#"[TOOL_CALLS] [{"name": "nobody", "arguments": {"a": 1}}]"#,
        r#"[TOOL_CALLS] [{"name": "f", "arguments": {nothing}}]"#,
        r#"[TOOL_CALLS] [{"name": "f", "arguments": ["#,
        "[TOOL_CALLS]f",
        "[TOOL_CALLS]f[ARGS]",
        "[TOOL_CALLS]f[ARGS]{",
        "[TOOL_CALLS]f[ARGS]{nothing}",
        "[TOOL_CALLS]f[ARGS][1]",
        "[TOOL_CALLS]f[CALL_ID]1{}",
        "[TOOL_CALLS]f[CALL_ID]a b[ARGS]{}",
        "[TOOL_CALLS]f[OTHER]{}",
        "[TOOL_CALLS]fgh[ARGS]{}",
        "[TOOL_CALLS][ARGS]{}",
        r#"bash[TOOL_CALLS]{"command": "ls"}"#,
        "[ARGS] alone",
    ] {
        untouched("mistral", text);
    }
    // A broken call does not hide the next.
    let call = r#"[TOOL_CALLS]f[ARGS]{"a": 1}"#;
    expect(
        "mistral",
        &format!("[TOOL_CALLS]f[ARGS{call}"),
        "[TOOL_CALLS]f[ARGS",
        &[r#"f {"a": 1}"#],
    );
}
