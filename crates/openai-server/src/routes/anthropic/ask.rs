//! From a request of Anthropic's to what a chat model is asked.

use super::{conversation, output::Show, tools};
use crate::{
    constraint::{self, Budget},
    errors::ApiError,
    routes::{chat_plan::Ask, chat_prompt::PromptFields},
    state::AppState,
    wire::{
        ContextManagement, Conversation, MessagesRequest, OneOrMany, OutputConfig, OutputFormat,
        SamplingFields, Thinking,
    },
};
use taper_chat::Role;

/// What a request asks, and how it wants the answer.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) ask: Ask,
    pub(super) show: Show,
    /// It asks which of its edits were applied.
    pub(super) edits: bool,
}

/// What the conversation asks for; how tokens are chosen is to be filled in.
pub(super) fn asked(state: &AppState, wire: Conversation) -> Result<Asked, ApiError> {
    let found = conversation::found(&wire.messages);
    let tools = wire.tools.unwrap_or_default();
    let tools = tools::chosen(tools, wire.tool_choice.as_ref(), &found)?;
    let messages = conversation::messages(wire.system, wire.messages, &state.0.images)?;
    // The answer goes on where a last message of the assistant ends.
    let goes_on = messages.last().is_some_and(|last| last.role == Role::Assistant);
    if goes_on && messages.last().is_some_and(|last| !last.tool_calls.is_empty()) {
        let detail = "the results of the last message's tool calls are missing";
        return Err(ApiError::value("messages", detail));
    }
    let (effort, content) = output(wire.output_config, wire.output_format)?;
    let (enable_thinking, show, tokens) = thinking(state, wire.thinking)?;
    let edits = edits(wire.context_management.as_ref())?;
    let one_call = wire.tool_choice.and_then(|choice| choice.disable_parallel_tool_use);
    let ask = Ask {
        model: wire.model,
        sampling: SamplingFields::default(),
        max_tokens: None,
        logprobs: None,
        tools: tools.check(state)?,
        one_call: one_call == Some(true),
        prompt: PromptFields {
            messages,
            enable_thinking,
            reasoning_effort: effort,
            continue_final_message: Some(goes_on),
            ..PromptFields::default()
        },
        content,
        schema_field: "input_schema",
        budget: tokens.and_then(|tokens| budget(state, tokens)),
        hide_reasoning: false,
        retrieve: false,
    };
    Ok(Asked { ask, show, edits })
}

/// The route's own fields, in the chat route's terms.
pub(super) fn sampling(wire: MessagesRequest) -> Result<(u32, SamplingFields), ApiError> {
    let max_tokens = match wire.max_tokens {
        None => return Err(ApiError::MissingParameter { param: "max_tokens".to_owned() }),
        Some(0) => return Err(ApiError::value("max_tokens", "must be at least 1")),
        Some(max) => max,
    };
    let fields = SamplingFields {
        temperature: wire.temperature,
        top_p: wire.top_p,
        top_k: wire.top_k,
        stop: wire.stop_sequences.map(OneOrMany),
        stream: wire.stream,
        ..SamplingFields::default()
    };
    Ok((max_tokens, fields))
}

/// Whether the model thinks, and how that is shown. Without a word it does not, unless the server's
/// own variables of the template say so.
fn thinking(
    state: &AppState,
    wire: Option<Thinking>,
) -> Result<(Option<bool>, Show, Option<u32>), ApiError> {
    let Some(wire) = wire else {
        let own = &state.0.config.default_chat_template_kwargs;
        let thinks = if own.contains_key("enable_thinking") { None } else { Some(false) };
        return Ok((thinks, Show::Whole, None));
    };
    let show = match wire.display.as_deref() {
        // Nothing is summed up.
        None | Some("summarized" | "updates") => Show::Whole,
        Some("omitted") => Show::Omitted,
        Some(other) => {
            let detail = format!("must be 'summarized', 'omitted' or 'updates', got '{other}'");
            return Err(ApiError::value("thinking.display", detail));
        }
    };
    match (wire.kind.as_str(), wire.budget_tokens) {
        ("enabled", Some(0)) => {
            Err(ApiError::value("thinking.budget_tokens", "must be at least 1"))
        }
        ("enabled", budget) => Ok((Some(true), show, budget)),
        ("adaptive", None) => Ok((Some(true), show, None)),
        ("disabled", None) => Ok((Some(false), show, None)),
        ("adaptive" | "disabled", Some(_)) => {
            let detail = "is only allowed with the type 'enabled'";
            Err(ApiError::value("thinking.budget_tokens", detail))
        }
        (other, _) => {
            let detail = format!("must be 'enabled', 'disabled' or 'adaptive', got '{other}'");
            Err(ApiError::value("thinking.type", detail))
        }
    }
}

/// The most tokens of thinking. A model that marks no reasoning keeps to any budget.
fn budget(state: &AppState, tokens: u32) -> Option<Budget> {
    let marks = !state.0.config.reasoning_format.closers().is_empty();
    marks.then_some(Budget { field: "thinking.budget_tokens", tokens })
}

/// The effort, and what the text must be.
fn output(
    config: Option<OutputConfig>,
    old: Option<OutputFormat>,
) -> Result<(Option<String>, Option<constraint::Asked>), ApiError> {
    let (effort, new) = match config {
        None => (None, None),
        Some(OutputConfig { task_budget: Some(_), .. }) => {
            let detail = "is not supported: one request is one answer";
            return Err(ApiError::unsupported("output_config.task_budget", detail));
        }
        Some(config) => (config.effort, config.format),
    };
    if let Some(other) = &effort
        && !matches!(other.as_str(), "low" | "medium" | "high" | "xhigh" | "max")
    {
        let detail = format!("must be low, medium, high, xhigh or max, got '{other}'");
        return Err(ApiError::value("output_config.effort", detail));
    }
    let content = match (new, old) {
        (Some(_), Some(_)) => {
            let detail = "'output_config.format' says already what the output must be";
            return Err(ApiError::value("output_format", detail));
        }
        (Some(new), None) => Some(format(new, "output_config.format.schema")?),
        (None, Some(old)) => Some(format(old, "output_format.schema")?),
        (None, None) => None,
    };
    Ok((effort, content))
}

fn format(wire: OutputFormat, field: &'static str) -> Result<constraint::Asked, ApiError> {
    if wire.kind != "json_schema" {
        let at = field.strip_suffix("schema").unwrap_or(field);
        let detail = format!("must be 'json_schema', got '{}'", wire.kind);
        return Err(ApiError::value(format!("{at}type"), detail));
    }
    let missing = || ApiError::MissingParameter { param: field.to_owned() };
    Ok(constraint::Asked::schema(field, wire.schema.ok_or_else(missing)?, true))
}

/// Whether edits are asked for. None is ever applied, and the answer says so.
fn edits(wire: Option<&ContextManagement>) -> Result<bool, ApiError> {
    const KNOWN: &[&str] =
        &["clear_tool_uses_20250919", "clear_thinking_20251015", "compact_20260112"];
    let edits = wire.and_then(|wire| wire.edits.as_deref()).unwrap_or_default();
    match edits.iter().position(|edit| !KNOWN.contains(&edit.kind.as_str())) {
        None => Ok(wire.is_some()),
        Some(i) => {
            let detail =
                format!("there is no edit '{}'", edits.get(i).map_or("", |edit| &edit.kind));
            Err(ApiError::value(format!("context_management.edits[{i}].type"), detail))
        }
    }
}
