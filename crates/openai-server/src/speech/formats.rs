//! What a transcript looks like to a client.

use crate::{
    errors::ApiError,
    wire::{SegmentOut, SpeechUsage, TranscriptOut, TranscriptVerbose},
};
use axum::{
    Json,
    http::header,
    response::{IntoResponse, Response},
};
use std::str::FromStr;
use taper_base::{Transcript, TranscriptSegment};

/// `response_format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Format {
    #[default]
    Json,
    Text,
    Srt,
    Vtt,
    Verbose,
}

impl FromStr for Format {
    type Err = ApiError;

    fn from_str(text: &str) -> Result<Self, ApiError> {
        Ok(match text.trim() {
            "json" => Self::Json,
            "text" => Self::Text,
            "srt" => Self::Srt,
            "vtt" => Self::Vtt,
            "verbose_json" => Self::Verbose,
            _ => {
                let detail = "must be 'json', 'text', 'srt', 'vtt' or 'verbose_json'";
                return Err(ApiError::value("response_format", detail));
            }
        })
    }
}

/// A transcript, in a format.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) transcript: Transcript,
    pub(crate) format: Format,
    pub(crate) translated: bool,
}

impl IntoResponse for Shown {
    fn into_response(self) -> Response {
        let Self { transcript, format, translated } = self;
        let usage = usage(transcript.duration);
        let plain = |text: String| {
            ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
        };
        match format {
            Format::Json => Json(TranscriptOut { text: transcript.text, usage }).into_response(),
            Format::Text => plain(transcript.text + "\n"),
            Format::Srt => plain(transcript.srt()),
            Format::Vtt => plain(transcript.vtt()),
            Format::Verbose => {
                let (task, language) = match translated {
                    true => ("translate", "english".to_owned()),
                    false => ("transcribe", transcript.language_name),
                };
                let segments = transcript.segments.into_iter().enumerate().map(segment).collect();
                let Transcript { duration, text, .. } = transcript;
                Json(TranscriptVerbose { task, language, duration, text, segments, usage })
                    .into_response()
            }
        }
    }
}

fn segment((id, segment): (usize, TranscriptSegment)) -> SegmentOut {
    SegmentOut {
        id,
        seek: segment.seek,
        start: segment.start,
        end: segment.end,
        text: segment.text,
        tokens: segment.tokens,
        temperature: segment.temperature,
        avg_logprob: segment.avg_logprob,
        compression_ratio: segment.compression_ratio,
        no_speech_prob: segment.no_speech_prob,
    }
}

/// OpenAI's count: seconds, the last one whole.
pub(crate) fn usage(duration: f64) -> SpeechUsage {
    SpeechUsage { kind: "duration", seconds: duration.ceil() as u64 }
}
