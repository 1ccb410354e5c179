//! What became of the drafts of one sequence.

use crate::Draft;
use taper_base::MAX_DRAFT_TOKENS;

/// Share of a new draft in what is expected of the next one.
const WEIGHT: f32 = 0.125;
/// Tokens without drafts after the first loss; each further loss doubles them.
const SLEEP: u32 = 64;
/// Tokens without drafts, at most.
const LONGEST_SLEEP: u32 = 2048;
/// Drafts whose gain is looked at together.
const WINDOW: u32 = 12;

/// Acceptance of a draft of any class before any was measured.
const ANY: f32 = 0.7;

/// Acceptance of a sequence's drafts, and whether it drafts at all.
#[derive(Debug, Clone)]
pub(crate) struct Track {
    /// By class and position: the probability that a token is accepted if those before it were.
    accepted: [[f32; MAX_DRAFT_TOKENS]; Draft::CLASSES],
    /// By position, of drafts of any class.
    any: [f32; MAX_DRAFT_TOKENS],
    /// Tokens for which nothing is drafted.
    asleep: u32,
    /// How long the next sleep is.
    sleep: u32,
    /// Tokens won, less those lost by longer steps, in this window.
    gain: f64,
    drafts: u32,
    /// Tokens since something was drafted although there were proposals.
    refused: u32,
}

impl Track {
    pub(crate) fn new(expected: &dyn Fn(usize) -> f32) -> Self {
        Self {
            accepted: begin(expected),
            any: [ANY; MAX_DRAFT_TOKENS],
            asleep: 0,
            sleep: SLEEP,
            gain: 0.0,
            drafts: 0,
            refused: 0,
        }
    }

    pub(crate) fn sleeps(&self) -> bool {
        self.asleep > 0
    }

    /// Probabilities that the first, the first two, ... tokens of a draft are accepted.
    pub(crate) fn reach(&self, class: usize, len: usize) -> impl Iterator<Item = f64> {
        products(&self.accepted[class.min(Draft::CLASSES - 1)], len)
    }

    /// Probabilities as of [`Self::reach`], before it is known how sure the drafter will be.
    pub(crate) fn reach_of_any(&self) -> impl Iterator<Item = f64> {
        products(&self.any, MAX_DRAFT_TOKENS)
    }

    /// Learns from a draft of which `accepted` of `drafted` tokens were accepted. `lost` is what longer
    /// steps cost, in tokens.
    pub(crate) fn verified(&mut self, class: usize, drafted: usize, accepted: usize, lost: f64) {
        for of in [&mut self.accepted[class.min(Draft::CLASSES - 1)], &mut self.any] {
            for (i, one) in of.iter_mut().take(drafted.min(accepted + 1)).enumerate() {
                let right = if i < accepted { 1.0 } else { 0.0 };
                *one += (right - *one) * WEIGHT;
            }
        }
        self.refused = 0;
        self.gain += accepted as f64 - lost;
        self.drafts += 1;
        if self.drafts < WINDOW && self.gain > -2.0 {
            return;
        }
        if self.gain < 0.0 {
            self.asleep = self.sleep;
            self.sleep = (2 * self.sleep).min(LONGEST_SLEEP);
        } else {
            self.sleep = SLEEP;
        }
        (self.gain, self.drafts) = (0.0, 0);
    }

    fn begin_again(&mut self, expected: &dyn Fn(usize) -> f32) {
        self.accepted = begin(expected);
        self.any = [ANY; MAX_DRAFT_TOKENS];
    }

    /// So many tokens came without a draft. `proposed`: there was a proposal, which was not worth it.
    pub(crate) fn plain(&mut self, tokens: u32, proposed: bool, expected: &dyn Fn(usize) -> f32) {
        if self.asleep > 0 {
            self.asleep = self.asleep.saturating_sub(tokens);
            if self.asleep == 0 {
                self.begin_again(expected);
            }
        } else if proposed {
            self.refused += tokens;
            // What was learnt may no longer hold.
            if self.refused >= self.sleep {
                self.refused = 0;
                self.sleep = (2 * self.sleep).min(LONGEST_SLEEP);
                self.begin_again(expected);
            }
        }
    }
}

fn products(of: &[f32], len: usize) -> impl Iterator<Item = f64> {
    let mut all = 1.0;
    of.iter().take(len).map(move |&one| {
        all *= f64::from(one);
        all
    })
}

fn begin(expected: &dyn Fn(usize) -> f32) -> [[f32; MAX_DRAFT_TOKENS]; Draft::CLASSES] {
    std::array::from_fn(|class| [expected(class); MAX_DRAFT_TOKENS])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn track() -> Track {
        Track::new(&|_| 0.5)
    }

    #[test]
    fn acceptance_is_learnt_by_class_and_position() {
        let mut track = track();
        for _ in 0..100 {
            track.verified(1, 4, 2, 0.0);
        }
        let reach: Vec<_> = track.reach(1, 4).collect();
        assert!(reach[1] > 0.99 && reach[2] < 0.01, "{reach:?}");
        let other: Vec<_> = track.reach(2, 3).collect();
        assert_eq!(other, [0.5, 0.25, 0.125]);
    }

    #[test]
    fn losses_put_it_to_sleep_longer_each_time() {
        let (mut track, expected) = (track(), |_: usize| 0.5);
        for sleep in [64, 128, 256] {
            while !track.sleeps() {
                track.verified(0, 2, 0, 0.5);
            }
            let mut slept = 0;
            while track.sleeps() {
                track.plain(1, false, &expected);
                slept += 1;
            }
            assert_eq!(slept, sleep);
            assert_eq!(track.reach(0, 1).next(), Some(0.5), "it wakes without prejudice");
        }
        for _ in 0..WINDOW {
            track.verified(0, 2, 2, 0.5);
        }
        assert_eq!(track.sleep, SLEEP);
    }

    #[test]
    fn what_was_refused_for_long_is_tried_again() {
        let (mut track, expected) = (track(), |_: usize| 0.5);
        (0..3).for_each(|_| track.verified(0, 1, 0, 0.0));
        assert!(track.reach(0, 1).next() < Some(0.4));
        (0..SLEEP).for_each(|_| track.plain(1, true, &expected));
        assert_eq!(track.reach(0, 1).next(), Some(0.5));
    }
}
