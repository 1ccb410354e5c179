//! From a file's bytes to a signal.

use crate::resample::Resampler;
use std::{
    io::Cursor,
    panic::{AssertUnwindSafe, catch_unwind},
};
use symphonia::core::{
    audio::GenericAudioBufferRef,
    codecs::audio::AudioDecoderOptions,
    common::Limit,
    errors::Error as Fault,
    formats::{FormatOptions, FormatReader, TrackType, probe::Hint},
    io::MediaSourceStream,
    meta::MetadataOptions,
};
use thiserror::Error;

/// Samples a second of every signal here.
pub const SAMPLE_RATE: usize = 16_000;

/// Channels that are mixed; more are no recording of speech.
const MOST_CHANNELS: usize = 32;
/// Bytes that tags and pictures of a file may take each.
const TAGS: usize = 1 << 20;
/// Frames that a packet may have in any of the codecs.
const MOST_FRAMES: usize = 1 << 20;

/// How large a file may be, and how long the sound in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Bytes of the file.
    pub bytes: usize,
    /// Seconds of sound. A second takes 64 KB.
    pub seconds: usize,
}

impl Default for DecodeLimits {
    /// 25 MiB and two hours.
    fn default() -> Self {
        Self { bytes: 25 << 20, seconds: 2 * 3600 }
    }
}

/// A file is no sound that can be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The file is larger than is allowed.
    #[error("the file has {bytes} bytes, and {limit} are allowed")]
    TooManyBytes {
        /// Bytes of the file.
        bytes: usize,
        /// What is allowed.
        limit: usize,
    },
    /// The sound is longer than is allowed. What comes later was not decoded.
    #[error("the sound is longer than the {limit} seconds that are allowed")]
    TooLong {
        /// What is allowed, in seconds.
        limit: usize,
    },
    /// The bytes are of no format that is read.
    #[error("it is none of WAV, MP3, FLAC, Ogg Vorbis and M4A or AAC")]
    Format,
    /// The file has no track of a codec that is read.
    #[error("the file has no sound of a codec that is known (PCM, MP3, FLAC, Vorbis, AAC-LC)")]
    Codec,
    /// More channels than are mixed, or a rate that is not resampled.
    #[error("{what} of {value} is not supported")]
    Unsupported {
        /// A property of the sound.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// There is a track, and nothing in it.
    #[error("the file has no sound in it")]
    Empty,
    /// The file is damaged, or uses what the decoder does not know.
    #[error("the file cannot be decoded: {0}")]
    Damaged(String),
}

/// Reads a WAV, MP3, FLAC, Ogg Vorbis, M4A or AAC file: the mean of its channels, at [`SAMPLE_RATE`].
///
/// Packets that are damaged are left out, and so is what comes behind a broken end, as players do; a file of which
/// nothing can be read is an error. What a header claims takes no memory: only what was decoded does.
///
/// # Errors
/// The file is too large or the sound in it too long, of another format or codec, without sound, or damaged.
pub fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<Vec<f32>, DecodeError> {
    if bytes.len() > limits.bytes {
        return Err(DecodeError::TooManyBytes { bytes: bytes.len(), limit: limits.bytes });
    }
    // Nothing outside is changed before it has ended. A decoder's own checks panic on some damage.
    let decoded = catch_unwind(AssertUnwindSafe(|| decode_tracks(bytes, limits)));
    decoded.unwrap_or_else(|_| Err(DecodeError::Damaged("its decoder gave up".to_owned())))
}

fn decode_tracks(bytes: &[u8], limits: &DecodeLimits) -> Result<Vec<f32>, DecodeError> {
    let mut format = open(bytes)?;
    let track = format.default_track(TrackType::Audio).ok_or(DecodeError::Codec)?;
    let params = track.codec_params.as_ref().and_then(|all| all.audio());
    let params = params.ok_or(DecodeError::Codec)?;
    if let Some(channels) = &params.channels {
        check_channels(channels.count())?;
    }
    if params.max_frames_per_packet.is_some_and(|n| n > MOST_FRAMES as u64) {
        return Err(DecodeError::Damaged("its packets are too long".to_owned()));
    }
    let id = track.id;
    let decoder = symphonia::default::get_codecs();
    let decoder = decoder.make_audio_decoder(params, &AudioDecoderOptions::default());
    let mut decoder = decoder.map_err(|fault| match fault {
        Fault::Unsupported(_) => DecodeError::Codec,
        other => damaged(&other),
    })?;
    let mut signal = Signal { limits: *limits, mixer: None, interleaved: Vec::new() };
    let mut fault = None;
    // Each packet has a byte at least; what claims more packets than that never ends.
    for _ in 0..bytes.len() {
        let packet = match format.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            Err(error) => {
                fault = Some(error);
                break;
            }
        };
        if packet.track_id != id {
            continue;
        }
        match decoder.decode(&packet) {
            Ok(buffer) => signal.push(&buffer)?,
            Err(error @ (Fault::IoError(_) | Fault::DecodeError(_))) => fault = Some(error),
            Err(error) => {
                fault = Some(error);
                break;
            }
        }
    }
    let samples = signal.finish();
    match (samples.is_empty(), fault) {
        (false, _) => Ok(samples),
        (true, Some(fault)) => Err(damaged(&fault)),
        (true, None) => Err(DecodeError::Empty),
    }
}

fn open(bytes: &[u8]) -> Result<Box<dyn FormatReader + '_>, DecodeError> {
    let stream = MediaSourceStream::new(Box::new(Cursor::new(bytes)), Default::default());
    let tags = MetadataOptions::default()
        .limit_tag_bytes(Limit::Maximum(TAGS))
        .limit_visual_bytes(Limit::Maximum(TAGS));
    let probe = symphonia::default::get_probe();
    let found = probe.probe(&Hint::new(), stream, FormatOptions::default(), tags);
    found.map_err(|fault| match fault {
        // So ends a search without a find.
        Fault::Unsupported(_) | Fault::IoError(_) => DecodeError::Format,
        other => damaged(&other),
    })
}

fn damaged(fault: &Fault) -> DecodeError {
    DecodeError::Damaged(fault.to_string())
}

fn check_channels(channels: usize) -> Result<(), DecodeError> {
    match channels {
        1..=MOST_CHANNELS => Ok(()),
        0 => Err(DecodeError::Empty),
        more => Err(DecodeError::Unsupported { what: "a number of channels", value: more as u64 }),
    }
}

/// What was decoded so far.
struct Signal {
    limits: DecodeLimits,
    mixer: Option<Mixer>,
    /// Samples of one packet, `[frames, channels]`.
    interleaved: Vec<f32>,
}

struct Mixer {
    rate: u32,
    resampler: Resampler,
    samples: Vec<f32>,
}

impl Signal {
    fn push(&mut self, buffer: &GenericAudioBufferRef<'_>) -> Result<(), DecodeError> {
        let (rate, channels) = (buffer.spec().rate(), buffer.spec().channels().count());
        if buffer.frames() == 0 {
            return Ok(());
        }
        check_channels(channels)?;
        let mixer = match &mut self.mixer {
            Some(mixer) => mixer,
            none => {
                let resampler = Resampler::new(rate).ok_or(DecodeError::Unsupported {
                    what: "a sample rate",
                    value: rate.into(),
                })?;
                none.insert(Mixer { rate, resampler, samples: Vec::new() })
            }
        };
        if mixer.rate != rate {
            return Err(DecodeError::Damaged("its sample rate changes".to_owned()));
        }
        buffer.copy_to_vec_interleaved(&mut self.interleaved);
        let share = 1.0 / channels as f32;
        let mix = |frame: &[f32]| {
            let mean = frame.iter().sum::<f32>() * share;
            if mean.is_finite() { mean } else { 0.0 }
        };
        let mono = self.interleaved.chunks_exact(channels).map(mix);
        mixer.resampler.push(mono, &mut mixer.samples);
        match mixer.samples.len() > self.limits.seconds.saturating_mul(SAMPLE_RATE) {
            true => Err(DecodeError::TooLong { limit: self.limits.seconds }),
            false => Ok(()),
        }
    }

    fn finish(self) -> Vec<f32> {
        let Some(mut mixer) = self.mixer else { return Vec::new() };
        mixer.resampler.finish(&mut mixer.samples);
        mixer.samples
    }
}
