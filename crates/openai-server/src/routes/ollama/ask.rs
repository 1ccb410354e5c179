//! From a request of Ollama's to what a chat model is asked.

use super::{conversation, text::TextAsk};
use crate::{
    constraint,
    decode::Body,
    errors::ApiError,
    messages,
    routes::{
        chat_plan::{Ask, Chosen},
        chat_prompt::PromptFields,
    },
    state::AppState,
    wire::{
        OllamaChatRequest, OllamaFields, OllamaGenerateRequest, OllamaInertFields, OllamaOptions,
        SamplingFields, Think, UNSUPPORTED_OLLAMA,
    },
};
use serde_json::Value;
use taper_chat::{Message, Role, Tool};

/// What a request asks.
pub(super) enum Asked {
    /// A conversation, and whether the answer comes line by line.
    Chat(Box<Ask>, bool),
    /// A text without a template.
    Text(Box<TextAsk>, bool),
    /// That a model be loaded.
    Load(Option<String>),
}

/// Reads a body of `/api/chat`.
pub(super) fn chat(state: &AppState, mut body: Body) -> Result<Asked, ApiError> {
    let own: OllamaChatRequest = body.read()?;
    let fields = shared(state, body)?;
    let messages = own.messages.unwrap_or_default();
    if messages.is_empty() {
        return Ok(Asked::Load(fields.model));
    }
    let messages = conversation::messages(messages, &state.0.images)?;
    let tools = messages::tools(own.tools.unwrap_or_default())?;
    asked(state, fields, messages, tools)
}

/// Reads a body of `/api/generate`.
pub(super) fn generate(state: &AppState, mut body: Body) -> Result<Asked, ApiError> {
    let own: OllamaGenerateRequest = body.read()?;
    let fields = shared(state, body)?;
    let Some(prompt) = own.prompt.filter(|prompt| !prompt.is_empty()) else {
        return Ok(Asked::Load(fields.model));
    };
    let system = own.system.filter(|system| !system.is_empty());
    let suffix = own.suffix.filter(|suffix| !suffix.is_empty());
    if own.raw == Some(true) || suffix.is_some() {
        let bare = if suffix.is_some() { "suffix" } else { "raw" };
        let images = own.images.as_ref().is_some_and(|images| !images.is_empty());
        for (name, given) in
            [("system", system.is_some()), ("think", fields.think.is_some()), ("images", images)]
        {
            if given {
                return Err(ApiError::value(name, format!("is not possible with '{bare}'")));
            }
        }
        return text(state, fields, prompt, suffix);
    }
    let system = system.map(|system| Message::text(Role::System, system));
    let images = own.images.unwrap_or_default();
    let content = conversation::content(Some(prompt), &images, "images", &state.0.images)?;
    let user = Message { content, ..Message::text(Role::User, "") };
    let messages = system.into_iter().chain([user]).collect();
    asked(state, fields, messages, Vec::new())
}

fn text(
    state: &AppState,
    fields: OllamaFields,
    prompt: String,
    suffix: Option<String>,
) -> Result<Asked, ApiError> {
    let options = fields.options.unwrap_or_default();
    check(&options, state.0.engine.info().max_model_len)?;
    let max_tokens = max_tokens(&options)?;
    let (model, content) = (fields.model, format(fields.format)?);
    let sampling = sampling(options);
    let ask = TextAsk { model, prompt, suffix, sampling, max_tokens, content };
    Ok(Asked::Text(Box::new(ask), fields.stream.unwrap_or(true)))
}

fn shared(state: &AppState, mut body: Body) -> Result<OllamaFields, ApiError> {
    let mut fields: OllamaFields = body.read()?;
    body.read::<OllamaInertFields>()?;
    body.finish(UNSUPPORTED_OLLAMA, state.0.config.allow_unknown_fields)?;
    fields.model = fields.model.map(|name| model_name(state, name));
    Ok(fields)
}

/// The served name that is meant: clients add a tag where there is none.
pub(super) fn model_name(state: &AppState, name: String) -> String {
    match name.strip_suffix(":latest") {
        Some(bare) if state.0.model(Some(&name)).is_err() => bare.to_owned(),
        _ => name,
    }
}

fn asked(
    state: &AppState,
    fields: OllamaFields,
    messages: Vec<Message>,
    tools: Vec<Tool>,
) -> Result<Asked, ApiError> {
    let options = fields.options.unwrap_or_default();
    check(&options, state.0.engine.info().max_model_len)?;
    let (think, effort) = match fields.think {
        None => (None, None),
        Some(Think::Switch(on)) => (Some(on), None),
        Some(Think::Effort(effort)) => (None, Some(effort)),
    };
    let chosen = Chosen { callable: tools.clone(), tools, required: false };
    let ask = Ask {
        model: fields.model,
        max_tokens: max_tokens(&options)?,
        sampling: sampling(options),
        logprobs: None,
        tools: chosen.check(state)?,
        one_call: false,
        prompt: PromptFields {
            messages,
            think,
            reasoning_effort: effort,
            ..PromptFields::default()
        },
        content: format(fields.format)?,
        schema_field: "function.parameters",
        budget: None,
        hide_reasoning: false,
        retrieve: false,
    };
    Ok(Asked::Chat(Box::new(ask), fields.stream.unwrap_or(true)))
}

/// What the output must be.
fn format(wire: Option<Value>) -> Result<Option<constraint::Asked>, ApiError> {
    match wire {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text == "json" => {
            Ok(Some(constraint::Asked::json_object("format")))
        }
        Some(schema @ Value::Object(_)) => {
            Ok(Some(constraint::Asked::schema("format", schema, false)))
        }
        Some(_) => Err(ApiError::value("format", "must be 'json' or a JSON schema")),
    }
}

fn max_tokens(options: &OllamaOptions) -> Result<Option<u32>, ApiError> {
    match options.num_predict {
        None | Some(-2 | -1) => Ok(None),
        Some(n) => match u32::try_from(n) {
            Ok(n) if n > 0 => Ok(Some(n)),
            _ => Err(ApiError::value("options.num_predict", "must be -2, -1 or at least 1")),
        },
    }
}

/// Refuses options that would change the output in ways that there are not.
fn check(options: &OllamaOptions, max_model_len: u32) -> Result<(), ApiError> {
    if options.num_ctx.is_some_and(|tokens| tokens > max_model_len) {
        let detail = format!("this server's context has {max_model_len} tokens");
        return Err(ApiError::value("options.num_ctx", detail));
    }
    let refused = |name: &str, detail| {
        let param = format!("options.{name}");
        Err(ApiError::unsupported(param, detail))
    };
    if options.repeat_last_n.is_some_and(|n| n != -1) {
        return refused("repeat_last_n", "only -1 is supported: penalties look at the whole text");
    }
    if options.penalize_newline == Some(false) {
        return refused("penalize_newline", "only true is supported: penalties spare no token");
    }
    // Its other fields say nothing while it is off.
    if options.mirostat.is_some_and(|n| n != 0) {
        return refused("mirostat", "is not supported");
    }
    if options.tfs_z.is_some_and(|z| z != 1.0) {
        return refused("tfs_z", "is not supported");
    }
    Ok(())
}

fn sampling(options: OllamaOptions) -> SamplingFields {
    SamplingFields {
        temperature: options.temperature,
        top_k: options.top_k,
        top_p: options.top_p,
        min_p: options.min_p,
        typical_p: options.typical_p,
        repeat_penalty: options.repeat_penalty,
        presence_penalty: options.presence_penalty,
        frequency_penalty: options.frequency_penalty,
        seed: options.seed,
        stop: options.stop,
        ..SamplingFields::default()
    }
}
