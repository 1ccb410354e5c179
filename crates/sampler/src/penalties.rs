//! Changes to single logits: bias, penalties, bans. Their cost is by token seen, not by vocabulary.

use crate::SamplerError;
use std::collections::HashMap;
use taper_base::{SamplingParams, TokenId};

/// How often each token seen so far stands in the output; those of the prompt alone stand at 0.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    output_counts: HashMap<TokenId, u32>,
    prompt_matters: bool,
    output_matters: bool,
}

impl Seen {
    pub(crate) fn new(params: &SamplingParams, prompt: &[TokenId]) -> Self {
        let prompt_matters = params.repetition_penalty != 1.0;
        let output_matters =
            prompt_matters || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
        let mut output_counts = HashMap::new();
        if prompt_matters {
            output_counts.extend(prompt.iter().map(|&t| (t, 0)));
        }
        Self { output_counts, prompt_matters, output_matters }
    }

    pub(crate) fn accept(&mut self, token: TokenId) {
        if self.output_matters {
            *self.output_counts.entry(token).or_insert(0) += 1;
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
        if former.is_nan() || former == f32::INFINITY {
            return Err(SamplerError::NotANumber { token });
        }
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
        let repetition = params.repetition_penalty;
        // The order of the map does not matter: a token's change depends on that token only.
        for (&token, &count) in &seen.output_counts {
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
            self.edit(token, |_| f32::NEG_INFINITY)?;
        }
        Ok(())
    }

    /// The row as it is now, and the logits of changed tokens as they were, first change first.
    pub(crate) fn finish(self) -> (&'a [f32], Vec<(TokenId, f32)>) {
        (self.logits, self.undo.unwrap_or_default())
    }
}
