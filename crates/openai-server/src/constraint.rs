//! From what a request asks of its output to a grammar.

use crate::{
    errors::ApiError,
    state::AppState,
    wire::{ResponseFormat, SamplingFields, StructuredOutputs},
};
use serde_json::Value;
use taper_base::SharedGrammar;
use taper_chat::{ParserOptions, Tool};
use taper_grammar::{CallRules, Content, GrammarError, Output, Reasoning};

/// What the content must be, and the field that says so.
#[derive(Debug)]
pub(crate) struct Asked {
    field: &'static str,
    content: Content,
}

/// What a chat message must be.
#[derive(Debug)]
pub(crate) struct MessageAsked {
    pub(crate) content: Option<Asked>,
    /// There must be a call.
    pub(crate) required: bool,
    /// There may be more than one.
    pub(crate) many: bool,
    /// The model is asked not to think.
    pub(crate) thinks_not: bool,
    /// Where in a tool its schema stands.
    pub(crate) schema_field: &'static str,
}

impl Asked {
    /// JSON of a schema, which `field` holds.
    pub(crate) fn schema(field: &'static str, schema: Value, strict: bool) -> Self {
        Self { field, content: Content::JsonSchema { schema, strict, whitespace: None } }
    }

    /// Any JSON object.
    pub(crate) fn json_object(field: &'static str) -> Self {
        Self { field, content: Content::JsonObject }
    }
}

/// What the fields ask of the content. They are taken out of `fields`.
pub(crate) fn asked(fields: &mut SamplingFields) -> Result<Option<Asked>, ApiError> {
    let mut all = Vec::new();
    let whitespace = fields.guided_whitespace_pattern.take();
    if let Some(format) = fields.response_format.take() {
        all.extend(of_response_format(format)?);
    }
    if let Some(outputs) = fields.structured_outputs.take() {
        all.extend(of_structured_outputs(outputs)?);
    }
    let mut guided = |field, content| all.push(Asked { field, content });
    if let Some(json) = fields.guided_json.take() {
        let schema = schema(json, "guided_json")?;
        let whitespace = whitespace.clone();
        guided("guided_json", Content::JsonSchema { schema, strict: true, whitespace });
    } else if whitespace.is_some() {
        let detail = "is only allowed with 'guided_json'";
        return Err(ApiError::value("guided_whitespace_pattern", detail));
    }
    if let Some(regex) = fields.guided_regex.take() {
        guided("guided_regex", Content::Regex(regex));
    }
    if let Some(choice) = fields.guided_choice.take() {
        guided("guided_choice", Content::Choice(choice));
    }
    if let Some(grammar) = fields.guided_grammar.take() {
        guided("guided_grammar", Content::Grammar(grammar));
    }
    if let [first, second, ..] = all.as_slice() {
        let detail = format!("'{}' says already what the output must be", first.field);
        return Err(ApiError::value(second.field, detail));
    }
    Ok(all.pop())
}

fn of_response_format(format: ResponseFormat) -> Result<Option<Asked>, ApiError> {
    let field = "response_format";
    match (format.kind.as_str(), format.json_schema) {
        ("json_schema", Some(named)) => {
            let field = "response_format.json_schema.schema";
            let Some(schema) = named.schema else {
                return Err(ApiError::MissingParameter { param: field.to_owned() });
            };
            let strict = named.strict.unwrap_or(false);
            let content = Content::JsonSchema { schema, strict, whitespace: None };
            Ok(Some(Asked { field, content }))
        }
        ("json_schema", None) => {
            Err(ApiError::MissingParameter { param: "response_format.json_schema".to_owned() })
        }
        ("text", None) => Ok(None),
        ("json_object", None) => Ok(Some(Asked { field, content: Content::JsonObject })),
        ("text" | "json_object", Some(_)) => {
            let detail = "is only allowed with the type 'json_schema'";
            Err(ApiError::value("response_format.json_schema", detail))
        }
        ("structural_tag", _) => {
            Err(ApiError::unsupported(field, "'structural_tag' is not supported; use 'tools'"))
        }
        (kind, _) => {
            let detail = format!("there is no format '{kind}'");
            Err(ApiError::value("response_format.type", detail))
        }
    }
}

/// vLLM's. Options that only narrow what JSON looks like are met in any case.
fn of_structured_outputs(outputs: StructuredOutputs) -> Result<Vec<Asked>, ApiError> {
    if outputs.structural_tag.is_some() {
        let detail = "is not supported; use 'tools'";
        return Err(ApiError::unsupported("structured_outputs.structural_tag", detail));
    }
    if outputs.disable_additional_properties == Some(true) {
        let detail = "is not supported; say 'additionalProperties': false in the schema";
        let param = "structured_outputs.disable_additional_properties";
        return Err(ApiError::unsupported(param, detail));
    }
    let whitespace = outputs.whitespace_pattern;
    if whitespace.is_some() && outputs.json.is_none() {
        let detail = "is only allowed with 'json'";
        return Err(ApiError::value("structured_outputs.whitespace_pattern", detail));
    }
    let mut all = Vec::new();
    let mut add = |field, content| all.push(Asked { field, content });
    if let Some(json) = outputs.json {
        let field = "structured_outputs.json";
        let schema = schema(json, field)?;
        add(field, Content::JsonSchema { schema, strict: true, whitespace });
    }
    if let Some(regex) = outputs.regex {
        add("structured_outputs.regex", Content::Regex(regex));
    }
    if let Some(choice) = outputs.choice {
        add("structured_outputs.choice", Content::Choice(choice));
    }
    if let Some(grammar) = outputs.grammar {
        add("structured_outputs.grammar", Content::Grammar(grammar));
    }
    if outputs.json_object == Some(true) {
        add("structured_outputs.json_object", Content::JsonObject);
    }
    if all.is_empty() {
        let detail = "must have one of 'json', 'regex', 'choice', 'grammar' and 'json_object'";
        return Err(ApiError::value("structured_outputs", detail));
    }
    Ok(all)
}

/// A schema, or its text.
fn schema(json: Value, field: &'static str) -> Result<Value, ApiError> {
    match json {
        Value::String(text) => serde_json::from_str(&text)
            .map_err(|error| ApiError::value(field, format!("the text is not JSON: {error}"))),
        schema => Ok(schema),
    }
}

/// The grammar of content alone.
pub(crate) fn of_content(
    state: &AppState,
    asked: Option<&Asked>,
) -> Result<Option<SharedGrammar>, ApiError> {
    let Some(asked) = asked else { return Ok(None) };
    let output = Output { content: Some(&asked.content), ..Output::default() };
    let grammar = state.0.grammars()?.output(&output);
    grammar.map(Some).map_err(|source| in_field(asked.field, "", source))
}

/// The grammar of a chat message, which `parser` reads: none where nothing is asked of it.
pub(crate) fn of_message(
    state: &AppState,
    asked: &MessageAsked,
    tools: &[Tool],
    parser: &ParserOptions,
) -> Result<Option<SharedGrammar>, ApiError> {
    let MessageAsked { content, required, many, thinks_not, schema_field } = asked;
    let (required, many) = (*required, *many);
    let strict = tools.iter().any(|tool| tool.strict == Some(true));
    let constrained = !tools.is_empty() && (required || strict || content.is_some());
    if content.is_none() && !constrained {
        return Ok(None);
    }
    let rules = CallRules { format: parser.tools, tools, required, many };
    let output = Output {
        // A prompt that begins the reasoning all the same has it end.
        reasoning: reasoning(parser).filter(|reasoning| reasoning.open || !thinks_not),
        content: content.as_ref().map(|asked| &asked.content),
        calls: constrained.then_some(rules),
    };
    let grammar = state.0.grammars()?.output(&output);
    let field = content.as_ref().map_or("tool_choice", |asked| asked.field);
    grammar.map(Some).map_err(|source| in_field(field, schema_field, source))
}

fn reasoning(parser: &ParserOptions) -> Option<Reasoning> {
    let format = parser.reasoning;
    let (begin, end) = (format.openers().first().copied()?, format.closers().first().copied()?);
    Some(Reasoning { begin, end, open: parser.begins_in_reasoning() })
}

/// An error about what a field says. Those about tools say which.
fn in_field(field: &str, schema_field: &str, source: GrammarError) -> ApiError {
    match source {
        GrammarError::Tool { index, source } => {
            let param = format!("tools[{index}].{schema_field}");
            ApiError::Grammar { param, source: *source }
        }
        GrammarError::Format { .. } => {
            ApiError::Grammar { param: "tool_choice".to_owned(), source }
        }
        source => ApiError::Grammar { param: field.to_owned(), source },
    }
}
