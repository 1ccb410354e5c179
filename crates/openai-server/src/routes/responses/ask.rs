//! From a request for a response to what a chat model is asked.

use super::{
    items::Messages,
    output::Style,
    tools::{self, Namespaces},
};
use crate::{
    constraint,
    errors::ApiError,
    random::item_id,
    routes::{
        chat_plan::{Ask, Chosen},
        chat_prompt::{PromptFields, render},
    },
    state::AppState,
    stored::Exchange,
    wire::{
        Echo, Input, InputItem, ReasoningAsked, ReasoningOut, ResponsesRequest, SamplingFields,
        TextAsked, TextFormat,
    },
};
use serde_json::{Value, json};
use std::sync::Arc;
use taper_chat::{Message, Role};

/// What a request asks, and what is kept of it.
pub(super) struct Asked {
    pub(super) ask: Ask,
    pub(super) style: Style,
    pub(super) namespaces: Namespaces,
    pub(super) reasoning: ReasoningOut,
    pub(super) previous: Option<Arc<Exchange>>,
    /// The items of the request, each with an id.
    pub(super) input: Vec<Value>,
    pub(super) cuts: bool,
}

pub(super) fn asked(
    state: &AppState,
    wire: ResponsesRequest,
    echo: &mut Echo,
) -> Result<Asked, ApiError> {
    let previous =
        wire.previous_response_id.as_deref().map(|id| previous(state, id)).transpose()?;
    let mut messages = Messages::new(&state.0.images);
    if let Some(instructions) = wire.instructions {
        messages.instruct(instructions);
    }
    for item in previous.iter().flat_map(|exchange| exchange.items(true)) {
        // It was an item when it was kept.
        let item = InputItem::deserialize(item).map_err(|_| ApiError::Internal)?;
        messages.add(item, "previous_response_id")?;
    }
    let kept = echo.input.take().unwrap_or_default();
    let input = input(state, wire.input, kept, &mut messages)?;
    let messages = messages.finish();
    if messages.is_empty() {
        return Err(ApiError::MissingParameter { param: "input".to_owned() });
    }
    let includes = includes(wire.include.as_deref().unwrap_or_default())?;
    if wire.top_logprobs.is_some_and(|top| top > 0) && !includes.logprobs {
        let detail = "needs 'message.output_text.logprobs' in 'include'";
        return Err(ApiError::value("top_logprobs", detail));
    }
    let (reasoning, summary) = reasoning(wire.reasoning)?;
    let cuts = match wire.truncation.as_deref() {
        None | Some("disabled") => false,
        Some("auto") => true,
        Some(other) => {
            let detail = format!("must be 'auto' or 'disabled', got '{other}'");
            return Err(ApiError::value("truncation", detail));
        }
    };
    if wire.max_output_tokens == Some(0) {
        return Err(ApiError::value("max_output_tokens", "must be at least 1"));
    }
    let (tools, namespaces) = tools::chosen(wire.tools.unwrap_or_default(), wire.tool_choice)?;
    let ask = Ask {
        model: wire.model,
        sampling: SamplingFields {
            temperature: wire.temperature,
            top_p: wire.top_p,
            stream: wire.stream,
            stream_options: wire.stream_options,
            ..SamplingFields::default()
        },
        max_tokens: wire.max_output_tokens,
        logprobs: includes.logprobs.then(|| wire.top_logprobs.unwrap_or(0)),
        tools: tools.check(state)?,
        one_call: wire.parallel_tool_calls == Some(false),
        prompt: PromptFields {
            messages,
            reasoning_effort: reasoning.effort.clone(),
            ..PromptFields::default()
        },
        content: text(wire.text)?,
        schema_field: "parameters",
        budget: None,
        hide_reasoning: false,
        retrieve: false,
    };
    let style = Style { summary, sealed: includes.sealed, logprobs: includes.logprobs };
    Ok(Asked { ask, style, namespaces, reasoning, previous, input, cuts })
}

fn previous(state: &AppState, id: &str) -> Result<Arc<Exchange>, ApiError> {
    const FIELD: &str = "previous_response_id";
    let stored = state.0.responses.get(id, Some(FIELD))?;
    match stored.response.status {
        "in_progress" => Err(ApiError::value(FIELD, format!("'{id}' is still in progress"))),
        _ => Ok(stored.exchange),
    }
}

/// Adds the items of the request. They come back as they are kept, each with an id.
fn input(
    state: &AppState,
    wire: Option<Input>,
    raw: Value,
    messages: &mut Messages<'_>,
) -> Result<Vec<Value>, ApiError> {
    let (items, mut raw) = match (wire, raw) {
        (None, _) => return Ok(Vec::new()),
        (Some(Input::Text(text)), _) => {
            let kept = kept(json!({ "role": "user", "content": text }));
            messages.user(text);
            return Ok(vec![kept]);
        }
        (Some(Input::Items(items)), Value::Array(raw)) => (items, raw),
        (Some(Input::Items(_)), _) => return Err(ApiError::Internal),
    };
    for (i, (item, raw)) in items.into_iter().zip(&mut raw).enumerate() {
        let at = format!("input[{i}]");
        let names_one = match item.kind.as_deref() {
            Some(kind) => kind == "item_reference",
            None => item.role.is_none() && item.id.is_some(),
        };
        let item = if names_one {
            let id =
                item.id.ok_or_else(|| ApiError::MissingParameter { param: format!("{at}.id") })?;
            let missing = || ApiError::value(format!("{at}.id"), format!("no item '{id}' is kept"));
            *raw = state.0.responses.item(&id).ok_or_else(missing)?;
            InputItem::deserialize(&*raw).map_err(|_| ApiError::Internal)?
        } else {
            item
        };
        messages.add(item, &at)?;
    }
    Ok(raw.into_iter().map(kept).collect())
}

/// An item as it is listed: with a type, an id and parts.
fn kept(mut item: Value) -> Value {
    let Some(fields) = item.as_object_mut() else { return item };
    let kind = fields.get("type").and_then(Value::as_str).unwrap_or("message").to_owned();
    let prefix = match kind.as_str() {
        "function_call" => "fc",
        "function_call_output" => "fco",
        "reasoning" => "rs",
        _ => "msg",
    };
    if !fields.get("id").is_some_and(Value::is_string) {
        fields.insert("id".to_owned(), item_id(prefix).into());
    }
    fields.insert("type".to_owned(), kind.into());
    if let Some(Value::String(text)) = fields.get("content") {
        let assistant = fields.get("role").is_some_and(|role| role == "assistant");
        let part = match assistant {
            true => json!({ "type": "output_text", "text": text, "annotations": [] }),
            false => json!({ "type": "input_text", "text": text }),
        };
        fields.insert("content".to_owned(), json!([part]));
    }
    fields.entry("status").or_insert_with(|| "completed".into());
    item
}

#[derive(Debug, Default)]
struct Includes {
    logprobs: bool,
    sealed: bool,
}

/// What else there shall be; most of it is of tools that this server does not have.
fn includes(wire: &[String]) -> Result<Includes, ApiError> {
    let mut all = Includes::default();
    for (i, include) in wire.iter().enumerate() {
        match include.as_str() {
            "message.output_text.logprobs" => all.logprobs = true,
            "reasoning.encrypted_content" => all.sealed = true,
            "file_search_call.results"
            | "web_search_call.results"
            | "web_search_call.action.sources"
            | "message.input_image.image_url"
            | "computer_call_output.output.image_url"
            | "code_interpreter_call.outputs" => {}
            other => {
                let detail = format!("there is no '{other}' to include");
                return Err(ApiError::value(format!("include[{i}]"), detail));
            }
        }
    }
    Ok(all)
}

/// The effort, and whether reasoning comes as a summary.
fn reasoning(wire: Option<ReasoningAsked>) -> Result<(ReasoningOut, bool), ApiError> {
    let Some(wire) = wire else { return Ok((ReasoningOut::default(), false)) };
    let summary = crate::decode::either(
        ("reasoning.summary", wire.summary),
        ("reasoning.generate_summary", wire.generate_summary),
    )?;
    if let Some(other) = &summary
        && !matches!(other.as_str(), "auto" | "concise" | "detailed")
    {
        let detail = format!("must be 'auto', 'concise' or 'detailed', got '{other}'");
        return Err(ApiError::value("reasoning.summary", detail));
    }
    let summed = summary.is_some();
    Ok((ReasoningOut { effort: wire.effort, summary }, summed))
}

/// What the text must be.
fn text(wire: Option<TextAsked>) -> Result<Option<constraint::Asked>, ApiError> {
    let Some(wire) = wire else { return Ok(None) };
    if wire.verbosity.is_some_and(|verbosity| verbosity != "medium") {
        let detail = "only 'medium' is supported: no template knows it";
        return Err(ApiError::unsupported("text.verbosity", detail));
    }
    let Some(TextFormat { kind, schema, strict, name, .. }) = wire.format else { return Ok(None) };
    match (kind.as_str(), schema) {
        ("json_schema", Some(schema)) => {
            let field = "text.format.schema";
            Ok(Some(constraint::Asked::schema(field, schema, strict.unwrap_or(false))))
        }
        ("json_schema", None) => {
            Err(ApiError::MissingParameter { param: "text.format.schema".to_owned() })
        }
        ("text" | "json_object", Some(_)) => {
            let detail = "is only allowed with the type 'json_schema'";
            Err(ApiError::value("text.format.schema", detail))
        }
        ("text" | "json_object", None) if name.is_some() => {
            let detail = "is only allowed with the type 'json_schema'";
            Err(ApiError::value("text.format.name", detail))
        }
        ("text", None) => Ok(None),
        ("json_object", None) => Ok(Some(constraint::Asked::json_object("text.format"))),
        (kind, _) => {
            Err(ApiError::value("text.format.type", format!("there is no format '{kind}'")))
        }
    }
}

/// With `truncation: "auto"`, the conversation without as many of its oldest exchanges as it takes to
/// fit. Instructions stay, and calls stay with their results: a cut is before a message of the user.
pub(super) fn fitted(state: &AppState, ask: &mut Ask) -> Result<(), ApiError> {
    let max = state.0.engine.info().max_model_len as usize;
    let room = max.saturating_sub(ask.max_tokens.unwrap_or(1).max(1) as usize);
    let messages = std::mem::take(&mut ask.prompt.messages);
    let instructs = |m: &&Message| matches!(m.role, Role::System | Role::Developer);
    let head = messages.iter().take_while(instructs).count();
    let users =
        (head..messages.len()).filter(|i| messages.get(*i).is_some_and(|m| m.role == Role::User));
    let cuts: Vec<usize> = std::iter::once(head).chain(users.filter(|i| *i > head)).collect();
    let cut = |at: usize| {
        let (head, rest) = (messages.iter().take(head), messages.iter().skip(at));
        head.chain(rest).cloned().collect::<Vec<_>>()
    };
    let fits = |at: &usize| -> Result<bool, ApiError> {
        let fields = PromptFields {
            messages: cut(*at),
            reasoning_effort: ask.prompt.reasoning_effort.clone(),
            ..PromptFields::default()
        };
        let Chosen { tools, .. } = &ask.tools;
        match render(state, fields, tools) {
            Ok(prompt) => Ok(state.0.tokenizer.encode(&prompt.text, false)?.len() <= room),
            Err(ApiError::TextTooLong { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    };
    // The first cut that fits: a later one is shorter.
    let (mut low, mut high) = (0, cuts.len().saturating_sub(1));
    while low < high {
        let middle = usize::midpoint(low, high);
        if cuts.get(middle).map(&fits).transpose()?.unwrap_or(true) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    ask.prompt.messages = cut(cuts.get(low).copied().unwrap_or(head));
    Ok(())
}
