//! What Ollama's clients ask about models.

use super::control::body;
use crate::{
    errors::ApiError,
    many::{Listed, Models, Seen, Served, failed},
    routes::ollama::{About, bits, digest, parameters, rfc3339, shown_of},
    wire::{OllamaDetails, OllamaModel, OllamaModels, OllamaShowRequest},
};
use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

/// When a model is given up that stays loaded.
const NEVER: &str = "9999-12-31T23:59:59Z";

/// The models that there are.
pub(in crate::routes) async fn tags(
    State(models): State<Models>,
) -> Result<Json<OllamaModels>, ApiError> {
    let (listed, seen) = (models.refresh().await?, models.seen());
    let one = |own: &Listed| model(own, seen.get(&own.name).and_then(|s| s.model.as_ref()));
    Ok(Json(OllamaModels { models: listed.iter().map(one).collect() }))
}

/// The models that are loaded.
pub(in crate::routes) async fn ps(
    State(models): State<Models>,
) -> Result<Json<OllamaModels>, ApiError> {
    let seen = models.seen();
    let mut found = Vec::new();
    for (name, seen) in seen {
        let (Some(served), Ok(listed)) = (&seen.model, models.find(&name).await) else { continue };
        found.push(OllamaModel {
            size: seen.bytes,
            size_vram: Some(if served.state.0.config.on_gpu { seen.bytes } else { 0 }),
            expires_at: Some(expires(&seen)),
            ..model(&listed, Some(served))
        });
    }
    Ok(Json(OllamaModels { models: found }))
}

fn expires(seen: &Seen<Arc<Served>>) -> String {
    let Some(keep) = seen.keep.filter(|_| !seen.pinned) else { return NEVER.to_owned() };
    let rest = keep.saturating_sub(seen.used.elapsed());
    // What is beyond the calendar is never.
    let at =
        SystemTime::now().checked_add(rest).filter(|_| rest < Duration::from_hours(24 * 36500));
    at.map_or_else(|| NEVER.to_owned(), rfc3339)
}

fn model(listed: &Listed, served: Option<&Arc<Served>>) -> OllamaModel {
    let name = listed.name.clone();
    let digest = digest(&name, &listed.architecture, 0, listed.file_bytes);
    let info = served.map(|served| served.state.0.engine.info());
    OllamaModel {
        model: name.clone(),
        name,
        modified_at: rfc3339(listed.modified),
        size: listed.file_bytes,
        digest,
        details: details(listed, served),
        context_length: info.map_or(0, |info| info.max_model_len),
        expires_at: None,
        size_vram: None,
    }
}

/// Parameters and bits are known of loaded models.
fn details(listed: &Listed, served: Option<&Arc<Served>>) -> OllamaDetails {
    let config = served.map(|served| &served.state.0.config);
    let weights = served.map_or(0, |served| served.state.0.engine.info().weight_bytes);
    let count = config.map_or(0, |config| config.parameters);
    let family = config.map_or(&listed.architecture, |config| &config.architecture).clone();
    OllamaDetails {
        parent_model: String::new(),
        format: if listed.gguf { "gguf" } else { "safetensors" },
        families: Some(family.clone()).filter(|name| !name.is_empty()).into_iter().collect(),
        family,
        parameter_size: parameters(count),
        quantization_level: bits(weights, count),
    }
}

/// Describes a model by its files, so that it need not be loaded.
pub(in crate::routes) async fn show(
    State(models): State<Models>,
    request: Request,
) -> Result<Response, ApiError> {
    let wire: OllamaShowRequest = body(&models, request).await?;
    let missing = || ApiError::MissingParameter { param: "model".to_owned() };
    let listed = models.find(&wire.model.or(wire.name).ok_or_else(missing)?).await?;
    let (library, name) = (Arc::clone(&models.0.library), listed.name.clone());
    let found = tokio::task::spawn_blocking(move || library.describe(&name)).await;
    let found = found.map_err(|_| ApiError::Internal)?;
    let about = found.map_err(|source| failed(&listed.name, source))?;
    let name = listed.name.clone();
    let of = About {
        details: OllamaDetails {
            parameter_size: parameters(about.parameters),
            quantization_level: bits(about.weight_bytes, about.parameters),
            family: about.architecture.clone(),
            ..details(&listed, None)
        },
        modified_at: rfc3339(listed.modified),
    };
    Ok(Json(shown_of(&name, &about, of)).into_response())
}
