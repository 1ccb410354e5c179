//! Routes, and what every request passes on its way to one.

mod chat;
mod chat_output;
mod chat_prompt;
mod completions;
mod gate;
mod info;
mod tokenize;

use crate::{errors::ApiError, state::AppState};
use axum::{
    Router,
    http::{Method, Uri},
    middleware,
    routing::{get, post},
};
use tower_http::decompression::RequestDecompressionLayer;

/// The whole API as a service. `serve` runs it on a socket; it can also be nested in another
/// application, without the timeouts and the graceful end that `serve` gives.
pub fn router(state: AppState) -> Router {
    let cors = state.0.config.allowed_origins.cors();
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
        // Encodings that it does not know are refused where the body is read.
        .layer(RequestDecompressionLayer::new().pass_through_unaccepted(true))
        .layer(middleware::from_fn_with_state(state.clone(), gate::gate))
        .with_state(state);
    let router = match cors {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router.layer(middleware::from_fn(gate::record))
}

async fn not_found(method: Method, uri: Uri) -> ApiError {
    ApiError::UnknownUrl { method: method.to_string(), path: uri.path().to_owned() }
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::MethodNotAllowed { method: method.to_string(), path: uri.path().to_owned() }
}
