//! What every request passes on its way to a route.

use super::anthropic::speaks;
use crate::{
    errors::ApiError,
    linger::lingering,
    record::{REQUEST_ID, Record},
    state::{AppState, Phase},
};
use axum::{
    Extension,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Method, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::sync::Arc;

/// Where Anthropic's clients put their key.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Keeps a record of the request and gives the response its id.
pub(super) async fn record(request: Request, next: Next) -> Response {
    let record = Record::new(&request);
    let mut request = lingering(request);
    request.extensions_mut().insert(Arc::clone(&record));
    let mut response = next.run(request).await;
    if let Some(id) = record.id() {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    let status = response.status();
    response.map(|body| record.answer(status, body))
}

/// Keeps requests of open routes out of the log: health checks come every few seconds.
pub(super) async fn quiet(
    Extension(record): Extension<Arc<Record>>,
    request: Request,
    next: Next,
) -> Response {
    record.be_quiet();
    next.run(request).await
}

/// Refuses requests that come from where none may come from. This is asked before the key, so that
/// a stranger learns nothing of it.
pub(super) async fn gate(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let config = &state.0.config;
    let (uri, headers) = (request.uri(), request.headers());
    let mut response = if !config.allowed_hosts.allow(uri, headers) {
        ApiError::HostNotAllowed.into_response()
    } else if !config.allowed_origins.allow(headers) {
        ApiError::OriginNotAllowed.into_response()
    } else {
        next.run(request).await
    };
    if state.0.phase() != Phase::Serving {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Refuses requests without a key, then those that the server takes no more.
pub(super) async fn keys(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if !authorized(&state, &request) {
        return Err(ApiError::InvalidApiKey);
    }
    if request.method() == Method::POST && state.0.phase() != Phase::Serving {
        return Err(ApiError::Draining);
    }
    Ok(next.run(request).await)
}

fn authorized(state: &AppState, request: &Request) -> bool {
    let keys = &state.0.config.api_keys;
    if keys.is_empty() {
        return true;
    }
    let header = |name| request.headers().get(name).and_then(|v| v.to_str().ok());
    let bearer = header(header::AUTHORIZATION).and_then(|v| v.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let own = speaks(request.uri().path()).then(|| header(X_API_KEY)).flatten();
    let given = [bearer.map(|(_, key)| key), own];
    given.into_iter().flatten().any(|key| keys.accept(key.trim()))
}
