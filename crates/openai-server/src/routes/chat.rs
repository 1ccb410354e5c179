//! `POST /v1/chat/completions`.

use super::{
    chat_output::{ChatOutput, Whole, delta_out},
    chat_plan::{Ask, Chosen, Plan, tool_named},
    chat_prompt::PromptFields,
};
use crate::{
    FINGERPRINT, constraint,
    decode::{Body, either},
    errors::ApiError,
    generation::{Generation, Step},
    intake::{Payload, prepare},
    messages,
    prepare::StreamParams,
    random::random_id,
    record::Record,
    sse::{self, Chunks},
    state::{AppState, unix_time},
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
use taper_chat::Tool;

pub(super) async fn handle(
    State(state): State<AppState>,
    Extension(record): Extension<Arc<Record>>,
    payload: Payload,
) -> Result<Response, ApiError> {
    let plan = prepare(&state, payload, plan).await?;
    let generation = plan.submit(&state, record, "messages")?;
    let outputs = (0..plan.params.n).map(|_| plan.output(&state));
    let (params, logprobs) = (plan.params.stream, plan.logprobs);
    let head = Head { id: random_id("chatcmpl"), created: unix_time(), model: plan.model.clone() };
    match params {
        Some(params) => {
            let choices = outputs.map(Streamed::new).collect();
            let writer = Writer { head, choices, params, logprobs };
            Ok(sse::respond(generation, writer, state.0.config.keep_alive))
        }
        None => {
            let wholes = outputs.map(|o| Whole::new(o, logprobs)).collect();
            whole(generation, wholes, &head).await
        }
    }
}

fn plan(state: &AppState, mut body: Body) -> Result<Plan, ApiError> {
    let wire: ChatRequest = body.read()?;
    let mut sampling: SamplingFields = body.read()?;
    body.read::<InertFields>()?;
    body.finish(UNSUPPORTED, state.0.config.allow_unknown_fields)?;
    let max_tokens = max_tokens(&wire)?;
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
            messages: messages::messages(wire.messages)?,
            kwargs: wire.chat_template_kwargs,
            enable_thinking: wire.enable_thinking,
            think: wire.think,
            reasoning_effort: wire.reasoning_effort,
            add_generation_prompt: wire.add_generation_prompt,
            continue_final_message: wire.continue_final_message,
        },
        schema_field: "function.parameters",
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

/// With `none` the model is shown no tools, which alone keeps it from calling any.
fn chosen_tools(tools: Vec<Tool>, choice: Option<&ToolChoice>) -> Result<Chosen, ApiError> {
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
    Ok(Chosen { tools, callable, required })
}

/// The tool that an object names.
fn chosen_tool(tools: &[Tool], chosen: &ChosenTools, at: &str) -> Result<Tool, ApiError> {
    let Some(function) = chosen.function.as_ref().filter(|_| chosen.kind == "function") else {
        return Err(ApiError::value(at, "must be of the type 'function' and name one"));
    };
    tool_named(tools, &function.name, &format!("{at}.function.name"))
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
        if self.params.usage {
            self.chunk(Vec::new(), generation, out)?;
        }
        out.push_done();
        Ok(())
    }
}
