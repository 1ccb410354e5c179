//! `cargo xtask bench matrix`: caches by depth by sequences, each with its memory, as Markdown, JSON lines
//! and a plot.

use super::{
    cell::Work,
    child,
    files::Files,
    gpu::{self, Own},
    taper::CELL_COMMAND,
};
use crate::device;
use anyhow::{Context, Result, anyhow};
use plotters::prelude::*;
use serde_json::json;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct MatrixArgs {
    /// Where the model runs: `cpu`, `cuda` or `metal`.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Shape of the model, as `bench cuda` takes it; its weights are random.
    #[arg(long, default_value = "qwen3-0.6b")]
    shape: String,
    /// Caches; others are compared with the first one.
    #[arg(long, value_delimiter = ',', default_value = "f16,turbo4v2,turbo3,taper4,taper3")]
    kv_cache_dtype: Vec<String>,
    /// Tokens in the cache of each sequence, and of a prompt.
    #[arg(long, value_delimiter = ',', default_values_t = [1024, 8192, 16384, 32768])]
    depths: Vec<usize>,
    /// Sequences that decode together, none of which shares its prompt.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32])]
    sequences: Vec<usize>,
    /// Steps of a measurement.
    #[arg(long, default_value_t = 16)]
    steps: usize,
    /// No prompts: on a CPU they take most of the time.
    #[arg(long)]
    only_decode: bool,
    /// Threads on a CPU [default: one a core].
    #[arg(long)]
    threads: Option<usize>,
    /// Folder for the model on a CPU.
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    work: PathBuf,
    /// Write every figure to this file, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw decoding beside the first cache to this SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// What one cell showed.
#[derive(Debug, Clone, Copy)]
struct Measured {
    /// Tokens a second, of all sequences.
    speed: f64,
    /// GB: the whole process on a CPU, weights and caches on a GPU.
    memory: Option<f64>,
}

/// A cell of the table; what does not fit has no figures.
#[derive(Debug)]
struct Cell {
    cache: String,
    work: Work,
    measured: Option<Measured>,
}

/// Measures one cache and work.
type Measure<'a> = dyn FnMut(&str, Work) -> Result<Option<Measured>> + 'a;

pub(crate) fn run(args: &MatrixArgs) -> Result<()> {
    let shape = gpu::shape_of(&args.shape)?;
    let cells = match device::open(&args.device)? {
        Some(gpu) => {
            let mut own = Own::load(&gpu, shape, (args.steps, gpu::CHUNK))?;
            args.cells(&mut |cache, work| {
                cache.clone_into(&mut own.cache);
                let time = own.time(work)?;
                let memory = Some(own.memory as f64 / 1e9);
                Ok(time.map(|time| Measured { speed: gpu::tokens(work) as f64 / time, memory }))
            })?
        }
        None => {
            let model = Files::new(&args.work)?.random_checkpoint(shape)?;
            args.cells(&mut |cache, work| args.on_cpu(&model, cache, work).map(Some))?
        }
    };
    let table = args.markdown(&cells);
    println!("\n{table}");
    if let Some(path) = &args.json {
        let text: String = cells.iter().map(|cell| format!("{}\n", args.row(cell))).collect();
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(path) = &args.plot {
        args.draw(&cells, path).with_context(|| format!("drawing {}", path.display()))?;
    }
    Ok(())
}

impl MatrixArgs {
    fn works(&self) -> Vec<Work> {
        let prompts = self.depths.iter().filter(|_| !self.only_decode);
        let prefill = prompts.map(|&depth| Work::Prefill(depth));
        let decode = self.depths.iter().flat_map(|&depth| {
            self.sequences.iter().map(move |&batch| Work::Decode { depth, batch })
        });
        prefill.chain(decode).collect()
    }

    fn cells(&self, measure: &mut Measure<'_>) -> Result<Vec<Cell>> {
        let mut cells = Vec::new();
        for cache in &self.kv_cache_dtype {
            for work in self.works() {
                let measured = measure(cache, work).with_context(|| format!("{work}, {cache}"))?;
                let speed =
                    measured.map_or("does not fit".into(), |m| format!("{:.1} tok/s", m.speed));
                println!("{cache:<10} {work:<18} {speed}");
                cells.push(Cell { cache: cache.clone(), work, measured });
            }
        }
        Ok(cells)
    }

    /// In a process of its own, so that its memory is that of the cell.
    fn on_cpu(&self, model: &Path, cache: &str, work: Work) -> Result<Measured> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["bench", CELL_COMMAND]).arg(model).arg(work.to_string());
        command.args(["--fill", "--decode", &self.steps.to_string(), "--kv-cache-dtype", cache]);
        if let Some(threads) = self.threads {
            command.args(["--threads", &threads.to_string()]);
        }
        let done = child::run(&mut command)?;
        let speeds: Vec<f64> = serde_json::from_str(&done.stdout)?;
        let speed = *speeds.first().context("no figure")?;
        Ok(Measured { speed, memory: done.peak_mib.map(|mib| mib * 1.048_576e-3) })
    }

    /// A row a work; a column a cache with its speed, the ratio to the first one, and memory.
    fn markdown(&self, cells: &[Cell]) -> String {
        let mut text = format!("{} on {}; tokens/s (ratio), GB\n\n| |", self.shape, self.device);
        for cache in &self.kv_cache_dtype {
            text += &format!(" {cache} |");
        }
        text += &format!("\n|---|{}\n", "---:|".repeat(self.kv_cache_dtype.len()));
        for work in self.works() {
            text += &format!("| {work} |");
            for cache in &self.kv_cache_dtype {
                let figure = find(cells, cache, work).map_or_else(
                    || " does not fit |".to_owned(),
                    |m| {
                        let ratio = self.ratio(cells, cache, work);
                        let ratio = ratio.map_or(String::new(), |r| format!(" ({r:.2})"));
                        let memory = m.memory.map_or(String::new(), |gb| format!(", {gb:.1}"));
                        format!(" {:.0}{ratio}{memory} |", m.speed)
                    },
                );
                text += &figure;
            }
            text.push('\n');
        }
        text
    }

    /// A cache's speed by the first cache's.
    fn ratio(&self, cells: &[Cell], cache: &str, work: Work) -> Option<f64> {
        let base = find(cells, self.kv_cache_dtype.first()?, work)?;
        Some(find(cells, cache, work)?.speed / base.speed)
    }

    fn row(&self, cell: &Cell) -> serde_json::Value {
        json!({ "shape": self.shape, "device": self.device, "cache": cell.cache,
            "work": cell.work.to_string(), "tokens_per_second": cell.measured.map(|m| m.speed),
            "memory_gb": cell.measured.and_then(|m| m.memory) })
    }

    /// A panel a number of sequences, a line a cache: its speed by the first cache's, over depth.
    fn draw(&self, cells: &[Cell], path: &Path) -> Result<()> {
        let size = (360 * self.sequences.len().max(1) as u32, 320);
        let root = SVGBackend::new(path, size).into_drawing_area();
        // Errors of drawing borrow what is drawn on.
        let plain = |e: &dyn std::fmt::Display| anyhow!("{e}");
        root.fill(&WHITE).map_err(|e| plain(&e))?;
        for (area, &batch) in
            root.split_evenly((1, self.sequences.len().max(1))).iter().zip(&self.sequences)
        {
            let lines: Vec<_> =
                self.kv_cache_dtype.iter().map(|c| self.line(cells, c, batch)).collect();
            let points = lines.iter().flatten();
            let top = points.map(|point| point.1).fold(1.25, f64::max);
            let last = self.depths.iter().max().copied().unwrap_or(1) as f64 / 1024.0;
            let mut chart = ChartBuilder::on(area)
                .caption(
                    format!("{batch} sequences, decode by {}", self.kv_cache_dtype[0]),
                    ("sans-serif", 14),
                )
                .margin(8)
                .x_label_area_size(32)
                .y_label_area_size(36)
                .build_cartesian_2d(0.0..last, 0.0..top * 1.05)
                .map_err(|e| plain(&e))?;
            let mut mesh = chart.configure_mesh();
            mesh.x_desc("tokens in the cache, K")
                .light_line_style(WHITE)
                .draw()
                .map_err(|e| plain(&e))?;
            for (i, (line, cache)) in lines.into_iter().zip(&self.kv_cache_dtype).enumerate() {
                let color = Palette99::pick(i).to_rgba();
                chart
                    .draw_series(LineSeries::new(line, color.stroke_width(2)).point_size(3))
                    .map_err(|e| plain(&e))?
                    .label(cache)
                    .legend(move |(x, y)| {
                        PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2))
                    });
            }
            let mut labels = chart.configure_series_labels();
            labels.position(SeriesLabelPosition::LowerRight).border_style(BLACK.mix(0.3));
            labels.background_style(WHITE.mix(0.8)).draw().map_err(|e| plain(&e))?;
        }
        root.present().map_err(|e| plain(&e))
    }

    /// Depths in K and ratios of a cache, where it and the first one fit.
    fn line(&self, cells: &[Cell], cache: &str, batch: usize) -> Vec<(f64, f64)> {
        let point = |&depth: &usize| {
            let ratio = self.ratio(cells, cache, Work::Decode { depth, batch })?;
            Some((depth as f64 / 1024.0, ratio))
        };
        self.depths.iter().filter_map(point).collect()
    }
}

fn find(cells: &[Cell], cache: &str, work: Work) -> Option<Measured> {
    cells.iter().find(|cell| cell.cache == cache && cell.work == work)?.measured
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: MatrixArgs,
    }

    #[test]
    fn a_table_has_ratios_and_what_does_not_fit() {
        let line = ["", "--kv-cache-dtype", "f16,turbo3", "--depths", "8,16", "--sequences", "1,2"];
        let args = Line::parse_from(line).args;
        let cells = args.cells(&mut |cache, work| {
            let speed = if cache == "f16" { 100.0 } else { 120.0 };
            let fits = cache == "turbo3" || work != Work::Decode { depth: 16, batch: 2 };
            Ok(fits.then_some(Measured { speed, memory: Some(2.0) }))
        });
        let cells = cells.unwrap();
        let table = args.markdown(&cells);
        assert!(table.contains("| decode-8x2 | 100 (1.00), 2.0 | 120 (1.20), 2.0 |"), "{table}");
        assert!(table.contains("| decode-16x2 | does not fit | 120, 2.0 |"), "{table}");
        assert_eq!(args.line(&cells, "turbo3", 2), [(8.0 / 1024.0, 1.2)]);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plot.svg");
        args.draw(&cells, &path).unwrap();
        assert!(fs::read_to_string(path).unwrap().contains("turbo3"));
    }
}
