//! What every request passes on its way to a route.

use super::anthropic::speaks;
use crate::{
    access::{AllowedHosts, AllowedOrigins},
    config::ServerConfig,
    errors::ApiError,
    keys::ApiKeys,
    linger::lingering,
    record::{REQUEST_ID, Record},
    state::Phase,
};
use axum::{
    Extension, Router,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Method, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use std::sync::Arc;
use tokio::sync::watch;

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

/// What is asked of every request, and whether any is taken.
#[derive(Debug)]
pub(super) struct Door {
    guard: Guard,
    phases: watch::Receiver<Phase>,
}

impl Door {
    pub(super) fn new(config: &ServerConfig, phases: watch::Receiver<Phase>) -> Self {
        let (keys, origins) = (config.api_keys.clone(), config.allowed_origins.clone());
        Self { guard: Guard::new(keys, origins, config.allowed_hosts.clone()), phases }
    }

    fn is_open(&self) -> bool {
        *self.phases.borrow() == Phase::Serving
    }

    /// Whether there are API keys.
    pub(super) fn has_keys(&self) -> bool {
        !self.guard.keys.is_empty()
    }
}

/// Refuses requests that come from where none may come from. This is asked before the key, so that
/// a stranger learns nothing of it.
pub(super) async fn gate(State(door): State<Arc<Door>>, request: Request, next: Next) -> Response {
    let guard = &door.guard;
    let mut response = match stranger(&guard.hosts, &guard.origins, &request) {
        Some(error) => error.into_response(),
        None => next.run(request).await,
    };
    if !door.is_open() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Why a request may not have come from where it says.
fn stranger(hosts: &AllowedHosts, origins: &AllowedOrigins, request: &Request) -> Option<ApiError> {
    let (uri, headers) = (request.uri(), request.headers());
    if !hosts.allow(uri, headers) {
        return Some(ApiError::HostNotAllowed);
    }
    (!origins.allow(headers)).then_some(ApiError::OriginNotAllowed)
}

/// Who may call a router that is not this API's.
#[derive(Debug, Clone)]
pub struct Guard {
    keys: ApiKeys,
    origins: AllowedOrigins,
    hosts: AllowedHosts,
}

impl Guard {
    /// Callers with one of these keys, from these origins, by these names.
    #[must_use]
    pub fn new(keys: ApiKeys, origins: AllowedOrigins, hosts: AllowedHosts) -> Self {
        Self { keys, origins, hosts }
    }
}

/// Puts the checks of this API around another one: host and origin around both routers, the key
/// around the protected one and every path that has no route.
pub fn protect(protected: Router, open: Router, guard: Guard) -> Router {
    let cors = guard.origins.cors();
    let guard = Arc::new(guard);
    let keys = middleware::from_fn_with_state(Arc::clone(&guard), guard_keys);
    let places = middleware::from_fn_with_state(guard, guard_places);
    let router = open.fallback_service(protected.layer(keys)).layer(places);
    match cors {
        Some(cors) => router.layer(cors),
        None => router,
    }
}

async fn guard_keys(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    match authorized(&guard.keys, &request) {
        true => Ok(next.run(request).await),
        false => Err(ApiError::InvalidApiKey),
    }
}

async fn guard_places(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    match stranger(&guard.hosts, &guard.origins, &request) {
        Some(error) => Err(error),
        None => Ok(next.run(request).await),
    }
}

/// Refuses requests without a key, then those that the server takes no more.
pub(super) async fn keys(
    State(door): State<Arc<Door>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if !authorized(&door.guard.keys, &request) {
        return Err(ApiError::InvalidApiKey);
    }
    if request.method() == Method::POST && !door.is_open() {
        return Err(ApiError::Draining);
    }
    Ok(next.run(request).await)
}

fn authorized(keys: &ApiKeys, request: &Request) -> bool {
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
