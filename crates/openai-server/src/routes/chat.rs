//! `POST /v1/chat/completions`.

use super::{
    chat_functions,
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
    logprobs, messages,
    prepare::{Params, StreamParams, params},
    random::random_id,
    record::Record,
    sse::{self, Chunks},
    state::{AppState, Served, unix_time},
    tokens::{bad_words, check_spaces, cut},
    wire::{
        ChatChunk, ChatLogprobs, ChatRequest, ChatResponse, ChosenTools, ChunkChoice, ChunkUsage,
        DeltaOut, InertFields, PromptLogprobs, SamplingFields, ToolChoice, UNSUPPORTED,
    },
};
use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse, Response},
};
use std::sync::Arc;
use taper_base::{FinishReason, TokenLogprobs};
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
    let shown = plan.params.shown;
    let requests = plan.params.requests(&prompts, shown.prompt_logprobs);
    let text = &plan.params.text;
    let generation = Generation::submit(&state, record, requests, count, text, "messages")?;
    let output = || ChatOutput::new(plan.parser.clone(), &state.0.tokenizer, plan.one_call);
    let outputs = (0..count).map(|_| output().showing(shown, plan.hide_reasoning));
    let head = Head {
        id: random_id("chatcmpl"),
        created: unix_time(),
        model: plan.model,
        prompt: shown.token_ids.then_some(plan.prompt),
        functions: plan.functions,
    };
    match plan.params.stream {
        Some(params) => {
            let choices = outputs.map(Streamed::new).collect();
            let writer = Writer { head, choices, params, logprobs: plan.logprobs };
            Ok(sse::respond(generation, writer, config.keep_alive))
        }
        None => {
            let wholes = outputs.map(|o| Whole::new(o, plan.logprobs)).collect();
            let prompt_logprobs = |entries: &[_]| {
                Some(logprobs::prompt(&state.0.tokenizer, entries, shown.prompt_logprobs?))
            };
            whole(generation, wholes, &head, prompt_logprobs).await
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
    hide_reasoning: bool,
    /// Calls are those of `functions`.
    functions: bool,
}

fn plan(state: &AppState, mut body: Body) -> Result<Plan, ApiError> {
    let mut wire: ChatRequest = body.read()?;
    let fields: SamplingFields = body.read()?;
    body.read::<InertFields>()?;
    body.finish(UNSUPPORTED, state.0.config.allow_unknown_fields)?;
    let functions = chat_functions::as_tools(&mut wire)?;
    let plan = checked(state, wire, fields);
    match functions {
        true => plan.map(|plan| Plan { functions, ..plan }).map_err(chat_functions::error),
        false => plan,
    }
}

fn checked(
    state: &AppState,
    wire: ChatRequest,
    mut fields: SamplingFields,
) -> Result<Plan, ApiError> {
    let (config, info) = (&state.0.config, state.0.engine.info());
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
    check_spaces(&fields, state)?;
    let bad_words = bad_words(&fields, state)?;
    let mut params = Params { adapter, bad_words, ..params };
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
            documents: wire.documents,
            may_be_cut: params.kept.is_some(),
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
    let part = params.kept.map_or(prompt.as_str(), |kept| state.0.end_of(&prompt, kept));
    let prompt = cut(state.0.tokenizer.encode(part, false)?, params.kept);
    let hide_reasoning = wire.include_reasoning == Some(false);
    let functions = false;
    Ok(Plan { model, params, prompt, parser, one_call, logprobs, hide_reasoning, functions })
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
    /// The prompt's tokens, if they are shown.
    prompt: Option<Vec<u32>>,
    functions: bool,
}

async fn whole(
    mut generation: Generation,
    mut choices: Vec<Whole>,
    head: &Head,
    prompt_logprobs: impl Fn(&[Option<TokenLogprobs>]) -> Option<PromptLogprobs>,
) -> Result<Response, ApiError> {
    let mut scored = None;
    while let Some(step) = generation.next().await {
        let (index, step) = step?;
        match (step, choices.get_mut(index)) {
            (Step::Piece(piece), Some(choice)) => {
                if choice.take(&piece) {
                    generation.finish(index, FinishReason::Stop);
                }
            }
            // Those of all choices are alike.
            (Step::Prompt(entries), _) if scored.is_none() => scored = prompt_logprobs(&entries),
            _ => {}
        }
    }
    let usage = generation.usage(choices.iter().map(|c| c.output.reasoning_tokens).sum());
    let choices = choices.into_iter().enumerate().map(|(i, c)| c.into_choice(i));
    let choices = match head.functions {
        true => choices.map(chat_functions::choice).collect(),
        false => choices.collect(),
    };
    let body = ChatResponse {
        id: &head.id,
        object: "chat.completion",
        created: head.created,
        model: &head.model,
        choices,
        usage,
        system_fingerprint: FINGERPRINT,
        prompt_logprobs: scored,
        prompt_token_ids: head.prompt.as_deref(),
    };
    Ok(Json(body).into_response())
}

/// One choice of a stream.
struct Streamed {
    output: ChatOutput,
    begun: bool,
    /// Log probabilities of tokens whose text is held back.
    logprobs: ChatLogprobs,
    /// Tokens whose text is held back, if tokens are shown.
    token_ids: Vec<u32>,
}

impl Streamed {
    fn new(output: ChatOutput) -> Self {
        let (logprobs, token_ids) = (ChatLogprobs::default(), Vec::new());
        Self { output, begun: false, logprobs, token_ids }
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
        let begins = choices.iter().any(|choice| choice.delta.role.is_some());
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
            prompt_token_ids: self.head.prompt.as_deref().filter(|_| begins),
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
        choice.token_ids.extend(update.token);
        let mut chunks = Vec::new();
        let shown = self.head.prompt.is_some();
        let one = |delta, logprobs, finish_reason, ids: &mut Vec<u32>| ChunkChoice {
            index,
            delta,
            logprobs,
            finish_reason,
            token_ids: shown.then(|| std::mem::take(ids)),
        };
        if !choice.begun {
            choice.begun = true;
            let (role, content) = (Some("assistant"), Some(String::new()));
            let delta = DeltaOut { role, content, ..DeltaOut::default() };
            chunks.push(one(delta, None, None, &mut Vec::new()));
        }
        for delta in update.deltas {
            let logprobs = self.logprobs.then(|| std::mem::take(&mut choice.logprobs));
            let delta = match self.head.functions {
                true => chat_functions::delta(delta_out(delta)),
                false => delta_out(delta),
            };
            chunks.push(one(delta, logprobs, None, &mut choice.token_ids));
        }
        if let Some(reason) = update.finish {
            // Tokens whose text was cut off, as a stop string is, were generated all the same.
            let rest = std::mem::take(&mut choice.logprobs);
            let logprobs = (!rest.content.is_empty()).then_some(rest);
            let reason = if self.head.functions { chat_functions::reason(reason) } else { reason };
            chunks.push(one(DeltaOut::default(), logprobs, Some(reason), &mut choice.token_ids));
        }
        chunks.into_iter().try_for_each(|chunk| self.chunk(vec![chunk], generation, out))
    }

    fn end(&mut self, generation: &Generation, out: &mut Chunks) -> Result<(), ApiError> {
        if self.params.usage { self.chunk(Vec::new(), generation, out) } else { Ok(()) }
    }
}
