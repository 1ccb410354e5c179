//! Choices that a device makes: from sampling parameters, and back to a choice.

use crate::{
    Choice, SamplerError,
    candidates::{inverse, share, total_mass},
    logprobs::LogSoftmax,
    scan::Scanned,
};
use taper_base::{Alone, DeviceDraw, DeviceEdits, DeviceLogits, SamplingParams, Threads, TokenId};

/// What a device is told.
pub(crate) fn device_draw(params: &SamplingParams, bits: u64, edits: DeviceEdits) -> DeviceDraw {
    let logprobs = params.logprobs;
    if params.temperature == 0.0 {
        let (inv_t, min_d) = (0.0, f32::NEG_INFINITY);
        let (top_k, top_p, typical_p) = (0, 0, 0);
        return DeviceDraw { edits, inv_t, min_d, top_k, top_p, typical_p, bits, logprobs };
    }
    // A share that rounds up to the whole keeps all.
    let part = |p: f32| u32::try_from(share(p)).unwrap_or(0);
    DeviceDraw {
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

/// What a device must read for `token` and the `n` likeliest.
///
/// # Errors
/// As [`token_logprobs`](crate::token_logprobs).
pub fn read_logits(logits: &[f32], token: TokenId, n: u8) -> Result<DeviceLogits, SamplerError> {
    read_logits_on(logits, token, n, &Alone)
}

pub(crate) fn read_logits_on(
    logits: &[f32],
    token: TokenId,
    n: u8,
    threads: &impl Threads,
) -> Result<DeviceLogits, SamplerError> {
    let vocab = logits.len();
    let unknown = SamplerError::UnknownToken { token, vocab };
    let logit = *logits.get(token as usize).ok_or(unknown)?;
    let row = Scanned::new(logits, threads)?;
    let mass = total_mass(&row, 1.0, threads);
    Ok(DeviceLogits { logit, max: row.max, mass, top: row.top(usize::from(n)) })
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
    use taper_base::DeviceEdit;

    #[test]
    fn what_is_read_makes_the_same_choice() {
        let row: Vec<f32> = (0..900).map(|i| ((i * 7919) % 1000) as f32 / 90.0).collect();
        for (temperature, n) in [(0.0, 0), (0.7, 5), (1.5, 20)] {
            let params =
                SamplingParams { temperature, logprobs: Some(n), top_k: 50, ..Default::default() };
            let want = Sampler::new(&params, &[], 900).sample(&mut row.clone(), &[]).unwrap();
            let read = read_logits(&row, want.token, n).unwrap();
            assert_eq!(Choice::of_device(want.token, Some(&read)), want);
        }
    }

    #[test]
    fn what_needs_more_than_the_row_stays_on_the_host() {
        let on = |params: &SamplingParams| Sampler::new(params, &[1], 9).on_device(&[], None);
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
        assert_eq!(Sampler::new(&repeats, &[9], 9).on_device(&[], None), None, "no such token");
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
        let mut edits = sampler.on_device(&[2, 7, 100], None).unwrap().edits;
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
        let none = Sampler::new(&plain, &[1, 2], 9).on_device(&[], None).unwrap().edits;
        assert_eq!(none.tokens, [], "nothing is in the output yet");
    }
}
