//! `POST /api/embed`.

use super::ask::model_name;
use crate::{
    decode::Body,
    errors::ApiError,
    intake::{Payload, prepare},
    routes::embeddings,
    scores::in_turn,
    state::AppState,
    wire::{OllamaEmbedRequest, OllamaEmbedResponse, OllamaInertFields, Prompt},
};
use axum::{Json, extract::State};
use std::time::Instant;

pub(in crate::routes) async fn embed(
    State(state): State<AppState>,
    payload: Payload,
) -> Result<Json<OllamaEmbedResponse>, ApiError> {
    prepare(&state, payload, answer).await
}

fn answer(state: &AppState, mut body: Body) -> Result<Json<OllamaEmbedResponse>, ApiError> {
    let arrived = Instant::now();
    let vectors = state.0.vectors.as_deref().ok_or(ApiError::NoVectors)?;
    let wire: OllamaEmbedRequest = body.read()?;
    body.read::<OllamaInertFields>()?;
    body.finish(&[], state.0.config.allow_unknown_fields)?;
    let name = wire.model.map(|name| model_name(state, name));
    let model = state.0.model(name.as_deref())?.name;
    let dimensions = embeddings::dimensions(wire.dimensions, vectors)?;
    let input: Vec<_> = wire.input.0.into_iter().map(Prompt::Text).collect();
    let mut texts = embeddings::tokens(state, vectors, &input)?;
    if wire.truncate != Some(false) {
        texts.iter_mut().for_each(|text| text.truncate(vectors.max_tokens()));
    }
    let prompt_eval_count = texts.iter().map(Vec::len).sum();
    let found = in_turn(|| vectors.vectors(&texts, dimensions)).map_err(embeddings::failed)?;
    Ok(Json(OllamaEmbedResponse {
        model,
        embeddings: found,
        total_duration: u64::try_from(arrived.elapsed().as_nanos()).unwrap_or(u64::MAX),
        load_duration: 0,
        prompt_eval_count,
    }))
}
