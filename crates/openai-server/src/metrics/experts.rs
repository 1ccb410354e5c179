//! What is counted of experts that stay on a disk.

use serde_json::{Value, json};
use std::fmt::{self, Write as _};
use taper_base::ExpertStats;

/// The gauges and counters.
pub(super) fn write(out: &mut String, label: &str, of: &ExpertStats) -> fmt::Result {
    let mut one = |name: &str, kind: &str, help: &str, value: f64| {
        let name = format!("taper:expert_{name}");
        writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{{{label}}} {value}")
    };
    let (g, c) = ("gauge", "counter");
    one("slots", g, "Experts that there is room for.", of.slots as f64)?;
    one("floor_slots", g, "Slots that are needed at least.", of.floor_slots as f64)?;
    let help = "Bytes of all slots.";
    one("capacity_bytes", g, help, (of.slots * of.slot_bytes) as f64)?;
    one("resident", g, "Experts in memory.", of.resident as f64)?;
    one("read_bytes_total", c, "Bytes of experts read from disk.", of.read_bytes as f64)?;
    one("hits_total", c, "Experts that were in memory when needed.", of.hits as f64)?;
    one("misses_total", c, "Experts that had to be read when needed.", of.misses as f64)?;
    let help = "Experts that were read ahead and then needed.";
    one("prefetch_useful_total", c, help, of.prefetch_useful as f64)?;
    let help = "Experts that were read ahead in vain.";
    one("prefetch_wasted_total", c, help, of.prefetch_wasted as f64)?;
    one("read_retries_total", c, "Reads that failed and were tried again.", of.retries as f64)?;
    let help = "Slots that were given up because memory was short.";
    one("slots_given_up_total", c, help, of.shrunk as f64)?;
    let help =
        "Tokens that went through experts; hits and misses over it are distinct experts a token.";
    one("tokens_total", c, help, of.tokens as f64)?;
    let help = "Time that steps waited for experts from disk.";
    one("stall_seconds_total", c, help, of.stall.as_secs_f64())
}

/// What `/health` says of them.
pub(crate) fn health(of: &ExpertStats) -> Value {
    json!({
        "slots": of.slots,
        "floor_slots": of.floor_slots,
        "capacity_bytes": of.slots * of.slot_bytes,
        "experts": of.experts,
        "resident": of.resident,
        "hit_rate": of.hits as f64 / (of.hits + of.misses).max(1) as f64,
        "bytes_a_token": of.active * of.slot_bytes,
    })
}
