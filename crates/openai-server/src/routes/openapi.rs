//! `/openapi.json` and `/docs`.

use crate::{openapi, state::AppState};
use axum::{
    extract::State,
    http::header,
    response::{Html, IntoResponse},
};

pub(super) async fn document(State(state): State<AppState>) -> impl IntoResponse {
    let text = openapi::document(!state.0.config.api_keys.is_empty());
    ([(header::CONTENT_TYPE, "application/json")], text)
}

pub(super) async fn page() -> impl IntoResponse {
    let policy =
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; frame-ancestors 'none'";
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(openapi::page()))
}
