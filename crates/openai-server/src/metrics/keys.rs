//! What callers have used, by the names of their keys.

use super::escaped;
use crate::keys::{ApiKeys, Used};
use std::{
    fmt::{self, Write},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

type Count = fn(&Used) -> &AtomicU64;

/// Writes the counters of the keys that have a name.
pub(super) fn write(out: &mut String, label: &str, keys: &ApiKeys) -> fmt::Result {
    let mut callers = keys.all();
    callers.retain(|caller| !caller.key.name.is_empty());
    if callers.is_empty() {
        return Ok(());
    }
    let counters: [(&str, &str, Count); 3] = [
        ("requests", "Requests by key.", |used| &used.requests),
        ("refused", "Requests beyond what a key may send.", |used| &used.refused),
        ("tokens", "Tokens of prompts and outputs by key.", |used| &used.tokens),
    ];
    for (what, help, count) in counters {
        let name = format!("taper:api_key_{what}_total");
        writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter")?;
        for caller in &callers {
            let (key, n) = (escaped(&caller.key.name), count(&caller.used).load(Relaxed));
            writeln!(out, "{name}{{{label},api_key=\"{key}\"}} {n}")?;
        }
    }
    Ok(())
}
