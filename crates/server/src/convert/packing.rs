//! `taper convert --pack-experts`.

use super::{style, until_stopped};
use crate::{interrupt::Interrupts, output::Out, sizes::human};
use anyhow::Result;
use indicatif::ProgressBar;
use serde_json::json;
use std::path::Path;
use taper::{ModelSource, PackReport, pack_experts};

/// Writes a pack, until a signal comes. What is written stays, for the next attempt.
pub(super) fn run(source: &ModelSource, dir: &Path, as_json: bool) -> Result<()> {
    let bar = ProgressBar::new(0);
    style(
        &bar,
        "packing {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left",
    );
    let interrupts = Interrupts::listen()?;
    let packed = until_stopped(&interrupts.busy(), |check| {
        pack_experts(source, dir, &mut |done, total| {
            check();
            bar.set_length(total);
            bar.set_position(done);
        })
    });
    bar.finish_and_clear();
    let PackReport { layers, records, resumed, bytes } = packed??;
    if as_json {
        let all = json!({
            "out": dir,
            "bytes": bytes,
            "layers": layers,
            "records": records,
            "resumed": resumed,
        });
        writeln!(Out, "{all:#}")?;
        return Ok(());
    }
    let all = records + resumed;
    writeln!(
        Out,
        "{}: {all} experts of {layers} layers, {}; {resumed} were there",
        dir.display(),
        human(bytes)
    )?;
    Ok(())
}
