//! Log probabilities: log-softmax of the raw logits, before bias, penalties, temperature, filters.

use crate::{
    SamplerError,
    device::{read_logits, read_logits_on},
    exp::UNIT,
};
use taper_base::{DeviceLogits, Threads, TokenId, TokenLogprob, TokenLogprobs};

/// The log-softmax of one row, without the row.
#[derive(Debug)]
pub(crate) struct LogSoftmax {
    max: f32,
    ln_sum: f64,
    top: Vec<TokenLogprob>,
}

impl LogSoftmax {
    pub(crate) fn new(logits: &[f32], n: u8, threads: &impl Threads) -> Result<Self, SamplerError> {
        Ok(Self::of(&read_logits_on(logits, 0, n, threads)?))
    }

    pub(crate) fn of(row: &DeviceLogits) -> Self {
        let ln_sum = (row.mass as f64 / UNIT as f64).ln();
        let mut this = Self { max: row.max, ln_sum, top: Vec::new() };
        this.top = row.top.iter().map(|&(x, id)| this.logprob(id, x)).collect();
        this
    }

    fn logprob(&self, id: TokenId, logit: f32) -> TokenLogprob {
        let logprob = (f64::from(logit) - f64::from(self.max) - self.ln_sum) as f32;
        TokenLogprob { id, logprob }
    }

    pub(crate) fn chosen(self, id: TokenId, logit: f32) -> TokenLogprobs {
        TokenLogprobs { chosen: self.logprob(id, logit), top: self.top, rank: None }
    }
}

/// Log probability of `token` under the softmax of `logits`, with the `n` likeliest tokens.
///
/// These are raw log probabilities, as vLLM reports by default: natural logarithms of the model's
/// own distribution. It serves prompt tokens, which nobody sampled, and sampled ones alike. The rank
/// counts the tokens whose logits are not below `token`'s.
///
/// # Errors
/// A logit is NaN or positive infinity, none is finite, or `token` is outside the row.
pub fn token_logprobs(
    logits: &[f32],
    token: TokenId,
    n: u8,
) -> Result<TokenLogprobs, SamplerError> {
    let row = read_logits(logits, token, n)?;
    let rank = logits.iter().filter(|x| **x >= row.logit).count();
    let entry = LogSoftmax::of(&row).chosen(token, row.logit);
    Ok(TokenLogprobs { rank: u32::try_from(rank).ok(), ..entry })
}
