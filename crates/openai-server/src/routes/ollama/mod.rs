//! Ollama's API: `/api/chat`, `/api/generate`, `/api/embed`, and what its clients ask about models.
//!
//! Requests become those of the chat route, and streams are lines of JSON.

mod answer;
mod ask;
mod conversation;
mod embed;
mod errors;
mod models;
mod text;

pub(super) use answer::rfc3339;
pub(super) use embed::embed;
pub(super) use errors::dialect;
pub(super) use models::{About, bits, digest, parameters, ps, show, shown_of, tags, version};

use self::{
    answer::{Answer, Kind, loaded},
    ask::Asked,
};
use super::chat_plan::Plan;
use crate::{
    decode::Body,
    errors::ApiError,
    intake::{Payload, prepare},
    record::Record,
    sse,
    state::AppState,
};
use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse, Response},
};
use std::sync::Arc;

/// What a request comes to.
enum Request {
    /// A question, and whether the answer comes line by line.
    Ask(Box<Plan>, bool),
    /// It only asks that this model be loaded.
    Load(String),
}

pub(super) async fn chat(
    State(state): State<AppState>,
    Extension(record): Extension<Arc<Record>>,
    payload: Payload,
) -> Result<Response, ApiError> {
    let request = prepare(&state, payload, |state, body| request(state, body, ask::chat)).await?;
    respond(&state, record, request, Kind::Chat, "messages").await
}

pub(super) async fn generate(
    State(state): State<AppState>,
    Extension(record): Extension<Arc<Record>>,
    payload: Payload,
) -> Result<Response, ApiError> {
    let request =
        prepare(&state, payload, |state, body| request(state, body, ask::generate)).await?;
    respond(&state, record, request, Kind::Generate, "prompt").await
}

fn request(
    state: &AppState,
    body: Body,
    read: impl Fn(&AppState, Body) -> Result<Asked, ApiError>,
) -> Result<Request, ApiError> {
    Ok(match read(state, body)? {
        Asked::Load(model) => Request::Load(state.0.model(model.as_deref())?.name),
        Asked::Chat(ask, stream) => Request::Ask(Box::new(ask.plan(state)?), stream),
        Asked::Text(ask, stream) => Request::Ask(Box::new(ask.plan(state)?), stream),
    })
}

async fn respond(
    state: &AppState,
    record: Arc<Record>,
    request: Request,
    kind: Kind,
    param: &'static str,
) -> Result<Response, ApiError> {
    let (plan, stream) = match request {
        Request::Ask(plan, stream) => (*plan, stream),
        Request::Load(model) => return Ok(Json(loaded(kind, &model)).into_response()),
    };
    let mut plan = plan.see(state, true).await?;
    let generation = plan.submit(state, record, param)?;
    let answer = Answer::new(kind, plan.output(state), plan.model);
    if stream {
        return Ok(sse::respond_lines(generation, answer));
    }
    answer.whole(generation).await
}
