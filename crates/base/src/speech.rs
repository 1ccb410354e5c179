//! The seam between whoever wants speech written down and whoever does that.

use crate::TokenId;
use std::{
    error::Error,
    fmt::{self, Write as _},
    sync::Arc,
};

/// Writes down what is said in a sound file: a model such as Whisper. Calls return when all is written.
pub trait Transcriber: Send + Sync + fmt::Debug + 'static {
    /// The longest text of one window, in tokens, with what stands before it.
    fn max_tokens(&self) -> usize;
    /// Size of the vocabulary: token ids are below this.
    fn vocab_size(&self) -> u32;
    /// Says what a call of [`Self::transcribe`] would refuse of its options, before there is a file.
    ///
    /// # Errors
    /// A language that the model does not know, a translation by one that cannot, a prompt with control tokens.
    fn check(&self, options: &TranscribeOptions) -> Result<(), TranscribeError>;
    /// Writes down a file of sound. The listener hears of each segment when it is written.
    ///
    /// # Errors
    /// Options as [`Self::check`] has it, a file that is no sound or too long, the model fails, or nobody waits any
    /// more.
    fn transcribe(
        &self,
        file: &[u8],
        options: &TranscribeOptions,
        listener: &mut dyn TranscriptListener,
    ) -> Result<Transcript, TranscribeError>;
}

/// What is asked of a [`Transcriber`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TranscribeOptions {
    /// Language that is spoken, as its code or its English name; it is detected if absent.
    pub language: Option<String>,
    /// Text that the speech continues: its spelling and style are kept up.
    pub prompt: Option<String>,
    /// Writes English, whatever is spoken.
    pub translate: bool,
    /// Temperature of every window; absent, it is 0 and rises where a text repeats itself or is unlikely.
    pub temperature: Option<f32>,
}

/// Hears of a transcript while it is written.
pub trait TranscriptListener {
    /// A segment was written. Segments come in their order.
    fn segment(&mut self, segment: &TranscriptSegment);
    /// A window was read at a temperature. `again` says that its text was thrown away, for one at a higher temperature.
    fn window(&mut self, again: bool);
    /// Whether nobody waits any more. It is asked at every token.
    fn is_gone(&self) -> bool;
}

/// What was said.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Transcript {
    /// Code of the language, such as `en`.
    pub language: String,
    /// Its English name, such as `english`.
    pub language_name: String,
    /// Length of the sound, in seconds.
    pub duration: f64,
    /// All segments together.
    pub text: String,
    /// Those with a text.
    pub segments: Vec<TranscriptSegment>,
}

impl Transcript {
    /// Subtitles in the format of SubRip.
    #[must_use]
    pub fn srt(&self) -> String {
        let mut out = String::new();
        for (i, TranscriptSegment { start, end, text, .. }) in self.segments.iter().enumerate() {
            let (start, end) = (time(*start, true, ','), time(*end, true, ','));
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{}\n{start} --> {end}\n{}\n", i + 1, line(text));
        }
        out
    }

    /// Subtitles in the format of WebVTT.
    #[must_use]
    pub fn vtt(&self) -> String {
        let mut out = "WEBVTT\n\n".to_owned();
        for TranscriptSegment { start, end, text, .. } in &self.segments {
            let (start, end) = (time(*start, false, '.'), time(*end, false, '.'));
            let _ = writeln!(out, "{start} --> {end}\n{}\n", line(text));
        }
        out
    }
}

/// Text that cannot be taken for the times of a subtitle, nor end one.
fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace("-->", "->")
}

/// `01:02:03,456`; without hours where there are none, unless they are always written.
fn time(seconds: f64, hours: bool, point: char) -> String {
    let ms = (seconds.max(0.0) * 1000.0).round() as u64;
    let (h, m, s, ms) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000);
    let rest = format!("{m:02}:{s:02}{point}{ms:03}");
    if hours || h > 0 { format!("{h:02}:{rest}") } else { rest }
}

/// Some words of a transcript, and when they are said.
#[derive(Debug, Clone, PartialEq)]
pub struct TranscriptSegment {
    /// Where its window begins, in frames of 10 ms.
    pub seek: usize,
    /// When it begins, in seconds.
    pub start: f64,
    /// When it ends, in seconds.
    pub end: f64,
    /// Its text, with the blank before it.
    pub text: String,
    /// Its tokens, timestamps included.
    pub tokens: Vec<TokenId>,
    /// Temperature at which its window was read.
    pub temperature: f32,
    /// Mean log probability of the window's tokens.
    pub avg_logprob: f32,
    /// Bytes of the window's text for each byte of it when compressed: high for what repeats itself.
    pub compression_ratio: f32,
    /// Probability that the window has no speech.
    pub no_speech_prob: f32,
}

/// Why there is no transcript.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TranscribeError {
    /// The file cannot be used.
    #[error("{0}")]
    Sound(String),
    /// The model does not know the language.
    #[error("this model does not know the language {0:?}")]
    Language(String),
    /// The model writes one language only.
    #[error("this model knows English only, so there is nothing to translate")]
    NoTranslation,
    /// The prompt has tokens that are no text.
    #[error("the prompt has control tokens")]
    Prompt,
    /// Nobody waits any more.
    #[error("the transcript was cancelled")]
    Cancelled,
    /// The model failed.
    #[error("the model failed")]
    Failed(#[source] Arc<dyn Error + Send + Sync>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subtitles_are_whispers() {
        let segment = |start: f64, end: f64, text: &str| TranscriptSegment {
            seek: 0,
            start,
            end,
            text: text.to_owned(),
            tokens: Vec::new(),
            temperature: 0.0,
            avg_logprob: 0.0,
            compression_ratio: 1.0,
            no_speech_prob: 0.0,
        };
        let transcript = Transcript {
            segments: vec![
                segment(0.0, 2.5, " Hello --> there.\n"),
                segment(3723.456, 3724.0, " Bye."),
            ],
            ..Transcript::default()
        };
        assert_eq!(
            transcript.srt(),
            "1\n00:00:00,000 --> 00:00:02,500\nHello -> there.\n\n\
             2\n01:02:03,456 --> 01:02:04,000\nBye.\n\n"
        );
        assert_eq!(
            transcript.vtt(),
            "WEBVTT\n\n00:00.000 --> 00:02.500\nHello -> there.\n\n\
             01:02:03.456 --> 01:02:04.000\nBye.\n\n"
        );
    }
}
