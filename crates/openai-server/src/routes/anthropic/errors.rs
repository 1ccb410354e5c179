//! Errors in Anthropic's form, whatever layer of the server they come from.

use crate::{
    error_body::ErrorBody,
    record::Record,
    routes::translated,
    wire::{AnthropicError, AnthropicErrorDetail},
};
use axum::{
    extract::Request,
    http::{HeaderName, StatusCode},
    middleware::Next,
    response::Response,
};
use std::sync::Arc;

/// Anthropic's name of `x-request-id`.
const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Clients take the advice to shorten a conversation from these words.
const TOO_LONG: &str = "prompt is too long";

/// Whether requests to a path speak Anthropic's language.
pub(in crate::routes) fn speaks(path: &str) -> bool {
    path.strip_prefix("/v1/messages").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Gives responses of Anthropic's routes their headers, and errors their form.
pub(in crate::routes) async fn dialect(request: Request, next: Next) -> Response {
    if !speaks(request.uri().path()) {
        return next.run(request).await;
    }
    let id = request.extensions().get::<Arc<Record>>().and_then(|record| record.id());
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<ErrorBody>() {
        let id = id.as_ref().and_then(|id| id.to_str().ok()).map(str::to_owned);
        response = translated(response, &body(&error, id));
    }
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

pub(super) fn body(error: &ErrorBody, request_id: Option<String>) -> AnthropicError {
    let mut message = error.message().to_owned();
    if error.code() == "context_length_exceeded" && !message.starts_with(TOO_LONG) {
        message = format!("{TOO_LONG}: {message}");
    }
    let error = AnthropicErrorDetail { kind: kind(error.status()), message };
    AnthropicError { kind: "error", error, request_id }
}

fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::REQUEST_TIMEOUT => "timeout_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    }
}
