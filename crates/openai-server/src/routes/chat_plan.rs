//! From what a chat asks for, in the words of no API, to what the engine is given.

use super::{
    chat_output::ChatOutput,
    chat_prompt::{Prompt, PromptFields, render},
};
use crate::{
    constraint::{self, Budget, MessageAsked},
    context::{self, Added},
    errors::ApiError,
    generation::Generation,
    prepare::{Params, params},
    record::Record,
    state::{AppState, Served},
    tokens::{bad_words, check_spaces, cut, prediction},
    wire::SamplingFields,
};
use std::{collections::HashMap, sync::Arc};
use taper_chat::{ParserOptions, Tool, ToolFormat};
use tokio::sync::OwnedSemaphorePermit;

/// What a request asks of a chat model.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) model: Option<String>,
    pub(super) sampling: SamplingFields,
    pub(super) max_tokens: Option<u32>,
    /// Log probabilities of the tokens, with so many alternatives.
    pub(super) logprobs: Option<u8>,
    pub(super) tools: Chosen,
    /// A second call ends the message.
    pub(super) one_call: bool,
    /// The conversation. Its tools are those of `tools`.
    pub(super) prompt: PromptFields,
    pub(super) content: Option<constraint::Asked>,
    /// Where in a tool its schema stands.
    pub(super) schema_field: &'static str,
    /// Most tokens of thinking.
    pub(super) budget: Option<Budget>,
    pub(super) hide_reasoning: bool,
    /// Put what is found for the last message behind it.
    pub(super) retrieve: bool,
}

/// What a request makes of its tools.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    /// The tools that the model is shown.
    pub(super) tools: Vec<Tool>,
    /// Those that it may call.
    pub(super) callable: Vec<Tool>,
    /// It must call one.
    pub(super) required: bool,
}

impl Chosen {
    /// Refuses tools where the server has no use for them.
    pub(super) fn check(self, state: &AppState) -> Result<Self, ApiError> {
        let config = &state.0.config;
        if !self.tools.is_empty() && !config.enable_auto_tool_choice {
            let detail = "tools are turned off on this server";
            return Err(ApiError::unsupported("tools", detail));
        }
        if !self.tools.is_empty() && config.tool_format.is_none() {
            let detail = "no format of tool calls is known for this model; start the server with a tool-call parser, \
                          such as hermes";
            return Err(ApiError::unsupported("tools", detail));
        }
        Ok(self)
    }
}

/// Tools by their names: a request may choose among as many as its body holds.
pub(super) struct ByName<'a>(HashMap<&'a str, &'a Tool>);

impl<'a> ByName<'a> {
    pub(super) fn of(tools: &'a [Tool]) -> Self {
        // Of two tools of a name, the first one.
        Self(tools.iter().rev().map(|tool| (tool.name.as_str(), tool)).collect())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The tool that a request chooses. `at` is the field of the name.
    pub(super) fn get(&self, name: &str, at: &str) -> Result<Tool, ApiError> {
        let tool = self.0.get(name).map(|tool| (*tool).clone());
        tool.ok_or_else(|| ApiError::value(at, format!("there is no tool '{name}'")))
    }
}

/// A request, checked and tokenized.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) model: String,
    pub(super) params: Params,
    pub(super) prompt: Vec<u32>,
    parser: ParserOptions,
    one_call: bool,
    pub(super) logprobs: bool,
    hide_reasoning: bool,
    /// What was put behind the conversation.
    pub(super) added: Option<Added>,
    /// URLs of the images whose placeholders are in the prompt.
    images: Vec<Arc<str>>,
    /// What the request holds of memory for images.
    held: Vec<OwnedSemaphorePermit>,
}

impl Ask {
    pub(super) fn plan(self, state: &AppState) -> Result<Plan, ApiError> {
        let (config, info) = (&state.0.config, state.0.engine.info());
        let Served { name: model, adapter } = state.0.model(self.model.as_deref())?;
        let params = params(&self.sampling, self.max_tokens, self.logprobs, config, info)?;
        check_spaces(&self.sampling, state)?;
        let bad_words = bad_words(&self.sampling, state)?;
        let prediction = prediction(&self.sampling, state, params.stop.max_tokens)?;
        let mut params = Params { adapter, bad_words, prediction, ..params };
        let Chosen { mut tools, callable, required } = self.tools;
        let shows_tools = !tools.is_empty();
        let mut fields = PromptFields { may_be_cut: params.kept.is_some(), ..self.prompt };
        let contents = fields.messages.iter().filter_map(|message| message.content.as_ref());
        let images = state.0.images.of(contents, "messages")?;
        if !images.is_empty() && params.kept.is_some() {
            let detail = "is not possible with images";
            return Err(ApiError::value("truncate_prompt_tokens", detail));
        }
        if let Some(placeholder) = state.0.images.placeholder() {
            fields.keep_apart(placeholder, &mut tools);
        }
        let retrieve = self.retrieve && fields.continue_final_message != Some(true);
        let needed = params.stop.max_tokens.unwrap_or(1);
        let (prompt, added) = match retrieve {
            true => spliced(state, fields, &tools, needed)?,
            false => (render(state, fields, &tools)?, None),
        };
        let Prompt { text: prompt, thinks_not } = prompt;
        let mut parser = ParserOptions {
            reasoning: config.reasoning_format,
            tools: if shows_tools { config.tool_format } else { ToolFormat::NONE },
            starts_in_reasoning: config.reasoning_format.starts_in(&prompt),
            known_tools: Arc::<[Tool]>::from(callable.as_slice()).into(),
            recovery: config.tool_call_recovery,
            ..ParserOptions::default()
        };
        let (content, many) = (self.content, !self.one_call);
        let (schema_field, budget) = (self.schema_field, self.budget);
        let asked = MessageAsked { content, required, many, thinks_not, budget, schema_field };
        params.grammar = constraint::of_message(state, &asked, &callable, &parser)?;
        // A grammar lets through calls of the model's own format only.
        parser.recovery &= !asked.constrains(&callable);
        params.text.keep_tags(&state.0.tokenizer, &mut parser);
        // The template writes special tokens itself.
        let part = params.kept.map_or(prompt.as_str(), |kept| state.0.end_of(&prompt, kept));
        let prompt = cut(state.0.tokenizer.encode(part, false)?, params.kept);
        let (one_call, logprobs) = (self.one_call, self.logprobs.is_some());
        let hide_reasoning = self.hide_reasoning;
        Ok(Plan {
            model,
            params,
            prompt,
            parser,
            one_call,
            logprobs,
            hide_reasoning,
            added,
            images,
            held: Vec::new(),
        })
    }
}

/// Renders a conversation with what was found for it, unless there is no room for that.
fn spliced(
    state: &AppState,
    fields: PromptFields,
    tools: &[Tool],
    needed: u32,
) -> Result<(Prompt, Option<Added>), ApiError> {
    let Some((messages, added)) = context::splice(state, &fields.messages)? else {
        return Ok((render(state, fields, tools)?, None));
    };
    if added.chunks == 0 {
        return Ok((render(state, fields, tools)?, Some(added)));
    }
    let longer = PromptFields { messages, ..fields.clone() };
    if let Ok(prompt) = render(state, longer, tools) {
        let tokens = state.0.tokenizer.encode(&prompt.text, false)?.len() as u64;
        if tokens + u64::from(needed) <= u64::from(state.0.engine.info().max_model_len) {
            return Ok((prompt, Some(added)));
        }
    }
    Ok((render(state, fields, tools)?, Some(added.without_room())))
}

impl Plan {
    /// A prompt without a template, whose output is text alone.
    pub(super) fn of_text(model: String, params: Params, prompt: Vec<u32>) -> Self {
        Self {
            model,
            params,
            prompt,
            parser: ParserOptions::default(),
            one_call: false,
            logprobs: false,
            hide_reasoning: false,
            added: None,
            images: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Puts the images into the prompt; without `encode` to count its tokens only.
    pub(super) async fn see(mut self, state: &AppState, encode: bool) -> Result<Self, ApiError> {
        let (images, prompt) = (std::mem::take(&mut self.images), std::mem::take(&mut self.prompt));
        let max = state.0.engine.info().max_model_len;
        let seen = state.0.images.place(images, prompt, max, encode).await?;
        (self.prompt, self.params.media, self.held) = (seen.prompt, seen.media, seen.held);
        Ok(self)
    }

    /// Gives the engine what is asked for. `param` is the field that holds the prompt.
    pub(super) fn submit(
        &mut self,
        state: &AppState,
        record: Arc<Record>,
        param: &'static str,
    ) -> Result<Generation, ApiError> {
        let prompts = [self.prompt.as_slice()];
        let requests = self.params.requests(&prompts, self.params.shown.prompt_logprobs);
        let (count, text) = (self.params.n as usize, &self.params.text);
        let mut generation = Generation::submit(state, record, requests, count, text, param)?;
        generation.image_tokens = self.params.media.iter().map(|m| m.tokens as u64).sum();
        generation.held = std::mem::take(&mut self.held);
        Ok(generation)
    }

    /// What reads one choice.
    pub(super) fn output(&self, state: &AppState) -> ChatOutput {
        let output = ChatOutput::new(self.parser.clone(), &state.0.tokenizer, self.one_call);
        output.showing(self.params.shown, self.hide_reasoning)
    }
}
