//! Whisper's log-mel features (Radford et al., arXiv 2212.04356, section 2.2), equal to transformers'
//! `WhisperFeatureExtractor` and OpenAI's `log_mel_spectrogram`.

use crate::SAMPLE_RATE;
use rayon::prelude::*;
use realfft::{RealFftPlanner, RealToComplex};
use std::{f64::consts::PI, fmt, sync::Arc};

/// Samples of a frame's window.
const WINDOW: usize = 400;
/// Samples from one frame to the next: 10 ms.
pub(crate) const HOP: usize = 160;
const BINS: usize = WINDOW / 2 + 1;
/// Energies below this are taken for it.
const LEAST: f64 = 1e-10;
/// Log energies more than this below the highest are raised to that.
const RANGE: f32 = 8.0;
/// Frames that a thread computes at once.
const PIECE: usize = 64;

/// Triangles over the mel scale (Slaney's, of area 1 in hertz), and the transform before them.
pub struct MelBank {
    filters: Vec<Filter>,
    /// The window of Hann, periodic.
    window: Vec<f64>,
    transform: Arc<dyn RealToComplex<f64>>,
}

/// The bins from `first` on that a triangle covers.
struct Filter {
    first: usize,
    weights: Vec<f64>,
}

impl fmt::Debug for MelBank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MelBank").field("mels", &self.filters.len()).finish_non_exhaustive()
    }
}

impl MelBank {
    /// A bank of so many triangles from 0 to 8000 Hz: 80, or 128 of large-v3.
    #[must_use]
    pub fn new(mels: usize) -> Self {
        let nyquist = SAMPLE_RATE as f64 / 2.0;
        let top = to_mel(nyquist);
        let corner = |i: usize| to_hertz(top * i as f64 / (mels + 1) as f64);
        let corners: Vec<_> = (0..mels + 2).map(corner).collect();
        let filters = corners.windows(3).map(|c| Filter::new([c[0], c[1], c[2]], nyquist));
        let hann = |i: usize| 0.5 - 0.5 * (2.0 * PI * i as f64 / WINDOW as f64).cos();
        Self {
            filters: filters.collect(),
            window: (0..WINDOW).map(hann).collect(),
            transform: RealFftPlanner::new().plan_fft_forward(WINDOW),
        }
    }

    /// Triangles.
    #[must_use]
    pub fn mels(&self) -> usize {
        self.filters.len()
    }

    /// Log energies of some frames, `[frames, mels]`. Silence follows the signal, and its mirror image comes before.
    fn log_energies(&self, samples: &[f32], frames: std::ops::Range<usize>) -> Vec<f32> {
        let mels = self.mels();
        let mut out = vec![0.0; frames.len() * mels];
        let pieces = out.par_chunks_mut(PIECE * mels.max(1)).enumerate();
        pieces.for_each(|(piece, out)| {
            let mut buffers = (self.transform.make_input_vec(), self.transform.make_output_vec());
            let mut scratch = self.transform.make_scratch_vec();
            let first = frames.start + piece * PIECE;
            for (frame, out) in out.chunks_exact_mut(mels).enumerate() {
                let start = ((first + frame) * HOP) as isize - (WINDOW / 2) as isize;
                for (i, (x, window)) in buffers.0.iter_mut().zip(&self.window).enumerate() {
                    let at = (start + i as isize).unsigned_abs();
                    *x = window * f64::from(samples.get(at).copied().unwrap_or(0.0));
                }
                // It fails on buffers of other lengths than its own.
                let _ = self.transform.process_with_scratch(
                    &mut buffers.0,
                    &mut buffers.1,
                    &mut scratch,
                );
                for (filter, out) in self.filters.iter().zip(out) {
                    let bins = &buffers.1[filter.first..];
                    let energy: f64 =
                        bins.iter().zip(&filter.weights).map(|(x, w)| w * x.norm_sqr()).sum();
                    *out = energy.max(LEAST).log10() as f32;
                }
            }
        });
        out
    }
}

impl Filter {
    fn new([low, peak, high]: [f64; 3], nyquist: f64) -> Self {
        let area = 2.0 / (high - low);
        let weight = |bin: usize| {
            let hertz = nyquist * bin as f64 / (BINS - 1) as f64;
            let up = (hertz - low) / (peak - low);
            let down = (high - hertz) / (high - peak);
            up.min(down).max(0.0) * area
        };
        let first = (0..BINS).find(|&bin| weight(bin) > 0.0).unwrap_or(BINS);
        let weights = (first..BINS).map(weight).take_while(|w| *w > 0.0).collect();
        Self { first, weights }
    }
}

const LINEAR: f64 = 200.0 / 3.0;
const KNEE: f64 = 1000.0;

fn step() -> f64 {
    6.4f64.ln() / 27.0
}

fn to_mel(hertz: f64) -> f64 {
    if hertz < KNEE { hertz / LINEAR } else { KNEE / LINEAR + (hertz / KNEE).ln() / step() }
}

fn to_hertz(mel: f64) -> f64 {
    let knee = KNEE / LINEAR;
    if mel < knee { mel * LINEAR } else { KNEE * ((mel - knee) * step()).exp() }
}

/// A signal's features, computed window by window: a long one never has all of them in memory.
#[derive(Debug)]
pub struct LogMel<'a> {
    bank: &'a MelBank,
    samples: &'a [f32],
    /// The highest log energy of the whole signal, less [`RANGE`].
    floor: f32,
}

impl<'a> LogMel<'a> {
    /// Of a signal at 16 kHz.
    #[must_use]
    pub fn new(bank: &'a MelBank, samples: &'a [f32]) -> Self {
        // What only silence reaches lies at the least.
        let frames = (samples.len() + WINDOW / 2).div_ceil(HOP);
        let mut highest = LEAST.log10() as f32;
        for from in (0..frames).step_by(PIECE * 64) {
            let energies = bank.log_energies(samples, from..frames.min(from + PIECE * 64));
            highest = energies.into_iter().fold(highest, f32::max);
        }
        Self { bank, samples, floor: highest - RANGE }
    }

    /// Whole frames of the signal.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.samples.len() / HOP
    }

    /// Features of `frames` frames from one on, `[mels, width]`, with 0 behind them. Frames behind the signal are those
    /// of silence.
    #[must_use]
    pub fn window(&self, from: usize, frames: usize, width: usize) -> Vec<f32> {
        let frames = frames.min(width);
        let mels = self.bank.mels();
        let energies = self.bank.log_energies(self.samples, from..from + frames);
        let mut out = vec![0.0; mels * width];
        for (frame, energies) in energies.chunks_exact(mels).enumerate() {
            for (mel, energy) in energies.iter().enumerate() {
                out[mel * width + frame] = (energy.max(self.floor) + 4.0) / 4.0;
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triangles_are_librosas() {
        // librosa.filters.mel(sr=16000, n_fft=400, n_mels=80): first, middle and last triangle.
        let bank = MelBank::new(80);
        assert_eq!((bank.filters[0].first, bank.filters[0].weights.len()), (1, 1));
        assert!((bank.filters[0].weights[0] - 0.024_862_593).abs() < 1e-7);
        assert_eq!(bank.mels(), 80);
        assert_eq!(bank.filters[79].first + bank.filters[79].weights.len(), 200);
    }

    #[test]
    fn a_long_signal_has_the_features_of_its_whole() {
        let bank = MelBank::new(80);
        let tone = |i: usize| (i as f32 * 0.2).sin() * ((i / 3000) % 5) as f32;
        let samples: Vec<_> = (0..50_000).map(tone).collect();
        let mel = LogMel::new(&bank, &samples);
        assert_eq!(mel.frames(), 312);
        let (whole, later) = (mel.window(0, 312, 312), mel.window(100, 20, 25));
        for m in 0..80 {
            assert_eq!(whole[m * 312 + 100..][..20], later[m * 25..][..20]);
            assert_eq!(later[m * 25 + 20..][..5], [0.0; 5]);
        }
        let silent = LogMel::new(&bank, &[]);
        assert_eq!(silent.window(0, 2, 2), vec![-1.5; 160]);
    }
}
