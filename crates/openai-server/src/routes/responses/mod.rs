//! OpenAI's Responses API: `POST /v1/responses`, and what is kept of them.
//!
//! Requests become those of the chat route, and what the model writes becomes output items.

mod ask;
mod items;
mod kept;
mod output;
mod tools;

pub(super) use kept::{cancel, delete, get, input_items};

use self::{
    ask::{Asked, asked, fitted},
    output::{Events, Turn},
    tools::Namespaces,
};
use super::{
    chat_plan::{Ask, Plan},
    chat_roles::settle,
};
use crate::{
    decode::Body,
    errors::ApiError,
    generation::{Generation, Step},
    intake::{Payload, prepare},
    random::item_id,
    record::Record,
    sse::{self, Chunks},
    state::{AppState, unix_time},
    stored::Exchange,
    wire::{
        AskedOut, Echo, InertResponsesFields, ReasoningOut, ResponseOut, ResponsesRequest,
        UNSUPPORTED_RESPONSES,
    },
};
use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::watch;

pub(super) async fn create(
    State(state): State<AppState>,
    Extension(record): Extension<Arc<Record>>,
    payload: Payload,
) -> Result<Response, ApiError> {
    let Request { plan, response, style, namespaces, keep, background } =
        prepare(&state, payload, request).await?;
    let mut plan = plan.see(&state, true).await?;
    let generation = plan.submit(&state, record, "input")?;
    let turn = Turn::new(response, style, namespaces, plan.output(&state));
    if plan.params.stream.is_some() {
        let keep_alive = state.0.config.keep_alive;
        let writer = Writer { state, turn, keep, sequence: 0 };
        return Ok(sse::respond(generation, writer, keep_alive));
    }
    if let (true, Some(kept)) = (background, &keep) {
        let response = turn.response.clone();
        let (cancel, cancelled) = watch::channel(false);
        kept.clone().store(&state, &response, Some(cancel));
        tokio::spawn(in_background(state, generation, turn, kept.clone(), cancelled));
        return Ok(Json(response).into_response());
    }
    let turn = written(generation, turn).await?;
    if let Some(keep) = keep {
        keep.store(&state, &turn.response, None);
    }
    Ok(Json(turn.response).into_response())
}

/// A request, checked and tokenized.
struct Request {
    plan: Plan,
    response: ResponseOut,
    style: output::Style,
    namespaces: Namespaces,
    keep: Option<Keep>,
    background: bool,
}

/// What is kept beside a response.
#[derive(Clone)]
struct Keep {
    previous: Option<Arc<Exchange>>,
    input: Vec<Value>,
}

impl Keep {
    fn store(self, state: &AppState, response: &ResponseOut, cancel: Option<watch::Sender<bool>>) {
        state.0.responses.keep(response, (self.previous, self.input), cancel);
    }
}

fn request(state: &AppState, mut body: Body) -> Result<Request, ApiError> {
    let wire: ResponsesRequest = body.read()?;
    let mut echo: Echo = body.read()?;
    let (store, background) = (wire.store.unwrap_or(true), wire.background.unwrap_or(false));
    if background && !store {
        return Err(ApiError::value("background", "needs 'store': true"));
    }
    if background && wire.stream == Some(true) {
        return Err(ApiError::unsupported("background", "is not supported with 'stream': true"));
    }
    let (parallel, top_logprobs) = (wire.parallel_tool_calls, wire.top_logprobs);
    let previous_id = wire.previous_response_id.clone();
    let Asked { ask, style, namespaces, reasoning, previous, input, cuts } =
        asked(state, wire, &mut echo)?;
    body.read::<InertResponsesFields>()?;
    body.finish(UNSUPPORTED_RESPONSES, state.0.config.allow_unknown_fields)?;
    let max_output_tokens = ask.max_tokens;
    let plan = prepared(state, ask, cuts).map_err(in_own_words)?;
    let asked = AskedOut {
        max_output_tokens,
        parallel_tool_calls: parallel.unwrap_or(true),
        previous_response_id: previous_id,
        store,
        temperature: plan.params.sampling.temperature,
        top_logprobs: top_logprobs.unwrap_or(0),
        top_p: plan.params.sampling.top_p,
        truncation: if cuts { "auto" } else { "disabled" },
        ..of(echo, reasoning)
    };
    let response = begun(plan.model.clone(), background, asked);
    let keep = store.then_some(Keep { previous, input });
    Ok(Request { plan, response, style, namespaces, keep, background })
}

fn prepared(state: &AppState, mut ask: Ask, cuts: bool) -> Result<Plan, ApiError> {
    settle(state, &mut ask);
    if cuts {
        fitted(state, &mut ask)?;
    }
    ask.plan(state)
}

/// An error of the chat route, whose fields have other names.
fn in_own_words(error: ApiError) -> ApiError {
    error.renamed("reasoning_effort", "reasoning.effort").renamed("messages", "input")
}

/// What comes back as it was sent, with OpenAI's defaults.
fn of(echo: Echo, reasoning: ReasoningOut) -> AskedOut {
    let mut text = echo.text.unwrap_or_default();
    text.entry("format").or_insert_with(|| json!({ "type": "text" }));
    AskedOut {
        instructions: echo.instructions,
        max_output_tokens: None,
        max_tool_calls: echo.max_tool_calls,
        parallel_tool_calls: true,
        previous_response_id: None,
        reasoning,
        service_tier: "default",
        store: true,
        temperature: 1.0,
        text: Value::Object(text),
        tool_choice: echo.tool_choice.unwrap_or_else(|| "auto".into()),
        tools: echo.tools.unwrap_or_default(),
        top_logprobs: 0,
        top_p: 1.0,
        truncation: "disabled",
        user: echo.user,
        safety_identifier: echo.safety_identifier,
        prompt_cache_key: echo.prompt_cache_key,
        metadata: echo.metadata.unwrap_or_default(),
    }
}

/// A response without any output.
fn begun(model: String, background: bool, asked: AskedOut) -> ResponseOut {
    ResponseOut {
        id: item_id("resp"),
        object: "response",
        created_at: unix_time(),
        status: "in_progress",
        background,
        completed_at: None,
        error: None,
        incomplete_details: None,
        model,
        output: Vec::new(),
        usage: None,
        asked: Arc::new(asked),
    }
}

async fn written(mut generation: Generation, mut turn: Turn) -> Result<Turn, ApiError> {
    while let Some(step) = generation.next().await {
        turn.take(step?.1, &mut generation, None)?;
    }
    turn.end(&generation, None)?;
    Ok(turn)
}

/// Writes a response that nobody waits for, until it is cancelled or forgotten.
async fn in_background(
    state: AppState,
    mut generation: Generation,
    mut turn: Turn,
    keep: Keep,
    mut cancelled: watch::Receiver<bool>,
) {
    let failed = loop {
        // Nobody could cancel it any more if it was forgotten.
        let cancelled = async { cancelled.wait_for(|cancelled| *cancelled).await.map(drop) };
        let step = tokio::select! {
            step = generation.next() => step,
            _ = cancelled => {
                turn.cancel(&generation);
                break None;
            }
        };
        let taken = match step {
            Some(Ok((_, step))) => turn.take(step, &mut generation, None),
            Some(Err(error)) => Err(error),
            None => break turn.end(&generation, None).err(),
        };
        if let Err(error) = taken {
            break Some(error);
        }
    };
    if let Some(error) = failed {
        tracing::error!(%error, "a response in the background failed");
        // There are no events that could fail.
        let _ = turn.fail(&error, &generation, None);
    }
    if state.0.responses.holds(&turn.response.id) {
        keep.store(&state, &turn.response, None);
    }
}

struct Writer {
    state: AppState,
    turn: Turn,
    keep: Option<Keep>,
    sequence: u64,
}

impl Writer {
    fn store(&mut self) {
        if let Some(keep) = self.keep.take() {
            keep.store(&self.state, &self.turn.response, None);
        }
    }
}

impl sse::Writer for Writer {
    fn begin(&mut self, out: &mut Chunks) -> Result<(), ApiError> {
        self.turn.begin(Some(Events { sequence: &mut self.sequence, out }))
    }

    fn step(
        &mut self,
        _: usize,
        step: Step,
        generation: &mut Generation,
        out: &mut Chunks,
    ) -> Result<(), ApiError> {
        self.turn.take(step, generation, Some(Events { sequence: &mut self.sequence, out }))
    }

    fn end(&mut self, generation: &Generation, out: &mut Chunks) -> Result<(), ApiError> {
        self.turn.end(generation, Some(Events { sequence: &mut self.sequence, out }))?;
        self.store();
        Ok(())
    }

    fn fail(
        &mut self,
        error: &ApiError,
        generation: &Generation,
        out: &mut Chunks,
    ) -> Result<(), ApiError> {
        self.turn.fail(error, generation, Some(Events { sequence: &mut self.sequence, out }))?;
        self.store();
        Ok(())
    }
}
