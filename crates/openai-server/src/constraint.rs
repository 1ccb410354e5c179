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
    /// Most tokens of thinking.
    pub(crate) budget: Option<Budget>,
    /// Where in a tool its schema stands.
    pub(crate) schema_field: &'static str,
}

/// How long a model may think, and the field that says so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    pub(crate) field: &'static str,
    pub(crate) tokens: u32,
}

impl MessageAsked {
    /// Whether the content or the calls must match a grammar.
    pub(crate) fn constrains(&self, tools: &[Tool]) -> bool {
        self.content.is_some() || self.constrains_calls(tools)
    }

    fn constrains_calls(&self, tools: &[Tool]) -> bool {
        let strict = || tools.iter().any(|tool| tool.strict == Some(true));
        !tools.is_empty() && (self.required || self.content.is_some() || strict())
    }
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
    let MessageAsked { content, required, many, thinks_not, budget, schema_field } = asked;
    let (required, many) = (*required, *many);
    let constrains = asked.constrains(tools);
    let reasoning = reasoning(parser, *budget)?;
    if !constrains && budget.is_none() {
        return Ok(None);
    }
    let rules = CallRules { format: parser.tools, tools, required, many };
    let thinks_not = *thinks_not || budget.is_some_and(|budget| budget.tokens == 0);
    let output = Output {
        // A prompt that begins the reasoning all the same has it end.
        reasoning: reasoning.filter(|r| r.open || !thinks_not || !constrains),
        content: content.as_ref().map(|asked| &asked.content),
        calls: asked.constrains_calls(tools).then_some(rules),
    };
    let grammar = state.0.grammars()?.output(&output);
    let field = content.as_ref().map_or("tool_choice", |asked| asked.field);
    grammar.map(Some).map_err(|source| in_field(field, schema_field, source))
}

/// How the model's reasoning is marked, which a budget needs.
fn reasoning(
    parser: &ParserOptions,
    budget: Option<Budget>,
) -> Result<Option<Reasoning>, ApiError> {
    let format = parser.reasoning;
    let (begins, ends) = (format.openers(), format.closers());
    if begins.is_empty() || ends.is_empty() {
        let detail = "this model does not mark where its reasoning ends";
        return match budget {
            Some(Budget { field, .. }) => Err(ApiError::unsupported(field, detail)),
            None => Ok(None),
        };
    }
    let (open, budget) = (parser.begins_in_reasoning(), budget.map(|budget| budget.tokens));
    Ok(Some(Reasoning { begins, ends, open, budget }))
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
