//! A server of several models: what is answered by the model that a request names, and what is said of all.

mod control;
mod list;
mod ollama;
mod pull;

pub(super) use control::{delete, delete_named, load, one_model, unload};
pub(super) use list::{health, list, metrics, one, ready};
pub(super) use ollama::{ps, show, tags};
pub(super) use pull::pull;

use crate::{
    errors::ApiError,
    intake::Payload,
    many::{KeepAlive, Models, holding, parsed},
};
use axum::{
    body::Body,
    extract::{Request, State},
    http::request::Parts,
    response::Response,
};
use serde::Deserialize;
use serde_json::Value;
use tower::ServiceExt;

/// What of a body says which model answers.
#[derive(Debug, Deserialize)]
struct Named {
    model: Option<String>,
    keep_alive: Option<Value>,
}

/// Hands a request to the model that it names, which stays loaded until the response is sent.
pub(super) async fn dispatch(
    State(models): State<Models>,
    request: Request,
) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    let payload = Payload::read(&parts, body, &models.0.config, &models.0.intake).await?;
    let (named, payload): (Named, _) = models.0.intake.work(payload, Payload::glance).await?;
    let keep = keep_alive(&parts, &named)?;
    let lease = models.lease(named.model.as_deref(), keep).await?;
    parts.extensions.insert(payload);
    let answer = lease.served.router.clone().oneshot(Request::from_parts(parts, Body::empty()));
    let response = answer.await.unwrap_or_else(|never| match never {});
    Ok(response.map(|body| holding(body, lease)))
}

/// It is a field of Ollama's API alone; other routes refuse it as they refuse every unknown field.
fn keep_alive(parts: &Parts, named: &Named) -> Result<Option<KeepAlive>, ApiError> {
    match parts.uri.path().starts_with("/api/") {
        true => parsed(named.keep_alive.as_ref()),
        false => Ok(None),
    }
}
