//! Loading, unloading and deleting models on request.

use super::list::named;
use crate::{
    errors::ApiError,
    intake::Payload,
    many::{Lease, LoadProgress, Models, failed, parsed},
    sse::unbuffered,
    wire::{LoadModelRequest, ModelDeleted, NamedModel, OllamaDeleteRequest, Success},
};
use axum::{
    Json,
    body::Body,
    extract::{Path, Request, State, rejection::PathRejection},
    http::{StatusCode, Uri},
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use futures_util::{FutureExt, Stream, future::BoxFuture, stream};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::time;

/// How often a stream says how far a load is.
const REPORT: Duration = Duration::from_millis(100);

/// What a server of one model says of all this.
pub(in crate::routes) async fn one_model() -> ApiError {
    ApiError::OneModel
}

/// Reads a body that has only these fields.
pub(super) async fn body<T: DeserializeOwned + Send + 'static>(
    models: &Models,
    request: Request<Body>,
) -> Result<T, ApiError> {
    let (parts, body) = request.into_parts();
    let payload = Payload::read(&parts, body, &models.0.config, &models.0.intake).await?;
    let allow_unknown = models.0.config.allow_unknown_fields;
    let read = move |payload: Payload| {
        let mut body = payload.parse()?;
        let fields = body.read()?;
        body.finish(&[], allow_unknown)?;
        Ok(fields)
    };
    models.0.intake.work(payload, read).await
}

pub(in crate::routes) async fn load(
    State(models): State<Models>,
    request: Request,
) -> Result<Response, ApiError> {
    let LoadModelRequest { model, stream, keep_alive } = body(&models, request).await?;
    let keep = parsed(keep_alive.as_ref())?;
    let name = models.find(&model).await?.name;
    if stream != Some(true) {
        drop(models.lease(Some(&name), keep).await?);
        return Ok(Json(Success { success: true }).into_response());
    }
    let (own, asked) = (models.clone(), name.clone());
    let lease = async move { own.lease(Some(&asked), keep).await }.boxed();
    let progress = Loading { models, name, lease: Some(lease), said: None };
    let keep_alive = KeepAlive::default();
    Ok(unbuffered(Sse::new(events(progress)).keep_alive(keep_alive).into_response()))
}

/// A load that is watched.
struct Loading {
    models: Models,
    name: String,
    /// `None` once it has ended.
    lease: Option<BoxFuture<'static, Result<Lease, ApiError>>>,
    said: Option<Value>,
}

impl Loading {
    fn event(&self, status: &str, (done, total): (u64, u64)) -> Value {
        json!({ "model": self.name, "status": status, "completed": done, "total": total })
    }

    /// What there is to say next.
    async fn next(&mut self) -> Option<Value> {
        loop {
            let lease = self.lease.as_mut()?;
            tokio::select! {
                biased;
                end = lease => {
                    self.lease = None;
                    return Some(match end {
                        Ok(_) => json!({ "model": self.name, "status": "loaded" }),
                        Err(error) => serde_json::to_value(error.body()).unwrap_or_default(),
                    });
                }
                () = time::sleep(REPORT) => {}
            }
            let event = match self.models.progress(&self.name) {
                Some(LoadProgress::Waiting) => self.event("waiting", (0, 0)),
                Some(LoadProgress::Reading(done, total)) => self.event("loading", (done, total)),
                None => continue,
            };
            if self.said.as_ref() != Some(&event) {
                self.said = Some(event.clone());
                return Some(event);
            }
        }
    }
}

fn events(loading: Loading) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold(loading, |mut loading| async move {
        let next = loading.next().await?;
        Some((Ok(Event::default().data(next.to_string())), loading))
    })
}

/// Waits until the model's requests have ended and its memory is free.
pub(in crate::routes) async fn unload(
    State(models): State<Models>,
    request: Request,
) -> Result<Json<Success>, ApiError> {
    let NamedModel { model } = body(&models, request).await?;
    let name = models.find(&model).await?.name;
    match models.retire(&name).await {
        true => Ok(Json(Success { success: true })),
        false => Err(ApiError::ModelNotLoaded { model: name }),
    }
}

/// As OpenAI's API has it.
pub(in crate::routes) async fn delete(
    State(models): State<Models>,
    id: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<ModelDeleted>, ApiError> {
    let id = remove(&models, &named(id, &uri)).await?;
    Ok(Json(ModelDeleted { id, object: "model", deleted: true }))
}

/// As Ollama's API has it.
pub(in crate::routes) async fn delete_named(
    State(models): State<Models>,
    request: Request,
) -> Result<StatusCode, ApiError> {
    let wire: OllamaDeleteRequest = body(&models, request).await?;
    let missing = || ApiError::MissingParameter { param: "model".to_owned() };
    remove(&models, &wire.model.or(wire.name).ok_or_else(missing)?).await?;
    Ok(StatusCode::OK)
}

async fn remove(models: &Models, asked: &str) -> Result<String, ApiError> {
    if !models.0.models.allow_updates {
        return Err(ApiError::NoModelUpdates);
    }
    let name = models.find(asked).await?.name;
    let _turn = models.keep_unloaded(&name).await?;
    let (library, own) = (Arc::clone(&models.0.library), name.clone());
    let done = tokio::task::spawn_blocking(move || library.delete(&own)).await;
    done.map_err(|_| ApiError::Internal)?.map_err(|source| failed(&name, source))?;
    models.refresh().await?;
    tracing::info!(model = name, "deleted");
    Ok(name)
}
