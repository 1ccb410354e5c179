//! The endpoints of longctx-svc over HTTP: retrieval for prompts, and texts that left a KV cache.
//!
//! Only the roots are ever searched. A path in a prompt chooses among them.

mod evicted;
mod retrieve;

use crate::{Error, Library, evict::Evicted, scope::Scopes};
use axum::{
    Json, Router,
    extract::{FromRequest, Request, State, rejection::JsonRejection},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{fmt::Write as _, sync::Arc};

/// What every route sees.
#[derive(Debug, Clone)]
pub struct Service(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    library: Arc<Library>,
    evicted: Evicted,
    scopes: Scopes,
}

impl Service {
    /// A service over a library. Sessions that hibernate go to `dir`.
    #[must_use]
    pub fn new(library: Arc<Library>, dir: Option<std::path::PathBuf>) -> Self {
        let scopes = Scopes::default();
        Self(Arc::new(Shared { library, evicted: Evicted::new(dir), scopes }))
    }
}

/// Every route. Who may call is for the server around it to check.
pub fn router(service: Service) -> Router {
    Router::new()
        .route("/retrieve", post(retrieve::handle))
        .route("/evict/write", post(evicted::write))
        .route("/evict/retrieve", post(evicted::retrieve))
        .route("/evict/dump", get(evicted::dump))
        .route("/sessions/{id}/hibernate", post(evicted::hibernate))
        .route("/sessions/{id}/resume", post(evicted::resume))
        .route("/sessions/{id}/hibernation-status", get(evicted::whereabouts))
        .route("/longctx/status", get(status))
        .route("/v1/models", get(no_proxy))
        .route("/v1/chat/completions", post(no_proxy))
        .route("/v1/completions", post(no_proxy))
        .with_state(service)
}

/// The process responds. This says nothing of what is indexed.
pub fn health() -> Router {
    let answer = || async { Json(json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") })) };
    Router::new().route("/healthz", get(answer))
}

/// `taper serve --enable-longctx` is the proxy and the model in one.
async fn no_proxy() -> Response {
    refuse(StatusCode::SERVICE_UNAVAILABLE, "proxy disabled")
}

async fn status(State(service): State<Service>, headers: HeaderMap) -> Response {
    let Shared { library, scopes, .. } = &*service.0;
    let status = library.status();
    let sessions = scopes.sessions();
    let wants_text = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok());
    if wants_text.is_some_and(|accept| accept.contains("text/plain")) {
        let mut text =
            format!("[longctx] mode: {}\n[longctx] session: {sessions} active\n", status.mode);
        for project in &status.projects {
            let _ = writeln!(text, "[longctx] scope: {} ({})", project.root, project.state);
            let _ = writeln!(
                text,
                "[longctx] indexed: {} files, {} chunks",
                project.files, project.chunks
            );
        }
        let _ = writeln!(text, "[longctx] memory: {} MB", memory_mb());
        return ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response();
    }
    Json(json!({
        "version": status.version,
        "mode": status.mode,
        "sessions_active": sessions,
        "scopes_loaded": status.projects.len(),
        "scopes_total": status.projects.len(),
        "memory_mb": memory_mb(),
        "scopes": status.projects,
    }))
    .into_response()
}

/// Resident memory of the process, where the system says it in a file.
fn memory_mb() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    pages * 4096 / 1_000_000
}

fn refuse(status: StatusCode, detail: &str) -> Response {
    (status, Json(json!({ "detail": detail }))).into_response()
}

/// An error as FastAPI words it.
struct Refused(StatusCode, Value);

impl Refused {
    fn field(field: &str, why: &str) -> Self {
        let detail = json!([{ "type": "value_error", "loc": ["body", field], "msg": why }]);
        Self(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(json!({ "detail": self.1 }))).into_response()
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid { field, why } => Self::field(field, &why),
            Error::UnknownFile { .. } | Error::UnknownProject { .. } => {
                Self(StatusCode::NOT_FOUND, json!(error.to_string()))
            }
            other => {
                tracing::warn!(error = %other, "a request failed");
                Self(StatusCode::INTERNAL_SERVER_ERROR, json!(other.to_string()))
            }
        }
    }
}

/// A body of JSON; what is wrong with it is answered with 422.
struct Body<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        match Json::<T>::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(JsonRejection::BytesRejection(error)) => Err(error.into_response()),
            Err(error) => Err(Refused::field("", &error.body_text()).into_response()),
        }
    }
}

/// Runs what waits for files and disks.
async fn blocking<A: Send + 'static>(
    service: Service,
    work: impl FnOnce(&Shared) -> Result<A, Error> + Send + 'static,
) -> Result<A, Refused> {
    let done = tokio::task::spawn_blocking(move || work(&service.0)).await;
    let internal = |_| Refused(StatusCode::INTERNAL_SERVER_ERROR, json!("the request failed"));
    Ok(done.map_err(internal)??)
}
