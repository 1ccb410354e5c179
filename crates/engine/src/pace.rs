//! How much of the prompts a step takes where several requests share the engine.

use std::time::Duration;

/// What a step should take: who comes in the middle of one waits for its rest and for the next one.
const STEP: Duration = Duration::from_millis(125);
/// Fewer tokens would not keep a machine busy.
const LEAST: u32 = 128;

/// Learns from each step how many tokens of prompts fit in [`STEP`].
#[derive(Debug)]
pub(crate) struct Pace {
    tokens: u32,
    most: u32,
}

impl Pace {
    /// `most`: what a step can take at all.
    pub(crate) fn new(most: u32) -> Self {
        Self { tokens: LEAST.min(most), most }
    }

    /// Tokens of prompts in the next step: as many as there can be for a request that is alone.
    pub(crate) fn tokens(&self, requests: usize) -> u32 {
        if requests > 1 { self.tokens } else { self.most }
    }

    /// A step with so many tokens of prompts took so long.
    pub(crate) fn learn(&mut self, tokens: u32, took: Duration) {
        // What else a step costs would count as the cost of few tokens.
        if tokens < LEAST.min(self.most) {
            return;
        }
        let fit = f64::from(tokens) * STEP.as_secs_f64() / took.as_secs_f64().max(1e-6);
        // Later chunks see longer caches and cost more, so growth is slow and whole.
        let next = (fit as u32).min(self.tokens.saturating_mul(2)) / LEAST * LEAST;
        self.tokens = next.max(LEAST).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(most: u32, seconds_a_token: f64) -> u32 {
        let mut pace = Pace::new(most);
        for _ in 0..10 {
            let tokens = pace.tokens(2);
            pace.learn(tokens, Duration::from_secs_f64(seconds_a_token * f64::from(tokens)));
        }
        pace.tokens(2)
    }

    #[test]
    fn steps_take_their_time_within_the_limits() {
        assert_eq!(after(2048, 1e-6), 2048);
        assert_eq!(after(2048, 0.125 / 600.0), 512);
        assert_eq!(after(2048, 1.0), LEAST);
        assert_eq!(after(16, 1.0), 16);
    }

    #[test]
    fn a_request_alone_has_the_whole_step() {
        assert_eq!(Pace::new(2048).tokens(1), 2048);
        assert_eq!(Pace::new(2048).tokens(2), LEAST);
    }

    #[test]
    fn short_prompts_teach_nothing() {
        let mut pace = Pace::new(2048);
        pace.learn(300, Duration::from_millis(1));
        pace.learn(1, Duration::from_secs(9));
        assert_eq!(pace.tokens(2), 2 * LEAST);
    }
}
