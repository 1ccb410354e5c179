//! Speech to text.

use crate::{Error, ModelSource, Result, SpeechLimits};
use std::sync::Arc;
use taper_audio::Whisper;
use taper_base::{
    TranscribeOptions, Transcriber, Transcript, TranscriptListener, TranscriptSegment,
};
use taper_chat::Tokenizer;

/// A model that writes down speech: a Whisper in Hugging Face's layout. It runs on the CPU.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let model = taper::Speech::load("openai/whisper-tiny")?;
/// let transcript = model.transcribe(&std::fs::read("talk.mp3")?, &Default::default())?;
/// println!("{}: {}", transcript.language_name, transcript.text);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Speech {
    name: String,
    whisper: Arc<Whisper>,
}

impl Speech {
    /// Loads a directory, or a model of the hub's cache.
    ///
    /// # Errors
    /// It is not found, is no Whisper, or a file is missing or broken.
    pub fn load(model: &str) -> Result<Self> {
        Self::from_source(&ModelSource::find(model)?, SpeechLimits::default())
    }

    /// As [`Self::load`], of a model that was found, with limits on the files that it takes.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn from_source(source: &ModelSource, limits: SpeechLimits) -> Result<Self> {
        let Some(dir) = source.dir() else {
            return Err(Error::NoSpeech { model: source.to_string() });
        };
        let whisper = Whisper::open(dir, limits);
        let whisper = whisper
            .map_err(|e| Error::Speech { model: source.to_string(), source: Box::new(e) })?;
        Ok(Self { name: source.name(), whisper: Arc::new(whisper) })
    }

    /// Whether a model's files are those of a model for speech.
    ///
    /// # Errors
    /// The configuration cannot be read.
    pub fn is_for(source: &ModelSource) -> Result<bool> {
        match source.dir() {
            None => Ok(false),
            Some(_) => Ok(Whisper::is_for(source.checkpoint()?.config())),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        self.whisper.tokenizer()
    }

    /// Codes of the languages that it knows.
    pub fn languages(&self) -> impl Iterator<Item = &'static str> {
        self.whisper.languages()
    }

    /// The model, for a server.
    #[must_use]
    pub fn transcriber(&self) -> Arc<dyn Transcriber> {
        Arc::clone(&self.whisper) as Arc<dyn Transcriber>
    }

    /// Writes down a file: WAV, MP3, FLAC, Ogg Vorbis, M4A or AAC.
    ///
    /// # Errors
    /// The file cannot be read or is too long, an option is not for this model, or the model fails.
    pub fn transcribe(&self, file: &[u8], options: &TranscribeOptions) -> Result<Transcript> {
        self.transcribe_with(file, options, |_| {})
    }

    /// As [`Self::transcribe`]; each segment is shown when it is written.
    ///
    /// # Errors
    /// As [`Self::transcribe`].
    pub fn transcribe_with(
        &self,
        file: &[u8],
        options: &TranscribeOptions,
        show: impl FnMut(&TranscriptSegment),
    ) -> Result<Transcript> {
        Ok(self.whisper.transcribe(file, options, &mut Show(show))?)
    }
}

struct Show<F>(F);

impl<F: FnMut(&TranscriptSegment)> TranscriptListener for Show<F> {
    fn segment(&mut self, segment: &TranscriptSegment) {
        (self.0)(segment);
    }

    fn window(&mut self, _again: bool) {}

    fn is_gone(&self) -> bool {
        false
    }
}
