//! Routes, and what every request passes on its way to one.

mod chat;
mod chat_output;
mod chat_prompt;
mod completions;
mod info;
mod tokenize;

use crate::{
    errors::ApiError,
    state::{AppState, Phase},
};
use axum::{
    Router,
    extract::{DefaultBodyLimit, Request, State},
    http::{HeaderValue, Method, Uri, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use tower_http::cors::{AllowOrigin, CorsLayer};

/// The whole API as a service. `serve` runs it on a socket; it can also be nested in another
/// application, without the graceful end that `serve` gives.
pub fn router(state: AppState) -> Router {
    let config = &state.0.config;
    let limit = DefaultBodyLimit::max(config.max_body_bytes);
    let cors = cors(&config.cors_origins);
    let router = Router::new()
        .route("/v1/chat/completions", post(chat::handle))
        .route("/v1/completions", post(completions::handle))
        .route("/v1/models", get(info::models))
        .route("/v1/models/{*id}", get(info::model))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/health", get(info::health))
        .route("/ready", get(info::ready))
        .route("/version", get(info::version))
        .route("/metrics", get(info::metrics))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(limit)
        .layer(middleware::from_fn_with_state(state.clone(), gate))
        .with_state(state);
    match cors {
        Some(cors) => router.layer(cors),
        None => router,
    }
}

fn cors(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let origin = if origins.iter().any(|o| o == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().filter_map(|o| HeaderValue::from_str(o).ok()))
    };
    let headers = [header::CONTENT_TYPE, header::AUTHORIZATION];
    let methods = [Method::GET, Method::POST, Method::OPTIONS];
    Some(CorsLayer::new().allow_origin(origin).allow_methods(methods).allow_headers(headers))
}

/// Keys first, so that a stranger learns nothing; then whether the server takes requests at all.
async fn gate(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let guarded = path.starts_with("/v1/") || path == "/tokenize" || path == "/detokenize";
    let refusal = if guarded && !authorized(&state, &request) {
        Some(ApiError::InvalidApiKey)
    } else if guarded && request.method() == Method::POST && state.0.phase() != Phase::Serving {
        Some(ApiError::Draining)
    } else {
        None
    };
    let mut response = match refusal {
        Some(error) => error.into_response(),
        None => next.run(request).await,
    };
    if state.0.phase() != Phase::Serving {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
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

async fn not_found(method: Method, uri: Uri) -> ApiError {
    ApiError::UnknownUrl { method: method.to_string(), path: uri.path().to_owned() }
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::MethodNotAllowed { method: method.to_string(), path: uri.path().to_owned() }
}
