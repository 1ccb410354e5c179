//! From a request of Anthropic's to what a chat model is asked.

use super::{conversation, output::Show};
use crate::{
    constraint::{self, Budget},
    errors::ApiError,
    routes::{
        chat_plan::{Ask, Chosen, tool_named},
        chat_prompt::PromptFields,
    },
    state::AppState,
    wire::{
        AnthropicChoice, AnthropicTool, ContextManagement, Conversation, MessagesRequest,
        OneOrMany, OutputConfig, OutputFormat, SamplingFields, Thinking,
    },
};
use serde_json::Value;
use taper_chat::{Role, Tool};

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
    let tools = chosen(tools(wire.tools.unwrap_or_default())?, wire.tool_choice.as_ref())?;
    let messages = conversation::messages(wire.system, wire.messages)?;
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

fn tools(wire: Vec<AnthropicTool>) -> Result<Vec<Tool>, ApiError> {
    let one = |(i, tool): (usize, AnthropicTool)| converted(tool, &format!("tools[{i}]"));
    wire.into_iter().enumerate().map(one).collect()
}

fn converted(wire: AnthropicTool, at: &str) -> Result<Tool, ApiError> {
    if let Some(kind) = wire.kind.filter(|kind| kind != "custom") {
        let detail =
            format!("'{kind}' tools are not supported; only those with an 'input_schema' are");
        return Err(ApiError::unsupported(format!("{at}.type"), detail));
    }
    let missing = |name: &str| ApiError::MissingParameter { param: format!("{at}.{name}") };
    let refused =
        |name: &str, detail: &str| Err(ApiError::unsupported(format!("{at}.{name}"), detail));
    if wire.defer_loading == Some(true) {
        return refused("defer_loading", "must be false: there is no search for tools");
    }
    if wire.allowed_callers.iter().flatten().any(|caller| caller != "direct") {
        return refused("allowed_callers", "only 'direct' is supported");
    }
    if wire.input_examples.is_some_and(|examples| !examples.is_empty()) {
        return refused("input_examples", "is not supported; put examples into the description");
    }
    let name = wire.name.ok_or_else(|| missing("name"))?;
    if name.is_empty() {
        return Err(ApiError::value(format!("{at}.name"), "must not be empty"));
    }
    Ok(Tool {
        name,
        description: wire.description,
        parameters: Some(Value::Object(wire.input_schema.ok_or_else(|| missing("input_schema"))?)),
        strict: wire.strict,
    })
}

fn chosen(tools: Vec<Tool>, choice: Option<&AnthropicChoice>) -> Result<Chosen, ApiError> {
    let kind = choice.map_or("auto", |choice| choice.kind.as_str());
    let name = choice.and_then(|choice| choice.name.as_deref());
    if name.is_some() && kind != "tool" {
        return Err(ApiError::value("tool_choice.name", "is only allowed with the type 'tool'"));
    }
    if tools.is_empty() && matches!(kind, "any" | "tool") {
        return Err(ApiError::value("tool_choice", "is only allowed with 'tools'"));
    }
    let all = |tools: Vec<Tool>, required| Chosen { callable: tools.clone(), tools, required };
    match (kind, name) {
        ("auto", _) => Ok(all(tools, false)),
        ("any", _) => Ok(all(tools, true)),
        ("none", _) => Ok(Chosen::default()),
        ("tool", Some(name)) => {
            let callable = vec![tool_named(&tools, name, "tool_choice.name")?];
            Ok(Chosen { tools, callable, required: true })
        }
        ("tool", None) => Err(ApiError::MissingParameter { param: "tool_choice.name".to_owned() }),
        (other, _) => {
            let detail = format!("must be 'auto', 'any', 'tool' or 'none', got '{other}'");
            Err(ApiError::value("tool_choice.type", detail))
        }
    }
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
