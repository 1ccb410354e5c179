//! `multipart/form-data`: the fields of a request for a transcript.

use super::Format;
use crate::{
    errors::ApiError,
    intake::{self, Payload},
    state::AppState,
};
use axum::{
    body::Bytes,
    extract::{FromRequest, Request},
    http::header,
};
use futures_util::stream;
use multer::Multipart;
use std::{convert::Infallible, str::FromStr, sync::Arc};
use taper_base::TranscribeOptions;
use tokio::sync::OwnedSemaphorePermit;

/// Bytes that a form may have beside its file.
pub(crate) const FIELDS: usize = 64 << 10;
/// Fields that a form may have.
const MOST_FIELDS: usize = 64;

/// A form that has come, and is not read yet.
#[derive(Debug)]
pub(crate) struct Upload {
    payload: Payload,
    boundary: String,
}

impl FromRequest<AppState> for Upload {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let headers = request.headers();
        intake::check_encoding(headers)?;
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let boundary = kind.and_then(|kind| multer::parse_boundary(kind).ok());
        let boundary = boundary.ok_or(ApiError::NotAForm)?;
        // A server that transcribes nothing needs no file to say so.
        state.0.transcripts()?;
        let limit = state.0.config.max_audio_bytes.saturating_add(FIELDS);
        let limits = (limit, state.0.config.body_timeout);
        let (parts, body) = request.into_parts();
        let payload = Payload::take(&parts.headers, body, limits, &state.0.intake).await?;
        Ok(Self { payload, boundary })
    }
}

/// A request for a transcript.
#[derive(Debug)]
pub(crate) struct Form {
    pub(crate) file: Bytes,
    pub(crate) model: Option<String>,
    pub(crate) options: TranscribeOptions,
    pub(crate) format: Format,
    pub(crate) stream: bool,
    pub(crate) held: Option<Arc<OwnedSemaphorePermit>>,
}

impl Form {
    /// Reads every field: each is honoured or refused.
    pub(crate) async fn read(
        upload: Upload,
        state: &AppState,
        translate: bool,
    ) -> Result<Self, ApiError> {
        let Upload { payload: Payload { bytes, held }, boundary } = upload;
        let body = stream::iter([Ok::<_, Infallible>(Bytes::from(bytes))]);
        let mut parts = Multipart::new(body, boundary);
        let mut fields = Fields { translate, ..Fields::default() };
        for _ in 0..MOST_FIELDS {
            let Some(part) = parts.next_field().await.map_err(|_| ApiError::BrokenForm)? else {
                return fields.finish(held);
            };
            let name = part.name().unwrap_or_default().to_owned();
            let bytes = part.bytes().await.map_err(|_| ApiError::BrokenForm)?;
            fields.take(name, bytes, &state.0.config)?;
        }
        Err(ApiError::TooManyValues { limit: MOST_FIELDS })
    }
}

#[derive(Default)]
struct Fields {
    translate: bool,
    seen: Vec<String>,
    file: Option<Bytes>,
    model: Option<String>,
    language: Option<String>,
    prompt: Option<String>,
    format: Format,
    temperature: Option<f32>,
    granular: bool,
    stream: bool,
}

impl Fields {
    fn take(
        &mut self,
        name: String,
        bytes: Bytes,
        config: &crate::ServerConfig,
    ) -> Result<(), ApiError> {
        if name == "file" {
            let limit = config.max_audio_bytes;
            if bytes.len() > limit {
                return Err(ApiError::BodyTooLarge { limit });
            }
        } else if bytes.len() > FIELDS {
            return Err(ApiError::value(name, format!("has more than {FIELDS} bytes")));
        }
        // Only lists come more than once.
        let list = name.ends_with("[]") || name == GRANULARITIES;
        if !list && self.seen.contains(&name) {
            return Err(ApiError::value(name, "is given twice"));
        }
        self.seen.push(name.clone());
        if name == "file" {
            self.file = Some(bytes);
            return Ok(());
        }
        let text = match std::str::from_utf8(&bytes) {
            Ok(text) => text,
            Err(_) => return Err(ApiError::value(name, "is not UTF-8")),
        };
        let given = (!text.trim().is_empty()).then(|| text.to_owned());
        match name.as_str() {
            "model" => self.model = given,
            "prompt" => self.prompt = given,
            "response_format" => self.format = text.parse()?,
            "temperature" => self.temperature = temperature(text)?,
            "language" if !self.translate => self.language = given,
            "stream" if !self.translate => self.stream = flag("stream", text)?,
            "timestamp_granularities[]" | GRANULARITIES if !self.translate => {
                self.granular = true;
                granularity(text)?;
            }
            _ => match UNSUPPORTED.iter().find(|(known, _)| *known == name) {
                Some(&(_, detail)) => {
                    return Err(ApiError::UnsupportedParameter { param: name, detail });
                }
                None if config.allow_unknown_fields => {}
                None => return Err(ApiError::UnknownParameter { param: name }),
            },
        }
        Ok(())
    }

    fn finish(self, held: Option<Arc<OwnedSemaphorePermit>>) -> Result<Form, ApiError> {
        let Self { translate, language, prompt, temperature, format, stream, .. } = self;
        if self.granular && format != Format::Verbose {
            let detail = "needs 'response_format': 'verbose_json'";
            return Err(ApiError::value("timestamp_granularities[]", detail));
        }
        if stream && format != Format::Json {
            let detail = "streams come as events of 'json'";
            return Err(ApiError::value("response_format", detail));
        }
        let file = self.file.ok_or_else(|| ApiError::MissingParameter { param: "file".into() })?;
        let options = TranscribeOptions { language, prompt, translate, temperature };
        Ok(Form { file, model: self.model, options, format, stream, held })
    }
}

const GRANULARITIES: &str = "timestamp_granularities";

/// Fields of OpenAI's and vLLM's APIs that would change the output and are not honoured.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("chunking_strategy", "is not supported: windows are cut at timestamps"),
    ("include[]", "is not supported: segments have mean log probabilities"),
    ("include", "is not supported: segments have mean log probabilities"),
    ("known_speaker_names[]", "is not supported: speakers are not told apart"),
    ("known_speaker_references[]", "is not supported: speakers are not told apart"),
    ("seed", "is not supported: equal requests get equal answers"),
    ("top_p", "is not supported on this route"),
    ("top_k", "is not supported on this route"),
    ("min_p", "is not supported on this route"),
    ("frequency_penalty", "is not supported on this route"),
    ("presence_penalty", "is not supported on this route"),
    ("repetition_penalty", "is not supported on this route"),
    ("to_language", "is not supported: translations are English"),
];

/// `None` for 0, at which the model chooses.
fn temperature(text: &str) -> Result<Option<f32>, ApiError> {
    match f32::from_str(text.trim()) {
        Ok(x) if (0.0..=1.0).contains(&x) => Ok(Some(x).filter(|x| *x > 0.0)),
        _ => Err(ApiError::value("temperature", "must be a number from 0 to 1")),
    }
}

fn flag(name: &str, text: &str) -> Result<bool, ApiError> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" | "" => Ok(false),
        _ => Err(ApiError::value(name, "must be true or false")),
    }
}

fn granularity(text: &str) -> Result<(), ApiError> {
    let param = "timestamp_granularities[]";
    match text.trim() {
        "segment" => Ok(()),
        "word" => Err(ApiError::unsupported(param, "there are times of segments, none of words")),
        _ => Err(ApiError::value(param, "must be 'segment'")),
    }
}
