//! The formats of tool calls: what each reads, and the law that cutting changes nothing.
//!
//! Many cases are those of vLLM 0.33's tests of `--tool-call-parser` and of llama.cpp's
//! `test-chat.cpp`.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod harmony;
mod law;
mod limits;
mod llama3_json;
mod mistral;
mod odd;
mod own;
#[path = "../common/pieces.rs"]
mod pieces;
mod qwen3_coder;
mod recovery;
mod writers;
mod written;

use pieces::streamed;
use serde_json::{Value, json};
use std::{fs, path::Path, sync::Arc};
use taper_chat::{Delta, KnownTools, OutputParser, ParserOptions, Tool, ToolFormat};

/// Every named format.
const FORMATS: &[&str] = &[
    "cohere",
    "cohere_command3",
    "cohere_command4",
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
    "ernie45",
    "functiongemma",
    "gemma4",
    "gigachat3",
    "glm45",
    "glm47",
    "granite",
    "granite-20b-fc",
    "granite4",
    "hermes",
    "hunyuan_a13b",
    "internlm",
    "jamba",
    "kimi_k2",
    "lfm2",
    "llama3_json",
    "llama4_json",
    "llama4_pythonic",
    "longcat",
    "mimo",
    "minimax",
    "minimax_m2",
    "mistral",
    "olmo3",
    "openai",
    "phi4_mini_json",
    "pythonic",
    "qwen3_coder",
    "qwen3_json",
    "qwen3_xml",
    "seed_oss",
    "step3",
    "step3p5",
    "xlam",
];

pub(crate) fn tool(name: &str, properties: &Value) -> Tool {
    let parameters = json!({ "type": "object", "properties": properties });
    Tool { name: name.to_owned(), description: None, parameters: Some(parameters), strict: None }
}

pub(crate) fn tools() -> KnownTools {
    let string = json!({ "type": "string" });
    let tools = [
        tool("f", &json!({ "a": { "type": "integer" }, "s": string })),
        tool("get_weather", &json!({ "city": string, "days": { "type": "integer" } })),
        tool("write_file", &json!({ "content": string })),
        tool(
            "types",
            &json!({
                "int": { "type": "integer" },
                "float": { "type": "number" },
                "bool": { "type": "boolean" },
                "object": { "type": "object" },
                "list": { "anyOf": [{ "type": "array" }, { "type": "null" }] },
                "nullable": { "type": ["string", "null"] },
                "union": { "anyOf": [{ "type": "string" }, { "type": "object" }] },
                "unit": { "enum": ["celsius", "fahrenheit"] },
            }),
        ),
    ];
    KnownTools::from(Arc::from(tools))
}

pub(crate) fn options(format: &str) -> ParserOptions {
    ParserOptions {
        reasoning: "qwen3".parse().unwrap(),
        tools: format.parse().unwrap(),
        known_tools: tools(),
        id_seed: Some(1),
        ..ParserOptions::default()
    }
}

/// One character at a time, and every way to cut a text in two.
#[track_caller]
pub(crate) fn cuts_change_nothing(options: &ParserOptions, text: &str) {
    let whole = OutputParser::parse(options.clone(), text);
    let chars: Vec<String> = text.chars().map(String::from).collect();
    let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
    assert_eq!(streamed(options.clone(), &chars), whole, "{text:?} by characters");
    for (at, _) in text.char_indices() {
        let pieces = [&text[..at], &text[at..]];
        assert_eq!(streamed(options.clone(), &pieces), whole, "{text:?} at {at}");
    }
}

/// Content and calls of a text, which must not depend on cuts.
#[track_caller]
pub(crate) fn expect(format: &str, text: &str, content: &str, calls: &[&str]) {
    let options = options(format);
    cuts_change_nothing(&options, text);
    let message = OutputParser::parse(options, text);
    assert_eq!(message.content.as_deref().unwrap_or(""), content, "content of {text:?}");
    let got = message.tool_calls.iter().map(|c| format!("{} {}", c.name, c.arguments));
    assert_eq!(got.collect::<Vec<_>>(), calls, "calls of {text:?}");
}

#[track_caller]
pub(crate) fn untouched(format: &str, text: &str) {
    expect(format, text, text, &[]);
}

#[test]
fn every_format_is_tested() {
    assert_eq!(ToolFormat::names()[1..], *FORMATS);
}

#[test]
fn templates_show_their_formats() {
    let table = [
        ("qwen3", "hermes"),
        ("smollm3", "hermes"),
        ("llama3.1", "llama3_json"),
        ("mistral", "mistral"),
        ("mistral_small3.2", "mistral"),
        ("qwen3_coder", "qwen3_coder"),
        ("gemma3", "none"),
        ("phi3", "none"),
        ("python", "none"),
    ];
    let folder = Path::new("tests/data/templates");
    assert_eq!(fs::read_dir(folder).unwrap().count(), table.len());
    for (template, format) in table {
        let source = fs::read_to_string(folder.join(template).with_extension("jinja"))
            .or_else(|_| fs::read_to_string(folder.join(format!("{template}.jinja"))));
        assert_eq!(ToolFormat::detect(&source.unwrap(), "").to_string(), format, "{template}");
    }
    let detect = |template, model| ToolFormat::detect(template, model).to_string();
    // GLM writes XML of its own between Hermes's tags.
    assert_eq!(detect("<tool_call>{{ name }}<arg_key>", ""), "glm45");
    // Functionary has Llama's tokens, and tags of its own.
    assert_eq!(detect("<|start_header_id|><function={{ name }}>", ""), "none");
    assert_eq!(detect("", ""), "none");
    // The architecture chooses between formats with the same marks, and where there are none.
    assert_eq!(detect("<tool_call><function=x><parameter=y>", "step3p5"), "step3p5");
    assert_eq!(detect("<tool_call><function=x><parameter=y>", "qwen3_moe"), "qwen3_coder");
    assert_eq!(detect("{% if tools %}", "phi4"), "phi4_mini_json");
    assert_eq!(detect("", "phi4"), "none");
}

/// Deltas of a text that comes in chunks: the calls' names, then what each chunk added.
fn told(format: &str, pieces: &[&str]) -> Vec<String> {
    let mut parser = OutputParser::new(options(format));
    let of = |delta| match delta {
        Delta::Content(text) | Delta::Reasoning(text) => format!("text {text}"),
        Delta::ToolCallStart { index, name, .. } => format!("call {index} {name}"),
        Delta::ToolCallArguments { index, fragment } => format!("{index} {fragment}"),
    };
    pieces
        .iter()
        .map(|p| parser.push(p).into_iter().map(of).collect::<Vec<_>>().join(" | "))
        .collect()
}

#[test]
fn arguments_are_told_while_they_are_written() {
    let json = ["{\"name\": \"f\", ", "\"arguments\": {\"a\": ", "1, \"s\": \"x", "y\"", "}}"];
    let expected = ["", "call 0 f | 0 {\"a\": ", "0 1, \"s\": \"x", "0 y\"", "0 }"];
    assert_eq!(told("llama3_json", &json), expected);
    let list = [&["[TOOL_CALLS] ["][..], &json].concat();
    assert_eq!(told("mistral", &list)[1..], expected);
    let named =
        ["[TOOL_CALLS]f[AR", "GS]{\"a\": ", "1, \"s\": \"x", "y\"", "}[TOOL_CALLS]f[ARGS]{}"];
    let expected =
        ["", "call 0 f | 0 {\"a\": ", "0 1, \"s\": \"x", "0 y\"", "0 } | call 1 f | 1 {}"];
    assert_eq!(told("mistral", &named), expected);
    let xml = [
        "<tool_call>\n<function=f>\n<parameter=s",
        ">\nlong ",
        "text\n",
        "more</par",
        "ameter><parameter=a>4",
        "2",
        "</parameter></function>",
    ];
    let expected =
        ["", "call 0 f | 0 {\"s\": \"long ", "0 text", "0 \\nmore", "0 \", \"a\": ", "", "0 42}"];
    assert_eq!(told("qwen3_coder", &xml), expected);
}
