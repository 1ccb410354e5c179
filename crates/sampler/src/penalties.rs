//! Changes to single logits: bias, penalties, bans. Their cost is by token seen, not by vocabulary.

use crate::SamplerError;
use std::collections::HashMap;
use taper_base::{DeviceEdit, DeviceEdits, SamplingParams, TokenId};

/// How often each token seen so far stands in the output; those of the prompt alone stand at 0.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// In the order in which they were first seen, so that a step need not look at a map.
    output_counts: Vec<(TokenId, u32)>,
    /// Where each of them is.
    places: HashMap<TokenId, usize>,
    prompt_matters: bool,
    output_matters: bool,
    vocab: u32,
    /// The first token that is none.
    unknown: Option<TokenId>,
}

impl Seen {
    pub(crate) fn new(params: &SamplingParams, prompt: &[TokenId], vocab: u32) -> Self {
        let prompt_matters = params.repetition_penalty != 1.0;
        let output_matters =
            prompt_matters || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
        let mut this = Self { prompt_matters, output_matters, vocab, ..Self::default() };
        if prompt_matters {
            for &token in prompt {
                this.add(token, 0);
            }
        }
        this
    }

    fn add(&mut self, token: TokenId, times: u32) {
        if token < self.vocab {
            let place = *self.places.entry(token).or_insert(self.output_counts.len());
            if place == self.output_counts.len() {
                self.output_counts.push((token, 0));
            }
            self.output_counts[place].1 += times;
        } else {
            self.unknown.get_or_insert(token);
        }
    }

    /// The changes as a device makes them; `None` if they name what is no token, or the bias one twice.
    pub(crate) fn on_device(
        &self,
        params: &SamplingParams,
        banned: &[TokenId],
    ) -> Option<DeviceEdits> {
        let mut others = HashMap::new();
        let of = |token| DeviceEdit { token, bias: -0.0, seen: None, banned: false };
        for &(token, bias) in &params.logit_bias {
            let edit = DeviceEdit { bias, ..of(token) };
            if token >= self.vocab || others.insert(token, edit).is_some() {
                return None;
            }
        }
        for &token in banned.iter().filter(|&&token| token < self.vocab) {
            others.entry(token).or_insert_with(|| of(token)).banned = true;
        }
        if self.unknown.is_some() {
            return None;
        }
        let penalised =
            |&(token, count): &(TokenId, u32)| DeviceEdit { seen: Some(count), ..of(token) };
        let mut tokens: Vec<_> = self.output_counts.iter().map(penalised).collect();
        if !others.is_empty() {
            for edit in &mut tokens {
                let Some(DeviceEdit { bias, banned, .. }) = others.remove(&edit.token) else {
                    continue;
                };
                (edit.bias, edit.banned) = (bias, banned);
            }
        }
        tokens.extend(others.into_values());
        Some(DeviceEdits {
            tokens,
            repetition: params.repetition_penalty,
            frequency: params.frequency_penalty,
            presence: params.presence_penalty,
            mask: None,
        })
    }

    pub(crate) fn accept(&mut self, token: TokenId) {
        if self.output_matters {
            self.add(token, 1);
        }
    }
}

/// A row under change, with what stood there before.
#[derive(Debug)]
pub(crate) struct Edits<'a> {
    logits: &'a mut [f32],
    /// Former values, in order of change; empty unless they are wanted.
    undo: Option<Vec<(TokenId, f32)>>,
}

impl<'a> Edits<'a> {
    pub(crate) fn new(logits: &'a mut [f32], keep_former: bool) -> Self {
        Self { logits, undo: keep_former.then(Vec::new) }
    }

    fn edit(&mut self, token: TokenId, f: impl FnOnce(f32) -> f32) -> Result<(), SamplerError> {
        let vocab = self.logits.len();
        let Some(logit) = self.logits.get_mut(token as usize) else {
            return Err(SamplerError::UnknownToken { token, vocab });
        };
        let former = *logit;
        if let Some(undo) = &mut self.undo {
            undo.push((token, former));
        }
        *logit = f(former);
        Ok(())
    }

    /// In vLLM's order: bias, then repetition, frequency and presence penalty.
    pub(crate) fn apply(
        &mut self,
        params: &SamplingParams,
        seen: &Seen,
    ) -> Result<(), SamplerError> {
        // What was finite stays so: an overflow must not turn into a certainty or a ban.
        let bounded = |former: f32, x: f32| {
            if former.is_finite() { x.clamp(f32::MIN, f32::MAX) } else { x }
        };
        for &(token, bias) in &params.logit_bias {
            self.edit(token, |x| bounded(x, x + bias))?;
        }
        if !seen.output_matters {
            return Ok(());
        }
        if let Some(token) = seen.unknown {
            return Err(SamplerError::UnknownToken { token, vocab: self.logits.len() });
        }
        let repetition = params.repetition_penalty;
        for &(token, count) in &seen.output_counts {
            self.edit(token, |x| {
                let mut y = x;
                if seen.prompt_matters {
                    y = if y > 0.0 { y / repetition } else { y * repetition };
                }
                y -= params.frequency_penalty * count as f32;
                if count > 0 {
                    y -= params.presence_penalty;
                }
                bounded(x, y)
            })?;
        }
        Ok(())
    }

    /// Tokens outside the vocabulary cannot be chosen in any case.
    pub(crate) fn ban(&mut self, tokens: &[TokenId]) -> Result<(), SamplerError> {
        let vocab = self.logits.len();
        for &token in tokens.iter().filter(|t| (**t as usize) < vocab) {
            // The scan of the changed row finds other values that are no logits, but not this one.
            let logit = self.logits[token as usize];
            if logit.is_nan() || logit == f32::INFINITY {
                return Err(SamplerError::NotANumber { token });
            }
            self.edit(token, |_| f32::NEG_INFINITY)?;
        }
        Ok(())
    }

    /// The row as it is now, and the logits of changed tokens as they were, first change first.
    pub(crate) fn finish(self) -> (&'a mut [f32], Vec<(TokenId, f32)>) {
        (self.logits, self.undo.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn penalised(params: &SamplingParams, prompt: &[u32], output: &[u32], row: &[f32]) -> Vec<f32> {
        let mut seen = Seen::new(params, prompt, row.len() as u32);
        output.iter().for_each(|&t| seen.accept(t));
        let mut logits = row.to_vec();
        Edits::new(&mut logits, false).apply(params, &seen).unwrap();
        logits
    }

    #[test]
    fn repetition_divides_positive_and_multiplies_negative_of_prompt_and_output() {
        let params = SamplingParams { repetition_penalty: 2.0, ..SamplingParams::default() };
        // Once only, however often a token was seen.
        let got = penalised(&params, &[0, 1, 1], &[1, 2], &[3.0, -3.0, 0.5, 4.0, -4.0]);
        assert_eq!(got, [1.5, -6.0, 0.25, 4.0, -4.0]);
    }

    #[test]
    fn presence_and_frequency_count_the_output_only() {
        let params = SamplingParams {
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            ..SamplingParams::default()
        };
        let got = penalised(&params, &[0, 0, 1], &[1, 2, 2, 2], &[1.0, 1.0, 1.0, 1.0]);
        assert_eq!(got, [1.0, 0.25, -0.25, 1.0]);
    }

    #[test]
    fn order_is_bias_repetition_frequency_presence() {
        let params = SamplingParams {
            repetition_penalty: 2.0,
            presence_penalty: -1.0,
            frequency_penalty: 0.5,
            logit_bias: vec![(0, 3.0), (1, 100.0), (2, -100.0)],
            ..SamplingParams::default()
        };
        // Token 0: (-1 + 3) / 2 - 2 * 0.5 + 1. Negative before the bias, positive after it.
        let got = penalised(&params, &[], &[0, 0], &[-1.0, 0.0, 0.0]);
        assert_eq!(got, [1.0, 100.0, -100.0]);
    }

    #[test]
    fn no_change_overflows() {
        let params = SamplingParams {
            repetition_penalty: 0.1,
            presence_penalty: -2.0,
            logit_bias: vec![(2, 100.0), (3, 100.0)],
            ..SamplingParams::default()
        };
        let row = [f32::MAX, f32::MIN, f32::NEG_INFINITY, f32::MAX];
        let got = penalised(&params, &[], &[0, 1], &row);
        assert_eq!(got, [f32::MAX, f32::MIN * 0.1, f32::NEG_INFINITY, f32::MAX]);
    }
}
