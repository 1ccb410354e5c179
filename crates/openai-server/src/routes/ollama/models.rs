//! What Ollama's clients ask about models.

use super::{answer::rfc3339, ask::model_name};
use crate::{
    decode::Body,
    errors::ApiError,
    intake::{Payload, prepare},
    many::Description,
    state::AppState,
    wire::{
        OllamaDetails, OllamaModel, OllamaModels, OllamaShow, OllamaShowRequest,
        UNSUPPORTED_OLLAMA_SHOW,
    },
};
use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::time::{Duration, UNIX_EPOCH};

pub(in crate::routes) async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// The models that there are.
pub(in crate::routes) async fn tags(State(state): State<AppState>) -> Json<OllamaModels> {
    Json(listed(&state, false))
}

/// The models that are loaded: all of them.
pub(in crate::routes) async fn ps(State(state): State<AppState>) -> Json<OllamaModels> {
    Json(listed(&state, true))
}

/// With what only loaded models have where `loaded`.
fn listed(state: &AppState, loaded: bool) -> OllamaModels {
    let info = state.0.engine.info();
    let one = |name: &str, size, parent: &str| OllamaModel {
        name: name.to_owned(),
        model: name.to_owned(),
        modified_at: started(state),
        size,
        digest: digest(name, &state.0.config.architecture, state.0.config.parameters, size),
        details: details(state, parent),
        context_length: info.max_model_len,
        expires_at: loaded.then(|| NEVER.to_owned()),
        size_vram: loaded.then_some(if state.0.config.on_gpu { size } else { 0 }),
    };
    let names = state.0.config.served_model_names.iter();
    let adapters = state.0.engine.adapters();
    let parent = state.0.config.model_name();
    let adapters = adapters.iter().map(|adapter| one(&adapter.name, adapter.bytes, parent));
    OllamaModels {
        models: names.map(|name| one(name, info.weight_bytes, "")).chain(adapters).collect(),
    }
}

/// When a model is given up that stays loaded.
const NEVER: &str = "9999-12-31T23:59:59Z";

/// Of what tells models apart here; weights are too long to hash.
pub(in crate::routes) fn digest(
    name: &str,
    architecture: &str,
    parameters: u64,
    size: u64,
) -> String {
    let of = format!("{name}\n{architecture}\n{parameters}\n{size}");
    Sha256::digest(of).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn started(state: &AppState) -> String {
    rfc3339(UNIX_EPOCH + Duration::from_secs(state.0.started))
}

fn details(state: &AppState, parent: &str) -> OllamaDetails {
    let family = state.0.config.architecture.clone();
    OllamaDetails {
        parent_model: parent.to_owned(),
        format: if state.0.config.gguf { "gguf" } else { "safetensors" },
        families: Some(family.clone()).filter(|name| !name.is_empty()).into_iter().collect(),
        family,
        parameter_size: parameters(state.0.config.parameters),
        quantization_level: bits(state.0.engine.info().weight_bytes, state.0.config.parameters),
    }
}

/// Bits a weight.
pub(in crate::routes) fn bits(bytes: u64, parameters: u64) -> String {
    match parameters {
        0 => String::new(),
        _ => format!("{:.1} bpw", bytes as f64 * 8.0 / parameters as f64),
    }
}

/// As Ollama writes it: `494.03M`, `7.6B`.
pub(in crate::routes) fn parameters(count: u64) -> String {
    match count {
        0 => String::new(),
        1..1_000_000_000 => format!("{:.2}M", count as f64 / 1e6),
        _ => format!("{:.1}B", count as f64 / 1e9),
    }
}

pub(in crate::routes) async fn show(
    State(state): State<AppState>,
    payload: Payload,
) -> Result<Response, ApiError> {
    prepare(&state, payload, shown).await
}

fn shown(state: &AppState, mut body: Body) -> Result<Response, ApiError> {
    let wire: OllamaShowRequest = body.read()?;
    body.finish(UNSUPPORTED_OLLAMA_SHOW, state.0.config.allow_unknown_fields)?;
    let missing = || ApiError::MissingParameter { param: "model".to_owned() };
    let name = model_name(state, wire.model.or(wire.name).ok_or_else(missing)?);
    let served = state.0.model(Some(&name))?;
    let parent = if served.adapter.is_some() { state.0.config.model_name() } else { "" };
    let of = About { details: details(state, parent), modified_at: started(state) };
    Ok(Json(shown_of(&name, &described(state), of)).into_response())
}

/// What is known of a model beside what its files say.
pub(in crate::routes) struct About {
    pub(in crate::routes) details: OllamaDetails,
    pub(in crate::routes) modified_at: String,
}

/// The response of `/api/show`.
pub(in crate::routes) fn shown_of<'a>(
    name: &str,
    of: &'a Description,
    about: About,
) -> OllamaShow<'a> {
    OllamaShow {
        modelfile: format!("FROM {name}\n"),
        template: &of.template,
        details: about.details,
        model_info: model_info(of),
        capabilities: of.capabilities(),
        modified_at: about.modified_at,
    }
}

fn described(state: &AppState) -> Description {
    let (config, state) = (&state.0.config, &state.0);
    let generates = state.vectors.is_none() && state.scores.is_none();
    let chats = generates && state.template.is_some();
    let calls = config.enable_auto_tool_choice && !config.tool_format.is_none();
    Description {
        architecture: config.architecture.clone(),
        parameters: config.parameters,
        weight_bytes: state.engine.info().weight_bytes,
        context_length: state.engine.info().max_model_len,
        template: state.template.as_ref().map_or("", |template| template.source()).to_owned(),
        generates,
        calls: chats && calls,
        thinks: chats && !config.reasoning_format.closers().is_empty(),
        sees: chats && state.images.see(),
        dimensions: state.vectors.as_ref().map_or(0, |vectors| vectors.dimensions()),
    }
}

fn model_info(of: &Description) -> Map<String, Value> {
    let mut all = Map::new();
    let name = &of.architecture;
    if !name.is_empty() {
        all.insert("general.architecture".to_owned(), json!(name));
        all.insert(format!("{name}.context_length"), json!(of.context_length));
        if of.dimensions > 0 {
            all.insert(format!("{name}.embedding_length"), json!(of.dimensions));
        }
    }
    if of.parameters > 0 {
        all.insert("general.parameter_count".to_owned(), json!(of.parameters));
    }
    all
}
