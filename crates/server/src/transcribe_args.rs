//! Flags about sound.

use clap::Args;
use std::{path::PathBuf, str::FromStr};
use taper::{SpeechLimits, TranscribeOptions};

/// Which files of sound requests may have, of models that write down speech.
#[derive(Debug, Clone, Args)]
pub(crate) struct SpeechArgs {
    /// Maximum size of a sound file in MiB, of models that transcribe.
    #[arg(long, default_value_t = 25, value_name = "MIB", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) max_audio_mib: u16,
    /// Maximum length of the sound in a file, in minutes. A minute takes 4 MB of memory.
    #[arg(long, default_value_t = 120, value_name = "MINUTES", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) max_audio_minutes: u16,
}

impl SpeechArgs {
    /// What the model reads.
    pub(crate) fn limits(&self) -> SpeechLimits {
        SpeechLimits { bytes: self.bytes(), seconds: usize::from(self.max_audio_minutes) * 60 }
    }

    /// What the server takes.
    pub(crate) fn bytes(&self) -> usize {
        usize::from(self.max_audio_mib) << 20
    }
}

#[derive(Debug, Args)]
pub(crate) struct TranscribeArgs {
    /// Directory of a Whisper, or the name of one that was downloaded.
    pub(crate) model: String,
    /// WAV, MP3, FLAC, Ogg Vorbis, M4A or AAC file.
    pub(crate) file: PathBuf,
    /// Plain text, or subtitles.
    #[arg(long, default_value = "text", value_name = "FORMAT", value_parser = ["text", "srt", "vtt"])]
    pub(crate) format: String,
    /// Language that is spoken, as its code or its English name [default: it is detected].
    #[arg(long)]
    pub(crate) language: Option<String>,
    /// Write English, whatever is spoken.
    #[arg(long)]
    pub(crate) translate: bool,
    /// Text that the speech continues: its spelling and style are kept up.
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Temperature from 0 to 1 [default: 0, and higher where a text repeats itself or is unlikely].
    #[arg(long, value_parser = temperature)]
    pub(crate) temperature: Option<f32>,
    /// Threads that compute [default: one for each core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
}

impl TranscribeArgs {
    pub(crate) fn options(&self) -> TranscribeOptions {
        TranscribeOptions {
            language: self.language.clone(),
            prompt: self.prompt.clone(),
            translate: self.translate,
            temperature: self.temperature,
        }
    }
}

fn temperature(text: &str) -> Result<f32, String> {
    let number = f32::from_str(text).ok().filter(|x| (0.0..=1.0).contains(x));
    number.ok_or_else(|| "it is a number from 0 to 1".to_owned())
}
