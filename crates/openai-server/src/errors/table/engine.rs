//! The part of the table for engines and grammars.

use super::{INVALID, Row, SERVER, bad};
use axum::http::StatusCode;
use taper_base::SubmitError;
use taper_grammar::GrammarError;

/// The engine has failed for good.
pub(super) fn dead() -> Row<'static> {
    (StatusCode::SERVICE_UNAVAILABLE, SERVER, "engine_dead", None)
}

/// The part of the table for what the engine does not take. `prompt` is the field of the prompt.
pub(super) fn refused<'a>(source: &SubmitError, prompt: Option<&'a str>) -> Row<'a> {
    match source {
        SubmitError::EmptyPrompt => bad("empty_prompt", prompt),
        SubmitError::TooLong { .. } => bad("context_length_exceeded", prompt),
        SubmitError::NeverFits { .. } => bad("kv_cache_too_small", prompt),
        SubmitError::UnknownToken { .. } => bad("unknown_token", prompt),
        SubmitError::KvBits { .. } => bad("invalid_kv_bits", Some("kv_bits")),
        SubmitError::NoRecall { .. } => bad("invalid_value", Some("kv_recall_pages")),
        SubmitError::NoImages | SubmitError::ImagesEvicted => bad("unsupported_value", prompt),
        SubmitError::TooManyAtOnce { .. } => bad("context_length_exceeded", prompt),
        SubmitError::Medium { .. } => bad("invalid_image", prompt),
        SubmitError::NoGeneration => bad("no_generation", None),
        SubmitError::NoCandidate => bad("no_token_left", Some("stop_token_ids")),
        SubmitError::NoPriorities { .. } => bad("invalid_value", Some("priority")),
        SubmitError::InvalidParam(p) => bad("invalid_value", Some(p.name)),
        // It was unloaded between the check and the engine.
        SubmitError::UnknownAdapter { .. } => {
            (StatusCode::NOT_FOUND, INVALID, "model_not_found", Some("model"))
        }
        SubmitError::QueueFull { .. } | SubmitError::ClientQueueFull { .. } => {
            (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "queue_full", None)
        }
        SubmitError::EngineDead => dead(),
        SubmitError::ShuttingDown => {
            (StatusCode::SERVICE_UNAVAILABLE, SERVER, "shutting_down", None)
        }
    }
}

/// The part of the table for what an output must be.
pub(super) fn grammar<'a>(source: &GrammarError, param: &'a str) -> Row<'a> {
    match source {
        GrammarError::Unsupported { .. } => bad("unsupported_schema", Some(param)),
        GrammarError::Schema { .. } => bad("invalid_schema", Some(param)),
        GrammarError::Syntax(_) => bad("invalid_grammar", Some(param)),
        GrammarError::TooLarge { .. } => bad("grammar_too_large", Some(param)),
        GrammarError::TooSlow { .. } => bad("grammar_too_complex", Some(param)),
        GrammarError::Format { .. } => bad("unsupported_value", Some(param)),
        GrammarError::Tool { source, .. } => grammar(source, param),
        GrammarError::Busy => (StatusCode::SERVICE_UNAVAILABLE, SERVER, "busy", None),
        GrammarError::Vocabulary(_) => bad("unsupported_value", Some(param)),
    }
}
