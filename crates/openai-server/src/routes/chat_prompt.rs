//! From a conversation to a prompt.

use crate::{
    decode::either,
    errors::ApiError,
    images::{self, Placeholder},
    state::AppState,
};
use serde_json::{Map, Value};
use taper_chat::{Content, ContentPart, Message, TemplateRequest, Tool};

/// What the template is rendered with.
#[derive(Debug, Clone, Default)]
pub(super) struct PromptFields {
    pub(super) messages: Vec<Message>,
    pub(super) kwargs: Option<Map<String, Value>>,
    pub(super) enable_thinking: Option<bool>,
    pub(super) think: Option<bool>,
    pub(super) reasoning_effort: Option<String>,
    pub(super) add_generation_prompt: Option<bool>,
    pub(super) continue_final_message: Option<bool>,
    pub(super) documents: Option<Vec<Map<String, Value>>>,
    /// The prompt may be longer than what fits: it is cut.
    pub(super) may_be_cut: bool,
}

impl PromptFields {
    /// Keeps texts from reading like what the template writes for an image.
    pub(super) fn keep_apart(&mut self, placeholder: &Placeholder, tools: &mut [Tool]) {
        let kwargs = self.kwargs.iter_mut().flat_map(Map::values_mut);
        let documents = self.documents.iter_mut().flatten().flat_map(Map::values_mut);
        images::keep_apart(placeholder, &mut self.messages, tools, kwargs.chain(documents));
    }
}

/// Variables that have fields of their own: set twice, one of them would be ignored.
const RESERVED: &[&str] = &["messages", "tools"];

/// OpenAI's, and what templates know beside them.
const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// A prompt, and what was asked of its answer.
#[derive(Debug)]
pub(super) struct Prompt {
    pub(super) text: String,
    /// The model is asked not to think.
    pub(super) thinks_not: bool,
}

/// Renders the prompt, if it can fit.
pub(super) fn render(
    state: &AppState,
    mut fields: PromptFields,
    tools: &[Tool],
) -> Result<Prompt, ApiError> {
    let template = state.0.template.as_ref().ok_or(ApiError::NoChatTemplate)?;
    let (goes_on, begins) = (fields.continue_final_message, fields.add_generation_prompt);
    let goes_on = switch("continue_final_message", goes_on, fields.kwargs.as_mut())?;
    let begins = switch("add_generation_prompt", begins, fields.kwargs.as_mut())?;
    let continue_final_message = goes_on.unwrap_or(false);
    let add_generation_prompt = begins.unwrap_or(!continue_final_message);
    let mut kwargs = state.0.config.default_chat_template_kwargs.clone();
    let effort = effort(fields.reasoning_effort)?;
    let none = (effort.as_deref() == Some("none")).then_some(false);
    let asked = either(("enable_thinking", fields.enable_thinking), ("think", fields.think))?;
    let thinking = either(("enable_thinking", asked), ("reasoning_effort", none))?;
    for (name, value) in fields.kwargs.into_iter().flatten() {
        if RESERVED.contains(&name.as_str()) {
            let param = format!("chat_template_kwargs.{name}");
            return Err(ApiError::value(param, "this is a field of the request itself"));
        }
        if name == "enable_thinking" && thinking.is_some_and(|asked| value != Value::Bool(asked)) {
            let detail = "the field 'enable_thinking' or 'think' says something else";
            return Err(ApiError::value("chat_template_kwargs.enable_thinking", detail));
        }
        if name == "reasoning_effort" && effort.as_ref().is_some_and(|asked| value != **asked) {
            let detail = "the field 'reasoning_effort' says something else";
            return Err(ApiError::value("chat_template_kwargs.reasoning_effort", detail));
        }
        kwargs.insert(name, value);
    }
    if let Some(effort) = effort {
        kwargs.insert("reasoning_effort".to_owned(), Value::String(effort));
    }
    if let Some(thinking) = thinking {
        kwargs.insert("enable_thinking".to_owned(), Value::Bool(thinking));
    }
    if let Some(documents) = fields.documents.filter(|documents| !documents.is_empty()) {
        if !template.source().contains("documents") {
            let detail = "the chat template of this model shows no documents";
            return Err(ApiError::unsupported("documents", detail));
        }
        let documents = documents.into_iter().map(Value::Object).collect();
        if kwargs.insert("documents".to_owned(), documents).is_some() {
            let detail = "'chat_template_kwargs' has them too";
            return Err(ApiError::value("documents", detail));
        }
    }
    if !fields.may_be_cut {
        check_texts(state, &fields.messages)?;
    }
    let thinks_not = kwargs.get("enable_thinking") == Some(&Value::Bool(false));
    let text = template.render(&TemplateRequest {
        messages: &fields.messages,
        tools,
        add_generation_prompt,
        continue_final_message,
        kwargs: &kwargs,
    })?;
    if !fields.may_be_cut {
        state.0.check_text(&text, "messages")?;
    }
    Ok(Prompt { text, thinks_not })
}

/// A field that vLLM takes among the variables of the template too.
fn switch(
    name: &str,
    field: Option<bool>,
    kwargs: Option<&mut Map<String, Value>>,
) -> Result<Option<bool>, ApiError> {
    let param = format!("chat_template_kwargs.{name}");
    match kwargs.and_then(|all| all.remove(name)) {
        None | Some(Value::Null) => Ok(field),
        Some(Value::Bool(asked)) => either((name, field), (&param, Some(asked))),
        Some(_) => Err(ApiError::value(param, "must be true or false")),
    }
}

fn check_texts(state: &AppState, messages: &[Message]) -> Result<(), ApiError> {
    for message in messages {
        match &message.content {
            Some(Content::Text(text)) => state.0.check_text(text, "messages")?,
            Some(Content::Parts(parts)) => {
                let mut texts = parts.iter().filter_map(ContentPart::text);
                texts.try_for_each(|text| state.0.check_text(text, "messages"))?;
            }
            None => {}
        }
    }
    Ok(())
}

fn effort(asked: Option<String>) -> Result<Option<String>, ApiError> {
    match asked {
        Some(effort) if !EFFORTS.contains(&effort.as_str()) => {
            let detail = format!("must be one of {}, got '{effort}'", EFFORTS.join(", "));
            Err(ApiError::value("reasoning_effort", detail))
        }
        asked => Ok(asked),
    }
}
