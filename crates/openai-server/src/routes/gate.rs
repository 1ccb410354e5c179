//! What every request passes on its way to a route.

use super::anthropic::speaks;
use crate::{
    access::{AllowedHosts, AllowedOrigins},
    config::ServerConfig,
    error_body::ErrorBody,
    errors::ApiError,
    keys::{ApiKeys, Caller, Scope},
    linger::lingering,
    record::{REQUEST_ID, Record},
    state::{AppState, Phase, unix_time},
};
use axum::{
    Extension, Router,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use std::{fmt, sync::Arc, time::Instant};
use tokio::sync::watch;

/// The code of a refusal whose time to try again is known here.
const QUEUE_FULL: &str = "queue_full";

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
pub(super) struct Door {
    guard: Guard,
    phases: watch::Receiver<Phase>,
    /// Of a server of one model: whose queue it is that may be full.
    queue: Option<AppState>,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl Door {
    pub(super) fn new(config: &ServerConfig, phases: watch::Receiver<Phase>) -> Self {
        let (keys, origins) = (config.api_keys.clone(), config.allowed_origins.clone());
        let guard = Guard::new(keys, origins, config.allowed_hosts.clone());
        Self { guard, phases, queue: None }
    }

    /// The door of one model.
    pub(super) fn of(state: &AppState) -> Self {
        let queue = Some(state.clone());
        Self { queue, ..Self::new(&state.0.config, state.0.phases()) }
    }

    /// Refuses who may not read metrics.
    pub(super) fn check_metrics(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        let keys = &self.guard.keys;
        if !keys.guard_metrics() {
            return Ok(());
        }
        caller(keys, uri, headers).ok_or(ApiError::InvalidApiKey)?.check_scope(Scope::Metrics)
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
    if response.extensions().get::<ErrorBody>().is_some_and(|body| body.code() == QUEUE_FULL)
        && let Some(state) = &door.queue
    {
        let stats = state.0.engine.stats();
        let seconds = state.0.metrics.retry_after(stats.running + stats.waiting);
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
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
    let keys = &guard.keys;
    let authorized = caller(keys, request.uri(), request.headers()).is_some();
    match keys.is_empty() || authorized {
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

/// Refuses requests without a key that opens their route, then those that the server takes no more, then those
/// beyond what the key may send.
pub(super) async fn keys(
    State(door): State<Arc<Door>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let keys = &door.guard.keys;
    let caller = match keys.is_empty() {
        true => None,
        false => {
            Some(caller(keys, request.uri(), request.headers()).ok_or(ApiError::InvalidApiKey)?)
        }
    };
    if let Some(caller) = &caller {
        caller.check_scope(Scope::of(request.method(), request.uri().path()))?;
    }
    let works = request.method() == Method::POST;
    if works && !door.is_open() {
        return Err(ApiError::Draining);
    }
    if let Some(caller) = caller {
        if works {
            caller.enter(Instant::now(), unix_time())?;
        }
        if let Some(record) = request.extensions().get::<Arc<Record>>() {
            record.set_caller(caller);
        }
    }
    Ok(next.run(request).await)
}

/// Whose key a request has.
pub(super) fn caller(keys: &ApiKeys, uri: &Uri, headers: &HeaderMap) -> Option<Arc<Caller>> {
    let header = |name| headers.get(name).and_then(|v| v.to_str().ok());
    let bearer = header(header::AUTHORIZATION).and_then(|v| v.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let own = speaks(uri.path()).then(|| header(X_API_KEY)).flatten();
    let given = [bearer.map(|(_, key)| key), own];
    given.into_iter().flatten().find_map(|key| keys.find(key.trim()))
}
