//! What models write for calls, by the rules of each format's template.

use serde_json::{Map, Value, json};

/// A tool's name and its arguments.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) arguments: Map<String, Value>,
}

/// A format and how its models write calls.
pub(crate) struct Writer {
    pub(crate) format: &'static str,
    pub(crate) write: fn(&[Call]) -> String,
    /// Text may stand behind the calls.
    pub(crate) text_behind: bool,
}

const fn writer(format: &'static str, write: fn(&[Call]) -> String) -> Writer {
    Writer { format, write, text_behind: true }
}

pub(crate) const WRITERS: &[Writer] = &[
    writer("hermes", |c| lines(c, |c| format!("<tool_call>\n{}\n</tool_call>", object(c)))),
    writer("qwen3_json", |c| lines(c, |c| format!("<tool_call>\n{}\n</tool_call>", object(c)))),
    writer("granite4", |c| lines(c, |c| format!("<tool_call>\n{}\n</tool_call>", object(c)))),
    writer("ernie45", |c| lines(c, |c| format!("<tool_call>\n{}\n</tool_call>\n", object(c)))),
    writer("granite", |c| format!("<|tool_call|>{}", list(c))),
    writer("granite", |c| format!("<tool_call>{}", list(c))),
    writer("granite-20b-fc", |c| join(c, " ", |c| format!("<function_call> {}", object(c)))),
    writer("longcat", |c| {
        lines(c, |c| format!("<longcat_tool_call>\n{}\n</longcat_tool_call>", object(c)))
    }),
    writer("jamba", |c| format!("<tool_calls>{}</tool_calls>", list(c))),
    writer("hunyuan_a13b", |c| format!("<tool_calls>{}</tool_calls>", list(c))),
    writer("minimax", |c| format!("<tool_calls>\n{}\n</tool_calls>", lines(c, object))),
    writer("internlm", |c| {
        join(c, "", |c| {
            let object = json(&json!({ "name": c.name, "parameters": c.arguments }));
            format!("<|action_start|><|plugin|>\n{object}<|action_end|>\n")
        })
    }),
    writer("cohere", cohere),
    writer("cohere_command3", cohere),
    writer("cohere_command4", cohere),
    writer("gigachat3", |c| {
        join(c, "<|message_sep|>\n\n", |c| format!("function call<|role_sep|>\n{}", object(c)))
    }),
    writer("phi4_mini_json", |c| format!("functools{}", list(c))),
    writer("phi4_mini_json", |c| format!("<|tool_call|>{}<|/tool_call|>", list(c))),
    writer("xlam", list),
    writer("xlam", |c| format!("```json\n{}\n```", list(c))),
    writer("llama3_json", llama),
    writer("llama4_json", llama),
    writer("mistral", |c| format!("[TOOL_CALLS]{}", list(c))),
    writer("mistral", |c| {
        join(c, "", |c| format!("[TOOL_CALLS]{}[ARGS]{}", c.name, json(&json!(c.arguments))))
    }),
    writer("deepseek_v3", |c| {
        let call = |c: &Call| {
            let arguments = json(&json!(c.arguments));
            format!(
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{arguments}\n```<｜tool▁call▁end｜>",
                c.name
            )
        };
        format!("<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>", lines(c, call))
    }),
    writer("deepseek_v31", |c| {
        let call = |c: &Call| {
            let arguments = json(&json!(c.arguments));
            format!("<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>", c.name)
        };
        format!("<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>", join(c, "", call))
    }),
    writer("kimi_k2", |c| {
        let call = |c: &Call| {
            let arguments = json(&json!(c.arguments));
            format!(
                "<|tool_call_begin|>functions.{}:0<|tool_call_argument_begin|>{arguments}<|tool_call_end|>",
                c.name
            )
        };
        format!("<|tool_calls_section_begin|>{}<|tool_calls_section_end|>", join(c, "", call))
    }),
    writer("qwen3_coder", |c| qwen(c, "tool_call")),
    writer("qwen3_xml", |c| qwen(c, "tool_call")),
    writer("step3p5", |c| qwen(c, "tool_call")),
    writer("mimo", |c| qwen(c, "tool_call")),
    writer("seed_oss", |c| qwen(c, "seed:tool_call")),
    writer("minimax_m2", |c| {
        let call = |c: &Call| {
            let parameters = parameters(c, |key, text, _| {
                format!("<parameter name=\"{key}\">{text}</parameter>\n")
            });
            format!("<invoke name=\"{}\">\n{parameters}</invoke>", c.name)
        };
        format!("<minimax:tool_call>\n{}\n</minimax:tool_call>", lines(c, call))
    }),
    writer("deepseek_v32", |c| {
        let call = |c: &Call| {
            let parameters = parameters(c, |key, text, string| {
                format!(
                    "<｜DSML｜parameter name=\"{key}\" string=\"{string}\">{text}</｜DSML｜parameter>\n"
                )
            });
            format!("<｜DSML｜invoke name=\"{}\">\n{parameters}</｜DSML｜invoke>", c.name)
        };
        format!("<｜DSML｜function_calls>\n{}\n</｜DSML｜function_calls>", lines(c, call))
    }),
    writer("step3", |c| {
        let call = |c: &Call| {
            let parameters = parameters(c, |key, text, _| {
                format!("<steptml:parameter name=\"{key}\">{text}</steptml:parameter>")
            });
            format!(
                "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"{}\">{parameters}</steptml:invoke><｜tool_call_end｜>",
                c.name
            )
        };
        format!("<｜tool_calls_begin｜>\n{}\n<｜tool_calls_end｜>", lines(c, call))
    }),
    writer("glm45", |c| {
        lines(c, |c| {
            let parameters = parameters(c, |key, text, _| {
                format!("<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n")
            });
            format!("<tool_call>{}\n{parameters}</tool_call>", c.name)
        })
    }),
    writer("glm47", |c| {
        join(c, "", |c| {
            let parameters = parameters(c, |key, text, _| {
                format!("<arg_key>{key}</arg_key><arg_value>{text}</arg_value>")
            });
            format!("<tool_call>{}{parameters}</tool_call>", c.name)
        })
    }),
    writer("gemma4", |c| {
        join(c, "", |c| {
            let arguments = gemma(&json!(c.arguments), "<|\"|>");
            format!("<|tool_call>call:{}{arguments}<tool_call|>", c.name)
        })
    }),
    writer("functiongemma", |c| {
        join(c, "", |c| {
            let arguments = gemma(&json!(c.arguments), "<escape>");
            format!("<start_function_call>call:{}{arguments}<end_function_call>", c.name)
        })
    }),
    writer("pythonic", |c| format!("[{}]", join(c, ", ", python))),
    writer("llama4_pythonic", |c| {
        format!("<|python_start|>[{}]<|python_end|>", join(c, ", ", python))
    }),
    writer("lfm2", |c| format!("<|tool_call_start|>[{}]<|tool_call_end|>", join(c, ", ", python))),
    writer("olmo3", |c| format!("<function_calls>\n{}\n</function_calls>", lines(c, python))),
    Writer {
        text_behind: false,
        ..writer("openai", |c| {
            join(c, "<|start|>assistant", |c| {
                let arguments = json(&json!(c.arguments));
                format!(
                    "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{arguments}<|call|>",
                    c.name
                )
            })
        })
    },
];

/// JSON as Python's `json.dumps` writes it, and so templates do.
fn json(value: &Value) -> String {
    match value {
        Value::Array(values) => {
            format!("[{}]", values.iter().map(json).collect::<Vec<_>>().join(", "))
        }
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                format!("{}: {}", Value::from(name.as_str()), json(value))
            };
            format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(", "))
        }
        value => value.to_string(),
    }
}

fn join(calls: &[Call], between: &str, write: impl Fn(&Call) -> String) -> String {
    calls.iter().map(write).collect::<Vec<_>>().join(between)
}

fn lines(calls: &[Call], write: impl Fn(&Call) -> String) -> String {
    join(calls, "\n", write)
}

fn object(call: &Call) -> String {
    let name = Value::from(call.name);
    format!("{{\"name\": {name}, \"arguments\": {}}}", json(&json!(call.arguments)))
}

fn list(calls: &[Call]) -> String {
    format!("[{}]", join(calls, ", ", object))
}

fn llama(calls: &[Call]) -> String {
    join(calls, "; ", |c| {
        format!("{{\"name\": \"{}\", \"parameters\": {}}}", c.name, json(&json!(c.arguments)))
    })
}

fn cohere(calls: &[Call]) -> String {
    let call = |c: &Call| {
        let arguments = json(&json!(c.arguments));
        format!(
            "    {{\"tool_call_id\": \"0\", \"tool_name\": \"{}\", \"parameters\": {arguments}}}",
            c.name
        )
    };
    format!("<|START_ACTION|>[\n{}\n]<|END_ACTION|>", join(calls, ",\n", call))
}

/// Key, text and whether it is a string, of every argument.
fn parameters(call: &Call, write: impl Fn(&str, &str, bool) -> String) -> String {
    let one = |(key, value): (&String, &Value)| match value {
        Value::String(text) => write(key, text, true),
        value => write(key, &json(value), false),
    };
    call.arguments.iter().map(one).collect()
}

fn qwen(calls: &[Call], tag: &str) -> String {
    lines(calls, |c| {
        let parameters =
            parameters(c, |key, text, _| format!("<parameter={key}>\n{text}\n</parameter>\n"));
        format!("<{tag}>\n<function={}>\n{parameters}</function>\n</{tag}>", c.name)
    })
}

fn gemma(value: &Value, quote: &str) -> String {
    let all = |values: Vec<String>| values.join(",");
    match value {
        Value::String(text) => format!("{quote}{text}{quote}"),
        Value::Array(values) => {
            format!("[{}]", all(values.iter().map(|v| gemma(v, quote)).collect()))
        }
        Value::Object(members) => {
            let member = |(key, value): (&String, &Value)| format!("{key}:{}", gemma(value, quote));
            format!("{{{}}}", all(members.iter().map(member).collect()))
        }
        value => value.to_string(),
    }
}

fn python(call: &Call) -> String {
    let argument = |(key, value): (&String, &Value)| format!("{key}={}", literal(value));
    let arguments: Vec<_> = call.arguments.iter().map(argument).collect();
    format!("{}({})", call.name, arguments.join(", "))
}

/// As Python's `repr` writes it.
fn literal(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => {
            let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
            let escaped = text.replace('\\', "\\\\").replace('\n', "\\n").replace('\t', "\\t");
            let escaped = escaped.replace(quote, &format!("\\{quote}"));
            format!("{quote}{escaped}{quote}")
        }
        Value::Array(values) => {
            format!("[{}]", values.iter().map(literal).collect::<Vec<_>>().join(", "))
        }
        Value::Object(members) => {
            let member = |(key, value): (&String, &Value)| {
                format!("{}: {}", literal(&Value::from(key.as_str())), literal(value))
            };
            format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(", "))
        }
    }
}
