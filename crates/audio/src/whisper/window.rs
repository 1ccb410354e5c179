//! One window's text, at one temperature.

use super::{Whisper, decoder::State, rules};
use crate::WhisperError;
use flate2::{Compression, write::ZlibEncoder};
use std::io::Write;
use taper_base::TokenId;

/// What was read in a window.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Reading {
    /// Behind the prelude and before the end.
    pub(super) tokens: Vec<TokenId>,
    pub(super) temperature: f32,
    pub(super) avg_logprob: f32,
    pub(super) no_speech_prob: f32,
    pub(super) compression_ratio: f32,
}

/// Where a window is read from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask<'a> {
    /// Text before it.
    pub(super) prompt: &'a [TokenId],
    /// What begins its transcript.
    pub(super) prelude: &'a [TokenId],
    pub(super) temperature: f32,
    /// Of draws above temperature 0.
    pub(super) seed: u64,
}

impl Whisper {
    /// Writes tokens until the end, at most half of the decoder's positions. `None` if nobody waits any more.
    pub(super) fn read_window(
        &self,
        state: &mut State,
        ask: Ask<'_>,
        is_gone: &dyn Fn() -> bool,
    ) -> Result<Option<Reading>, WhisperError> {
        let most = self.config.max_target_positions;
        let begin = self.beginning(ask.prompt, ask.prelude);
        let start = begin.len() - ask.prelude.len();
        let rows = self.decoder.forward(&begin, state)?;
        let no_speech_prob = match self.specials.no_speech {
            Some(token) => probability(&self.row(&rows, start)?, token),
            None => 0.0,
        };
        let mut logits = self.row(&rows, begin.len() - 1)?;
        let (mut written, mut sum) = (Vec::new(), 0f64);
        let mut random = Random(ask.seed);
        for _ in 0..most / 2 {
            if is_gone() {
                return Ok(None);
            }
            rules::apply(&mut logits, &written, &self.specials, &self.suppressed);
            let token = choose(&logits, ask.temperature, &mut random)?;
            let Some(token) = token else { break };
            sum += f64::from(logits[token] - rules::log_sum(&logits));
            let token = token as TokenId;
            if token == self.specials.end {
                break;
            }
            written.push(token);
            if begin.len() + written.len() > most {
                break;
            }
            let row = self.decoder.forward(&[token], state)?;
            logits = self.row(&row, 0)?;
        }
        let avg_logprob = (sum / (written.len() + 1) as f64) as f32;
        let compression_ratio = compression_ratio(self.text(&written)?.trim());
        let Ask { temperature, .. } = ask;
        let tokens = written;
        Ok(Some(Reading { tokens, temperature, avg_logprob, no_speech_prob, compression_ratio }))
    }

    /// The prompt's end, and what begins a transcript.
    fn beginning(&self, prompt: &[TokenId], prelude: &[TokenId]) -> Vec<TokenId> {
        let mut begin = Vec::new();
        if !prompt.is_empty() {
            let most = self.config.max_target_positions / 2 - 1;
            begin.push(self.specials.previous);
            begin.extend(&prompt[prompt.len().saturating_sub(most)..]);
        }
        begin.extend(prelude);
        begin
    }

    /// Logits of one of the decoder's rows.
    pub(super) fn row(
        &self,
        rows: &candle_core::Tensor,
        at: usize,
    ) -> Result<Vec<f32>, WhisperError> {
        let logits = self.decoder.logits(&rows.narrow(0, at, 1)?)?;
        Ok(logits.squeeze(0)?.to_vec1()?)
    }

    /// What tokens say, without those that are no text.
    pub(super) fn text(&self, tokens: &[TokenId]) -> Result<String, WhisperError> {
        let texts: Vec<_> = tokens.iter().copied().filter(|t| *t < self.specials.end).collect();
        Ok(self.tokenizer.decode(&texts, false)?)
    }
}

fn probability(logits: &[f32], token: TokenId) -> f32 {
    let logit = logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
    (logit - rules::log_sum(logits)).exp()
}

/// The likeliest token, or a draw. `None` where nothing may be chosen.
fn choose(
    logits: &[f32],
    temperature: f32,
    random: &mut Random,
) -> Result<Option<usize>, WhisperError> {
    let mut best: Option<(usize, f32)> = None;
    for (i, &logit) in logits.iter().enumerate() {
        if logit.is_nan() {
            return Err(WhisperError::NotANumber);
        }
        if logit > best.map_or(f32::NEG_INFINITY, |(_, most)| most) {
            best = Some((i, logit));
        }
    }
    let Some((likeliest, most)) = best else { return Ok(None) };
    if temperature <= 0.0 {
        return Ok(Some(likeliest));
    }
    let weight = |x: f32| f64::from((x - most) / temperature).exp();
    let sum: f64 = logits.iter().copied().map(weight).sum();
    let mut left = random.next() * sum;
    for (i, &logit) in logits.iter().enumerate() {
        left -= weight(logit);
        if left < 0.0 {
            return Ok(Some(i));
        }
    }
    Ok(Some(likeliest))
}

/// `SplitMix64` (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
#[derive(Debug)]
struct Random(u64);

impl Random {
    /// From 0 to below 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Bytes of a text for each byte of it when compressed: high for what repeats itself.
fn compression_ratio(text: &str) -> f32 {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    // Writing to memory cannot fail.
    let packed = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish());
    packed.map_or(0.0, |packed| text.len() as f32 / packed.len().max(1) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = [0.0, 2f32.ln(), f32::NEG_INFINITY, 5f32.ln()];
        let mut random = Random(1);
        let mut counts = [0; 4];
        for _ in 0..8000 {
            counts[choose(&logits, 1.0, &mut random).unwrap().unwrap()] += 1;
        }
        for (count, expected) in counts.into_iter().zip([1000i32, 2000, 0, 5000]) {
            assert!((count - expected).abs() < 200, "{counts:?}");
        }
        assert_eq!(choose(&logits, 0.0, &mut random).unwrap(), Some(3));
        assert_eq!(choose(&[f32::NEG_INFINITY; 3], 0.5, &mut random).unwrap(), None);
        assert!(choose(&[0.0, f32::NAN], 0.5, &mut random).is_err());
    }

    #[test]
    fn repetition_compresses() {
        // zlib.compress of Python: 11, 37 and 8 bytes.
        assert!(compression_ratio(&"la ".repeat(100)) > 10.0);
        assert!(compression_ratio("The quick brown fox jumps over it.") < 1.0);
        assert_eq!(compression_ratio(""), 0.0);
    }
}
