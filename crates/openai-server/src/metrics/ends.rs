//! How often generations end, so that who finds the queue full is told when to come again.

use std::time::Instant;

/// What ended so long ago counts 1/e.
const ENDS_WITHIN: f64 = 30.0;

/// How often generations end.
#[derive(Debug, Default)]
pub(super) struct Ends {
    count: f64,
    at: Option<Instant>,
}

impl Ends {
    fn count(&self, now: Instant) -> f64 {
        let since = self.at.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        self.count * (-since / ENDS_WITHIN).exp()
    }

    pub(super) fn add(&mut self, now: Instant) {
        *self = Self { count: self.count(now) + 1.0, at: Some(now) };
    }

    /// Ends a second; never quite none.
    pub(super) fn rate(&self, now: Instant) -> f64 {
        self.count(now).max(1e-3) / ENDS_WITHIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_time_to_try_again_follows_from_how_often_generations_end() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut ends = Ends::default();
        assert!(ends.rate(start) < 1e-4);
        (0..300).for_each(|i| ends.add(at(i)));
        assert!((ends.rate(at(300)) - 1.0).abs() < 0.05, "{}", ends.rate(at(300)));
        assert!(ends.rate(at(400)) < 0.05, "old ends count little");
    }
}
