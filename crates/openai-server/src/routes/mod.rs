//! Routes, and what every request passes on its way to one.

mod adapters;
mod anthropic;
mod chat;
mod chat_functions;
mod chat_output;
mod chat_plan;
mod chat_prompt;
mod chat_roles;
mod completions;
mod embeddings;
mod gate;
mod info;
mod ollama;
mod openapi;
mod responses;
mod scores;
mod segments;
mod speech;
mod tokenize;

pub use gate::{Guard, protect};

use crate::{config::Mount, errors::ApiError, state::AppState};
use axum::{
    Json, Router,
    http::{Method, Uri, header},
    middleware,
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use serde::Serialize;
use tower_http::decompression::RequestDecompressionLayer;

/// The whole API as a service. `serve` runs it on a socket; it can also be nested in another
/// application, without the timeouts and the graceful end that `serve` gives.
pub fn router(state: AppState) -> Router {
    let cors = state.0.config.allowed_origins.cors();
    let pages = state.0.config.pages.clone();
    let router = routes()
        .with_mounts(&state.0.config.mounts)
        .into_router(&state)
        // Encodings that it does not know are refused where the body is read.
        .layer(RequestDecompressionLayer::new().pass_through_unaccepted(true))
        .layer(middleware::from_fn_with_state(state.clone(), gate::gate))
        .layer(middleware::from_fn(anthropic::dialect))
        .layer(middleware::from_fn(ollama::dialect))
        .with_state(state);
    let router = match cors {
        Some(cors) => router.layer(cors),
        None => router,
    };
    // A page may be opened by a link from anywhere: it says nothing that is not public.
    let pages =
        pages.method_not_allowed_fallback(wrong_method).layer(middleware::from_fn(gate::quiet));
    router.merge(pages).layer(middleware::from_fn(gate::record))
}

/// Every route of the API: its path, and whether it is open to callers without an API key.
#[must_use]
pub fn route_table() -> Vec<(&'static str, bool)> {
    routes().table
}

fn routes() -> Routes {
    Routes::default()
        .protected("/v1/chat/completions", post(chat::handle))
        .protected("/v1/completions", post(completions::handle))
        .protected("/v1/messages", post(anthropic::messages))
        .protected("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .protected("/v1/responses", post(responses::create))
        .protected("/v1/responses/{id}", get(responses::get).delete(responses::delete))
        .protected("/v1/responses/{id}/input_items", get(responses::input_items))
        .protected("/v1/responses/{id}/cancel", post(responses::cancel))
        .protected("/api/chat", post(ollama::chat))
        .protected("/api/generate", post(ollama::generate))
        .protected("/api/embed", post(ollama::embed))
        .protected("/api/show", post(ollama::show))
        .protected("/api/tags", get(ollama::tags))
        .protected("/api/ps", get(ollama::ps))
        .protected("/api/version", get(ollama::version))
        .protected("/v1/embeddings", post(embeddings::handle))
        .protected("/v1/rerank", post(scores::rerank))
        .protected("/rerank", post(scores::rerank))
        .protected("/v1/score", post(scores::score))
        .protected("/score", post(scores::score))
        .protected("/v1/audio/transcriptions", post(speech::transcribe))
        .protected("/v1/audio/translations", post(speech::translate))
        .protected("/v1/models", get(info::models))
        .protected("/v1/models/{*id}", get(info::model))
        .protected("/v1/load_lora_adapter", post(adapters::load))
        .protected("/v1/unload_lora_adapter", post(adapters::unload))
        .protected("/tokenize", post(tokenize::tokenize))
        .protected("/detokenize", post(tokenize::detokenize))
        // These say nothing of prompts and outputs.
        .open("/health", get(info::health))
        .open("/ready", get(info::ready))
        .open("/version", get(info::version))
        .open("/metrics", get(info::metrics))
        .open("/openapi.json", get(openapi::document))
        .open("/docs", get(openapi::page))
}

/// Routes in two groups. The protected group, and every path that has no route, are behind the API
/// keys; a route is open only by a call to [`Routes::open`].
#[derive(Default)]
struct Routes {
    protected: Router<AppState>,
    open: Router<AppState>,
    table: Vec<(&'static str, bool)>,
}

impl Routes {
    fn protected(mut self, path: &'static str, methods: MethodRouter<AppState>) -> Self {
        self.protected = self.protected.route(path, methods);
        self.table.push((path, false));
        self
    }

    fn open(mut self, path: &'static str, methods: MethodRouter<AppState>) -> Self {
        self.open = self.open.route(path, methods);
        self.table.push((path, true));
        self
    }

    /// Services of others, behind the API keys.
    fn with_mounts(mut self, mounts: &[Mount]) -> Self {
        for Mount { path, service } in mounts {
            self.protected = self.protected.nest_service(path, service.clone());
        }
        self
    }

    fn into_router(self, state: &AppState) -> Router<AppState> {
        let protected = self
            .protected
            .fallback(not_found)
            .method_not_allowed_fallback(wrong_method)
            .with_state(state.clone());
        // The protected routes are one service behind the check, so that a response without a key
        // has nothing of a route, not even the methods that it allows.
        let keys = middleware::from_fn_with_state(state.clone(), gate::keys);
        let guarded = Router::new().fallback_service(protected).layer(keys);
        self.open
            .method_not_allowed_fallback(wrong_method)
            .layer(middleware::from_fn(gate::quiet))
            .merge(guarded)
    }
}

/// A response with an error in the form of another API: its status, and the headers that do not
/// depend on the body.
fn translated(response: Response, error: &impl Serialize) -> Response {
    let (mut parts, _) = response.into_parts();
    for header in [header::CONTENT_TYPE, header::CONTENT_LENGTH] {
        parts.headers.remove(header);
    }
    let mut new = (parts.status, Json(error)).into_response();
    new.headers_mut().extend(parts.headers);
    new
}

async fn not_found(method: Method, uri: Uri) -> ApiError {
    ApiError::UnknownUrl { method: method.to_string(), path: uri.path().to_owned() }
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::MethodNotAllowed { method: method.to_string(), path: uri.path().to_owned() }
}
