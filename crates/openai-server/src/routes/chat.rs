//! `POST /v1/chat/completions`.

use super::{
    chat_output::{ChatOutput, Whole, delta_out},
    chat_prompt::{Prompt, PromptFields, render},
};
use crate::{
    FINGERPRINT,
    constraint::{self, Budget, MessageAsked},
    decode::{Body, either},
    errors::ApiError,
    generation::{Generation, Step},
    intake::{Payload, prepare},
    messages,
    prepare::{Params, StreamParams, params},
    random::random_id,
    record::Record,
    sse::{self, Chunks},
    state::{AppState, Served, unix_time},
    wire::{
        ChatChunk, ChatLogprobs, ChatRequest, ChatResponse, ChosenTools, ChunkChoice, ChunkUsage,
        DeltaOut, InertFields, SamplingFields, ToolChoice, UNSUPPORTED,
    },
};
use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse, Response},
};
use std::sync::Arc;
use taper_base::FinishReason;
use taper_chat::{ParserOptions, Tool, ToolFormat};

pub(super) async fn handle(
    State(state): State<AppState>,
    Extension(record): Extension<Arc<Record>>,
    payload: Payload,
) -> Result<Response, ApiError> {
    let config = &state.0.config;
    let plan = prepare(&state, payload, plan).await?;
    let count = plan.params.n as usize;
    let prompts = [plan.prompt.as_slice()];
    let requests = plan.params.requests(&prompts, None);
    let text = &plan.params.text;
    let generation = Generation::submit(&state, record, requests, count, text, "messages")?;
    let output = || ChatOutput::new(plan.parser.clone(), &state.0.tokenizer, plan.one_call);
    let outputs = (0..count).map(|_| output());
    let head = Head { id: random_id("chatcmpl"), created: unix_time(), model: plan.model };
    match plan.params.stream {
        Some(params) => {
            let choices = outputs.map(Streamed::new).collect();
            let writer = Writer { head, choices, params, logprobs: plan.logprobs };
            Ok(sse::respond(generation, writer, config.keep_alive))
        }
        None => {
            let wholes = outputs.map(|o| Whole::new(o, plan.logprobs)).collect();
            whole(generation, wholes, &head).await
        }
    }
}

/// A request, checked and tokenized.
struct Plan {
    model: String,
    params: Params,
    prompt: Vec<u32>,
    parser: ParserOptions,
    one_call: bool,
    logprobs: bool,
}

fn plan(state: &AppState, mut body: Body) -> Result<Plan, ApiError> {
    let (config, info) = (&state.0.config, state.0.engine.info());
    let wire: ChatRequest = body.read()?;
    let mut fields: SamplingFields = body.read()?;
    body.read::<InertFields>()?;
    body.finish(UNSUPPORTED, config.allow_unknown_fields)?;
    let Served { name: model, adapter } = state.0.model(wire.model.as_deref())?;
    let (max_tokens, budget) = (max_tokens(&wire)?, budget(&wire)?);
    let logprobs = wire.logprobs.unwrap_or(false);
    if wire.top_logprobs.is_some() && !logprobs {
        return Err(ApiError::value("top_logprobs", "needs 'logprobs': true"));
    }
    if wire.modalities.iter().flatten().any(|m| m != "text") {
        return Err(ApiError::unsupported("modalities", "only [\"text\"] is supported"));
    }
    let top = logprobs.then(|| wire.top_logprobs.unwrap_or(0));
    let content = constraint::asked(&mut fields)?;
    let params = params(&fields, max_tokens, top, config, info)?;
    let mut params = Params { adapter, ..params };
    let Chosen { tools, callable, required } = chosen_tools(
        state,
        messages::tools(wire.tools.unwrap_or_default())?,
        wire.tool_choice.as_ref(),
    )?;
    let one_call = wire.parallel_tool_calls == Some(false);
    let tools: Arc<[Tool]> = tools.into();
    let Prompt { text: prompt, thinks_not } = render(
        state,
        PromptFields {
            messages: messages::messages(wire.messages)?,
            tools: Arc::clone(&tools),
            kwargs: wire.chat_template_kwargs,
            enable_thinking: wire.enable_thinking,
            think: wire.think,
            reasoning_effort: wire.reasoning_effort,
            add_generation_prompt: wire.add_generation_prompt,
            continue_final_message: wire.continue_final_message,
        },
    )?;
    let mut parser = ParserOptions {
        reasoning: config.reasoning_format,
        tools: if tools.is_empty() { ToolFormat::NONE } else { config.tool_format },
        starts_in_reasoning: config.reasoning_format.starts_in(&prompt),
        known_tools: Arc::<[Tool]>::from(callable.as_slice()).into(),
        recovery: config.tool_call_recovery,
        ..ParserOptions::default()
    };
    let asked = MessageAsked { content, required, many: !one_call, thinks_not, budget };
    params.grammar = constraint::of_message(state, &asked, &callable, &parser)?;
    // A grammar lets through calls of the model's own format only.
    parser.recovery &= !asked.constrains(&callable);
    params.text.keep_tags(&state.0.tokenizer, &mut parser);
    // The template writes special tokens itself.
    let prompt = state.0.tokenizer.encode(&prompt, false)?;
    Ok(Plan { model, params, prompt, parser, one_call, logprobs })
}

fn max_tokens(wire: &ChatRequest) -> Result<Option<u32>, ApiError> {
    let name = if wire.max_tokens.is_some() { "max_tokens" } else { "max_completion_tokens" };
    let new = ("max_completion_tokens", wire.max_completion_tokens);
    match either(("max_tokens", wire.max_tokens), new)? {
        Some(0) => Err(ApiError::value(name, "must be at least 1")),
        max => Ok(max),
    }
}

fn budget(wire: &ChatRequest) -> Result<Option<Budget>, ApiError> {
    let own = ("max_thinking_tokens", wire.max_thinking_tokens);
    let other = ("thinking_token_budget", wire.thinking_token_budget);
    let field = if own.1.is_some() { own.0 } else { other.0 };
    Ok(either(own, other)?.map(|tokens| Budget { field, tokens }))
}

/// What a request makes of its tools.
#[derive(Debug, Default)]
struct Chosen {
    /// The tools that the model is shown.
    tools: Vec<Tool>,
    /// Those that it may call.
    callable: Vec<Tool>,
    /// It must call one.
    required: bool,
}

/// With `none` the model is shown no tools, which alone keeps it from calling any.
fn chosen_tools(
    state: &AppState,
    tools: Vec<Tool>,
    choice: Option<&ToolChoice>,
) -> Result<Chosen, ApiError> {
    if choice.is_some_and(|c| !matches!(c, ToolChoice::Mode(mode) if mode == "none"))
        && tools.is_empty()
    {
        return Err(ApiError::value("tool_choice", "is only allowed with 'tools'"));
    }
    let (mode, callable) = match choice {
        None => ("auto", tools.clone()),
        Some(ToolChoice::Mode(mode)) => (mode.as_str(), tools.clone()),
        Some(ToolChoice::Chosen(chosen)) => match (&chosen.function, &chosen.allowed_tools) {
            (Some(_), None) => {
                let tool = chosen_tool(&tools, chosen, "tool_choice")?;
                ("required", vec![tool])
            }
            (None, Some(allowed)) if chosen.kind == "allowed_tools" => {
                let one = |(i, chosen): (usize, &ChosenTools)| {
                    let at = format!("tool_choice.allowed_tools.tools[{i}]");
                    chosen_tool(&tools, chosen, &at)
                };
                let callable = allowed.tools.iter().enumerate().map(one);
                (allowed.mode.as_str(), callable.collect::<Result<_, _>>()?)
            }
            _ => {
                let detail = "must name a function or allowed tools";
                return Err(ApiError::value("tool_choice", detail));
            }
        },
    };
    let required = match mode {
        "none" if !matches!(choice, Some(ToolChoice::Chosen(_))) => return Ok(Chosen::default()),
        "auto" => false,
        "required" => true,
        other => {
            let detail = format!("must be 'auto', 'required' or 'none', got '{other}'");
            return Err(ApiError::value("tool_choice", detail));
        }
    };
    let config = &state.0.config;
    if !tools.is_empty() && !config.enable_auto_tool_choice {
        let detail = "tools are turned off on this server";
        return Err(ApiError::unsupported("tools", detail));
    }
    if !tools.is_empty() && config.tool_format.is_none() {
        let detail = "no format of tool calls is known for this model; start the server with a tool-call parser, \
                      such as hermes";
        return Err(ApiError::unsupported("tools", detail));
    }
    Ok(Chosen { tools, callable, required })
}

/// The tool that an object names.
fn chosen_tool(tools: &[Tool], chosen: &ChosenTools, at: &str) -> Result<Tool, ApiError> {
    let Some(function) = chosen.function.as_ref().filter(|_| chosen.kind == "function") else {
        return Err(ApiError::value(at, "must be of the type 'function' and name one"));
    };
    let tool = tools.iter().find(|tool| tool.name == function.name).cloned();
    tool.ok_or_else(|| {
        let detail = format!("there is no tool '{}'", function.name);
        ApiError::value(format!("{at}.function.name"), detail)
    })
}

/// What stands at the head of every chunk.
struct Head {
    id: String,
    created: u64,
    model: String,
}

async fn whole(
    mut generation: Generation,
    mut choices: Vec<Whole>,
    head: &Head,
) -> Result<Response, ApiError> {
    while let Some(step) = generation.next().await {
        let (index, step) = step?;
        if let (Step::Piece(piece), Some(choice)) = (step, choices.get_mut(index))
            && choice.take(&piece)
        {
            generation.finish(index, FinishReason::Stop);
        }
    }
    let usage = generation.usage(choices.iter().map(|c| c.output.reasoning_tokens).sum());
    let choices = choices.into_iter().enumerate().map(|(i, c)| c.into_choice(i)).collect();
    let body = ChatResponse {
        id: &head.id,
        object: "chat.completion",
        created: head.created,
        model: &head.model,
        choices,
        usage,
        system_fingerprint: FINGERPRINT,
    };
    Ok(Json(body).into_response())
}

/// One choice of a stream.
struct Streamed {
    output: ChatOutput,
    begun: bool,
    /// Log probabilities of tokens whose text is held back.
    logprobs: ChatLogprobs,
}

impl Streamed {
    fn new(output: ChatOutput) -> Self {
        Self { output, begun: false, logprobs: ChatLogprobs::default() }
    }
}

struct Writer {
    head: Head,
    choices: Vec<Streamed>,
    params: StreamParams,
    logprobs: bool,
}

impl Writer {
    fn chunk(
        &self,
        choices: Vec<ChunkChoice>,
        generation: &Generation,
        out: &mut Chunks,
    ) -> Result<(), ApiError> {
        let last = choices.is_empty();
        let reasoning = self.choices.iter().map(|c| c.output.reasoning_tokens).sum();
        let usage = match self.params {
            StreamParams { usage: false, .. } => None,
            StreamParams { continuous_usage, .. } if last || continuous_usage => {
                Some(ChunkUsage::Numbers(generation.usage(reasoning)))
            }
            StreamParams { .. } => Some(ChunkUsage::Null),
        };
        out.push(&ChatChunk {
            id: &self.head.id,
            object: "chat.completion.chunk",
            created: self.head.created,
            model: &self.head.model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage,
        })
    }
}

impl sse::Writer for Writer {
    fn step(
        &mut self,
        index: usize,
        step: Step,
        generation: &mut Generation,
        out: &mut Chunks,
    ) -> Result<(), ApiError> {
        let (Step::Piece(piece), Some(choice)) = (step, self.choices.get_mut(index)) else {
            return Ok(());
        };
        let update = choice.output.take(&piece);
        if update.cut {
            generation.finish(index, FinishReason::Stop);
        }
        choice.logprobs.content.extend(update.logprobs);
        let mut chunks = Vec::new();
        let one =
            |delta, logprobs, finish_reason| ChunkChoice { index, delta, logprobs, finish_reason };
        if !choice.begun {
            choice.begun = true;
            let (role, content) = (Some("assistant"), Some(String::new()));
            chunks.push(one(DeltaOut { role, content, ..DeltaOut::default() }, None, None));
        }
        for delta in update.deltas {
            let logprobs = self.logprobs.then(|| std::mem::take(&mut choice.logprobs));
            chunks.push(one(delta_out(delta), logprobs, None));
        }
        if let Some(reason) = update.finish {
            // Tokens whose text was cut off, as a stop string is, were generated all the same.
            let rest = std::mem::take(&mut choice.logprobs);
            let logprobs = (!rest.content.is_empty()).then_some(rest);
            chunks.push(one(DeltaOut::default(), logprobs, Some(reason)));
        }
        chunks.into_iter().try_for_each(|chunk| self.chunk(vec![chunk], generation, out))
    }

    fn end(&mut self, generation: &Generation, out: &mut Chunks) -> Result<(), ApiError> {
        if self.params.usage { self.chunk(Vec::new(), generation, out) } else { Ok(()) }
    }
}
