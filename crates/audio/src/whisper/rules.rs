//! What may be written next, as OpenAI's whisper has it (`SuppressBlank`, `SuppressTokens`, `ApplyTimestampRules`).

use super::tokens::{Specials, Suppressed};
use taper_base::TokenId;

const NEVER: f32 = f32::NEG_INFINITY;
/// The latest first time, in steps of 0.02 seconds: one second.
const LATEST_START: usize = 50;

/// Takes from the logits what may not follow `written`, the tokens behind the prelude.
pub(super) fn apply(
    logits: &mut [f32],
    written: &[TokenId],
    specials: &Specials,
    suppressed: &Suppressed,
) {
    let first: &[TokenId] = if written.is_empty() { &suppressed.first } else { &[] };
    for token in first.iter().chain(&suppressed.always) {
        if let Some(logit) = logits.get_mut(*token as usize) {
            *logit = NEVER;
        }
    }
    let (times, end) = (specials.times as usize, specials.end as usize);
    if times >= logits.len() {
        return;
    }
    // Times come in pairs, but for those right before the end.
    let after_time = written.last().is_some_and(|t| specials.is_time(*t));
    let after_pair =
        written.len() < 2 || written.iter().nth_back(1).is_some_and(|t| specials.is_time(*t));
    if after_time {
        match after_pair {
            true => logits[times..].fill(NEVER),
            false => logits[..end].fill(NEVER),
        }
    }
    // Time does not go back, and every segment takes some.
    if let Some(last) = written.iter().rev().find_map(|t| specials.time(*t)) {
        let least = if after_time && !after_pair { last } else { last + 1 };
        let least = (times + least).min(logits.len());
        logits[times..least].fill(NEVER);
    }
    if written.is_empty() {
        logits[..times].fill(NEVER);
        let behind = (times + LATEST_START + 1).min(logits.len());
        logits[behind..].fill(NEVER);
    }
    // Where any time is likelier than each single text, it is a time.
    let (texts, later) = logits.split_at(times);
    let text = texts.iter().copied().fold(NEVER, f32::max);
    if log_sum(later) > text {
        logits[..times].fill(NEVER);
    }
}

/// Logarithm of the sum of exponentials.
pub(super) fn log_sum(logits: &[f32]) -> f32 {
    let most = logits.iter().copied().fold(NEVER, f32::max);
    if most == NEVER {
        return NEVER;
    }
    let sum: f64 = logits.iter().map(|x| f64::from(x - most).exp()).sum();
    most + sum.ln() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: TokenId = 20;

    fn specials() -> Specials {
        Specials {
            end: 10,
            start: 11,
            translate: 13,
            transcribe: 14,
            previous: 15,
            no_speech: Some(16),
            no_times: 19,
            times: TIMES,
            languages: vec![("en", 12)],
        }
    }

    /// Which tokens may follow, of logits that are all alike but for texts, which are likelier than all times.
    fn allowed(written: &[TokenId], vocab: usize) -> Vec<usize> {
        let mut logits = vec![0.0; vocab];
        logits[..=10].fill(9.0);
        let suppressed = Suppressed { always: vec![3, 13, 500], first: vec![4, 10] };
        apply(&mut logits, written, &specials(), &suppressed);
        (0..vocab).filter(|&i| logits[i] > NEVER).collect()
    }

    #[test]
    fn a_transcript_begins_with_a_time_of_the_first_second() {
        assert_eq!(allowed(&[], 100), (20..=70).collect::<Vec<_>>());
        assert_eq!(allowed(&[], 30), (20..30).collect::<Vec<_>>());
    }

    #[test]
    fn times_come_in_pairs_and_do_not_go_back() {
        let texts: Vec<_> = (0..20).filter(|i| ![3, 13].contains(i)).collect();
        // Behind the first time there is text.
        assert_eq!(allowed(&[25], 40), texts);
        // Behind text there is text, or a later time.
        let both: Vec<_> = texts.iter().copied().chain(26..40).collect();
        assert_eq!(allowed(&[25, 1], 40), both);
        // Behind the time that ends a segment there is its pair, or the end.
        let expected: Vec<_> = (10..20).filter(|i| *i != 13).chain(30..40).collect();
        assert_eq!(allowed(&[25, 1, 30], 40), expected);
        assert_eq!(allowed(&[25, 1, 30, 30], 40), texts);
    }

    #[test]
    fn likely_times_win_together() {
        let mut logits = vec![0.0; 40];
        logits[5] = 2.0;
        apply(&mut logits, &[25, 1], &specials(), &Suppressed::default());
        // 14 later times of 0 make ln 14 > 2.
        assert!(logits[5] == NEVER && logits[26] == 0.0 && logits[25] == NEVER);
        assert!((log_sum(&logits) - 14f32.ln()).abs() < 1e-6);
        assert_eq!(log_sum(&[NEVER, NEVER]), NEVER);
    }

    #[test]
    fn nothing_panics_where_times_are_missing() {
        let mut logits = vec![0.0; 15];
        apply(&mut logits, &[1], &specials(), &Suppressed { always: vec![2], first: vec![] });
        assert!(logits[2] == NEVER && logits[3] == 0.0);
    }
}
