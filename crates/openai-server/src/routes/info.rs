//! What the server says about itself.

use super::gate::Door;
use crate::{
    errors::ApiError,
    metrics::experts,
    state::AppState,
    wire::{Modalities, ModelCard, ModelList},
};
use axum::{
    Extension, Json,
    extract::{Path, State, rejection::PathRejection},
    http::{HeaderMap, StatusCode, Uri, header},
    response::IntoResponse,
};
use serde_json::{Value, json};
use std::sync::Arc;
use taper_base::AdapterInfo;

/// That of a name of the model, or of an adapter.
fn card(state: &AppState, id: &str, adapter: Option<&AdapterInfo>) -> ModelCard {
    let model = state.0.config.model_name();
    ModelCard {
        id: id.to_owned(),
        object: "model",
        created: state.0.started,
        owned_by: "taper",
        root: adapter.map_or(model, |adapter| &adapter.path).to_owned(),
        parent: adapter.map(|_| model.to_owned()),
        max_model_len: Some(state.0.engine.info().max_model_len),
        architecture: modalities(state),
        residence: None,
    }
}

/// What the model takes, where that is more than text.
fn modalities(state: &AppState) -> Option<Modalities> {
    let takes = |input_modalities| Modalities { input_modalities, output_modalities: &["text"] };
    let speech = state.0.transcripts.as_ref().map(|_| takes(&["audio"]));
    speech.or_else(|| state.0.images.see().then(|| takes(&["text", "image"])))
}

pub(super) async fn models(State(state): State<AppState>) -> Json<ModelList> {
    let names = state.0.config.served_model_names.iter();
    let adapters = state.0.engine.adapters();
    let adapters = adapters.iter().map(|adapter| card(&state, &adapter.name, Some(adapter)));
    let data = names.map(|name| card(&state, name, None)).chain(adapters).collect();
    Json(ModelList { object: "list", data })
}

/// Names may hold slashes, as `owner/name`.
pub(super) async fn model(
    State(state): State<AppState>,
    id: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<ModelCard>, ApiError> {
    // Not UTF-8, so it names no model.
    let id = id.map_or_else(|_| uri.path().to_owned(), |Path(id)| id);
    let served = state.0.model(Some(&id))?;
    let adapters = state.0.engine.adapters();
    let adapter = adapters.iter().find(|own| Some(&own.name) == served.adapter.as_ref());
    Ok(Json(card(&state, &served.name, adapter)))
}

/// The process responds, and its engine works.
pub(super) async fn health(State(state): State<AppState>) -> (StatusCode, Json<Value>) {
    let (code, status) = match state.0.ailment() {
        None => (StatusCode::OK, "ok"),
        Some(ailment) => (StatusCode::SERVICE_UNAVAILABLE, ailment),
    };
    let mut body = json!({ "status": status, "model": state.0.config.model_name() });
    let stats = state.0.engine.stats();
    if stats.restarts > 0 {
        body["engine_restarts"] = json!(stats.restarts);
    }
    if state.0.images.see() {
        // As llama.cpp's server says it.
        body["modalities"] = json!({ "vision": true });
    }
    if let Some(experts) = stats.experts {
        body["experts"] = experts::health(&experts);
    }
    (code, Json(body))
}

/// Requests are taken: what a load balancer asks.
pub(super) async fn ready(State(state): State<AppState>) -> (StatusCode, Json<Value>) {
    if state.0.is_ready() {
        (StatusCode::OK, Json(json!({ "status": "ready" })))
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": "not ready" })))
    }
}

pub(super) async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// Whether it should go on: what an orchestrator asks before it restarts a server.
pub(super) async fn live(State(state): State<AppState>) -> (StatusCode, Json<Value>) {
    match state.0.ailment() {
        None => (StatusCode::OK, Json(json!({ "status": "alive" }))),
        Some(ailment) => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": ailment }))),
    }
}

pub(super) async fn metrics(
    State(state): State<AppState>,
    Extension(door): Extension<Arc<Door>>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<impl IntoResponse, ApiError> {
    door.check_metrics(&uri, &headers)?;
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let mut page = page(&state);
    state.0.metrics.render_keys(&mut page, &state.0.config.api_keys);
    Ok(([(header::CONTENT_TYPE, kind)], page))
}

/// The page of metrics of a model.
pub(crate) fn page(state: &AppState) -> String {
    let (engine, metrics) = (&state.0.engine, &state.0.metrics);
    let max = state.0.config.max_adapters;
    let adapters = engine.adapters();
    let mut page = metrics.render(engine.info(), &engine.stats(), (&adapters, max));
    if state.0.images.see() {
        metrics.render_images(&mut page, &state.0.images.counts);
    }
    if let Some(transcripts) = &state.0.transcripts {
        metrics.render_speech(&mut page, &transcripts.counts);
    }
    page
}
