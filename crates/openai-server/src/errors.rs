//! Everything that can go wrong with a request, and the one table of its HTTP responses.

mod engine;
mod models;

use crate::many::LibraryError;
use axum::http::StatusCode;
use taper_base::{AdapterRefused, ConstraintError, GenerationError, SubmitError, VectorsError};
use taper_chat::ChatError;
use taper_grammar::GrammarError;

/// Why a request was refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// The body is not JSON.
    #[error("the body is not valid JSON: {0}")]
    InvalidJson(#[source] serde_json::Error),
    /// The body is JSON, and not an object.
    #[error("the body must be a JSON object")]
    NotAnObject,
    /// The body could not be read.
    #[error("the body could not be read")]
    UnreadableBody,
    /// The body is longer than the server takes.
    #[error("the body is longer than the limit of {limit} bytes")]
    BodyTooLarge {
        /// The limit.
        limit: usize,
    },
    /// The body came too slowly.
    #[error("the body did not come in time")]
    BodyTimeout,
    /// The body has more values than anybody needs, and each takes memory.
    #[error("the body has more than {limit} values, and this server reads no more")]
    TooManyValues {
        /// The limit.
        limit: usize,
    },
    /// The body claims to be something else than JSON.
    #[error("the content type must be application/json")]
    UnsupportedMediaType,
    /// The body should be a form.
    #[error("the content type must be multipart/form-data, with its boundary")]
    NotAForm,
    /// The form is damaged.
    #[error("the body is not a form of its boundary")]
    BrokenForm,
    /// The body is compressed in a way that this server does not know.
    #[error("the content encoding must be gzip, deflate or none")]
    UnsupportedEncoding,
    /// A text has more bytes than the tokens of the longest prompt can stand for.
    #[error(
        "this model's maximum context length is {max} tokens, and a text of {bytes} bytes has more"
    )]
    TextTooLong {
        /// Bytes of the text.
        bytes: usize,
        /// Longest sequence in tokens.
        max: u32,
        /// The field that holds the text.
        param: &'static str,
    },
    /// A prompt fills the model's context.
    #[error("prompt is too long: {tokens} tokens > {max} maximum")]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Longest sequence in tokens.
        max: u32,
    },
    /// A field holds the wrong type.
    #[error("invalid type for '{param}': {detail}")]
    InvalidType {
        /// Path of the field.
        param: String,
        /// What was expected and what came.
        detail: String,
    },
    /// A field holds a value that is out of range or contradicts another.
    #[error("invalid value for '{param}': {detail}")]
    InvalidValue {
        /// Path of the field.
        param: String,
        /// What is wrong.
        detail: String,
    },
    /// A field is missing.
    #[error("missing required parameter: '{param}'")]
    MissingParameter {
        /// Path of the field.
        param: String,
    },
    /// A field that the API does not have.
    #[error("unknown parameter: '{param}'")]
    UnknownParameter {
        /// Path of the field.
        param: String,
    },
    /// A field of the API that this server does not honour.
    #[error("unsupported parameter: '{param}' {detail}")]
    UnsupportedParameter {
        /// Path of the field.
        param: String,
        /// Why, or what to use instead.
        detail: &'static str,
    },
    /// A field of the API with a value that this server does not honour.
    #[error("unsupported value for '{param}': {detail}")]
    UnsupportedValue {
        /// Path of the field.
        param: String,
        /// What is not supported.
        detail: String,
    },
    /// No such model here.
    #[error("the model '{model}' does not exist; this server has: {served}")]
    ModelNotFound {
        /// The name asked for.
        model: String,
        /// The names served.
        served: String,
    },
    /// A model cannot be loaded, downloaded or deleted.
    #[error("{}{source}", of_model(model))]
    Library {
        /// Its name; empty where it is about all of them.
        model: String,
        /// Why.
        #[source]
        source: LibraryError,
    },
    /// A model is in memory, and its files may be read.
    #[error("the model '{model}' is loaded; unload it first")]
    ModelLoaded {
        /// Its name.
        model: String,
    },
    /// There is nothing to unload.
    #[error("the model '{model}' is not loaded")]
    ModelNotLoaded {
        /// Its name.
        model: String,
    },
    /// The server has one model, which stays.
    #[error("this server has one model, which stays loaded; `--models-dir` serves several")]
    OneModel,
    /// Callers may not change what there is on the disk.
    #[error(
        "models can be downloaded and deleted only where the server has `--allow-model-updates`"
    )]
    NoModelUpdates,
    /// No such response is kept here.
    #[error(
        "there is no response '{id}': it was made with 'store': false, deleted, or forgotten, as this server keeps only the last {most} and forgets them when it ends; send the whole conversation in 'input' instead"
    )]
    ResponseNotFound {
        /// The id asked for.
        id: String,
        /// How many are kept.
        most: usize,
        /// The field that holds the id.
        param: Option<&'static str>,
    },
    /// The response is not written in the background any more, or never was.
    #[error("the response '{id}' is not in progress in the background")]
    NotInProgress {
        /// Its id.
        id: String,
    },
    /// The key is missing or wrong.
    #[error("incorrect API key provided")]
    InvalidApiKey,
    /// The key does not open this.
    #[error("you have insufficient permissions for this operation; missing scopes: {scope}")]
    MissingScope {
        /// What it lacks.
        scope: &'static str,
    },
    /// The key has sent as many requests as it may.
    #[error("rate limit reached: {limit} requests per minute; try again in {retry_after} s")]
    TooManyRequests {
        /// Requests in a minute.
        limit: u32,
        /// Seconds.
        retry_after: u64,
    },
    /// The key has used as many tokens as it may.
    #[error(
        "you exceeded your current quota of {limit} tokens per day; it is full again in {retry_after} s"
    )]
    TokensSpent {
        /// Tokens of a day.
        limit: u64,
        /// Seconds.
        retry_after: u64,
    },
    /// The generation took too long.
    #[error("the request took longer than the limit of {seconds} s")]
    RequestTimeout {
        /// The limit.
        seconds: u64,
    },
    /// The request came by a name that is not one of this server's.
    #[error("this server does not answer to the host name of the request")]
    HostNotAllowed,
    /// A web page of another origin sent the request.
    #[error("web pages of this origin may not call this server")]
    OriginNotAllowed,
    /// No such route.
    #[error("unknown request URL: {method} {path}")]
    UnknownUrl {
        /// The request's method.
        method: String,
        /// The request's path.
        path: String,
    },
    /// The route exists for other methods.
    #[error("{method} is not allowed for {path}")]
    MethodNotAllowed {
        /// The request's method.
        method: String,
        /// The request's path.
        path: String,
    },
    /// The engine did not take the request.
    #[error("{source}")]
    Submit {
        /// Why.
        #[source]
        source: SubmitError,
        /// The field that holds the prompt.
        prompt_param: &'static str,
    },
    /// An adapter cannot be loaded, or there is none of a name.
    #[error(transparent)]
    Adapter(#[from] AdapterRefused),
    /// The engine gave up on a request it had taken.
    #[error(transparent)]
    Generation(#[from] GenerationError),
    /// What the output must be cannot be enforced.
    #[error("invalid value for '{param}': {source}")]
    Grammar {
        /// Path of the field.
        param: String,
        /// Why.
        #[source]
        source: GrammarError,
    },
    /// Tokenizing, detokenizing or rendering the chat template failed.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// There are no vectors, or no scores.
    #[error("{source}")]
    Vectors {
        /// Why.
        #[source]
        source: VectorsError,
        /// The field that holds the texts.
        param: &'static str,
    },
    /// The model generates text.
    #[error("this model makes no vectors of texts")]
    NoVectors,
    /// The model generates text.
    #[error("this model scores no texts")]
    NoScores,
    /// The model does something else.
    #[error("this model does not write down speech")]
    NoTranscripts,
    /// A file of sound cannot be used.
    #[error("invalid audio 'file': {detail}")]
    Sound {
        /// What is wrong.
        detail: String,
    },
    /// The model failed on a file.
    #[error("the speech could not be written down")]
    TranscriptFailed,
    /// The weights hold values that are not numbers.
    #[error("the model gave a score that is not finite")]
    NonFiniteScore,
    /// The model came without a chat template.
    #[error("this model has no chat template; use /v1/completions")]
    NoChatTemplate,
    /// The server finishes what it has and takes nothing new.
    #[error("the server is shutting down")]
    Draining,
    /// An image of the request cannot be used.
    #[error("{}", image_error(param.as_deref(), detail))]
    Image {
        /// Path of the field, where it is known.
        param: Option<String>,
        /// What is wrong.
        detail: String,
    },
    /// The model's tower failed on an image.
    #[error("the image could not be encoded")]
    ImageFailed,
    /// Large requests are waiting for one another.
    #[error("too many large requests at once")]
    Busy,
    /// The engine dropped the request without a word.
    #[error("the engine ended without an answer")]
    EngineGone,
    /// A bug of this server.
    #[error("internal error")]
    Internal,
}

fn of_model(model: &str) -> String {
    match model {
        "" => String::new(),
        model => format!("the model '{model}': "),
    }
}

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

fn image_error(param: Option<&str>, detail: &str) -> String {
    match param {
        Some(param) => format!("invalid image '{param}': {detail}"),
        None => format!("invalid image: {detail}"),
    }
}

use engine::{dead, grammar, refused};
use models::{library, refused_adapter};

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";

/// Status, `type`, `code`, `param`.
type Row<'a> = (StatusCode, &'static str, &'static str, Option<&'a str>);

fn bad<'a>(code: &'static str, param: Option<&'a str>) -> Row<'a> {
    (StatusCode::BAD_REQUEST, INVALID, code, param)
}

impl ApiError {
    /// Seconds after which a client may try again, if it is told to.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        match self {
            Self::TooManyRequests { retry_after, .. } | Self::TokensSpent { retry_after, .. } => {
                Some(*retry_after)
            }
            _ => {
                let busy = [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS];
                busy.contains(&self.class().status).then_some(1)
            }
        }
    }

    pub(crate) fn value(param: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::InvalidValue { param: param.into(), detail: detail.into() }
    }

    pub(crate) fn unsupported(param: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::UnsupportedValue { param: param.into(), detail: detail.into() }
    }

    /// The error of an API in which a field has another name.
    pub(crate) fn renamed(self, from: &str, to: &'static str) -> Self {
        match self {
            Self::InvalidValue { param, detail } if param == from => Self::value(to, detail),
            Self::UnsupportedValue { param, detail } if param == from => {
                Self::unsupported(to, detail)
            }
            Self::TextTooLong { bytes, max, param } if param == from => {
                Self::TextTooLong { bytes, max, param: to }
            }
            other => other,
        }
    }

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
