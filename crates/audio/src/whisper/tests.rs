//! Against transformers (`make_audio.py`) and OpenAI's whisper (`make_speech.py`).

use super::*;
use crate::{LogMel, decode};
use safetensors::SafeTensors;
use std::path::PathBuf;
use taper_base::{
    TokenId, TranscribeError, TranscribeOptions, Transcriber, TranscriptListener, TranscriptSegment,
};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/audio").join(name)
}

struct Expected(Vec<u8>);

impl Expected {
    fn bytes(&self, name: &str) -> Vec<u8> {
        SafeTensors::deserialize(&self.0).unwrap().tensor(name).unwrap().data().to_vec()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.bytes(name)
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    fn tokens(&self, name: &str) -> Vec<TokenId> {
        let bytes = self.bytes(name);
        bytes
            .chunks_exact(8)
            .map(|b| i64::from_le_bytes(b.try_into().unwrap()) as TokenId)
            .collect()
    }
}

fn worst(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Encoder, logits and greedy tokens of features.
fn check_network(expected: &Expected, i: usize, features: Vec<f32>, tolerance: f32) {
    let checkpoint = Checkpoint::open(&fixture("whisper-tiny-random")).unwrap();
    let config = Config::read(checkpoint.config()).unwrap();
    let (encoder, decoder) = network(&checkpoint, &config).unwrap();
    let encoded = encoder.forward(features).unwrap();
    let rows = encoded.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let off = worst(&rows, &expected.floats(&format!("encoder_{i}")));
    assert!(off < tolerance, "encoder {i}: {off}");

    let (prompt, greedy) = (expected.tokens("prompt"), expected.tokens(&format!("greedy_{i}")));
    let all: Vec<_> = prompt.iter().chain(&greedy[..greedy.len() - 1]).copied().collect();
    let logits_of = |rows: &candle_core::Tensor| {
        decoder.logits(rows).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    let heard = decoder.hear(&encoded).unwrap();
    let whole = logits_of(&decoder.forward(&all, &mut heard.again()).unwrap());
    let off = worst(&whole, &expected.floats(&format!("logits_{i}")));
    assert!(off < tolerance, "logits {i}: {off}");

    let mut state = heard.again();
    let mut rows = decoder.forward(&prompt, &mut state).unwrap().narrow(0, 3, 1).unwrap();
    for (step, expected) in greedy.iter().enumerate() {
        let logits = logits_of(&rows);
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        assert_eq!(best as TokenId, *expected, "token {step} of {i}");
        rows = decoder.forward(&[*expected], &mut state).unwrap();
    }
    let most = vec![1; 64];
    assert!(matches!(
        decoder.forward(&most, &mut state),
        Err(WhisperError::TooLong { got: 92, most: 64 })
    ));
}

#[test]
fn features_rows_logits_and_tokens_are_those_of_transformers() {
    let expected =
        Expected(std::fs::read(fixture("whisper-tiny-random/expected.safetensors")).unwrap());
    let file = std::fs::read(fixture("whisper-tiny-random/mono_16000.wav")).unwrap();
    let samples = decode(&file, &DecodeLimits::default()).unwrap();
    assert_eq!(samples.len(), 32_000);
    let bank = MelBank::new(80);
    let features = LogMel::new(&bank, &samples).window(0, 300, 300);
    let off = worst(&features, &expected.floats("features_0"));
    assert!(off < 1e-4, "features: {off}");
    check_network(&expected, 0, features, 2e-3);
    check_network(&expected, 1, expected.floats("features_1"), 2e-3);
}

#[test]
fn stereo_of_another_rate_is_heard_alike() {
    let expected =
        Expected(std::fs::read(fixture("whisper-tiny-random/expected.safetensors")).unwrap());
    let file = std::fs::read(fixture("whisper-tiny-random/stereo_44100.wav")).unwrap();
    let samples = decode(&file, &DecodeLimits::default()).unwrap();
    assert_eq!(samples.len(), 16_000);
    let bank = MelBank::new(80);
    let features = LogMel::new(&bank, &samples).window(0, 300, 300);
    // Where the signal is silent, both have the noise of 16 bits, each its own.
    let expected_features = expected.floats("features_1");
    let off = features.iter().zip(&expected_features).map(|(a, b)| (a - b).abs());
    let mean = off.sum::<f32>() / features.len() as f32;
    assert!(mean < 0.02, "{mean}");
    check_network(&expected, 1, features, 0.5);
}

/// The recordings of `make_speech.py`.
pub(crate) fn notes(seconds: usize, seed: u64) -> Vec<f32> {
    let (mut state, mut out) = (seed, Vec::new());
    for start in (0..seconds * 16_000).step_by(2000) {
        state = (state * 1_103_515_245 + 12_345) % (1 << 31);
        let (period, loudness) =
            (20 + ((state >> 16) % 180) as i64, ((state >> 8) % 5) as i64 * 2000);
        for t in start..start + 2000 {
            let t = t as i64 % period;
            let sample = (((2 * t - period).abs() * 2 - period) * loudness).div_euclid(period);
            out.push(sample as f32 / 32_768.0);
        }
    }
    out
}

#[derive(Default)]
struct Listener {
    segments: Vec<TranscriptSegment>,
    windows: Vec<bool>,
    patience: Option<usize>,
}

impl TranscriptListener for Listener {
    fn segment(&mut self, segment: &TranscriptSegment) {
        self.segments.push(segment.clone());
    }

    fn window(&mut self, again: bool) {
        self.windows.push(again);
    }

    fn is_gone(&self) -> bool {
        self.patience.is_some_and(|most| self.windows.len() >= most)
    }
}

fn whisper() -> Whisper {
    Whisper::open(&fixture("whisper-speech"), DecodeLimits::default()).unwrap()
}

#[test]
fn transcripts_are_those_of_openais_whisper() {
    let whisper = whisper();
    let expected = std::fs::read(fixture("whisper-speech/expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    for case in expected["cases"].as_array().unwrap() {
        let text = |name: &str| case[name].as_str().map(str::to_owned);
        let number = |name: &str| case[name].as_u64().unwrap();
        let options = TranscribeOptions {
            language: text("language"),
            prompt: text("initial_prompt"),
            translate: case["task"] == "translate",
            temperature: Some(0.0),
        };
        let samples = notes(number("seconds") as usize, number("seed"));
        let mut listener = Listener::default();
        let got = whisper.transcribe_samples(&samples, &options, &mut listener).unwrap();
        assert_eq!(Some(got.language.as_str()), case["found"].as_str());
        assert_eq!(got.segments, listener.segments);
        let segments = case["segments"].as_array().unwrap();
        assert_eq!(got.segments.len(), segments.len(), "{case}");
        for (got, expected) in got.segments.iter().zip(segments) {
            let near = |x: f64, name: &str, by: f64| {
                let expected = expected[name].as_f64().unwrap();
                assert!((x - expected).abs() < by, "{name}: {x} and {expected}");
            };
            let tokens: Vec<TokenId> = serde_json::from_value(expected["tokens"].clone()).unwrap();
            assert_eq!(got.tokens, tokens);
            assert_eq!(got.text, expected["text"]);
            assert_eq!(got.seek as u64, expected["seek"]);
            near(got.start, "start", 1e-9);
            near(got.end, "end", 1e-9);
            near(got.avg_logprob.into(), "avg_logprob", 1e-3);
            near(got.no_speech_prob.into(), "no_speech_prob", 1e-4);
            near(got.compression_ratio.into(), "compression_ratio", 0.5);
        }
    }
}

#[test]
fn temperatures_rise_until_a_text_will_do() {
    let (whisper, samples) = (whisper(), notes(4, 5));
    let options = TranscribeOptions { language: Some("en".to_owned()), ..Default::default() };
    let mut first = Listener::default();
    let got = whisper.transcribe_samples(&samples, &options, &mut first).unwrap();
    // A text of one letter repeats itself.
    assert!(first.windows.len() > 1 && first.windows[0], "{:?}", first.windows);
    assert!(got.segments.iter().all(|segment| segment.temperature > 0.0));
    let mut second = Listener::default();
    let again = whisper.transcribe_samples(&samples, &options, &mut second).unwrap();
    assert_eq!((got, first.windows), (again, second.windows), "draws can be repeated");
}

#[test]
fn what_nobody_waits_for_is_not_written() {
    let (whisper, samples) = (whisper(), notes(70, 7));
    let options = TranscribeOptions { temperature: Some(0.0), ..Default::default() };
    let mut listener = Listener { patience: Some(1), ..Default::default() };
    let got = whisper.transcribe_samples(&samples, &options, &mut listener);
    assert!(matches!(got, Err(TranscribeError::Cancelled)));
    assert_eq!(listener.windows.len(), 1);
}

#[test]
fn options_are_checked() {
    let whisper = whisper();
    let options = |language: Option<&str>, prompt: Option<&str>| TranscribeOptions {
        language: language.map(str::to_owned),
        prompt: prompt.map(str::to_owned),
        ..Default::default()
    };
    let check = |options: &TranscribeOptions| whisper.check(options);
    assert!(check(&options(Some("German"), Some("Grüße"))).is_ok());
    assert!(matches!(check(&options(Some("fr"), None)), Err(TranscribeError::Language(_))));
    assert!(matches!(check(&options(Some("qq"), None)), Err(TranscribeError::Language(_))));
    let control = options(None, Some("a <|endoftext|>"));
    assert!(matches!(check(&control), Err(TranscribeError::Prompt)));
    let error = whisper.transcribe(b"no sound", &options(None, None), &mut Listener::default());
    assert!(matches!(error, Err(TranscribeError::Sound(_))));
    let nothing =
        whisper.transcribe_samples(&[0.0; 100], &options(None, None), &mut Listener::default());
    assert_eq!(nothing.unwrap().segments, []);
}
