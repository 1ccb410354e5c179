//! Clients that send requests at the same time, and what they saw.

use super::client::{Client, Timing};
use crate::bench::shape::Random;
use anyhow::Result;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Every vocabulary has these tokens, and none of them is a control token.
const TOKENS: std::ops::Range<usize> = 1000..30000;

/// What each client sends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) clients: usize,
    /// Requests of each, one after the other.
    pub(super) requests: usize,
    /// Tokens of a prompt, of which the first `shared` are everybody's.
    pub(super) prompt: usize,
    pub(super) shared: usize,
    /// Tokens of an output.
    pub(super) tokens: u32,
    /// Prompts of another seed share nothing but `shared`.
    pub(super) seed: u64,
}

/// Prompts that arrive while others decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrivals {
    pub(super) clients: usize,
    pub(super) prompt: usize,
    /// From the first arrival to the last one.
    pub(super) over: Duration,
}

impl std::str::FromStr for Arrivals {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = || {
            let (clients, rest) = text.split_once('x')?;
            let (prompt, seconds) = rest.split_once('/')?;
            let over = Duration::from_secs_f64(seconds.parse::<u32>().ok()?.into());
            Some(Self { clients: clients.parse().ok()?, prompt: prompt.parse().ok()?, over })
        };
        parsed().ok_or_else(|| "clients x tokens / seconds, as 32x8192/20".to_owned())
    }
}

/// What the clients of a [`Load`] saw.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) timings: Vec<Timing>,
    pub(super) errors: Vec<String>,
    pub(super) took: Duration,
}

/// A prompt that is the same in every run; `own` tells it from others.
fn prompt(tokens: usize, shared: usize, own: u64) -> Vec<u32> {
    let draw = |seed: u64, count: usize| {
        let mut random = Random::new(seed);
        (0..count).map(move |_| (TOKENS.start + random.below(TOKENS.len())) as u32)
    };
    let shared = shared.min(tokens);
    draw(1, shared).chain(draw(own, tokens - shared)).collect()
}

/// Sends a load and waits for all of it.
pub(super) fn send(client: &Client, load: Load) -> Seen {
    let start = Instant::now();
    let results = thread::scope(|scope| {
        let clients: Vec<_> = (0..load.clients)
            .map(|i| {
                scope.spawn(move || {
                    let own = |n: usize| load.seed << 32 | (i * load.requests + n + 2) as u64;
                    (0..load.requests)
                        .map(|n| prompt(load.prompt, load.shared, own(n)))
                        .map(|prompt| client.complete(&prompt, load.tokens))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().unwrap_or_default()).collect()
    });
    Seen::of(results, start.elapsed())
}

/// Sends a load while prompts arrive, again and again until the last of them has been answered; only the
/// load's requests are in the result.
pub(super) fn send_beside(client: &Client, load: Load, arrivals: Arrivals) -> (Seen, Seen) {
    let over = AtomicBool::new(false);
    let start = Instant::now();
    thread::scope(|scope| {
        let over = &over;
        let decoding: Vec<_> = (0..load.clients)
            .map(|i| {
                scope.spawn(move || {
                    let mut results = Vec::new();
                    while !over.load(Ordering::Relaxed) {
                        let own = load.seed << 32 | (results.len() * load.clients + i + 2) as u64;
                        let prompt = prompt(load.prompt, load.shared, own);
                        results.push(client.complete(&prompt, load.tokens));
                    }
                    results
                })
            })
            .collect();
        let late: Vec<_> = (0..arrivals.clients)
            .map(|i| {
                scope.spawn(move || {
                    thread::sleep(arrivals.over * i as u32 / arrivals.clients.max(1) as u32);
                    let own = (load.seed + 1) << 32 | (i + 2) as u64;
                    client.complete(&prompt(arrivals.prompt, 0, own), 16)
                })
            })
            .collect();
        let late = late.into_iter().filter_map(|thread| thread.join().ok()).collect();
        let late = Seen::of(late, start.elapsed());
        over.store(true, Ordering::Relaxed);
        let results =
            decoding.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect();
        (Seen::of(results, start.elapsed()), late)
    })
}

impl Seen {
    fn of(results: Vec<Result<Timing>>, took: Duration) -> Self {
        let (mut timings, mut errors) = (Vec::new(), Vec::new());
        for result in results {
            match result {
                Ok(timing) => timings.push(timing),
                Err(error) => errors.push(format!("{error:#}")),
            }
        }
        Self { timings, errors, took }
    }

    /// Tokens of output a second, of all clients together.
    pub(super) fn output_speed(&self) -> f64 {
        self.timings.iter().map(|t| t.tokens).sum::<u64>() as f64 / self.took.as_secs_f64()
    }

    /// Tokens of prompts a second, of all clients together.
    pub(super) fn prompt_speed(&self) -> f64 {
        self.timings.iter().map(|t| t.prompt).sum::<u64>() as f64 / self.took.as_secs_f64()
    }

    /// Milliseconds to the first output.
    pub(super) fn firsts(&self) -> Quantiles {
        Quantiles::of(self.timings.iter().map(Timing::first).collect())
    }

    /// Milliseconds between outputs.
    pub(super) fn gaps(&self) -> Quantiles {
        Quantiles::of(self.timings.iter().flat_map(Timing::gaps).collect())
    }
}

/// Of some times, in milliseconds; zero of none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Quantiles {
    pub(super) p50: f64,
    pub(super) p99: f64,
}

impl Quantiles {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        let at = |share: f64| {
            let index = (share * times.len() as f64) as usize;
            times
                .get(index.min(times.len().saturating_sub(1)))
                .map_or(0.0, |t| 1e3 * t.as_secs_f64())
        };
        Self { p50: at(0.5), p99: at(0.99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_share_what_they_are_told_to() {
        let (a, b) = (prompt(100, 40, 2), prompt(100, 40, 3));
        assert_eq!((a.len(), &a[..40]), (100, &b[..40]));
        assert_ne!(a[40..], b[40..]);
        assert_eq!(prompt(100, 40, 2), a);
        assert_eq!(prompt(3, 40, 2).len(), 3);
    }

    #[test]
    fn arrivals_are_read() {
        let over = Duration::from_secs(20);
        assert_eq!("32x8192/20".parse(), Ok(Arrivals { clients: 32, prompt: 8192, over }));
        for wrong in ["", "32", "32x8192", "ax8/2", "32x8192/-1"] {
            assert!(wrong.parse::<Arrivals>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn quantiles_are_of_sorted_times() {
        let times = (1..=100).rev().map(Duration::from_millis).collect();
        let Quantiles { p50, p99 } = Quantiles::of(times);
        assert_eq!((p50.round(), p99.round()), (51.0, 100.0));
        assert_eq!(Quantiles::of(Vec::new()).p99.to_bits(), 0);
    }
}
