//! `taper ps`: what a running server serves, and how busy it is.

use crate::{
    client::{Client, ServerArgs},
    output::Out,
};
use anyhow::Result;

pub(crate) fn run(args: &ServerArgs) -> Result<()> {
    let client = Client::of(args)?;
    let models = client.models()?;
    let metrics = client.get("/metrics")?;
    let value = |name: &str| metric(&metrics, name);
    let used = 100.0 * value("vllm:kv_cache_usage_perc");
    writeln!(Out, "{:<40} {:>8} {:>8} {:>9}", "model", "running", "waiting", "KV cache")?;
    for model in models {
        writeln!(
            Out,
            "{:<40} {:>8} {:>8} {used:>8.1}%",
            model.id,
            value("vllm:num_requests_running"),
            value("vllm:num_requests_waiting"),
        )?;
    }
    Ok(())
}

/// The sum of a metric over its labels.
fn metric(page: &str, name: &str) -> f64 {
    let values = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        rest.starts_with(['{', ' ']).then(|| line.rsplit(' ').next()?.parse::<f64>().ok())?
    });
    values.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_read_with_and_without_labels() {
        let page = "# HELP a:b x\na:b{model=\"x y\"} 2\na:b_total{model=\"x\"} 7\na:c 1.5\na:b 1\n";
        assert_eq!(
            (metric(page, "a:b"), metric(page, "a:c"), metric(page, "a:d")),
            (3.0, 1.5, 0.0)
        );
    }
}
