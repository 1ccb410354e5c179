//! What every request passes on its way to a route.

use crate::{
    errors::ApiError,
    linger::lingering,
    record::{REQUEST_ID, Record},
    state::{AppState, Phase},
};
use axum::{
    extract::{Request, State},
    http::{HeaderValue, Method, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::sync::Arc;

/// Routes that need no key: they say nothing of what is asked and answered. Every other path is
/// guarded, so that a new route is too.
const OPEN: &[&str] = &["/health", "/ready", "/version", "/metrics"];

/// Keeps a record of the request and gives the answer its id.
pub(super) async fn record(request: Request, next: Next) -> Response {
    let record = Record::new(&request, OPEN.contains(&request.uri().path()));
    let mut request = lingering(request);
    request.extensions_mut().insert(Arc::clone(&record));
    let mut response = next.run(request).await;
    if let Some(id) = record.id() {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    let status = response.status();
    response.map(|body| record.answer(status, body))
}

/// Refuses whom the server does not know.
pub(super) async fn gate(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let mut response = match refusal(&state, &request) {
        Some(error) => error.into_response(),
        None => next.run(request).await,
    };
    if state.0.phase() != Phase::Serving {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Where a request comes from first, then its key, so that a stranger learns nothing; then whether
/// the server takes requests at all.
fn refusal(state: &AppState, request: &Request) -> Option<ApiError> {
    let config = &state.0.config;
    let (uri, headers) = (request.uri(), request.headers());
    if !config.allowed_hosts.allow(uri, headers) {
        return Some(ApiError::HostNotAllowed);
    }
    if !config.allowed_origins.allow(headers) {
        return Some(ApiError::OriginNotAllowed);
    }
    if OPEN.contains(&uri.path()) {
        return None;
    }
    if !authorized(state, request) {
        return Some(ApiError::InvalidApiKey);
    }
    let drains = request.method() == Method::POST && state.0.phase() != Phase::Serving;
    drains.then_some(ApiError::Draining)
}

fn authorized(state: &AppState, request: &Request) -> bool {
    let keys = &state.0.config.api_keys;
    if keys.is_empty() {
        return true;
    }
    let header = request.headers().get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    header.and_then(|v| v.split_once(' ')).is_some_and(|(scheme, key)| {
        scheme.eq_ignore_ascii_case("bearer") && keys.accept(key.trim())
    })
}
