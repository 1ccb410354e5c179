//! `/v1/audio/transcriptions` and `/v1/audio/translations`.

use schemars::JsonSchema;
use serde::Serialize;

/// The form, for the description of the API: its fields are read one by one.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "read for the schema alone")]
pub(crate) struct TranscriptionForm {
    /// The sound: WAV, MP3, FLAC, Ogg Vorbis, M4A or AAC.
    #[schemars(extend("format" = "binary"))]
    file: String,
    /// A served name; the first one when absent.
    model: Option<String>,
    /// Language that is spoken: its code or its English name; it is detected when absent.
    language: Option<String>,
    /// Text that the speech continues.
    prompt: Option<String>,
    /// `json`, `text`, `srt`, `vtt` or `verbose_json`.
    response_format: Option<String>,
    /// From 0 to 1. At 0, the default, it rises where a text repeats itself or is unlikely.
    temperature: Option<f32>,
    /// `segment`, with `verbose_json`.
    #[schemars(rename = "timestamp_granularities[]")]
    timestamp_granularities: Option<Vec<String>>,
    /// Segments come as events, when they are written.
    stream: Option<bool>,
}

/// [`TranscriptionForm`] of a translation.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "read for the schema alone")]
pub(crate) struct TranslationForm {
    /// The sound: WAV, MP3, FLAC, Ogg Vorbis, M4A or AAC.
    #[schemars(extend("format" = "binary"))]
    file: String,
    /// A served name; the first one when absent.
    model: Option<String>,
    /// English text that the speech continues.
    prompt: Option<String>,
    /// `json`, `text`, `srt`, `vtt` or `verbose_json`.
    response_format: Option<String>,
    /// From 0 to 1. At 0, the default, it rises where a text repeats itself or is unlikely.
    temperature: Option<f32>,
}

/// A response in the format `json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TranscriptOut {
    pub(crate) text: String,
    pub(crate) usage: SpeechUsage,
}

/// Seconds of sound, the last one whole.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub(crate) struct SpeechUsage {
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) seconds: u64,
}

/// A response in the format `verbose_json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TranscriptVerbose {
    /// `transcribe` or `translate`.
    pub(crate) task: &'static str,
    /// The language of the text, in English.
    pub(crate) language: String,
    /// Seconds of sound.
    pub(crate) duration: f64,
    pub(crate) text: String,
    pub(crate) segments: Vec<SegmentOut>,
    pub(crate) usage: SpeechUsage,
}

/// Some words, and when they are said.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SegmentOut {
    pub(crate) id: usize,
    /// Where its window begins, in frames of 10 ms.
    pub(crate) seek: usize,
    /// In seconds.
    pub(crate) start: f64,
    pub(crate) end: f64,
    pub(crate) text: String,
    pub(crate) tokens: Vec<u32>,
    pub(crate) temperature: f32,
    pub(crate) avg_logprob: f32,
    pub(crate) compression_ratio: f32,
    pub(crate) no_speech_prob: f32,
}

/// An event of a stream.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type")]
pub(crate) enum TranscriptEvent {
    /// A segment was written.
    #[serde(rename = "transcript.text.delta")]
    Delta {
        /// Its text.
        delta: String,
    },
    /// All is written.
    #[serde(rename = "transcript.text.done")]
    Done {
        /// All of it.
        text: String,
        /// What was heard.
        usage: SpeechUsage,
    },
}
