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
mod many;
mod ollama;
mod openapi;
mod responses;
mod scores;
mod segments;
mod speech;
mod tokenize;

pub use gate::{Guard, protect};
pub(crate) use info::page as model_metrics;

use crate::{
    config::{Mount, ServerConfig},
    errors::ApiError,
    many::Models,
    state::AppState,
    stored::Responses,
};
use axum::{
    Extension, Json, Router,
    extract::FromRef,
    http::{Method, Uri, header},
    middleware,
    response::{IntoResponse, Response},
    routing::{MethodRouter, delete, get, post},
};
use gate::Door;
use serde::Serialize;
use std::{any::Any, sync::Arc};
use tower_http::{catch_panic::CatchPanicLayer, decompression::RequestDecompressionLayer};

/// The whole API as a service. `serve` runs it on a socket; it can also be nested in another
/// application, without the timeouts and the graceful end that `serve` gives.
pub fn router(state: AppState) -> Router {
    let door = Arc::new(Door::of(&state));
    let config = state.0.config.clone();
    served(routes(), state, &door, &config)
}

/// The API of several models as a service.
pub fn models_router(models: Models) -> Router {
    let door = Arc::new(Door::new(&models.0.config, models.phases()));
    let config = models.0.config.clone();
    served(routes_of_many(), models, &door, &config)
}

/// The routes of one of several models, without what a request passes before: it has passed that.
pub(crate) fn model_routes(state: &AppState) -> Router {
    answering().protected.with_state(state.clone())
}

fn served<S: Clone + Send + Sync + 'static>(
    routes: Routes<S>,
    state: S,
    door: &Arc<Door>,
    config: &ServerConfig,
) -> Router {
    let router = routes
        .with_mounts(&config.mounts)
        .into_router(&state, door)
        // A bug ends its own request.
        .layer(CatchPanicLayer::custom(panicked))
        // Encodings that it does not know are refused where the body is read.
        .layer(RequestDecompressionLayer::new().pass_through_unaccepted(true))
        .layer(middleware::from_fn_with_state(Arc::clone(door), gate::gate))
        .layer(middleware::from_fn(anthropic::dialect))
        .layer(middleware::from_fn(ollama::dialect))
        .layer(Extension(Arc::clone(door)))
        .with_state(state);
    let router = match config.allowed_origins.cors() {
        Some(cors) => router.layer(cors),
        None => router,
    };
    // A page may be opened by a link from anywhere: it says nothing that is not public.
    let pages = config.pages.clone();
    let pages =
        pages.method_not_allowed_fallback(wrong_method).layer(middleware::from_fn(gate::quiet));
    router.merge(pages).layer(middleware::from_fn(gate::record))
}

/// Every route of the API: its path, and whether it is open to callers without an API key.
#[must_use]
pub fn route_table() -> Vec<(&'static str, bool)> {
    routes().table
}

/// Routes whose body names the model that answers.
fn answering() -> Routes<AppState> {
    Routes::default()
        .protected("/v1/chat/completions", post(chat::handle))
        .protected("/v1/completions", post(completions::handle))
        .protected("/v1/messages", post(anthropic::messages))
        .protected("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .protected("/v1/responses", post(responses::create))
        .protected("/api/chat", post(ollama::chat))
        .protected("/api/generate", post(ollama::generate))
        .protected("/api/embed", post(ollama::embed))
        .protected("/v1/embeddings", post(embeddings::handle))
        .protected("/v1/rerank", post(scores::rerank))
        .protected("/rerank", post(scores::rerank))
        .protected("/v1/score", post(scores::score))
        .protected("/score", post(scores::score))
        .protected("/tokenize", post(tokenize::tokenize))
        .protected("/detokenize", post(tokenize::detokenize))
}

/// The routes of a server of one model.
fn routes() -> Routes<AppState> {
    answering()
        .of_any_server()
        .protected("/v1/audio/transcriptions", post(speech::transcribe))
        .protected("/v1/audio/translations", post(speech::translate))
        .protected("/api/show", post(ollama::show))
        .protected("/api/tags", get(ollama::tags))
        .protected("/api/ps", get(ollama::ps))
        .protected("/api/pull", post(many::one_model))
        .protected("/api/delete", delete(many::one_model))
        .protected("/models", get(info::models))
        .protected("/models/load", post(many::one_model))
        .protected("/models/unload", post(many::one_model))
        .protected("/v1/models", get(info::models))
        .protected("/v1/models/{*id}", get(info::model).delete(many::one_model))
        .protected("/v1/load_lora_adapter", post(adapters::load))
        .protected("/v1/unload_lora_adapter", post(adapters::unload))
        // These say nothing of prompts and outputs.
        .open("/health", get(info::health))
        .open("/ready", get(info::ready))
        .open("/livez", get(info::live))
        .open("/readyz", get(info::ready))
        .open("/version", get(info::version))
        .open("/metrics", get(info::metrics))
        .open("/openapi.json", get(openapi::document))
        .open("/docs", get(openapi::page))
}

/// The routes of a server of several.
fn routes_of_many() -> Routes<Models> {
    let paths = answering().table.into_iter();
    paths
        .fold(Routes::default(), |all: Routes<Models>, (path, _)| {
            all.protected(path, post(many::dispatch))
        })
        .of_any_server()
        .protected("/api/show", post(many::show))
        .protected("/api/tags", get(many::tags))
        .protected("/api/ps", get(many::ps))
        .protected("/api/pull", post(many::pull))
        .protected("/api/delete", delete(many::delete_named))
        .protected("/models", get(many::list))
        .protected("/models/load", post(many::load))
        .protected("/models/unload", post(many::unload))
        .protected("/v1/models", get(many::list))
        .protected("/v1/models/{*id}", get(many::one).delete(many::delete))
        .open("/health", get(many::health))
        .open("/ready", get(many::ready))
        .open("/livez", get(many::health))
        .open("/readyz", get(many::ready))
        .open("/version", get(info::version))
        .open("/metrics", get(many::metrics))
        .open("/openapi.json", get(openapi::document))
        .open("/docs", get(openapi::page))
}

/// Routes in two groups. The protected group, and every path that has no route, are behind the API
/// keys; a route is open only by a call to [`Routes::open`].
struct Routes<S> {
    protected: Router<S>,
    open: Router<S>,
    table: Vec<(&'static str, bool)>,
}

impl<S: Clone + Send + Sync + 'static> Default for Routes<S> {
    fn default() -> Self {
        Self { protected: Router::new(), open: Router::new(), table: Vec::new() }
    }
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    /// Routes for which no model is needed.
    fn of_any_server(self) -> Self
    where
        Arc<Responses>: FromRef<S>,
    {
        self.protected("/v1/responses/{id}", get(responses::get).delete(responses::delete))
            .protected("/v1/responses/{id}/input_items", get(responses::input_items))
            .protected("/v1/responses/{id}/cancel", post(responses::cancel))
            .protected("/api/version", get(ollama::version))
    }

    fn protected(mut self, path: &'static str, methods: MethodRouter<S>) -> Self {
        self.protected = self.protected.route(path, methods);
        self.table.push((path, false));
        self
    }

    fn open(mut self, path: &'static str, methods: MethodRouter<S>) -> Self {
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

    fn into_router(self, state: &S, door: &Arc<Door>) -> Router<S> {
        let protected = self
            .protected
            .fallback(not_found)
            .method_not_allowed_fallback(wrong_method)
            .with_state(state.clone());
        // The protected routes are one service behind the check, so that a response without a key
        // has nothing of a route, not even the methods that it allows.
        let keys = middleware::from_fn_with_state(Arc::clone(door), gate::keys);
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

fn panicked(_: Box<dyn Any + Send>) -> Response {
    ApiError::Internal.into_response()
}

async fn not_found(method: Method, uri: Uri) -> ApiError {
    ApiError::UnknownUrl { method: method.to_string(), path: uri.path().to_owned() }
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::MethodNotAllowed { method: method.to_string(), path: uri.path().to_owned() }
}
