//! What steps cost, measured.

use std::{collections::BTreeMap, time::Duration};

/// A step with more sequences is not measured and verifies no drafts: products are bound by arithmetic
/// there, and a row that is rejected costs what an accepted one does.
const MOST_SEQUENCES: usize = 64;
/// Drafted tokens of a step, at most.
const MOST_DRAFTED: usize = 64;
/// Share of a new measurement.
const WEIGHT: f64 = 0.125;
/// A measurement counts as so many times what was expected, at most: others use the machine too.
const OUTLIER: f64 = 2.0;
/// What a drafted token costs before anything was measured, as a share of the step without drafts.
const FIRST: f64 = 0.15;
/// Steps without drafts that are measured before there are any.
const SETTLED: u32 = 3;
/// Steps without drafts after which what was learnt of drafts is forgotten: the machine may have been busy with something
/// else when it was measured, and what seems too dear is never measured again.
pub(crate) const STALE: u32 = 1024;

/// Numbers of drafted tokens whose steps are measured; those in between count for the nearest. Few numbers
/// have many measurements each: the cheapest of many that are little known is not cheap.
const MEASURED: [usize; 11] = [0, 1, 2, 3, 4, 6, 8, 12, 20, 36, 64];

#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    seconds: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, seconds: f64) {
        let seconds = match self.count {
            0 => seconds,
            _ => seconds.min(OUTLIER * self.seconds),
        };
        // A plain mean at first, so that the first measurement, which is often slow, fades.
        let weight = WEIGHT.max(1.0 / f64::from(self.count + 1));
        self.seconds += (seconds - self.seconds) * weight;
        self.count = self.count.saturating_add(1);
    }
}

/// Steps of so many sequences.
#[derive(Debug, Clone, Copy, Default)]
struct Steps {
    /// By drafted tokens, as [`MEASURED`].
    means: [Mean; MEASURED.len()],
    /// Steps since the last one with drafts.
    plain: u32,
}

impl Steps {
    fn add(&mut self, at: usize, seconds: f64) {
        self.means[at].add(seconds);
        self.plain = if at == 0 { self.plain + 1 } else { 0 };
        if self.plain >= STALE {
            self.means[1..].fill(Mean::default());
            self.plain = 0;
        }
    }
}

/// Time of a step by the number of its sequences and of the tokens that are drafted for them: running
/// means of what was measured, and in between what these suggest.
#[derive(Debug, Clone, Default)]
pub struct Costs {
    /// By sequences.
    steps: BTreeMap<usize, Steps>,
    /// Of proposing a token.
    proposal: Mean,
    /// Steps since the last proposal.
    unproposed: u32,
}

impl Costs {
    /// Whether steps of so many sequences are measured.
    #[must_use]
    pub fn measures(sequences: usize) -> bool {
        (1..=MOST_SEQUENCES).contains(&sequences)
    }

    /// A step of so many sequences that decode, and so many drafted tokens, took so long.
    pub fn learn(&mut self, sequences: usize, drafted: usize, took: Duration) {
        if !Self::measures(sequences) || drafted > MOST_DRAFTED {
            return;
        }
        let steps = self.steps.entry(sequences).or_default();
        let (plain, seconds) = (steps.means[0].seconds, took.as_secs_f64());
        let nearest = (0..MEASURED.len()).min_by_key(|&i| MEASURED[i].abs_diff(drafted));
        let at = nearest.unwrap_or_default();
        // As if the step had had that many drafted tokens.
        let scale = MEASURED[at] as f64 / drafted.max(1) as f64;
        let seconds = match drafted {
            0 => seconds,
            _ => plain + (seconds - plain) * scale,
        };
        steps.add(at, seconds);
        self.unproposed += 1;
        if self.unproposed >= STALE {
            (self.proposal, self.unproposed) = (Mean::default(), 0);
        }
    }

    /// Proposing so many tokens took so long, beside the step.
    pub fn learn_proposals(&mut self, tokens: usize, took: Duration) {
        if tokens > 0 {
            self.proposal.add(took.as_secs_f64() / tokens as f64);
            self.unproposed = 0;
        }
    }

    /// What proposing a token costs, as a share of a step without drafts; 0 where it is not known.
    #[must_use]
    pub fn proposal(&self, sequences: usize) -> f64 {
        self.plain(sequences).map_or(0.0, |plain| self.proposal.seconds / plain)
    }

    /// How many times as long as one without drafts a step takes with so many drafted tokens; `None`
    /// where there is nothing to go by.
    #[must_use]
    pub fn ratio(&self, sequences: usize, drafted: usize) -> Option<f64> {
        let steps = &self.steps.get(&sequences)?.means;
        let plain = steps[0].seconds;
        if steps[0].count < SETTLED || drafted > MOST_DRAFTED || plain <= 0.0 {
            return None;
        }
        // What was measured up to there: more tokens never cost less.
        let (mut below, mut low) = (0, 1.0);
        for (&at, mean) in MEASURED.iter().zip(steps).skip(1).filter(|(_, mean)| mean.count > 0) {
            let ratio = (mean.seconds / plain).max(low);
            if at >= drafted {
                let part = (drafted - below) as f64 / (at - below) as f64;
                return Some(low + (ratio - low) * part);
            }
            (below, low) = (at, ratio);
        }
        Some(low + FIRST * (drafted - below) as f64)
    }

    /// Seconds of a step without drafts, once it is known.
    pub(crate) fn plain(&self, sequences: usize) -> Option<f64> {
        let plain = self.steps.get(&sequences)?.means.first()?;
        (plain.count >= SETTLED).then_some(plain.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(of: &[(usize, u64)]) -> Costs {
        let mut costs = Costs::default();
        for &(drafted, millis) in of {
            (0..SETTLED).for_each(|_| costs.learn(1, drafted, Duration::from_millis(millis)));
        }
        costs
    }

    #[test]
    fn what_was_measured_counts_and_what_lies_between_is_guessed() {
        let costs = costs(&[(0, 10), (2, 12), (6, 20)]);
        let close = |drafted, want: f64| {
            let got = costs.ratio(1, drafted).unwrap();
            assert!((got - want).abs() < 1e-9, "{drafted}: {got}, not {want}");
        };
        close(0, 1.0);
        close(1, 1.1);
        close(2, 1.2);
        close(4, 1.6);
        close(6, 2.0);
        close(8, 2.0 + 2.0 * FIRST);
    }

    #[test]
    fn nothing_is_known_before_plain_steps_were_measured() {
        assert_eq!(costs(&[]).ratio(1, 1), None);
        assert_eq!(costs(&[(3, 10)]).ratio(1, 3), None);
        assert_eq!(costs(&[(0, 10)]).ratio(2, 1), None);
        assert_eq!(costs(&[(0, 10)]).ratio(1, 65), None);
    }

    #[test]
    fn what_drafts_cost_is_forgotten_when_nothing_is_drafted() {
        let mut costs = costs(&[(0, 10), (2, 90)]);
        costs.learn_proposals(1, Duration::from_millis(50));
        let plain = |costs: &mut Costs, n| {
            (0..n).for_each(|_| costs.learn(1, 0, Duration::from_millis(10)));
        };
        plain(&mut costs, STALE - 10);
        assert!(costs.ratio(1, 2) > Some(8.0) && costs.proposal(1) > 4.0);
        plain(&mut costs, 10);
        assert_eq!((costs.ratio(1, 2), costs.proposal(1)), (Some(1.0 + 2.0 * FIRST), 0.0));
        // What is measured goes on to count.
        costs.learn(1, 2, Duration::from_millis(12));
        plain(&mut costs, STALE - 1);
        let kept = costs.ratio(1, 2).unwrap();
        assert!((kept - 1.2).abs() < 1e-9, "{kept}");
    }

    #[test]
    fn one_slow_step_changes_little() {
        let mut costs = costs(&[(0, 10), (1, 11)]);
        for _ in 0..50 {
            costs.learn(1, 1, Duration::from_millis(11));
        }
        costs.learn(1, 1, Duration::from_secs(9));
        assert!(costs.ratio(1, 1).unwrap() < 1.3);
    }
}
