//! Tokens that may not be chosen, given as a bitset.

use multiversion::multiversion;
use taper_base::TokenMask;

/// Leaves the tokens of a mask and puts negative infinity for all others. What is no logit stays, for
/// the scan to find: nothing is chosen beside it.
pub(crate) fn apply_mask(logits: &mut [f32], mask: &TokenMask) {
    let known = mask.words().len() * 32;
    let (inside, outside) = logits.split_at_mut(known.min(logits.len()));
    mask_words(inside, mask.words());
    mask_words(outside, &[]);
}

#[multiversion(targets("x86_64+avx512f+avx512vl", "x86_64+avx2"))]
fn mask_words(logits: &mut [f32], words: &[u32]) {
    let words = words.iter().copied().chain(std::iter::repeat(0));
    for (chunk, word) in logits.chunks_mut(32).zip(words) {
        if word == u32::MAX {
            continue;
        }
        for (bit, x) in (0u32..).zip(chunk) {
            let out = word >> bit & 1 == 0 && *x < f32::INFINITY;
            *x = if out { f32::NEG_INFINITY } else { *x };
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Sampler, SamplerError};
    use taper_base::{Alone, SamplingParams, TokenMask};

    fn sample(row: &[f32], params: &SamplingParams, mask: &TokenMask) -> Result<u32, SamplerError> {
        let sampler = Sampler::new(params, &[], row.len() as u32);
        let choice = sampler.sample_on(&Alone, &mut row.to_vec(), &[], Some(mask))?;
        Ok(choice.token)
    }

    #[test]
    fn only_tokens_of_the_mask_are_chosen_and_filters_see_no_others() {
        let row: Vec<f32> = (0..100).map(|i| i as f32).collect();
        let mask: TokenMask = [3, 40, 41].into_iter().collect();
        let greedy = SamplingParams::greedy();
        assert_eq!(sample(&row, &greedy, &mask), Ok(41));
        // `top_k` counts what the mask leaves; a bias does not bring back what it does not.
        let biased = SamplingParams {
            top_k: 2,
            temperature: 2.0,
            logit_bias: vec![(3, 38.0), (99, 100.0)],
            ..SamplingParams::default()
        };
        for seed in 0..50 {
            let params = SamplingParams { seed, ..biased.clone() };
            assert!([3, 41].contains(&sample(&row, &params, &mask).unwrap()));
        }
        // Behind the end of the mask there is nothing.
        let none: TokenMask = [100].into_iter().collect();
        assert_eq!(sample(&row, &greedy, &none), Err(SamplerError::NoCandidate));
    }

    #[test]
    fn a_mask_hides_no_broken_logit_and_log_probabilities_are_of_the_whole_row() {
        let mask: TokenMask = [1].into_iter().collect();
        for bad in [f32::NAN, f32::INFINITY] {
            let broken = SamplerError::NotANumber { token: 2 };
            assert_eq!(sample(&[0.0, 1.0, bad], &SamplingParams::greedy(), &mask), Err(broken));
        }
        let params = SamplingParams { logprobs: Some(2), ..SamplingParams::greedy() };
        let row = [2.0, 0.0, 1.0];
        let sampler = Sampler::new(&params, &[], 3);
        let choice = sampler.sample_on(&Alone, &mut row.to_vec(), &[], Some(&mask)).unwrap();
        assert_eq!(choice.token, 1);
        let want = crate::token_logprobs(&row, 1, 2).unwrap();
        assert_eq!(want.rank, Some(3));
        let want = taper_base::TokenLogprobs { rank: None, ..want };
        assert_eq!(choice.logprobs, Some(want));
    }
}
