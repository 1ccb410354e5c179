//! `/metrics` of several models: the page of each that is loaded, put together, and what is counted of all.

use super::{ModelPhase, Models, table::Reason};
use crate::{metrics::escaped, routes::model_metrics};
use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

impl Models {
    /// The page.
    pub(crate) fn metrics(&self) -> String {
        let seen = self.seen();
        let served = seen.values().filter_map(|seen| seen.model.as_ref());
        let mut page = merged(served.map(|served| model_metrics(&served.state)));
        // Writing to a string cannot fail.
        let _ = self.write(&mut page);
        page
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let (seen, counts, (bytes, peak)) = {
            let table = self.table();
            (table.seen(), table.counts(), table.bytes())
        };
        let limits = self.0.models.limits;
        let mut one = |name: &str, kind: &str, help: &str, value: u64| {
            writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}")
        };
        one("taper:models_memory_bytes", "gauge", "Bytes kept for models.", bytes)?;
        one("taper:models_memory_peak_bytes", "gauge", "The most that were.", peak)?;
        let limit = limits.memory_bytes;
        one("taper:models_memory_limit_bytes", "gauge", "Bytes that models may take.", limit)?;
        let limit = limits.max_loaded as u64;
        one("taper:models_loaded_limit", "gauge", "Models that may be loaded.", limit)?;
        let loaded = seen.values().filter(|seen| seen.model.is_some()).count() as u64;
        one("taper:models_loaded", "gauge", "Models that are loaded.", loaded)?;
        let pulled = self.0.pulled_bytes.load(std::sync::atomic::Ordering::Relaxed);
        one("taper:model_downloaded_bytes_total", "counter", "Bytes of downloads.", pulled)?;

        let mut many = |name: &str, kind: &str, help: &str, values: &[(String, u64)]| {
            writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")?;
            values
                .iter()
                .try_for_each(|(labels, value)| writeln!(out, "{name}{{{labels}}} {value}"))
        };
        let label = |name: &String| format!("model_name=\"{}\"", escaped(name));
        let of = |value: fn(&super::table::Counts) -> u64| {
            counts.iter().map(|(name, own)| (label(name), value(own))).collect::<Vec<_>>()
        };
        let c = "counter";
        many("taper:model_requests_total", c, "Requests that named a model.", &of(|c| c.requests))?;
        many("taper:model_loads_total", c, "Loads of a model.", &of(|c| c.loads))?;
        many("taper:model_load_failures_total", c, "Loads that failed.", &of(|c| c.failures))?;
        let unloads = counts.iter().flat_map(|(name, own)| {
            let each = Reason::ALL.iter().zip(own.unloads);
            each.map(move |(r, n)| (format!("{},reason=\"{}\"", label(name), r.name()), n))
        });
        let unloads: Vec<_> = unloads.collect();
        many("taper:model_unloads_total", c, "Unloads of a model by their reason.", &unloads)?;
        let states = seen
            .iter()
            .map(|(name, seen)| (format!("{},state=\"{}\"", label(name), seen.phase.name()), 1));
        let states: Vec<_> = states.collect();
        many("taper:model_state", "gauge", "What a model in memory is.", &states)?;
        let g = "gauge";
        let bytes: Vec<_> = seen.iter().map(|(name, s)| (label(name), s.bytes)).collect();
        many("taper:model_memory_bytes", g, "Bytes kept for a model.", &bytes)?;
        let uses: Vec<_> = seen.iter().map(|(name, s)| (label(name), s.uses as u64)).collect();
        many("taper:model_requests", g, "Requests that use a model or wait for it.", &uses)?;
        // The one with the least is the next to go.
        let loaded = seen.iter().filter(|(_, seen)| seen.phase == ModelPhase::Loaded);
        let turns: Vec<_> = loaded.map(|(name, s)| (label(name), s.turn)).collect();
        many("taper:model_last_use", g, "Number of a model's last use, of all uses.", &turns)
    }
}

/// Pages of the exposition format as one: lines of one metric must stand together. What is of the process
/// is the same on each.
fn merged(pages: impl Iterator<Item = String>) -> String {
    // Heads and lines by name, in the order in which they came.
    let (mut order, mut blocks) = (Vec::new(), BTreeMap::<String, (String, Vec<String>)>::new());
    for page in pages {
        let mut current = String::new();
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                current = rest.split(' ').next().unwrap_or_default().to_owned();
                if !blocks.contains_key(&current) {
                    order.push(current.clone());
                }
            }
            let (head, lines) = blocks.entry(current.clone()).or_default();
            if !line.starts_with('#') {
                if line.contains('{') || lines.is_empty() {
                    lines.push(line.to_owned());
                }
            } else if !head.contains(line) {
                head.push_str(line);
                head.push('\n');
            }
        }
    }
    let mut out = String::new();
    for name in order {
        let Some((head, lines)) = blocks.get(&name) else { continue };
        out.push_str(head);
        for line in lines {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::merged;

    #[test]
    fn lines_of_one_metric_stand_together() {
        let page = |model: &str| {
            format!(
                "# HELP a first\n# TYPE a gauge\na{{m=\"{model}\"}} 1\n# HELP p one\n# TYPE p gauge\np 7\n\
                 # HELP h times\n# TYPE h histogram\nh_sum{{m=\"{model}\"}} 2\nh_count{{m=\"{model}\"}} 3\n"
            )
        };
        let expected = "# HELP a first\n# TYPE a gauge\na{m=\"x\"} 1\na{m=\"y\"} 1\n# HELP p one\n# TYPE p gauge\n\
                        p 7\n# HELP h times\n# TYPE h histogram\nh_sum{m=\"x\"} 2\nh_count{m=\"x\"} 3\n\
                        h_sum{m=\"y\"} 2\nh_count{m=\"y\"} 3\n";
        assert_eq!(merged([page("x"), page("y")].into_iter()), expected);
        assert_eq!(merged(std::iter::empty()), "");
    }
}
