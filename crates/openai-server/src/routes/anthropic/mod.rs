//! Anthropic's Messages API: `POST /v1/messages` and `POST /v1/messages/count_tokens`.
//!
//! Requests become those of the chat route, and what the model writes becomes content blocks.

mod ask;
mod conversation;
mod errors;
mod output;
mod tools;

pub(super) use errors::{dialect, speaks};

use self::{
    ask::{Asked, asked, sampling},
    output::{Blocks, Change, End, Gathered, Show, usage},
};
use super::{chat_output::ChatOutput, chat_plan::Plan, chat_roles::settle};
use crate::{
    decode::Body,
    errors::ApiError,
    generation::{Generation, Step},
    intake::{Payload, prepare},
    random::item_id,
    record::Record,
    sse::{self, Chunks},
    state::AppState,
    wire::{
        AppliedEdits, Conversation, InertMessagesFields, MessageDelta, MessageEvent, MessageOut,
        MessagesRequest, TokenCount, UNSUPPORTED_MESSAGES,
    },
};
use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse, Response, sse::Event},
};
use std::sync::Arc;
use taper_base::FinishReason;

pub(super) async fn messages(
    State(state): State<AppState>,
    Extension(record): Extension<Arc<Record>>,
    payload: Payload,
) -> Result<Response, ApiError> {
    let Request { plan, show, edits, max_tokens } = prepare(&state, payload, request).await?;
    let mut plan = plan.see(&state, true).await?;
    let cut = fit(&state, &mut plan, max_tokens)?;
    let generation = plan.submit(&state, record, "messages")?;
    let mut message = Message {
        id: item_id("msg"),
        output: plan.output(&state),
        blocks: Blocks::new(show),
        end: End::default(),
        model: plan.model,
        edits: edits.then(AppliedEdits::default),
        cut,
    };
    if plan.params.stream.is_some() {
        let writer = Writer { message, begun: false, index: 0 };
        return Ok(sse::respond(generation, writer, state.0.config.keep_alive));
    }
    let (content, generation) = message.whole(generation).await?;
    Ok(Json(message.out(content, &generation)).into_response())
}

pub(super) async fn count_tokens(
    State(state): State<AppState>,
    payload: Payload,
) -> Result<Json<TokenCount>, ApiError> {
    let plan = prepare(&state, payload, count).await?.see(&state, false).await?;
    Ok(Json(TokenCount { input_tokens: plan.prompt.len() }))
}

fn count(state: &AppState, mut body: Body) -> Result<Plan, ApiError> {
    let Asked { mut ask, .. } = asked(state, body.read::<Conversation>()?)?;
    finish(state, body)?;
    settle(state, &mut ask);
    ask.plan(state)
}

/// A request, checked and tokenized.
struct Request {
    plan: Plan,
    show: Show,
    edits: bool,
    max_tokens: u32,
}

fn request(state: &AppState, mut body: Body) -> Result<Request, ApiError> {
    // What is not supported is found before what is unknown: its own fields are unknown too.
    let Asked { mut ask, show, edits } = asked(state, body.read::<Conversation>()?)?;
    let (max_tokens, fields) = sampling(body.read::<MessagesRequest>()?)?;
    finish(state, body)?;
    (ask.max_tokens, ask.sampling) = (Some(max_tokens), fields);
    settle(state, &mut ask);
    let renamed = |error: ApiError| error.renamed("stop", "stop_sequences");
    let plan = ask.plan(state).map_err(renamed)?;
    Ok(Request { plan, show, edits, max_tokens })
}

/// Sets the limit of a message's tokens; whether the context ends before it.
fn fit(state: &AppState, plan: &mut Plan, max_tokens: u32) -> Result<bool, ApiError> {
    let (tokens, max) = (plan.prompt.len(), state.0.engine.info().max_model_len);
    // As with Anthropic's newer models, `max_tokens` may be more than there is room for.
    let room = max.saturating_sub(u32::try_from(tokens).unwrap_or(u32::MAX));
    if room == 0 {
        return Err(ApiError::PromptTooLong { tokens, max });
    }
    plan.params.stop.max_tokens = Some(max_tokens.min(room));
    Ok(max_tokens > room)
}

fn finish(state: &AppState, mut body: Body) -> Result<(), ApiError> {
    body.read::<InertMessagesFields>()?;
    body.finish(UNSUPPORTED_MESSAGES, state.0.config.allow_unknown_fields)
}

/// The message while it is written.
struct Message {
    id: String,
    model: String,
    output: ChatOutput,
    blocks: Blocks,
    end: End,
    edits: Option<AppliedEdits>,
    cut: bool,
}

impl Message {
    /// What a step changes.
    fn take(&mut self, step: Step, generation: &mut Generation) -> Vec<Change> {
        let Step::Piece(mut piece) = step else { return Vec::new() };
        let update = self.output.take(&piece);
        if update.cut {
            generation.finish(0, FinishReason::Stop);
        }
        let deltas = update.deltas.into_iter();
        let mut changes: Vec<_> = deltas.flat_map(|delta| self.blocks.take(delta)).collect();
        if update.finish.is_some() {
            self.end = End { finish: update.finish, stop: piece.stop.take() };
            changes.extend(self.blocks.finish());
        }
        changes
    }

    /// The whole content, and the generation at its end.
    async fn whole(
        &mut self,
        mut generation: Generation,
    ) -> Result<(Gathered, Generation), ApiError> {
        let mut content = Gathered::default();
        while let Some(step) = generation.next().await {
            let (_, step) = step?;
            for change in self.take(step, &mut generation) {
                content.apply(change);
            }
        }
        Ok((content, generation))
    }

    fn out(&mut self, content: Gathered, generation: &Generation) -> MessageOut<'_> {
        let end = std::mem::take(&mut self.end);
        let ended = end.finish.is_some();
        let (reason, stop_sequence) = end.reason(self.cut);
        MessageOut {
            id: &self.id,
            kind: "message",
            role: "assistant",
            model: &self.model,
            content: content.into_blocks(),
            stop_reason: ended.then_some(reason),
            stop_sequence,
            usage: usage(&generation.usage(self.output.reasoning_tokens)),
            context_management: self.edits.clone(),
        }
    }
}

struct Writer {
    message: Message,
    begun: bool,
    /// Index of the block that is open, or comes next.
    index: usize,
}

impl sse::Writer for Writer {
    fn step(
        &mut self,
        _: usize,
        step: Step,
        generation: &mut Generation,
        out: &mut Chunks,
    ) -> Result<(), ApiError> {
        if !self.begun {
            self.begun = true;
            let message = self.message.out(Gathered::default(), generation);
            push(out, &MessageEvent::MessageStart { message })?;
            push(out, &MessageEvent::Ping)?;
        }
        for change in self.message.take(step, generation) {
            let index = self.index;
            let event = match change {
                Change::Start(content_block) => {
                    MessageEvent::ContentBlockStart { index, content_block }
                }
                Change::Delta(delta) => MessageEvent::ContentBlockDelta { index, delta },
                Change::Stop => {
                    self.index += 1;
                    MessageEvent::ContentBlockStop { index }
                }
            };
            push(out, &event)?;
        }
        Ok(())
    }

    fn end(&mut self, generation: &Generation, out: &mut Chunks) -> Result<(), ApiError> {
        let message = &mut self.message;
        let (stop_reason, stop_sequence) = std::mem::take(&mut message.end).reason(message.cut);
        let delta = MessageDelta { stop_reason, stop_sequence };
        let usage = usage(&generation.usage(message.output.reasoning_tokens));
        let context_management = message.edits.take();
        push(out, &MessageEvent::MessageDelta { delta, usage, context_management })?;
        push(out, &MessageEvent::MessageStop)
    }

    fn fail(&mut self, error: &ApiError, _: &Generation, out: &mut Chunks) -> Result<(), ApiError> {
        out.push_named("error", &errors::body(&error.body(), None))
    }

    fn keep_alive(&self) -> Event {
        Event::default().event("ping").data(r#"{"type": "ping"}"#)
    }
}

fn push(out: &mut Chunks, event: &MessageEvent<'_>) -> Result<(), ApiError> {
    out.push_named(event.name(), event)
}
