//! Counts of values by their size, as Prometheus takes them.

use std::{
    fmt::{self, Write as _},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// A cumulative histogram.
#[derive(Debug)]
pub(crate) struct Histogram {
    bounds: Vec<f64>,
    /// One more than `bounds`: the last is `+Inf`.
    counts: Vec<AtomicU64>,
    /// In millionths, so that it can be added to without a lock.
    sum_micro: AtomicU64,
}

impl Histogram {
    pub(super) fn new(bounds: &[f64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds: bounds.to_vec(), counts, sum_micro: AtomicU64::new(0) }
    }

    pub(crate) fn observe(&self, value: f64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        if let Some(count) = self.counts.get(at) {
            count.fetch_add(1, Relaxed);
        }
        self.sum_micro.fetch_add((value * 1e6) as u64, Relaxed);
    }

    pub(crate) fn observe_time(&self, time: Duration) {
        self.observe(time.as_secs_f64());
    }

    pub(super) fn write(
        &self,
        out: &mut String,
        name: &str,
        help: &str,
        label: &str,
    ) -> fmt::Result {
        writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram")?;
        let mut total = 0;
        let bounds = self.bounds.iter().map(|b| format!("{b:?}")).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&self.counts) {
            total += count.load(Relaxed);
            writeln!(out, "{name}_bucket{{{label},le=\"{bound}\"}} {total}")?;
        }
        let sum = self.sum_micro.load(Relaxed) as f64 / 1e6;
        writeln!(out, "{name}_sum{{{label}}} {sum}\n{name}_count{{{label}}} {total}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_counts_below_it() {
        let h = Histogram::new(&[1.0, 2.0]);
        for v in [0.5, 1.0, 1.5, 2.0, 9.0] {
            h.observe(v);
        }
        let mut out = String::new();
        h.write(&mut out, "x", "help", "m=\"a\"").unwrap();
        for line in [
            "x_bucket{m=\"a\",le=\"1.0\"} 2",
            "x_bucket{m=\"a\",le=\"2.0\"} 4",
            "x_bucket{m=\"a\",le=\"+Inf\"} 5",
            "x_sum{m=\"a\"} 14",
            "x_count{m=\"a\"} 5",
        ] {
            assert!(out.lines().any(|l| l == line), "{line} not in\n{out}");
        }
    }
}
