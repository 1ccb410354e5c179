//! Choices that a device makes: what it is told, and what comes back.

use crate::{
    Alone, Choice, SamplerError, Threads,
    candidates::{inverse, share, total_mass},
    logprobs::LogSoftmax,
    scan::Scanned,
};
use taper_base::{SamplingParams, TokenId};

/// One choice by temperature, `min_p`, `top_k`, `top_p`, `typical_p` and a draw, for a device that has
/// the row.
///
/// The device computes what [`Sampler`](crate::Sampler) documents: masses in units of 2^-40 of the
/// likeliest token's, tokens ranked by logit (for `typical_p` by their distance from the mean) and then
/// by id, draws over ascending ids, the bits after a token that is refused by SplitMix64.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceDraw {
    /// What changes of the row before.
    pub edits: DeviceEdits,
    /// What logits are multiplied by; 0 takes the likeliest token, and no filter is in force.
    pub inv_t: f32,
    /// Tokens whose scaled logit is further below the likeliest's are not kept.
    pub min_d: f32,
    /// The likeliest so many tokens are kept; 0 keeps all.
    pub top_k: u32,
    /// Share of the mass that is kept, in units of 2^-32; 0 keeps all.
    pub top_p: u32,
    /// Share of the mass that typical sampling keeps, in units of 2^-32; 0 keeps all. It is applied last.
    pub typical_p: u32,
    /// Random bits of the draw.
    pub bits: u64,
    /// Whether log probabilities are wanted, and for how many of the likeliest tokens.
    pub logprobs: Option<u8>,
}

/// Bias, penalties and bans of a row, in the order that [`Sampler`](crate::Sampler) documents.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeviceEdits {
    /// The tokens that change, each once. Without any the row stays as it comes.
    pub tokens: Vec<DeviceEdit>,
    /// Divides positive logits of tokens seen, and multiplies others.
    pub repetition: f32,
    /// Is taken off for each time that a token stands in the output.
    pub frequency: f32,
    /// Is taken off once of tokens that stand in the output.
    pub presence: f32,
}

/// What changes of one token's logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceEdit {
    /// Id of the chosen token.
    pub token: TokenId,
    /// Is added; `-0.0`, which changes no number, where there is none.
    pub bias: f32,
    /// How often the token stands in the output, if penalties are its: it is there or in the prompt.
    pub seen: Option<u32>,
    /// The token is not to be chosen.
    pub banned: bool,
}

impl DeviceDraw {
    pub(crate) fn new(params: &SamplingParams, bits: u64, edits: DeviceEdits) -> Self {
        let logprobs = params.logprobs;
        if params.temperature == 0.0 {
            let (inv_t, min_d) = (0.0, f32::NEG_INFINITY);
            return Self { edits, inv_t, min_d, top_k: 0, top_p: 0, typical_p: 0, bits, logprobs };
        }
        // A share that rounds up to the whole keeps all.
        let part = |p: f32| u32::try_from(share(p)).unwrap_or(0);
        Self {
            edits,
            inv_t: inverse(params.temperature),
            min_d: params.min_p.ln(),
            top_k: params.top_k,
            top_p: part(params.top_p),
            typical_p: part(params.typical_p),
            bits,
            logprobs,
        }
    }

    /// Whether it is the likeliest token of a row, edited or not, and nothing else.
    #[must_use]
    pub fn is_argmax(&self) -> bool {
        self.inv_t == 0.0 && self.logprobs.is_none()
    }
}

/// What log probabilities of a row are made of.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceLogits {
    /// Logit of the chosen token.
    pub logit: f32,
    /// Largest logit of the row.
    pub max: f32,
    /// Mass of the row at temperature 1, in units of 2^-40 of the likeliest token's.
    pub mass: u64,
    /// The likeliest tokens of finite logit, likeliest first, as many as were asked for.
    pub top: Vec<(f32, TokenId)>,
}

impl DeviceLogits {
    /// What a device must read for `token` and the `n` likeliest.
    ///
    /// # Errors
    /// As [`token_logprobs`](crate::token_logprobs).
    pub fn read(logits: &[f32], token: TokenId, n: u8) -> Result<Self, SamplerError> {
        Self::read_on(logits, token, n, &Alone)
    }

    pub(crate) fn read_on(
        logits: &[f32],
        token: TokenId,
        n: u8,
        threads: &impl Threads,
    ) -> Result<Self, SamplerError> {
        let vocab = logits.len();
        let unknown = SamplerError::UnknownToken { token, vocab };
        let logit = *logits.get(token as usize).ok_or(unknown)?;
        let row = Scanned::new(logits, threads)?;
        let mass = total_mass(&row, 1.0, threads);
        Ok(Self { logit, max: row.max, mass, top: row.top(usize::from(n)) })
    }
}

impl Choice {
    /// A token that a device chose, and what it read beside.
    #[must_use]
    pub fn of_device(token: TokenId, logits: Option<&DeviceLogits>) -> Self {
        let logprobs = logits.map(|row| LogSoftmax::of(row).chosen(token, row.logit));
        Self { token, logprobs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sampler;

    #[test]
    fn what_is_read_makes_the_same_choice() {
        let row: Vec<f32> = (0..900).map(|i| ((i * 7919) % 1000) as f32 / 90.0).collect();
        for (temperature, n) in [(0.0, 0), (0.7, 5), (1.5, 20)] {
            let params =
                SamplingParams { temperature, logprobs: Some(n), top_k: 50, ..Default::default() };
            let want = Sampler::new(&params, &[], 900).sample(&mut row.clone(), &[]).unwrap();
            let read = DeviceLogits::read(&row, want.token, n).unwrap();
            assert_eq!(Choice::of_device(want.token, Some(&read)), want);
        }
    }

    #[test]
    fn what_needs_more_than_the_row_stays_on_the_host() {
        let on = |params: &SamplingParams| Sampler::new(params, &[1], 9).on_device(&[]);
        let plain = SamplingParams { top_p: 0.5, min_p: 0.25, seed: 3, ..Default::default() };
        let draw = on(&plain).unwrap();
        assert_eq!((draw.top_p, draw.top_k, draw.inv_t), (1 << 31, 0, 1.0));
        assert_eq!(draw.min_d, 0.25f32.ln());
        assert!(!draw.is_argmax() && on(&SamplingParams::greedy()).unwrap().is_argmax());
        assert_eq!(on(&SamplingParams::default()).unwrap().top_p, 0, "all is kept");
        let typical = on(&SamplingParams { typical_p: 0.75, ..plain.clone() }).unwrap();
        assert_eq!((typical.typical_p, draw.typical_p), (3 << 30, 0));
        // What the host refuses.
        for params in [
            SamplingParams { logit_bias: vec![(9, 1.0)], ..plain.clone() },
            SamplingParams { logit_bias: vec![(3, 1.0), (3, 1.0)], ..plain.clone() },
        ] {
            assert_eq!(on(&params), None);
        }
        let repeats = SamplingParams { repetition_penalty: 1.1, ..plain };
        assert_eq!(Sampler::new(&repeats, &[9], 9).on_device(&[]), None, "no such token");
    }

    #[test]
    fn each_token_is_edited_once() {
        let params = SamplingParams {
            repetition_penalty: 1.5,
            frequency_penalty: 0.25,
            presence_penalty: 0.5,
            logit_bias: vec![(1, 2.0), (4, -3.0)],
            ..SamplingParams::default()
        };
        let mut sampler = Sampler::new(&params, &[0, 1], 9);
        [1, 1, 2].iter().for_each(|&token| sampler.accept(token));
        let mut edits = sampler.on_device(&[2, 7, 100]).unwrap().edits;
        edits.tokens.sort_by_key(|e| e.token);
        assert_eq!((edits.repetition, edits.frequency, edits.presence), (1.5, 0.25, 0.5));
        let edit = |token, bias, seen, banned| DeviceEdit { token, bias, seen, banned };
        let want = [
            edit(0, -0.0, Some(0), false),
            edit(1, 2.0, Some(2), false),
            edit(2, -0.0, Some(1), true),
            edit(4, -3.0, None, false),
            edit(7, -0.0, None, true),
        ];
        assert_eq!(edits.tokens, want);
        let plain = SamplingParams { frequency_penalty: 0.5, ..SamplingParams::default() };
        let none = Sampler::new(&plain, &[1, 2], 9).on_device(&[]).unwrap().edits;
        assert_eq!(none.tokens, [], "nothing is in the output yet");
    }
}
