//! Every format of tool calls: its grammar takes what its models write, and what is written under its
//! grammar is read back.

use crate::{
    support::{Model, Random, Walk, marked_model, model, validates},
    writers::{Call, WRITERS},
};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use taper_base::{End, SharedGrammar};
use taper_chat::{
    ArgumentSyntax, Literals, OutputParser, ParsedMessage, ParserOptions, Tool, ToolFormat,
};
use taper_grammar::{CallRules, GrammarError, Output};

/// Tools of all types of arguments. Their names are those of [`WRITERS`]' calls.
fn tools(strict: bool) -> Vec<Tool> {
    let tool = |name: &str, required: &[&str], properties: Value| Tool {
        name: name.to_owned(),
        description: None,
        parameters: Some(json!({
            "type": "object", "properties": properties, "required": required,
            "additionalProperties": false,
            "$defs": { "place": {
                "type": "object", "required": ["name", "at"], "additionalProperties": false,
                "properties": { "name": { "type": "string", "maxLength": 9 },
                                "at": { "type": "array", "items": { "type": "number" },
                                        "minItems": 2, "maxItems": 2 },
                                "inside": { "anyOf": [{ "$ref": "#/$defs/place" },
                                                      { "type": "null" }] } } } },
        })),
        strict: Some(strict),
    };
    vec![
        tool(
            "get_weather",
            &["city", "days"],
            json!({ "city": { "type": "string" }, "days": { "type": "integer", "minimum": -9 },
                    "unit": { "enum": ["celsius", "fahrenheit"] }, "now": { "type": "boolean" } }),
        ),
        tool("stop", &[], json!({})),
        tool(
            "visit",
            &["places"],
            json!({ "note": { "type": ["string", "null"] }, "best": { "$ref": "#/$defs/place" },
                    "places": { "type": "array", "items": { "$ref": "#/$defs/place" },
                                "minItems": 1, "maxItems": 2 },
                    "speed": { "anyOf": [{ "type": "number" }, { "type": "null" }] },
                    "more": { "type": "object", "properties": { "a": { "type": "integer" } },
                              "additionalProperties": { "type": "string", "maxLength": 4 } } }),
        ),
    ]
}

fn formats() -> Vec<ToolFormat> {
    let names = ToolFormat::names().into_iter().filter(|name| *name != "none");
    names.map(|name| name.parse().unwrap()).collect()
}

fn grammar(model: &Model, format: ToolFormat, tools: &[Tool]) -> SharedGrammar {
    let calls = Some(CallRules { format, tools, required: true, many: true });
    let grammar = model.grammars.output(&Output { calls, ..Output::default() });
    grammar.unwrap_or_else(|error| panic!("{format}: {error}"))
}

fn read(format: ToolFormat, tools: &[Tool], text: &str) -> ParsedMessage {
    let known: Arc<[Tool]> = tools.to_vec().into();
    let known_tools = known.into();
    OutputParser::parse(ParserOptions { tools: format, known_tools, ..Default::default() }, text)
}

/// The calls of a message, which has nothing else.
fn calls(format: ToolFormat, tools: &[Tool], text: &str) -> Vec<Call> {
    let message = read(format, tools, text);
    assert_eq!(message.content.unwrap_or_default().trim(), "", "{format}: {text}");
    let call = |name: &str, arguments: &str| {
        let known = ["get_weather", "stop", "visit", "types"].into_iter().find(|n| *n == name);
        let arguments: Map<_, _> = serde_json::from_str(arguments)
            .unwrap_or_else(|error| panic!("{format}: {error}: {text}\n{arguments}"));
        Call { name: known.unwrap(), arguments }
    };
    message.tool_calls.iter().map(|c| call(&c.name, &c.arguments)).collect()
}

/// What ends an argument's text.
fn text_ends(model: &Model, format: ToolFormat) -> Vec<&'static str> {
    match format.syntax(&model.tokenizer).unwrap().arguments {
        ArgumentSyntax::Json => Vec::new(),
        ArgumentSyntax::Tagged(tags) => vec![tags.after_value],
        ArgumentSyntax::Literal(Literals::Python) => vec!["'", "\""],
        ArgumentSyntax::Literal(Literals::Delimited(end)) => vec![end],
    }
}

/// A text that was written under a grammar is read as calls that validate, and as nothing else. As its
/// format's models write the same calls, they are read as the same.
#[test]
fn what_a_grammar_writes_is_read_back_in_every_format() {
    let tools = tools(true);
    assert!(formats().len() >= 40);
    for (model, format) in [model(), marked_model()]
        .into_iter()
        .flat_map(|model| formats().into_iter().map(move |format| (model, format)))
    {
        let mut random = Random(7);
        let grammar = grammar(model, format, &tools);
        let ends = text_ends(model, format);
        let mut whole = 0;
        for free in 0..24 {
            let walked = model.walk(grammar.start(), &mut random, (free % 12, true), &ends);
            let Walk::Whole(text) = walked else {
                assert!(matches!(walked, Walk::Open), "{format}: {walked:?}");
                continue;
            };
            whole += 1;
            let calls = calls(format, &tools, &text);
            assert!(!calls.is_empty(), "{format}: {text}");
            for call in &calls {
                let tool = tools.iter().find(|tool| tool.name == call.name).unwrap();
                let arguments = json!(call.arguments).to_string();
                let valid = validates(tool.parameters.as_ref().unwrap(), &arguments);
                assert_eq!(valid, Ok(()), "{format}: {text}\n{arguments}");
            }
            let written = WRITERS
                .iter()
                .filter(|w| w.format == format.to_string())
                .map(|w| (w.write)(&calls));
            for written in written {
                assert_eq!(self::calls(format, &tools, &written), calls, "{text}\n{written}");
            }
        }
        assert!(whole >= 12, "{format}: {whole}");
    }
}

/// Whether a grammar takes a text, and it may end there; how far it came, if not.
fn taken(model: &Model, grammar: &SharedGrammar, text: &str) -> Result<(), usize> {
    let mut constraint = grammar.start();
    let tokens = model.tokenizer.encode(text, false).unwrap();
    let mut at = 0;
    for token in tokens {
        let allowed = constraint.mask().unwrap().is_none_or(|mask| mask.has(token));
        if !allowed || constraint.accept(token).is_err() {
            return Err(at);
        }
        at += model.tokenizer.token_bytes(token).len();
    }
    if constraint.end() == End::No { Err(at) } else { Ok(()) }
}

/// Calls with arguments of every type.
fn examples() -> Vec<Vec<Call>> {
    let call = |name, arguments: Value| {
        let Value::Object(arguments) = arguments else { panic!("no object") };
        Call { name, arguments }
    };
    let weather = |city: &str| call("get_weather", json!({ "city": city, "days": 3 }));
    let place = json!({ "name": "it's \"x\"", "at": [1, -2.5] });
    let far = json!({ "name": "", "at": [0, 0], "inside": place });
    vec![
        vec![weather("Paris")],
        vec![weather("Köln 👋 it's"), weather("a <b> \"c\" {d} [1, 2]"), call("stop", json!({}))],
        vec![
            call("get_weather", json!({ "city": "", "days": -9, "unit": "celsius", "now": true })),
            call("visit", json!({ "note": null, "best": far, "places": [place, far] })),
        ],
        vec![call(
            "visit",
            json!({ "note": "a\nb", "places": [place], "speed": 0.5,
                                     "more": { "a": 5, "b": "x", "c_d": "" } }),
        )],
        vec![call("stop", json!({})), call("visit", json!({ "places": [place], "speed": null }))],
        vec![call(
            "types",
            json!({ "object": { "k": [1, "x", null, { "d": "it's" }], "b": true },
                                   "list": ["a", { "b": false }, [1, [2.5]], ""],
                                   "nullable": null, "union": { "a": 1 }, "unit": "fahrenheit" }),
        )],
        vec![call("types", json!({ "object": {}, "list": [], "union": "text" }))],
    ]
}

/// A tool of loose types.
fn loose() -> Tool {
    let parameters = json!({ "type": "object", "properties": {
        "object": { "type": "object" },
        "list": { "anyOf": [{ "type": "array" }, { "type": "null" }] },
        "nullable": { "type": ["string", "null"] },
        "union": { "anyOf": [{ "type": "string" }, { "type": "object" }] },
        "unit": { "enum": ["celsius", "fahrenheit"] },
    } });
    let parameters = Some(parameters);
    Tool { name: "types".to_owned(), description: None, parameters, strict: None }
}

/// The grammar of each format takes what its models write.
#[test]
fn what_models_write_is_taken_in_every_format() {
    let tools = [tools(true), vec![loose()]].concat();
    for format in formats() {
        let mut last = String::new();
        // Some formats are written in two ways; a tokenizer's tokens may say in which.
        let takes_all = |model: &Model, write: fn(&[Call]) -> String, last: &mut String| {
            let grammar = grammar(model, format, &tools);
            let many = format.syntax(&model.tokenizer).unwrap().between.is_some();
            // Some messages have one call, behind which they end.
            examples().iter().filter(|calls| many || calls.len() == 1).all(|calls| {
                let text = write(calls);
                assert_eq!(self::calls(format, &tools, &text), *calls, "{format}: {text}");
                let text = text.trim_end().trim_end_matches("<|call|>");
                let taken = taken(model, &grammar, text);
                if let Err(at) = taken {
                    *last = format!("{} ⟂ {}", &text[..at], &text[at..]);
                }
                taken.is_ok()
            })
        };
        // A tokenizer with this token has its calls behind it, as no writer writes them.
        let marked = marked_model().tokenizer.token_id("<|function_call|>").is_some();
        let marked = Some(marked_model()).filter(|_| !marked || format.to_string() != "gigachat3");
        for model in [Some(model()), marked].into_iter().flatten() {
            let mut writers = WRITERS.iter().filter(|w| w.format == format.to_string());
            assert!(writers.any(|w| takes_all(model, w.write, &mut last)), "{format}: {last}");
        }
    }
}

/// A tool's schema that literals cannot be held to is refused, if it is strict, with its place.
#[test]
fn what_literals_cannot_be_held_to_is_refused() {
    let of = |format: &str, parameters: Value, strict: bool| {
        let tools = [Tool {
            name: "f".to_owned(),
            description: None,
            parameters: Some(parameters),
            strict: Some(strict),
        }];
        let calls = CallRules {
            format: format.parse().unwrap(),
            tools: &tools,
            required: true,
            many: true,
        };
        let output = Output { calls: Some(calls), ..Output::default() };
        model().grammars.output(&output)
    };
    let object = |inner: Value| json!({ "type": "object", "properties": { "a": inner }, "required": ["a"], "additionalProperties": false });
    let all = ["pythonic", "gemma4"];
    let table = [
        (
            &all[..],
            object(json!({ "type": "array", "prefixItems": [{ "type": "null" }] })),
            "#/properties/a/prefixItems",
        ),
        (
            &all[..],
            object(json!({ "type": "object", "patternProperties": { "^x": {} } })),
            "#/properties/a/patternProperties",
        ),
        (&all[..], object(json!({ "allOf": [{ "type": "null" }] })), "#/properties/a/allOf"),
        (
            &all[..],
            json!({ "type": "object", "properties": { "a=b:c": {} } }),
            "#/properties/a=b:c",
        ),
        (&all[1..], object(json!({ "type": "string", "pattern": "^x" })), "#/properties/a/pattern"),
        (&all[..], object(json!({ "type": "string", "not": {} })), "#/properties/a/not"),
    ];
    for (formats, parameters, place) in table {
        for format in formats {
            let error = of(format, parameters.clone(), true).unwrap_err();
            let GrammarError::Tool { index: 0, source } = error else { panic!("{error:?}") };
            let GrammarError::Unsupported { pointer, .. } = *source else { panic!("{source:?}") };
            assert_eq!(pointer, place, "{format}");
            let lenient = of(format, parameters.clone(), false);
            assert!(lenient.is_ok(), "{format}: {parameters}: {lenient:?}");
        }
    }
    // A pattern is kept to where strings are as JSON's.
    let grammar =
        of("pythonic", object(json!({ "type": "string", "pattern": "^x+$" })), true).unwrap();
    assert_eq!(taken(model(), &grammar, "[f(a=\"xx\")]"), Ok(()));
    assert!(taken(model(), &grammar, "[f(a=\"y\")]").is_err());
}
