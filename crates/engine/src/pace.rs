//! How much of the prompts a step takes where several requests share the engine.

use std::time::Duration;

/// What a step should take at most: who comes in the middle of one waits for its rest and for the next one.
const STEP: Duration = Duration::from_millis(125);
/// How many times as long as decoding alone a step with prompts may take: what the outputs of others lose to
/// a long prompt.
const STRETCH: f64 = 2.5;
/// As [`STRETCH`], where a step takes longer than [`STEP`] anyway.
const LEAST_STRETCH: f64 = 1.5;
/// Fewer tokens would not keep a machine busy.
const LEAST: u32 = 64;

/// Who shares a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Company {
    /// One request has the engine to itself.
    Alone,
    /// Others wait with their prompts.
    Prompts,
    /// Others decode, and each step is between two of their tokens.
    Outputs,
}

/// Learns from each step how many tokens of prompts fit in the time of one.
#[derive(Debug)]
pub(crate) struct Pace {
    most: u32,
    /// Of a step that decodes and no more.
    decode: Option<Duration>,
    /// Tokens of prompts among prompts, and beside outputs.
    prompts: u32,
    outputs: u32,
}

impl Pace {
    /// `most`: what a step can take at all.
    pub(crate) fn new(most: u32) -> Self {
        let least = LEAST.min(most);
        Self { most, decode: None, prompts: least, outputs: least }
    }

    /// Tokens of prompts in the next step.
    pub(crate) fn tokens(&self, company: Company) -> u32 {
        match company {
            Company::Alone => self.most,
            Company::Prompts => self.prompts,
            Company::Outputs => self.outputs,
        }
    }

    /// A step with so many tokens of prompts took so long; `decoded` tells whether it decoded too.
    pub(crate) fn learn(&mut self, tokens: u32, decoded: bool, took: Duration) {
        if tokens == 0 {
            // One slow step is no reason for much longer ones.
            let smooth = |old: Duration| (7 * old + took.min(2 * old)) / 8;
            self.decode = Some(self.decode.map_or(took, smooth));
        }
        // What else a step costs would count as the cost of few tokens.
        if tokens < LEAST.min(self.most) {
            return;
        }
        if !decoded {
            self.prompts = self.next(self.prompts, tokens, took, STEP);
            return;
        }
        let decode = self.decode.unwrap_or_default();
        let whole = match decode.is_zero() {
            true => STEP,
            false => decode.mul_f64(STRETCH).min(STEP.max(decode.mul_f64(LEAST_STRETCH))),
        };
        let own = took.saturating_sub(decode);
        self.outputs = self.next(self.outputs, tokens, own, whole.saturating_sub(decode));
    }

    /// Tokens for a time of `goal`, after `tokens` of them took `took`.
    fn next(&self, now: u32, tokens: u32, took: Duration, goal: Duration) -> u32 {
        let fit = f64::from(tokens) * goal.as_secs_f64() / took.as_secs_f64().max(1e-6);
        // Later chunks see longer caches and cost more, so growth is slow and whole.
        let next = (fit as u32).min(now.saturating_mul(2)) / LEAST * LEAST;
        next.max(LEAST).min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECODE: f64 = 0.02;

    fn after(most: u32, company: Company, seconds_a_token: f64) -> u32 {
        let mut pace = Pace::new(most);
        let decoded = company == Company::Outputs;
        if decoded {
            pace.learn(0, true, Duration::from_secs_f64(DECODE));
        }
        for _ in 0..10 {
            let tokens = pace.tokens(company);
            let own = seconds_a_token * f64::from(tokens);
            let took = if decoded { DECODE + own } else { own };
            pace.learn(tokens, decoded, Duration::from_secs_f64(took));
        }
        pace.tokens(company)
    }

    #[test]
    fn steps_of_prompts_take_their_time_within_the_limits() {
        let after = |most, cost| after(most, Company::Prompts, cost);
        assert_eq!(after(2048, 1e-6), 2048);
        assert_eq!(after(2048, 0.125 / 600.0), 576);
        assert_eq!(after(2048, 1.0), LEAST);
        assert_eq!(after(16, 1.0), 16);
    }

    #[test]
    fn outputs_wait_for_a_step_no_more_than_so_many_times_their_own() {
        let after = |most, cost| after(most, Company::Outputs, cost);
        let goal = DECODE * (STRETCH - 1.0);
        assert_eq!(after(2048, goal / 600.0), 576);
        assert_eq!(after(2048, 1e-6), 2048);
        assert_eq!(after(2048, 1.0), LEAST);
    }

    #[test]
    fn slow_decoding_is_stretched_less() {
        let mut pace = Pace::new(2048);
        pace.learn(0, true, Duration::from_secs(1));
        for _ in 0..10 {
            let tokens = pace.tokens(Company::Outputs);
            let own = Duration::from_secs_f64(f64::from(tokens) / 256.0);
            pace.learn(tokens, true, Duration::from_secs(1) + own);
        }
        assert_eq!(pace.tokens(Company::Outputs), 128);
    }

    #[test]
    fn a_request_alone_has_the_whole_step() {
        assert_eq!(Pace::new(2048).tokens(Company::Alone), 2048);
        assert_eq!(Pace::new(2048).tokens(Company::Outputs), LEAST);
    }

    #[test]
    fn short_prompts_teach_nothing() {
        let mut pace = Pace::new(2048);
        pace.learn(300, false, Duration::from_millis(1));
        pace.learn(1, false, Duration::from_secs(9));
        assert_eq!(pace.tokens(Company::Prompts), 2 * LEAST);
    }

    #[test]
    fn one_slow_step_changes_little() {
        let mut pace = Pace::new(2048);
        pace.learn(0, true, Duration::from_millis(10));
        pace.learn(0, true, Duration::from_secs(10));
        assert!(pace.decode.is_some_and(|decode| decode < Duration::from_millis(12)));
    }
}
