//! `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, in vLLM's shapes.

use crate::{
    decode::Body,
    errors::ApiError,
    intake::{Payload, prepare},
    state::AppState,
    wire::{LoadAdapterRequest, UnloadAdapterRequest},
};
use axum::{
    extract::State,
    http::{Method, Uri},
};
use std::path::Path;
use taper_base::AdapterRefused;

pub(super) async fn load(
    State(state): State<AppState>,
    method: Method,
    uri: Uri,
    payload: Payload,
) -> Result<String, ApiError> {
    allowed(&state, &method, &uri)?;
    prepare(&state, payload, load_one).await
}

pub(super) async fn unload(
    State(state): State<AppState>,
    method: Method,
    uri: Uri,
    payload: Payload,
) -> Result<String, ApiError> {
    allowed(&state, &method, &uri)?;
    prepare(&state, payload, unload_one).await
}

/// Where callers may not, there are no such routes.
fn allowed(state: &AppState, method: &Method, uri: &Uri) -> Result<(), ApiError> {
    if state.0.config.allow_adapter_updates {
        return Ok(());
    }
    Err(ApiError::UnknownUrl { method: method.to_string(), path: uri.path().to_owned() })
}

fn load_one(state: &AppState, mut body: Body) -> Result<String, ApiError> {
    let LoadAdapterRequest { lora_name: name, lora_path: path } = body.read()?;
    body.finish(&[], state.0.config.allow_unknown_fields)?;
    for (param, value) in [("lora_name", &name), ("lora_path", &path)] {
        if value.is_empty() {
            return Err(ApiError::value(param, "must not be empty"));
        }
    }
    if state.0.config.served_model_names.contains(&name) {
        return Err(AdapterRefused::NameTaken { name }.into());
    }
    state.0.engine.load_adapter(&name, Path::new(&path))?;
    Ok(format!("Success: LoRA adapter '{name}' added successfully."))
}

fn unload_one(state: &AppState, mut body: Body) -> Result<String, ApiError> {
    let UnloadAdapterRequest { lora_name: name } = body.read()?;
    body.finish(&[], state.0.config.allow_unknown_fields)?;
    state.0.engine.unload_adapter(&name)?;
    Ok(format!("Success: LoRA adapter '{name}' removed successfully."))
}
