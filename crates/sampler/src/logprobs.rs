//! Log probabilities: log-softmax of the raw logits, before bias, penalties, temperature, filters.

use crate::{SamplerError, exp::exp, scan::Scanned};
use taper_base::{TokenId, TokenLogprob, TokenLogprobs};

/// The log-softmax of one row, without the row.
#[derive(Debug)]
pub(crate) struct LogSoftmax {
    max: f32,
    ln_sum: f64,
    top: Vec<TokenLogprob>,
}

impl LogSoftmax {
    pub(crate) fn new(logits: &[f32], n: usize) -> Result<Self, SamplerError> {
        let row = Scanned::new(logits)?;
        // Lanes fixed by hand, so that the sum has the same bits whatever the vector width.
        const LANES: usize = 16;
        let max = row.max;
        let mut sums = [0f64; LANES];
        let (groups, tail) = logits.as_chunks::<LANES>();
        for group in groups {
            for (s, &x) in sums.iter_mut().zip(group) {
                *s += f64::from(exp(x - max));
            }
        }
        for (s, &x) in sums.iter_mut().zip(tail) {
            *s += f64::from(exp(x - max));
        }
        let ln_sum = sums.iter().sum::<f64>().ln();
        let mut this = Self { max, ln_sum, top: Vec::new() };
        this.top = row.top(n).iter().map(|&(x, id)| this.of(id, x)).collect();
        Ok(this)
    }

    fn of(&self, id: TokenId, logit: f32) -> TokenLogprob {
        let logprob = (f64::from(logit) - f64::from(self.max) - self.ln_sum) as f32;
        TokenLogprob { id, logprob }
    }

    pub(crate) fn chosen(self, id: TokenId, logit: f32) -> TokenLogprobs {
        TokenLogprobs { chosen: self.of(id, logit), top: self.top }
    }
}

/// Log probability of `token` under the softmax of `logits`, with the `n` likeliest tokens.
///
/// These are raw log probabilities, as vLLM reports by default: natural logarithms of the model's
/// own distribution. It serves prompt tokens, which nobody sampled, and sampled ones alike.
///
/// # Errors
/// A logit is NaN or positive infinity, none is finite, or `token` is outside the row.
pub fn token_logprobs(
    logits: &[f32],
    token: TokenId,
    n: u8,
) -> Result<TokenLogprobs, SamplerError> {
    let Some(&logit) = logits.get(token as usize) else {
        return Err(SamplerError::UnknownToken { token, vocab: logits.len() });
    };
    Ok(LogSoftmax::new(logits, usize::from(n))?.chosen(token, logit))
}
