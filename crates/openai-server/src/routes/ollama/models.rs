//! What Ollama's clients ask about models.

use super::{answer::rfc3339, ask::model_name};
use crate::{
    decode::Body,
    errors::ApiError,
    intake::{Payload, prepare},
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
        digest: digest(state, name, size),
        details: details(state, parent),
        context_length: info.max_model_len,
        expires_at: loaded.then_some(NEVER),
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
fn digest(state: &AppState, name: &str, size: u64) -> String {
    let config = &state.0.config;
    let of = format!("{name}\n{}\n{}\n{size}", config.architecture, config.parameters);
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
fn bits(bytes: u64, parameters: u64) -> String {
    match parameters {
        0 => String::new(),
        _ => format!("{:.1} bpw", bytes as f64 * 8.0 / parameters as f64),
    }
}

/// As Ollama writes it: `494.03M`, `7.6B`.
fn parameters(count: u64) -> String {
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
    let config = &state.0.config;
    let parent = if served.adapter.is_some() { config.model_name() } else { "" };
    let template = state.0.template.as_ref().map_or("", |template| template.source());
    let body = OllamaShow {
        modelfile: format!("FROM {name}\n"),
        template,
        details: details(state, parent),
        model_info: model_info(state),
        capabilities: capabilities(state),
        modified_at: started(state),
    };
    Ok(Json(body).into_response())
}

fn model_info(state: &AppState) -> Map<String, Value> {
    let (config, info) = (&state.0.config, state.0.engine.info());
    let mut all = Map::new();
    if !config.architecture.is_empty() {
        let name = &config.architecture;
        all.insert("general.architecture".to_owned(), json!(name));
        all.insert(format!("{name}.context_length"), json!(info.max_model_len));
        if let Some(vectors) = &state.0.vectors {
            all.insert(format!("{name}.embedding_length"), json!(vectors.dimensions()));
        }
    }
    if config.parameters > 0 {
        all.insert("general.parameter_count".to_owned(), json!(config.parameters));
    }
    all
}

fn capabilities(state: &AppState) -> Vec<&'static str> {
    let (config, state) = (&state.0.config, &state.0);
    let generates = state.vectors.is_none() && state.scores.is_none();
    let calls = config.enable_auto_tool_choice && !config.tool_format.is_none();
    let thinks = !config.reasoning_format.closers().is_empty();
    let chats = generates && state.template.is_some();
    let all = [
        ("completion", generates),
        ("tools", chats && calls),
        ("thinking", chats && thinks),
        ("vision", chats && state.images.see()),
        ("embedding", state.vectors.is_some()),
    ];
    all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
}
