//! Long audio, window by window, as OpenAI's whisper has it (`transcribe.py`).

use super::{
    Whisper,
    decoder::State,
    segments::cut,
    window::{Ask, Reading},
};
use crate::{LogMel, SAMPLE_RATE, WhisperError, decode, languages, mel::HOP};
use std::sync::Arc;
use taper_base::{
    TokenId, TranscribeError, TranscribeOptions, Transcriber, Transcript, TranscriptListener,
    TranscriptSegment,
};

/// What is tried one after another where nobody gives a temperature.
const TEMPERATURES: [f32; 6] = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];
/// Texts that compress better repeat themselves.
const MOST_COMPRESSION: f32 = 2.4;
/// Texts that are less likely are tried again, or are no speech.
const LEAST_LOGPROB: f32 = -1.0;
/// Windows that are likelier without speech have none, unless their text is likely.
const MOST_SILENCE: f32 = 0.6;
/// Texts of a higher temperature do not stand before the next window.
const WARMEST_PROMPT: f32 = 0.5;

type Result<T> = std::result::Result<T, TranscribeError>;

fn failed(error: WhisperError) -> TranscribeError {
    TranscribeError::Failed(Arc::new(error))
}

impl Transcriber for Whisper {
    fn max_tokens(&self) -> usize {
        self.config.max_target_positions
    }

    fn vocab_size(&self) -> u32 {
        self.config.vocab_size as u32
    }

    fn check(&self, options: &TranscribeOptions) -> Result<()> {
        self.language(options)?;
        self.prompt(options)?;
        match options.translate && self.specials.languages.is_empty() {
            true => Err(TranscribeError::NoTranslation),
            false => Ok(()),
        }
    }

    fn transcribe(
        &self,
        file: &[u8],
        options: &TranscribeOptions,
        listener: &mut dyn TranscriptListener,
    ) -> Result<Transcript> {
        self.check(options)?;
        let samples = decode(file, &self.limits);
        let samples = samples.map_err(|error| TranscribeError::Sound(error.to_string()))?;
        self.transcribe_samples(&samples, options, listener)
    }
}

impl Whisper {
    /// Writes down a signal at 16 kHz.
    ///
    /// # Errors
    /// As [`Transcriber::transcribe`], but for those of files.
    pub fn transcribe_samples(
        &self,
        samples: &[f32],
        options: &TranscribeOptions,
        listener: &mut dyn TranscriptListener,
    ) -> Result<Transcript> {
        self.check(options)?;
        let mel = LogMel::new(&self.bank, samples);
        let language = match self.language(options)? {
            Some(code) => code,
            None => self.detect(&mel).map_err(failed)?,
        };
        let prelude = self.specials.prelude(language, options.translate);
        let mut known = self.prompt(options)?;
        // What stands before a window is behind this.
        let mut reset = 0;
        let mut segments: Vec<TranscriptSegment> = Vec::new();
        let mut seek = 0;
        while seek < mel.frames() {
            let size = (mel.frames() - seek).min(self.window());
            let features = mel.window(seek, size, self.window());
            let prompt = known.get(reset..).unwrap_or_default();
            let asked = (prompt, prelude.as_slice());
            let reading = self.read(features, asked, options.temperature, seek, listener)?;
            let likely = reading.avg_logprob > LEAST_LOGPROB;
            if reading.no_speech_prob > MOST_SILENCE && !likely {
                seek += size;
                continue;
            }
            let (cuts, next) = cut(&reading.tokens, size, &self.specials);
            for cut in cuts {
                let tokens = reading.tokens.get(cut.tokens).unwrap_or_default();
                let text = self.text(tokens).map_err(failed)?;
                if cut.frames.is_empty() || text.trim().is_empty() {
                    continue;
                }
                known.extend(tokens);
                let segment = TranscriptSegment {
                    seek,
                    start: seconds(seek + cut.frames.start),
                    end: seconds(seek + cut.frames.end),
                    text,
                    tokens: tokens.to_vec(),
                    temperature: reading.temperature,
                    avg_logprob: reading.avg_logprob,
                    compression_ratio: reading.compression_ratio,
                    no_speech_prob: reading.no_speech_prob,
                };
                listener.segment(&segment);
                segments.push(segment);
            }
            if reading.temperature > WARMEST_PROMPT {
                reset = known.len();
            }
            seek += next;
        }
        let text: String = segments.iter().map(|segment| segment.text.as_str()).collect();
        Ok(Transcript {
            language: language.to_owned(),
            language_name: languages::name(language).to_owned(),
            duration: samples.len() as f64 / SAMPLE_RATE as f64,
            text: text.trim().to_owned(),
            segments,
        })
    }

    /// Reads a window, again at higher temperatures until its text will do.
    fn read(
        &self,
        features: Vec<f32>,
        (prompt, prelude): (&[TokenId], &[TokenId]),
        temperature: Option<f32>,
        seek: usize,
        listener: &mut dyn TranscriptListener,
    ) -> Result<Reading> {
        if listener.is_gone() {
            return Err(TranscribeError::Cancelled);
        }
        let heard = self.hear(features).map_err(failed)?;
        let given = temperature.map(|t| [t]);
        let temperatures = given.as_ref().map_or(TEMPERATURES.as_slice(), |t| t.as_slice());
        let (last, before) = temperatures.split_last().unwrap_or((&0.0, &[]));
        let mut read = |temperature: f32| {
            let seed = ((seek as u64) << 32) | u64::from(temperature.to_bits());
            let ask = Ask { prompt, prelude, temperature, seed };
            let reading = self.read_window(&mut heard.again(), ask, &|| listener.is_gone());
            let reading = reading.map_err(failed)?.ok_or(TranscribeError::Cancelled)?;
            let again = temperature != *last && !will_do(&reading);
            listener.window(again);
            Ok((reading, again))
        };
        for temperature in before {
            let (reading, again) = read(*temperature)?;
            if !again {
                return Ok(reading);
            }
        }
        read(*last).map(|(reading, _)| reading)
    }

    /// The encoder's rows of a window, as the decoder hears them.
    pub(super) fn hear(&self, features: Vec<f32>) -> std::result::Result<State, WhisperError> {
        Ok(self.decoder.hear(&self.encoder.forward(features)?)?)
    }

    /// The code of the language that is asked for, or of the only one; `None` where it is to be detected.
    fn language(&self, options: &TranscribeOptions) -> Result<Option<&'static str>> {
        let Some(asked) = options.language.as_deref() else {
            return Ok(self.specials.languages.is_empty().then_some("en"));
        };
        let code = languages::code(asked).filter(|code| self.languages().any(|own| own == *code));
        code.map(Some).ok_or_else(|| TranscribeError::Language(asked.to_owned()))
    }

    /// The language that the first window is likeliest in.
    fn detect(&self, mel: &LogMel<'_>) -> std::result::Result<&'static str, WhisperError> {
        // Here silence follows a short signal.
        let mut state = self.hear(mel.window(0, self.window(), self.window()))?;
        let rows = self.decoder.forward(&[self.specials.start], &mut state)?;
        let logits = self.row(&rows, 0)?;
        let logit = |token: TokenId| logits.get(token as usize).copied().unwrap_or(f32::MIN);
        let languages = self.specials.languages.iter();
        let best = languages.max_by(|(_, a), (_, b)| logit(*a).total_cmp(&logit(*b)));
        Ok(best.map_or("en", |(code, _)| *code))
    }

    /// Tokens of the text that the speech continues.
    fn prompt(&self, options: &TranscribeOptions) -> Result<Vec<TokenId>> {
        let Some(text) = options.prompt.as_deref().filter(|text| !text.trim().is_empty()) else {
            return Ok(Vec::new());
        };
        let tokens = self.tokenizer.encode(&format!(" {}", text.trim()), false);
        let tokens = tokens.map_err(|error| failed(error.into()))?;
        match tokens.iter().any(|token| *token >= self.specials.end) {
            true => Err(TranscribeError::Prompt),
            false => Ok(tokens),
        }
    }
}

/// Whether a text is as likely as it should be, and does not repeat itself; or there is nothing to be read.
fn will_do(reading: &Reading) -> bool {
    let unlikely = reading.avg_logprob < LEAST_LOGPROB;
    let silent = reading.no_speech_prob > MOST_SILENCE && unlikely;
    silent || !(unlikely || reading.compression_ratio > MOST_COMPRESSION)
}

fn seconds(frames: usize) -> f64 {
    (frames * HOP) as f64 / SAMPLE_RATE as f64
}
