//! Everything that can go wrong with a request.

mod table;

pub use table::ErrorClass;

use crate::many::LibraryError;
use axum::http::StatusCode;
use taper_base::{AdapterRefused, GenerationError, SubmitError, VectorsError};
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

fn image_error(param: Option<&str>, detail: &str) -> String {
    match param {
        Some(param) => format!("invalid image '{param}': {detail}"),
        None => format!("invalid image: {detail}"),
    }
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
}
