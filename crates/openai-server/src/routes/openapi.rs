//! `/openapi.json` and `/docs`.

use super::gate::Door;
use crate::openapi;
use axum::{
    Extension,
    http::header,
    response::{Html, IntoResponse},
};
use std::sync::Arc;

pub(super) async fn document(Extension(door): Extension<Arc<Door>>) -> impl IntoResponse {
    let text = openapi::document(door.has_keys());
    ([(header::CONTENT_TYPE, "application/json")], text)
}

pub(super) async fn page() -> impl IntoResponse {
    let policy =
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; frame-ancestors 'none'";
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(openapi::page()))
}
