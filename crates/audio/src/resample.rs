//! From any sample rate to 16 kHz, by a windowed sinc (Smith and Gossett, "A flexible sampling-rate conversion method",
//! ICASSP 1984), with one filter for each of the places that a sample of the output can have between two of the input.

use crate::SAMPLE_RATE;
use std::f64::consts::PI;

/// Zero crossings of the sinc on either side.
const CROSSINGS: f64 = 32.0;
/// Where the passband ends, as a share of the lower rate's half.
const ROLLOFF: f64 = 0.945;
/// Shape of the Kaiser window: 100 dB below.
const BETA: f64 = 10.0;
/// Coefficients that all filters may have together: 64 MiB.
const MOST: usize = 1 << 24;

/// A signal on its way to 16 kHz, piece by piece.
#[derive(Debug)]
pub(crate) struct Resampler {
    /// Input and output samples of the shortest stretch that has whole numbers of both.
    stretch: [usize; 2],
    /// Taps of each filter.
    taps: usize,
    /// Filter of each phase, one after another.
    filters: Vec<f32>,
    /// Input that outputs may still need; it begins `taps / 2` samples before the first of a whole stretch.
    pending: Vec<f32>,
    /// Outputs so far, and inputs that came.
    made: u64,
    came: u64,
    /// Input samples that are gone from the front of `pending`, counted from the padding before the signal.
    gone: u64,
}

impl Resampler {
    /// `None` of a rate that is too odd, too low or too high: below 1 kHz, above 1 MHz, or with too many phases.
    pub(crate) fn new(rate: u32) -> Option<Self> {
        let rate = usize::try_from(rate).ok().filter(|rate| (1_000..=1_000_000).contains(rate))?;
        let common = gcd(rate, SAMPLE_RATE);
        let [inputs, outputs] = [rate / common, SAMPLE_RATE / common];
        let plain = Self {
            stretch: [inputs, outputs],
            taps: 1,
            filters: vec![1.0],
            pending: Vec::new(),
            made: 0,
            came: 0,
            gone: 0,
        };
        if inputs == outputs {
            return Some(plain);
        }
        let cutoff = ROLLOFF * (outputs as f64 / inputs as f64).min(1.0);
        let half = (CROSSINGS / cutoff).ceil() as usize;
        let taps = 2 * half + 1;
        if taps.checked_mul(outputs)? > MOST {
            return None;
        }
        let mut filters = Vec::with_capacity(taps * outputs);
        for phase in 0..outputs {
            // Where the output lies behind the input at the middle of the taps, in input samples.
            let offset = (phase * inputs % outputs) as f64 / outputs as f64;
            let taps = (0..taps).map(|tap| kernel(tap as f64 - half as f64 - offset, cutoff));
            filters.extend(taps.map(|x| x as f32));
        }
        Some(Self { taps, filters, pending: vec![0.0; half], ..plain })
    }

    /// Takes more of the input, and gives what can be said by it.
    pub(crate) fn push(&mut self, input: impl Iterator<Item = f32>, out: &mut Vec<f32>) {
        let before = self.pending.len();
        self.pending.extend(input);
        self.came += (self.pending.len() - before) as u64;
        if self.taps == 1 {
            out.append(&mut self.pending);
            return;
        }
        let [inputs, outputs] = self.stretch.map(|n| n as u64);
        loop {
            let first = (self.made * inputs / outputs - self.gone) as usize;
            let Some(window) = self.pending.get(first..first + self.taps) else { break };
            let phase = (self.made % outputs) as usize;
            let filter = &self.filters[phase * self.taps..][..self.taps];
            out.push(dot(window, filter));
            self.made += 1;
        }
        let needed = (self.made * inputs / outputs - self.gone) as usize;
        let needless = needed.min(self.pending.len());
        self.pending.drain(..needless);
        self.gone += needless as u64;
    }

    /// Ends the signal, as if silence came.
    pub(crate) fn finish(&mut self, out: &mut Vec<f32>) {
        let [inputs, outputs] = self.stretch.map(|n| n as u64);
        let wanted = (self.came * outputs).div_ceil(inputs);
        let missing = wanted.saturating_sub(self.made) as usize;
        let whole = out.len() + if self.taps == 1 { 0 } else { missing };
        let silence = self.taps + inputs as usize / outputs as usize + 1;
        while out.len() < whole {
            self.push(std::iter::repeat_n(0.0, silence), out);
        }
        out.truncate(whole);
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The filter at `x` input samples from its middle.
fn kernel(x: f64, cutoff: f64) -> f64 {
    let at = x * cutoff / CROSSINGS;
    if at.abs() >= 1.0 {
        return 0.0;
    }
    let y = PI * x * cutoff;
    let sinc = if y.abs() < 1e-9 { 1.0 } else { y.sin() / y };
    cutoff * sinc * bessel(BETA * (1.0 - at * at).sqrt()) / bessel(BETA)
}

/// The modified Bessel function of the first kind and order 0.
fn bessel(x: f64) -> f64 {
    let quarter = x * x / 4.0;
    let (mut term, mut sum) = (1.0, 1.0);
    for k in 1..64 {
        term *= quarter / f64::from(k * k);
        sum += term;
    }
    sum
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let ((a, a_tail), (b, b_tail)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let tail = a_tail.iter().zip(b_tail).map(|(a, b)| a * b);
    sums.into_iter().chain(tail).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(rate: u32, frequency: f64, seconds: f64) -> Vec<f32> {
        let n = (f64::from(rate) * seconds).round() as usize;
        (0..n).map(|i| (2.0 * PI * frequency * i as f64 / f64::from(rate)).sin() as f32).collect()
    }

    fn resampled(rate: u32, signal: &[f32], piece: usize) -> Vec<f32> {
        let (mut resampler, mut out) = (Resampler::new(rate).unwrap(), Vec::new());
        for piece in signal.chunks(piece) {
            resampler.push(piece.iter().copied(), &mut out);
        }
        resampler.finish(&mut out);
        out
    }

    #[test]
    fn tones_are_the_same_tones() {
        for rate in [8_000, 11_025, 22_050, 24_000, 32_000, 44_100, 44_101, 48_000, 96_000, 192_000]
        {
            let frequency = 3000.0;
            let got = resampled(rate, &tone(rate, frequency, 0.5), 777);
            let expected = tone(16_000, frequency, 0.5);
            assert!(got.len().abs_diff(8000) <= 1, "{rate}: {}", got.len());
            // The ends hear the silence outside.
            let worst = (200..7800).map(|i| (got[i] - expected[i]).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-4, "{rate}: {worst}");
        }
    }

    #[test]
    fn what_16_khz_cannot_hold_is_gone() {
        let got = resampled(48_000, &tone(48_000, 9000.0, 0.5), 4096);
        let worst = got[200..7800].iter().fold(0f32, |worst, x| worst.max(x.abs()));
        assert!(worst < 1e-4, "{worst}");
    }

    #[test]
    fn pieces_do_not_matter() {
        let signal = tone(44_100, 440.0, 0.2);
        let whole = resampled(44_100, &signal, signal.len());
        assert_eq!(whole.len(), 3200);
        for piece in [1, 100, 441, 5000] {
            assert_eq!(resampled(44_100, &signal, piece), whole);
        }
        assert_eq!(resampled(16_000, &signal, 100), signal);
        assert_eq!(resampled(44_100, &[], 1).len(), 0);
    }

    #[test]
    fn odd_rates_are_refused() {
        for rate in [0, 1, 999, 1_000_001, u32::MAX, 999_983] {
            assert!(Resampler::new(rate).is_none(), "{rate}");
        }
    }
}
