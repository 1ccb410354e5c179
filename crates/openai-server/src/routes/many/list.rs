//! What the server says of its models.

use crate::routes::gate::Door;
use crate::{
    errors::ApiError,
    many::{Listed, ModelPhase, Models, Seen, Served},
    state::Phase,
    wire::{ModelCard, ModelList, ModelStatus, Residence},
};
use axum::{
    Extension, Json,
    extract::{Path, State, rejection::PathRejection},
    http::{HeaderMap, StatusCode, Uri, header},
    response::IntoResponse,
};
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

fn card(models: &Models, listed: &Listed, seen: Option<&Seen<Arc<Served>>>) -> ModelCard {
    let served = seen.and_then(|seen| seen.model.as_ref());
    let phase = seen.map_or(ModelPhase::Unloaded, |seen| seen.phase);
    let sees = served.is_some_and(|served| served.state.0.images.see());
    ModelCard {
        id: listed.name.clone(),
        object: "model",
        created: unix(listed.modified),
        owned_by: "taper",
        root: listed.name.clone(),
        parent: None,
        max_model_len: served.map(|served| served.state.0.engine.info().max_model_len),
        architecture: sees.then(crate::wire::Modalities::with_images),
        residence: Some(Residence {
            status: ModelStatus { value: phase.name() },
            file_bytes: listed.file_bytes,
            memory_bytes: seen.as_ref().map_or(0, |seen| seen.bytes),
            requests: seen.as_ref().map_or(0, |seen| seen.uses),
            pinned: listed.pinned,
            default: models.0.models.default_model.as_deref() == Some(&listed.name),
            aliases: listed.aliases.clone(),
            can_update: models.0.models.allow_updates,
        }),
    }
}

pub(in crate::routes) async fn list(
    State(models): State<Models>,
) -> Result<Json<ModelList>, ApiError> {
    let (listed, mut seen) = (models.refresh().await?, models.seen());
    let mut data: Vec<_> =
        listed.iter().map(|own| card(&models, own, seen.remove(&own.name).as_ref())).collect();
    // Clients that choose for themselves take the first.
    data.sort_by_key(|card| card.residence.as_ref().is_none_or(|of| !of.default));
    Ok(Json(ModelList { object: "list", data }))
}

/// The name of a path, which may hold slashes.
pub(super) fn named(id: Result<Path<String>, PathRejection>, uri: &Uri) -> String {
    // Not UTF-8, so it names no model.
    id.map_or_else(|_| uri.path().to_owned(), |Path(id)| id)
}

pub(in crate::routes) async fn one(
    State(models): State<Models>,
    id: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<ModelCard>, ApiError> {
    let listed = models.find(&named(id, &uri)).await?;
    let seen = models.seen().remove(&listed.name);
    Ok(Json(card(&models, &listed, seen.as_ref())))
}

/// The process responds. A model whose engine dies is loaded again.
pub(in crate::routes) async fn health(State(models): State<Models>) -> Json<Value> {
    let seen = models.seen();
    let loaded: Vec<_> =
        seen.iter().filter(|(_, seen)| seen.model.is_some()).map(|(name, _)| name).collect();
    let default = models.0.models.default_model.as_deref().unwrap_or_default();
    Json(json!({ "status": "ok", "model": default, "loaded": loaded }))
}

pub(in crate::routes) async fn ready(State(models): State<Models>) -> (StatusCode, Json<Value>) {
    match models.phase() {
        Phase::Serving => (StatusCode::OK, Json(json!({ "status": "ready" }))),
        Phase::Draining | Phase::Stopped => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": "not ready" })))
        }
    }
}

pub(in crate::routes) async fn metrics(
    State(models): State<Models>,
    Extension(door): Extension<Arc<Door>>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<impl IntoResponse, ApiError> {
    door.check_metrics(&uri, &headers)?;
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], models.metrics()))
}
