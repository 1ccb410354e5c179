//! What became of the drafts of one sequence.

use crate::Draft;
use taper_base::MAX_DRAFT_TOKENS;

/// Tokens without drafts after the first loss; each further loss doubles them.
const SLEEP: u32 = 64;
/// Tokens without drafts, at most.
const LONGEST_SLEEP: u32 = 2048;
/// Drafts whose gain is looked at together.
const WINDOW: u32 = 12;
/// A loss of so many tokens need not wait for the others.
const LOSS: f64 = 2.0;
/// Acceptance of a draft of any class before any was measured.
const ANY: f32 = 0.7;

/// The probability that a token is accepted if those before it were: what is expected, which gives way to
/// what is seen.
#[derive(Debug, Clone, Copy)]
struct Chance {
    of: f32,
    seen: u8,
}

impl Chance {
    /// What is expected counts as so many tokens seen.
    const EXPECTED: u8 = 2;

    fn new(of: f32) -> Self {
        Self { of, seen: 0 }
    }

    /// `slowness`: how many of the last tokens count.
    fn see(&mut self, accepted: bool, slowness: u8) {
        self.seen = self.seen.saturating_add(1).min(slowness);
        let weight = 1.0 / f32::from(self.seen + Self::EXPECTED);
        self.of += (f32::from(u8::from(accepted)) - self.of) * weight;
    }

    /// Goes half of the way to what was expected.
    fn forget(&mut self, expected: f32) {
        *self = Self::new((self.of + expected) / 2.0);
    }
}

/// Acceptance of drafts, by their class and the position in them.
#[derive(Debug, Clone)]
pub(crate) struct Acceptance {
    classes: [[Chance; MAX_DRAFT_TOKENS]; Draft::CLASSES],
    /// Of drafts of any class.
    any: [Chance; MAX_DRAFT_TOKENS],
}

impl Acceptance {
    /// What one sequence remembers.
    const RECENT: u8 = 8;
    /// What all together remember.
    const LASTING: u8 = 64;

    pub(crate) fn new(expected: &dyn Fn(usize) -> f32) -> Self {
        let classes = std::array::from_fn(|class| [Chance::new(expected(class)); MAX_DRAFT_TOKENS]);
        Self { classes, any: [Chance::new(ANY); MAX_DRAFT_TOKENS] }
    }

    fn see(&mut self, class: usize, drafted: usize, accepted: usize, slowness: u8) {
        for of in [&mut self.classes[class.min(Draft::CLASSES - 1)], &mut self.any] {
            let looked_at = of.iter_mut().take(drafted.min(accepted + 1));
            looked_at.enumerate().for_each(|(i, chance)| chance.see(i < accepted, slowness));
        }
    }

    /// Learns from a draft of any sequence.
    pub(crate) fn learn(&mut self, class: usize, drafted: usize, accepted: usize) {
        self.see(class, drafted, accepted, Self::LASTING);
    }

    /// Goes half of the way to what was expected.
    pub(crate) fn forget(&mut self, expected: &dyn Fn(usize) -> f32) {
        for (class, of) in self.classes.iter_mut().enumerate() {
            of.iter_mut().for_each(|chance| chance.forget(expected(class)));
        }
        self.any.iter_mut().for_each(|chance| chance.forget(ANY));
    }
}

/// Acceptance of a sequence's drafts, and whether it drafts at all.
#[derive(Debug, Clone)]
pub(crate) struct Track {
    accepted: Acceptance,
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
    /// Begins with what drafts of other sequences were like.
    pub(crate) fn new(usual: &Acceptance) -> Self {
        let mut accepted = usual.clone();
        let all = accepted.classes.iter_mut().chain([&mut accepted.any]).flatten();
        all.for_each(|chance| chance.seen = 0);
        Self { accepted, asleep: 0, sleep: SLEEP, gain: 0.0, drafts: 0, refused: 0 }
    }

    pub(crate) fn sleeps(&self) -> bool {
        self.asleep > 0
    }

    /// Probabilities that the first, the first two, ... tokens of a draft are accepted.
    pub(crate) fn reach(&self, class: usize, len: usize) -> impl Iterator<Item = f64> {
        products(&self.accepted.classes[class.min(Draft::CLASSES - 1)], len)
    }

    /// Probabilities as of [`Self::reach`], before it is known how sure the drafter will be.
    pub(crate) fn reach_of_any(&self) -> impl Iterator<Item = f64> {
        products(&self.accepted.any, MAX_DRAFT_TOKENS)
    }

    /// Learns from a draft of which `accepted` of `drafted` tokens were accepted. `lost` is what longer
    /// steps cost, in tokens.
    pub(crate) fn verified(&mut self, class: usize, drafted: usize, accepted: usize, lost: f64) {
        self.accepted.see(class, drafted, accepted, Acceptance::RECENT);
        self.refused = 0;
        self.gain += accepted as f64 - lost;
        self.drafts += 1;
        if self.drafts < WINDOW && self.gain > -LOSS {
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

    /// So many tokens came without a draft. `proposed`: there was a proposal, which was not worth it.
    pub(crate) fn plain(&mut self, tokens: u32, proposed: bool, expected: &dyn Fn(usize) -> f32) {
        if self.asleep > 0 {
            self.asleep = self.asleep.saturating_sub(tokens);
            if self.asleep == 0 {
                self.accepted.forget(expected);
            }
        } else if proposed {
            self.refused += tokens;
            // What was learnt may no longer hold.
            if self.refused >= self.sleep {
                self.refused = 0;
                self.sleep = (2 * self.sleep).min(LONGEST_SLEEP);
                self.accepted.forget(expected);
            }
        }
    }
}

fn products(of: &[Chance], len: usize) -> impl Iterator<Item = f64> {
    let mut all = 1.0;
    of.iter().take(len).map(move |chance| {
        all *= f64::from(chance.of);
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(_: usize) -> f32 {
        0.5
    }

    fn track() -> Track {
        Track::new(&Acceptance::new(&expected))
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
        let any: Vec<_> = track.reach_of_any().collect();
        assert!(any[1] > 0.99 && any[2] < 0.01, "{any:?}");
    }

    #[test]
    fn losses_put_it_to_sleep_longer_each_time() {
        let mut track = track();
        for sleep in [64, 128, 256] {
            while !track.sleeps() {
                track.verified(0, 2, 0, 0.5);
            }
            let before = track.reach(0, 1).next();
            let mut slept = 0;
            while track.sleeps() {
                track.plain(1, false, &expected);
                slept += 1;
            }
            assert_eq!(slept, sleep);
            assert!(track.reach(0, 1).next() > before, "it wakes with less prejudice");
        }
        for _ in 0..WINDOW {
            track.verified(0, 2, 2, 0.5);
        }
        assert_eq!(track.sleep, SLEEP);
    }

    #[test]
    fn what_was_refused_for_long_is_tried_again() {
        let mut track = track();
        (0..3).for_each(|_| track.verified(0, 1, 0, 0.0));
        let before = track.reach(0, 1).next();
        assert!(before < Some(0.3), "{before:?}");
        (0..SLEEP).for_each(|_| track.plain(1, true, &expected));
        assert!(track.reach(0, 1).next() > before);
    }

    #[test]
    fn a_new_sequence_begins_with_what_others_have_learnt() {
        let mut usual = Acceptance::new(&expected);
        (0..50).for_each(|_| usual.learn(3, 1, 0));
        let mut track = Track::new(&usual);
        assert!(track.reach(3, 1).next() < Some(0.05));
        assert_eq!(track.reach(4, 1).next(), Some(0.5));
        (0..4).for_each(|_| track.verified(3, 1, 1, 0.0));
        assert!(track.reach(3, 1).next() > Some(0.5), "and is soon convinced of the contrary");
    }
}
