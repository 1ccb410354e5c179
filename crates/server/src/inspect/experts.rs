//! What streaming a model's experts would take and give.

use crate::{cli::InspectArgs, output::Out, sizes::human};
use anyhow::{Context, Result};
use taper::{ModelSource, Precision, available_bytes};
use taper_models::LoadOptions;
use taper_weights::Checkpoint;

/// Records that the disk is measured with.
const RECORDS: usize = 64;

/// With `--stream-experts`: the least memory, the memory at hand, what a token reads, and how fast that can be.
pub(super) fn show(args: &InspectArgs, source: &ModelSource, weights: &Checkpoint) -> Result<()> {
    let Some(experts) = args.experts.experts() else { return Ok(()) };
    let precision = Precision::of_dtype("auto", 1).context("auto is a precision")?;
    let allowed = (available_bytes()? as f64 * 0.6) as u64;
    let streaming = experts.streaming(source, allowed)?;
    let moe_top_k = args.experts.moe_top_k;
    let experts = Some(&streaming);
    let options = LoadOptions { precision, experts, moe_top_k, ..LoadOptions::default() };
    let model = taper_models::load(weights, options)?;
    let handle = model.experts().context("the model has experts")?;
    let stats = handle.stats().context("they are streamed")?;
    let row = |name: &str, value: String| writeln!(Out, "  {name:<22}{value}");
    writeln!(Out)?;
    row("streamed experts", format!("{} of {}", stats.experts, human(stats.slot_bytes)))?;
    row("floor", human(stats.floor_slots * stats.slot_bytes))?;
    let share = stats.slots as f64 / stats.experts.max(1) as f64;
    let slots = human(stats.slots * stats.slot_bytes);
    row("memory for experts", format!("{slots}, {:.0} % of them", 100.0 * share))?;
    let token = stats.active * stats.slot_bytes;
    row("experts of a token", format!("{}, {}", stats.active, human(token)))?;
    let speed = handle.measure(RECORDS)?;
    row("disk", format!("{}/s", human(speed as u64)))?;
    let bound = |hits: f64| speed / token.max(1) as f64 / (1.0 - hits).max(1e-3);
    row(
        "bound of decoding",
        match share < 1.0 {
            true => format!(
                "{:.2} tokens/s cold, {:.2} if all experts are used alike",
                bound(0.0),
                bound(share)
            ),
            false => "all experts fit in memory".to_owned(),
        },
    )?;
    Ok(())
}
