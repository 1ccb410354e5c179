//! What an error looks like to a client.

use crate::errors::ApiError;
use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use schemars::JsonSchema;
use serde::Serialize;
use taper_base::ErrorId;

/// Messages quote what came, and what came may be megabytes.
const LONGEST_MESSAGE: usize = 2000;
const LONGEST_PARAM: usize = 200;

impl ApiError {
    /// The message for the client. Of a fault of this server that may name paths or devices, it only
    /// says where the log has more.
    fn message(&self) -> String {
        match self {
            Self::Chat(error) if self.class().status.is_server_error() => {
                let id = ErrorId::random();
                tracing::error!(%id, %error, "the tokenizer or the chat template failed");
                format!("internal error; the server's log has the details under error id {id}")
            }
            _ => self.to_string(),
        }
    }

    /// The body, as it also travels in a stream.
    pub(crate) fn body(&self) -> ErrorBody {
        let class = self.class();
        ErrorBody {
            status: class.status,
            error: ErrorDetail {
                message: clipped(self.message(), LONGEST_MESSAGE),
                kind: class.kind,
                param: class.param.map(|param| clipped(param, LONGEST_PARAM)),
                code: class.code,
            },
        }
    }
}

fn clipped(mut text: String, longest: usize) -> String {
    if text.len() > longest {
        text.truncate(text.floor_char_boundary(longest));
        text.push('…');
    }
    text
}

/// `{"error": {...}}`. Responses carry it as an extension too, for APIs that write it differently.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct ErrorBody {
    #[serde(skip)]
    status: StatusCode,
    error: ErrorDetail,
}

impl ErrorBody {
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn message(&self) -> &str {
        &self.error.message
    }

    pub(crate) fn code(&self) -> &'static str {
        self.error.code
    }
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
struct ErrorDetail {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<String>,
    code: &'static str,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let class = self.class();
        if class.status.is_server_error() {
            tracing::error!(code = class.code, error = %self, "request failed");
        } else {
            // The message may quote the prompt.
            tracing::debug!(code = class.code, param = class.param, "request refused");
        }
        let body = self.body();
        let mut response = (class.status, Json(&body)).into_response();
        response.extensions_mut().insert(body);
        let headers = response.headers_mut();
        if class.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after() {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}
