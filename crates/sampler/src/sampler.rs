//! The sampler of one sequence.

use crate::{
    SamplerError,
    candidates::Candidates,
    device::device_draw,
    logprobs::LogSoftmax,
    mask::apply_mask,
    penalties::{Edits, Seen},
    rng::draw_bits,
    scan::Scanned,
};
use taper_base::{Alone, DeviceDraw, SamplingParams, Threads, TokenId, TokenLogprobs, TokenMask};

/// A token chosen by [`Sampler::sample`].
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Id of the chosen token.
    pub token: TokenId,
    /// When asked for: see [`token_logprobs`](crate::token_logprobs) for what they mean.
    pub logprobs: Option<TokenLogprobs>,
}

/// Chooses the tokens of one sequence.
///
/// [`sample`](Self::sample) reads the state and [`accept`](Self::accept) advances it, so that a
/// choice can be repeated or thrown away. The choice at an output position depends on the
/// parameters, the tokens so far, the logits and the position: not on the batch, on a preemption,
/// or on the machine.
///
/// The order is vLLM's: `logit_bias`; repetition, frequency and presence penalty; banned tokens and the mask;
/// temperature; `min_p`; `top_k`; `top_p`; then `typical_p`. Each filter sees the distribution
/// that the one before it left. Of equally likely tokens the lower id comes first everywhere.
///
/// A draw is over ascending ids. What the last of `top_p` and `typical_p` keeps is drawn from by rejection: first
/// from all that the filters before it left; after a token that it does not keep, from what comes before that token
/// in its order.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    vocab: u32,
    seen: Seen,
    position: u64,
}

impl Sampler {
    /// The sampler of a sequence that has a prompt and no output. `params` are taken as
    /// [valid](SamplingParams::validate).
    #[must_use]
    pub fn new(params: &SamplingParams, prompt: &[TokenId], vocab: u32) -> Self {
        Self { params: params.clone(), vocab, seen: Seen::new(params, prompt, vocab), position: 0 }
    }

    /// Output tokens accepted so far, which is the position of the next.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// What a device that has the row must know to choose as [`Self::sample`] does. `None` where the
    /// host has to choose: where `logit_bias` or the history name what is no token, or the bias one token
    /// twice.
    #[must_use]
    pub fn on_device(&self, banned: &[TokenId], mask: Option<&TokenMask>) -> Option<DeviceDraw> {
        let params = &self.params;
        let mut edits = self.seen.on_device(params, banned)?;
        edits.mask = mask.cloned();
        Some(device_draw(params, draw_bits(params.seed, self.position), edits))
    }

    /// Chooses the token at the current position. `logits` is left with bias, penalties and bans
    /// applied; tokens of `banned` are not chosen.
    ///
    /// # Errors
    /// The row has the wrong length, a logit is NaN or positive infinity, no token is left, or
    /// `logit_bias` or the history name a token outside the vocabulary.
    pub fn sample(&self, logits: &mut [f32], banned: &[TokenId]) -> Result<Choice, SamplerError> {
        self.sample_on(&Alone, logits, banned, None)
    }

    /// [`Self::sample`] by several threads, of the tokens in a mask where there is one. The choice
    /// is the same for any number of threads.
    ///
    /// # Errors
    /// As [`Self::sample`].
    pub fn sample_on(
        &self,
        threads: &impl Threads,
        logits: &mut [f32],
        banned: &[TokenId],
        mask: Option<&TokenMask>,
    ) -> Result<Choice, SamplerError> {
        if logits.len() != self.vocab as usize {
            return Err(SamplerError::WrongVocab { got: logits.len(), vocab: self.vocab });
        }
        let params = &self.params;
        let raw = params.logprobs.map(|n| LogSoftmax::new(logits, n, threads)).transpose()?;
        let mut edits = Edits::new(logits, raw.is_some());
        edits.apply(params, &self.seen)?;
        edits.ban(banned)?;
        let (logits, former) = edits.finish();
        if let Some(mask) = mask {
            apply_mask(logits, mask);
        }

        let logits = &*logits;
        let row = Scanned::new(logits, threads)?;
        let token = if params.temperature == 0.0 {
            row.argmax()
        } else {
            let bits = draw_bits(params.seed, self.position);
            Candidates::select(&row, params, threads).choose(params, bits)
        };
        let logprobs = raw.map(|raw| {
            let changed = former.iter().find(|(id, _)| *id == token).map(|(_, x)| *x);
            raw.chosen(token, changed.unwrap_or(logits[token as usize]))
        });
        Ok(Choice { token, logprobs })
    }

    /// Appends a token to the output, be it a sampled one or another.
    pub fn accept(&mut self, token: TokenId) {
        self.seen.accept(token);
        self.position += 1;
    }
}
