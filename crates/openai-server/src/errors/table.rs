//! The one table of the HTTP responses of errors.

mod engine;
mod models;

use super::ApiError;
use axum::http::StatusCode;
use engine::{dead, grammar, refused};
use models::{library, refused_adapter};
use taper_base::{ConstraintError, GenerationError, VectorsError};
use taper_chat::ChatError;

/// HTTP response of an error: status, and `type`, `code` and `param` of the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorClass {
    /// HTTP status of the response.
    pub status: StatusCode,
    /// Field `type` of the error object.
    pub kind: &'static str,
    /// Field `code` of the error object.
    pub code: &'static str,
    /// `param` of the body: the field at fault.
    pub param: Option<String>,
}

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";

/// Status, `type`, `code`, `param`.
type Row<'a> = (StatusCode, &'static str, &'static str, Option<&'a str>);

fn bad<'a>(code: &'static str, param: Option<&'a str>) -> Row<'a> {
    (StatusCode::BAD_REQUEST, INVALID, code, param)
}

impl ApiError {
    /// The table. Every match is written out, with no catch-all arm, so that a new variant of this
    /// or of a wrapped enum does not compile until somebody has decided on its response.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        use StatusCode as S;
        let fail = |code| (S::INTERNAL_SERVER_ERROR, SERVER, code, None);
        let (status, kind, code, param) = match self {
            Self::InvalidJson(_) => bad("invalid_json", None),
            Self::NotAnObject => bad("invalid_type", None),
            Self::UnreadableBody => bad("unreadable_body", None),
            Self::BodyTooLarge { .. } => (S::PAYLOAD_TOO_LARGE, INVALID, "body_too_large", None),
            Self::BodyTimeout => (S::REQUEST_TIMEOUT, INVALID, "body_timeout", None),
            Self::TooManyValues { .. } => bad("too_many_values", None),
            Self::TextTooLong { param, .. } => bad("context_length_exceeded", Some(param)),
            Self::PromptTooLong { .. } => bad("context_length_exceeded", Some("messages")),
            Self::HostNotAllowed => (S::FORBIDDEN, INVALID, "host_not_allowed", None),
            Self::OriginNotAllowed => (S::FORBIDDEN, INVALID, "origin_not_allowed", None),
            Self::UnsupportedEncoding => {
                (S::UNSUPPORTED_MEDIA_TYPE, INVALID, "unsupported_encoding", None)
            }
            Self::UnsupportedMediaType => {
                (S::UNSUPPORTED_MEDIA_TYPE, INVALID, "unsupported_media_type", None)
            }
            Self::NotAForm => (S::UNSUPPORTED_MEDIA_TYPE, INVALID, "unsupported_media_type", None),
            Self::BrokenForm => bad("invalid_form", None),
            Self::InvalidType { param, .. } => bad("invalid_type", Some(param)),
            Self::InvalidValue { param, .. } => bad("invalid_value", Some(param)),
            Self::MissingParameter { param } => bad("missing_required_parameter", Some(param)),
            Self::UnknownParameter { param } => bad("unknown_parameter", Some(param)),
            Self::UnsupportedParameter { param, .. } => bad("unsupported_parameter", Some(param)),
            Self::UnsupportedValue { param, .. } => bad("unsupported_value", Some(param)),
            Self::ModelNotFound { .. } => (S::NOT_FOUND, INVALID, "model_not_found", Some("model")),
            Self::Library { source, .. } => library(source),
            Self::ModelLoaded { .. } => (S::CONFLICT, INVALID, "model_loaded", Some("model")),
            Self::ModelNotLoaded { .. } => bad("model_not_loaded", Some("model")),
            Self::OneModel => (S::NOT_FOUND, INVALID, "one_model", None),
            Self::NoModelUpdates => (S::FORBIDDEN, INVALID, "model_updates_not_allowed", None),
            Self::ResponseNotFound { param, .. } => {
                (S::NOT_FOUND, INVALID, "response_not_found", *param)
            }
            Self::NotInProgress { .. } => bad("not_in_progress", None),
            Self::InvalidApiKey => (S::UNAUTHORIZED, INVALID, "invalid_api_key", None),
            Self::MissingScope { .. } => (S::FORBIDDEN, INVALID, "insufficient_permissions", None),
            Self::TooManyRequests { .. } => {
                (S::TOO_MANY_REQUESTS, "rate_limit_error", "rate_limit_exceeded", None)
            }
            Self::TokensSpent { .. } => {
                (S::TOO_MANY_REQUESTS, "insufficient_quota", "insufficient_quota", None)
            }
            Self::RequestTimeout { .. } => (S::REQUEST_TIMEOUT, SERVER, "request_timeout", None),
            Self::UnknownUrl { .. } => (S::NOT_FOUND, INVALID, "unknown_url", None),
            Self::MethodNotAllowed { .. } => {
                (S::METHOD_NOT_ALLOWED, INVALID, "method_not_allowed", None)
            }
            Self::Submit { source, prompt_param } => refused(source, Some(prompt_param)),
            Self::Adapter(source) => refused_adapter(source),
            Self::NoVectors => bad("no_vectors", None),
            Self::NoScores => bad("no_scores", None),
            Self::NoTranscripts => bad("no_transcripts", None),
            Self::Sound { .. } => bad("invalid_audio", Some("file")),
            Self::TranscriptFailed => fail("transcript_failed"),
            Self::NonFiniteScore => fail("non_finite_score"),
            Self::Vectors { source, param } => match source {
                VectorsError::Length { .. } => bad("context_length_exceeded", Some(param)),
                VectorsError::Dimensions { .. } => bad("invalid_value", Some("dimensions")),
                VectorsError::UnknownToken { .. } => bad("unknown_token", Some(param)),
                VectorsError::Failed(_) => fail("model_failed"),
            },
            Self::Generation(source) => match source {
                GenerationError::NonFiniteLogits { .. } => fail("non_finite_logits"),
                GenerationError::NoCandidate { .. } => bad("no_token_left", Some("stop_token_ids")),
                GenerationError::Grammar { source, .. } => match source {
                    ConstraintError::DeadEnd => bad("grammar_dead_end", None),
                    ConstraintError::TooComplex => bad("grammar_too_complex", None),
                    ConstraintError::Broken(_) => fail("internal_error"),
                },
                GenerationError::NotAdmitted(source) => refused(source, None),
                GenerationError::Step { .. } => fail("step_failed"),
                GenerationError::Internal { .. } => fail("internal_error"),
                GenerationError::NotRead => (S::REQUEST_TIMEOUT, INVALID, "output_not_read", None),
                GenerationError::Restarted => fail("engine_restarted"),
                GenerationError::EngineDead => dead(),
                GenerationError::ShuttingDown => {
                    (S::SERVICE_UNAVAILABLE, SERVER, "shutting_down", None)
                }
            },
            Self::Grammar { param, source } => grammar(source, param),
            Self::Chat(source) => match source {
                // These belong to starting up; a request that meets one has met a bug.
                ChatError::Read { .. }
                | ChatError::Json { .. }
                | ChatError::Tokenizer { .. }
                | ChatError::UnsupportedDecoder { .. }
                | ChatError::NoTemplate { .. }
                | ChatError::TemplateShape { .. }
                | ChatError::BrokenTemplate { .. }
                | ChatError::UnknownFormat { .. } => fail("internal_error"),
                ChatError::Tokenization { .. } => fail("tokenizer_failed"),
                ChatError::TemplateRaised { .. } => bad("invalid_value", Some("messages")),
                ChatError::Render { .. } => bad("template_failed", Some("messages")),
                ChatError::TemplateOutOfFuel { .. } | ChatError::TemplateOutOfMemory { .. } => {
                    bad("template_failed", Some("messages"))
                }
                ChatError::GenerationPromptAndContinue | ChatError::NothingToContinue => {
                    bad("invalid_value", Some("continue_final_message"))
                }
                ChatError::EmptyStopString | ChatError::LongStopStrings { .. } => {
                    bad("invalid_value", Some("stop"))
                }
            },
            Self::NoChatTemplate => bad("no_chat_template", Some("messages")),
            Self::Image { param, .. } => bad("invalid_image", param.as_deref()),
            Self::ImageFailed => fail("image_failed"),
            Self::Draining => (S::SERVICE_UNAVAILABLE, SERVER, "shutting_down", None),
            Self::Busy => (S::SERVICE_UNAVAILABLE, SERVER, "busy", None),
            Self::EngineGone => fail("engine_gone"),
            Self::Internal => fail("internal_error"),
        };
        ErrorClass { status, kind, code, param: param.map(str::to_owned) }
    }
}
