//! Errors in Ollama's form, whatever layer of the server they come from.

use crate::{error_body::ErrorBody, routes::translated, wire::OllamaError};
use axum::{extract::Request, middleware::Next, response::Response};

/// Gives errors of Ollama's routes their form.
pub(in crate::routes) async fn dialect(request: Request, next: Next) -> Response {
    if !request.uri().path().starts_with("/api/") {
        return next.run(request).await;
    }
    let mut response = next.run(request).await;
    match response.extensions_mut().remove::<ErrorBody>() {
        Some(error) => translated(response, &body(&error)),
        None => response,
    }
}

pub(super) fn body(error: &ErrorBody) -> OllamaError {
    OllamaError { error: error.message().to_owned() }
}
