//! How a format writes calls, for decoding under a grammar.

use super::ToolFormat;
use crate::Tokenizer;

/// The texts around the calls of a message, in their order. Marks in them, such as `<tool_call>`, may
/// be special tokens.
///
/// A message's calls are `begin`, each call, `between` two of them, and `end`. A call is
/// `before_name`, the tool's name, `after_name`, the arguments, and `after_arguments`. `between` and
/// `before_name` must not begin together as `end` does: what they share belongs to `after_arguments`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallSyntax {
    /// Before the first call.
    pub begin: &'static str,
    /// Before a tool's name.
    pub before_name: &'static str,
    /// Behind a tool's name.
    pub after_name: &'static str,
    /// How arguments are written.
    pub arguments: ArgumentSyntax,
    /// Behind a call's arguments.
    pub after_arguments: &'static str,
    /// Between two calls; `None` where a message has one at most.
    pub between: Option<&'static str>,
    /// Behind the last call.
    pub end: &'static str,
    /// What turns free text into calls: the text that `begin` and `before_name` begin with.
    pub opener: Opener,
}

/// How arguments are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentSyntax {
    /// As a JSON object.
    Json,
    /// Each by its name, strings as plain text and all else as JSON.
    Tagged(Tags),
    /// As literals of a programming language, by their names.
    Literal(Literals),
}

/// The texts around an argument that is written in tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tags {
    /// Before an argument's name.
    pub before_name: &'static str,
    /// Between an argument's name and a value of text.
    pub before_text: &'static str,
    /// Between an argument's name and a value of JSON.
    pub before_json: &'static str,
    /// Behind its value; no value of text holds it.
    pub after_value: &'static str,
}

impl Tags {
    /// Tags that do not say whether the value is JSON.
    const fn new(
        before_name: &'static str,
        after_name: &'static str,
        after_value: &'static str,
    ) -> Self {
        Self { before_name, before_text: after_name, before_json: after_name, after_value }
    }
}

/// How values are written as literals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Literals {
    /// As Python's: `a=1, b=['x', None], c={'k': True}`.
    Python,
    /// `a:1,b:[<|"|>x<|"|>,null],c:{k:true}`, where this text stands at both ends of a string. No
    /// string holds it.
    Delimited(&'static str),
}

/// Where an opener counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opener {
    /// Wherever it stands.
    Anywhere(&'static str),
    /// At the beginning of a message only: elsewhere it is plain text.
    AtStart(&'static str),
}

impl Opener {
    /// The opener's text.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Anywhere(text) | Self::AtStart(text) => text,
        }
    }
}

/// Calls as JSON objects with a member `name` and another for the arguments.
const JSON: CallSyntax = CallSyntax {
    begin: "",
    before_name: "{\"name\": \"",
    after_name: "\", \"arguments\": ",
    arguments: ArgumentSyntax::Json,
    after_arguments: "}",
    between: None,
    end: "",
    opener: Opener::AtStart("{"),
};

/// `<tool_call>` around each of them.
const TAGGED: CallSyntax = CallSyntax {
    before_name: "<tool_call>\n{\"name\": \"",
    after_arguments: "}\n</tool_call>",
    between: Some("\n"),
    opener: Opener::Anywhere("<tool_call>"),
    ..JSON
};

/// A list of them.
const LIST: CallSyntax = CallSyntax { between: Some(", "), end: "]", ..JSON };

/// Functions and parameters in XML.
const XML: CallSyntax = CallSyntax {
    before_name: "<tool_call>\n<function=",
    after_name: ">\n",
    arguments: ArgumentSyntax::Tagged(Tags::new("<parameter=", ">\n", "\n</parameter>\n")),
    after_arguments: "</function>\n</tool_call>",
    ..TAGGED
};

/// A function's name and its arguments, with marks around them.
const MARKED: CallSyntax = CallSyntax { after_arguments: "", between: Some(""), ..JSON };

impl ToolFormat {
    /// How calls are written, by a model with this tokenizer; `None` if calls in this format cannot
    /// be constrained.
    #[must_use]
    pub fn syntax(self, tokenizer: &Tokenizer) -> Option<CallSyntax> {
        let name = self.get()?.name();
        objects(name, tokenizer)
            .or_else(|| lists(name, tokenizer))
            .or_else(|| marked(name, tokenizer))
            .or_else(|| xml(name))
            .or_else(|| literals(name))
    }
}

/// Formats with an object for each call.
fn objects(name: &str, tokenizer: &Tokenizer) -> Option<CallSyntax> {
    Some(match name {
        "hermes" | "qwen3_json" | "granite4" => TAGGED,
        "ernie45" => CallSyntax { between: Some("\n\n"), ..TAGGED },
        "longcat" => CallSyntax {
            before_name: "<longcat_tool_call>\n{\"name\": \"",
            after_arguments: "}\n</longcat_tool_call>",
            opener: Opener::Anywhere("<longcat_tool_call>"),
            ..TAGGED
        },
        "llama3_json" | "llama4_json" => {
            CallSyntax { after_name: "\", \"parameters\": ", between: Some("; "), ..JSON }
        }
        "minimax" => CallSyntax {
            begin: "<tool_calls>\n",
            between: Some("\n"),
            end: "\n</tool_calls>",
            opener: Opener::Anywhere("<tool_calls>"),
            ..JSON
        },
        "internlm" => CallSyntax {
            before_name: "<|action_start|><|plugin|>\n{\"name\": \"",
            after_name: "\", \"parameters\": ",
            after_arguments: "}<|action_end|>",
            between: Some("\n"),
            opener: Opener::Anywhere("<|action_start|>"),
            ..JSON
        },
        "granite-20b-fc" => CallSyntax {
            before_name: "<function_call> {\"name\": \"",
            between: Some(" "),
            opener: Opener::Anywhere("<function_call>"),
            ..JSON
        },
        "gigachat3" if tokenizer.token_id("<|function_call|>").is_some() => CallSyntax {
            before_name: "<|function_call|>{\"name\": \"",
            opener: Opener::Anywhere("<|function_call|>"),
            ..JSON
        },
        "gigachat3" => CallSyntax {
            before_name: "function call<|role_sep|>\n{\"name\": \"",
            opener: Opener::Anywhere("function call<|role_sep|>"),
            ..JSON
        },
        _ => return None,
    })
}

/// Formats with a list of objects.
fn lists(name: &str, tokenizer: &Tokenizer) -> Option<CallSyntax> {
    Some(match name {
        "mistral" if tokenizer.token_id("[ARGS]").is_none() => {
            CallSyntax { begin: "[TOOL_CALLS][", opener: Opener::Anywhere("[TOOL_CALLS]"), ..LIST }
        }
        "jamba" | "hunyuan_a13b" => CallSyntax {
            begin: "<tool_calls>[",
            end: "]</tool_calls>",
            opener: Opener::Anywhere("<tool_calls>"),
            ..LIST
        },
        "cohere" | "cohere_command3" | "cohere_command4" => CallSyntax {
            begin: "<|START_ACTION|>[\n",
            before_name: "    {\"tool_call_id\": \"0\", \"tool_name\": \"",
            after_name: "\", \"parameters\": ",
            between: Some(",\n"),
            end: "\n]<|END_ACTION|>",
            opener: Opener::Anywhere("<|START_ACTION|>"),
            ..LIST
        },
        "granite" if tokenizer.token_id("<|tool_call|>").is_some() => CallSyntax {
            begin: "<|tool_call|>[",
            opener: Opener::Anywhere("<|tool_call|>"),
            ..LIST
        },
        "granite" => {
            CallSyntax { begin: "<tool_call>[", opener: Opener::Anywhere("<tool_call>"), ..LIST }
        }
        "phi4_mini_json" => {
            CallSyntax { begin: "functools[", opener: Opener::Anywhere("functools"), ..LIST }
        }
        "xlam" => CallSyntax { begin: "[", opener: Opener::AtStart("["), ..LIST },
        _ => return None,
    })
}

/// Formats with marks around names and arguments.
fn marked(name: &str, tokenizer: &Tokenizer) -> Option<CallSyntax> {
    Some(match name {
        "mistral" if tokenizer.token_id("[ARGS]").is_some() => CallSyntax {
            before_name: "[TOOL_CALLS]",
            after_name: "[ARGS]",
            opener: Opener::Anywhere("[TOOL_CALLS]"),
            ..MARKED
        },
        "deepseek_v31" => CallSyntax {
            begin: "<｜tool▁calls▁begin｜>",
            before_name: "<｜tool▁call▁begin｜>",
            after_name: "<｜tool▁sep｜>",
            after_arguments: "<｜tool▁call▁end｜>",
            end: "<｜tool▁calls▁end｜>",
            opener: Opener::Anywhere("<｜tool▁calls▁begin｜>"),
            ..MARKED
        },
        "deepseek_v3" => CallSyntax {
            begin: "<｜tool▁calls▁begin｜>",
            before_name: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            after_name: "\n```json\n",
            after_arguments: "\n```<｜tool▁call▁end｜>",
            between: Some("\n"),
            end: "<｜tool▁calls▁end｜>",
            opener: Opener::Anywhere("<｜tool▁calls▁begin｜>"),
            ..MARKED
        },
        "kimi_k2" => CallSyntax {
            begin: "<|tool_calls_section_begin|>",
            before_name: "<|tool_call_begin|>functions.",
            after_name: ":0<|tool_call_argument_begin|>",
            after_arguments: "<|tool_call_end|>",
            end: "<|tool_calls_section_end|>",
            opener: Opener::Anywhere("<|tool_calls_section_begin|>"),
            ..MARKED
        },
        "openai" => CallSyntax {
            before_name: "<|channel|>commentary to=functions.",
            after_name: " <|constrain|>json<|message|>",
            between: None,
            opener: Opener::Anywhere("<|channel|>commentary to=functions."),
            ..MARKED
        },
        _ => return None,
    })
}

/// Formats with a tag around each argument.
fn xml(name: &str) -> Option<CallSyntax> {
    Some(match name {
        "qwen3_coder" | "qwen3_xml" | "mimo" | "step3p5" => XML,
        "seed_oss" => CallSyntax {
            before_name: "<seed:tool_call>\n<function=",
            after_arguments: "</function>\n</seed:tool_call>",
            opener: Opener::Anywhere("<seed:tool_call>"),
            ..XML
        },
        "glm45" => GLM,
        "glm47" => CallSyntax {
            after_name: "",
            between: Some(""),
            arguments: ArgumentSyntax::Tagged(Tags::new(
                "<arg_key>",
                "</arg_key><arg_value>",
                "</arg_value>",
            )),
            ..GLM
        },
        "step3" => CallSyntax {
            begin: "<｜tool_calls_begin｜>\n",
            before_name: "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"",
            after_name: "\">",
            arguments: ArgumentSyntax::Tagged(Tags::new(
                "<steptml:parameter name=\"",
                "\">",
                "</steptml:parameter>",
            )),
            after_arguments: "</steptml:invoke><｜tool_call_end｜>\n",
            between: Some(""),
            end: "<｜tool_calls_end｜>",
            opener: Opener::Anywhere("<｜tool_calls_begin｜>"),
        },
        "minimax_m2" => CallSyntax {
            begin: "<minimax:tool_call>\n",
            before_name: "<invoke name=\"",
            after_name: "\">\n",
            arguments: ArgumentSyntax::Tagged(Tags::new(
                "<parameter name=\"",
                "\">",
                "</parameter>\n",
            )),
            after_arguments: "</invoke>\n",
            between: Some(""),
            end: "</minimax:tool_call>",
            opener: Opener::Anywhere("<minimax:tool_call>"),
        },
        "deepseek_v32" => CallSyntax {
            begin: "<｜DSML｜function_calls>\n",
            before_name: "<｜DSML｜invoke name=\"",
            after_name: "\">\n",
            arguments: ArgumentSyntax::Tagged(Tags {
                before_name: "<｜DSML｜parameter name=\"",
                before_text: "\" string=\"true\">",
                before_json: "\" string=\"false\">",
                after_value: "</｜DSML｜parameter>\n",
            }),
            after_arguments: "</｜DSML｜invoke>\n",
            between: Some(""),
            end: "</｜DSML｜function_calls>",
            opener: Opener::Anywhere("<｜DSML｜function_calls>"),
        },
        _ => return None,
    })
}

/// Calls of Python's functions.
const PYTHON: CallSyntax = CallSyntax {
    begin: "[",
    before_name: "",
    after_name: "(",
    arguments: ArgumentSyntax::Literal(Literals::Python),
    after_arguments: ")",
    between: Some(", "),
    end: "]",
    opener: Opener::AtStart("["),
};

/// Formats whose arguments are literals of a programming language.
fn literals(name: &str) -> Option<CallSyntax> {
    let delimited = |delimiter| CallSyntax {
        begin: "",
        after_name: "{",
        arguments: ArgumentSyntax::Literal(Literals::Delimited(delimiter)),
        between: Some(""),
        end: "",
        ..PYTHON
    };
    Some(match name {
        "pythonic" => PYTHON,
        "llama4_pythonic" => CallSyntax {
            begin: "<|python_start|>[",
            end: "]<|python_end|>",
            opener: Opener::Anywhere("<|python_start|>"),
            ..PYTHON
        },
        "lfm2" => CallSyntax {
            begin: "<|tool_call_start|>[",
            end: "]<|tool_call_end|>",
            opener: Opener::Anywhere("<|tool_call_start|>"),
            ..PYTHON
        },
        "olmo3" => CallSyntax {
            begin: "<function_calls>\n",
            between: Some("\n"),
            end: "\n</function_calls>",
            opener: Opener::Anywhere("<function_calls>"),
            ..PYTHON
        },
        "gemma4" => CallSyntax {
            before_name: "<|tool_call>call:",
            after_arguments: "}<tool_call|>",
            opener: Opener::Anywhere("<|tool_call>"),
            ..delimited("<|\"|>")
        },
        "functiongemma" => CallSyntax {
            before_name: "<start_function_call>call:",
            after_arguments: "}<end_function_call>",
            opener: Opener::Anywhere("<start_function_call>"),
            ..delimited("<escape>")
        },
        _ => return None,
    })
}

/// Keys and values in tags of their own.
const GLM: CallSyntax = CallSyntax {
    before_name: "<tool_call>",
    after_name: "\n",
    arguments: ArgumentSyntax::Tagged(Tags::new(
        "<arg_key>",
        "</arg_key>\n<arg_value>",
        "</arg_value>\n",
    )),
    after_arguments: "</tool_call>",
    ..TAGGED
};
