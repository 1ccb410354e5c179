//! Time of a kernel while nobody else uses the core.

use std::time::{Duration, Instant};

/// The fastest sixteen calls in a row so far: on a shared machine another tenant's thread has half of the core
/// for seconds, and a kernel takes up to twice as long meanwhile.
#[derive(Default)]
pub(crate) struct Least(Option<Duration>);

impl Least {
    const CALLS: u32 = 16;

    /// Time of `iterations` calls, were all as fast as those.
    pub(crate) fn of(&mut self, iterations: u64, mut call: impl FnMut()) -> Duration {
        for _ in 0..iterations.div_ceil(u64::from(Self::CALLS)) {
            let start = Instant::now();
            (0..Self::CALLS).for_each(|_| call());
            let now = start.elapsed();
            self.0 = Some(self.0.map_or(now, |least| least.min(now)));
        }
        let least = self.0.unwrap_or_default();
        least.mul_f64(iterations as f64 / f64::from(Self::CALLS))
    }
}
