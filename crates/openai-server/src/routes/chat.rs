//! `POST /v1/chat/completions`.

use super::{
    chat_functions,
    chat_output::{ChatOutput, Whole, delta_out},
    chat_plan::{Ask, ByName, Chosen, Plan},
    chat_prompt::PromptFields,
};
use crate::{
    FINGERPRINT,
    constraint::{self, Budget},
    context,
    decode::{Body, either},
    errors::ApiError,
    generation::{Generation, Step},
    intake::{Payload, prepare},
    logprobs, messages,
    prepare::StreamParams,
    random::random_id,
    record::Record,
    sse::{self, Chunks},
    state::{AppState, unix_time},
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
use taper_chat::Tool;

pub(super) async fn handle(
    State(state): State<AppState>,
    Extension(record): Extension<Arc<Record>>,
    payload: Payload,
) -> Result<Response, ApiError> {
    let plan = prepare(&state, payload, plan).await?;
    let (plan, functions) = plan;
    let mut plan = plan.see(&state, true).await?;
    let mut generation = plan.submit(&state, record, "messages")?;
    generation.retrieved_tokens = plan.added.map_or(0, |added| added.tokens);
    let outputs = (0..plan.params.n).map(|_| plan.output(&state));
    let (params, with_logprobs, shown) = (plan.params.stream, plan.logprobs, plan.params.shown);
    let head = Head {
        id: random_id("chatcmpl"),
        created: unix_time(),
        model: plan.model.clone(),
        prompt: shown.token_ids.then(|| plan.prompt.clone()),
        functions,
    };
    let added = plan.added;
    let response = match params {
        Some(params) => {
            let choices = outputs.map(Streamed::new).collect();
            let writer = Writer { head, choices, params, logprobs: with_logprobs };
            Ok(sse::respond(generation, writer, state.0.config.keep_alive))
        }
        None => {
            let wholes = outputs.map(|o| Whole::new(o, with_logprobs)).collect();
            let prompt_logprobs = |entries: &[_]| {
                Some(logprobs::prompt(&state.0.tokenizer, entries, shown.prompt_logprobs?))
            };
            whole(generation, wholes, &head, prompt_logprobs).await
        }
    };
    Ok(match added {
        Some(added) => added.tell(response?),
        None => response?,
    })
}

/// A request, checked and tokenized, and whether its calls are those of `functions`.
fn plan(state: &AppState, mut body: Body) -> Result<(Plan, bool), ApiError> {
    let mut wire: ChatRequest = body.read()?;
    let sampling: SamplingFields = body.read()?;
    body.read::<InertFields>()?;
    body.finish(UNSUPPORTED, state.0.config.allow_unknown_fields)?;
    let functions = chat_functions::as_tools(&mut wire)?;
    let plan = checked(state, wire, sampling);
    match functions {
        true => plan.map(|plan| (plan, true)).map_err(chat_functions::error),
        false => plan.map(|plan| (plan, false)),
    }
}

fn checked(
    state: &AppState,
    wire: ChatRequest,
    mut sampling: SamplingFields,
) -> Result<Plan, ApiError> {
    let (max_tokens, budget) = (max_tokens(&wire)?, budget(&wire)?);
    let logprobs = wire.logprobs.unwrap_or(false);
    if wire.top_logprobs.is_some() && !logprobs {
        return Err(ApiError::value("top_logprobs", "needs 'logprobs': true"));
    }
    if wire.modalities.iter().flatten().any(|m| m != "text") {
        return Err(ApiError::unsupported("modalities", "only [\"text\"] is supported"));
    }
    let tools = messages::tools(wire.tools.unwrap_or_default())?;
    let ask = Ask {
        model: wire.model,
        content: constraint::asked(&mut sampling)?,
        sampling,
        max_tokens,
        logprobs: logprobs.then(|| wire.top_logprobs.unwrap_or(0)),
        tools: chosen_tools(tools, wire.tool_choice.as_ref())?.check(state)?,
        one_call: wire.parallel_tool_calls == Some(false),
        prompt: PromptFields {
            messages: messages::messages(wire.messages, &state.0.images)?,
            kwargs: wire.chat_template_kwargs,
            enable_thinking: wire.enable_thinking,
            think: wire.think,
            reasoning_effort: wire.reasoning_effort,
            add_generation_prompt: wire.add_generation_prompt,
            continue_final_message: wire.continue_final_message,
            documents: wire.documents,
            ..PromptFields::default()
        },
        schema_field: "function.parameters",
        budget,
        hide_reasoning: wire.include_reasoning == Some(false),
        retrieve: context::wanted(state, wire.longctx)?,
    };
    ask.plan(state)
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

/// With `none` the model is shown no tools, which alone keeps it from calling any.
fn chosen_tools(tools: Vec<Tool>, choice: Option<&ToolChoice>) -> Result<Chosen, ApiError> {
    if choice.is_some_and(|c| !matches!(c, ToolChoice::Mode(mode) if mode == "none"))
        && tools.is_empty()
    {
        return Err(ApiError::value("tool_choice", "is only allowed with 'tools'"));
    }
    let names = ByName::of(&tools);
    let (mode, callable) = match choice {
        None => ("auto", tools.clone()),
        Some(ToolChoice::Mode(mode)) => (mode.as_str(), tools.clone()),
        Some(ToolChoice::Chosen(chosen)) => match (&chosen.function, &chosen.allowed_tools) {
            (Some(_), None) => {
                let tool = chosen_tool(&names, chosen, "tool_choice")?;
                ("required", vec![tool])
            }
            (None, Some(allowed)) if chosen.kind == "allowed_tools" => {
                let one = |(i, chosen): (usize, &ChosenTools)| {
                    let at = format!("tool_choice.allowed_tools.tools[{i}]");
                    chosen_tool(&names, chosen, &at)
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
    Ok(Chosen { tools, callable, required })
}

/// The tool that an object names.
fn chosen_tool(names: &ByName<'_>, chosen: &ChosenTools, at: &str) -> Result<Tool, ApiError> {
    let Some(function) = chosen.function.as_ref().filter(|_| chosen.kind == "function") else {
        return Err(ApiError::value(at, "must be of the type 'function' and name one"));
    };
    names.get(&function.name, &format!("{at}.function.name"))
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
        match step {
            Step::Piece(piece) => {
                let over = choices.get_mut(index).is_some_and(|choice| choice.take(&piece));
                if over {
                    generation.finish(index, FinishReason::Stop);
                }
            }
            // Those of all choices are alike.
            Step::Prompt(entries) if scored.is_none() => scored = prompt_logprobs(&entries),
            Step::Prompt(_) => {}
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
        if self.params.usage {
            self.chunk(Vec::new(), generation, out)?;
        }
        out.push_done();
        Ok(())
    }
}
