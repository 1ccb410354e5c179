//! What the arms found, with how sure that is.

use anyhow::{Context, Result};
use serde::Serialize;
use std::{fs::File, io::Write, path::PathBuf};

/// Standard deviations of a normal distribution within which 95 % of it lie.
const Z: f64 = 1.96;

/// One arm at one context length.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Cell {
    pub(super) ctx: usize,
    pub(super) arm: String,
    /// Arithmetic, KV cache and device.
    pub(super) settings: String,
    pub(super) needles: usize,
    pub(super) distractors: usize,
    pub(super) near: bool,
    /// Prompts.
    pub(super) n: usize,
    /// Answers that are right word for word.
    pub(super) right: usize,
    /// Tokens of the prompts that were run, and not taken from an earlier run.
    pub(super) prompt_tokens: usize,
    pub(super) evicted_tokens: usize,
    /// An arm that evicts and has none has measured nothing.
    pub(super) evictions: usize,
    pub(super) seconds: f64,
}

/// A cell with its interval, as it is written.
#[derive(Debug, Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    cell: &'a Cell,
    share: f64,
    /// Wilson's 95 % interval of the share.
    low: f64,
    high: f64,
}

impl Cell {
    fn line(&self) -> Line<'_> {
        let (low, high) = wilson(self.right, self.n);
        let share = if self.n > 0 { self.right as f64 / self.n as f64 } else { 0.0 };
        Line { cell: self, share, low, high }
    }
}

/// The interval that holds a share with a confidence of 95 %, of which `right` of `n` were seen (Wilson 1927).
fn wilson(right: usize, n: usize) -> (f64, f64) {
    if n == 0 {
        return (0.0, 1.0);
    }
    let (n, share) = (n as f64, right as f64 / n as f64);
    let centre = share + Z * Z / (2.0 * n);
    let width = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + Z * Z / n;
    (((centre - width) / scale).max(0.0), ((centre + width) / scale).min(1.0))
}

/// All cells, and the file that they go to.
#[derive(Debug)]
pub(super) struct Summary {
    out: Option<PathBuf>,
    cells: Vec<Cell>,
}

impl Summary {
    pub(super) fn new(out: Option<PathBuf>) -> Self {
        Self { out, cells: Vec::new() }
    }

    pub(super) fn add(&mut self, cell: Cell) -> Result<()> {
        if let Some(path) = &self.out {
            let context = || format!("writing {}", path.display());
            let mut file =
                File::options().create(true).append(true).open(path).with_context(context)?;
            let line = serde_json::to_string(&cell.line())?;
            file.write_all(format!("{line}\n").as_bytes()).with_context(context)?;
        }
        self.cells.push(cell);
        Ok(())
    }

    /// The table of all arms.
    pub(super) fn print(&self) {
        println!("\n{:>8} {:<20} {:>9} {:>16}", "context", "arm", "right", "95 % interval");
        for cell in &self.cells {
            let Line { low, high, .. } = cell.line();
            let right = format!("{}/{}", cell.right, cell.n);
            let interval = format!("{:.0}-{:.0} %", 100.0 * low, 100.0 * high);
            println!("{:>8} {:<20} {right:>9} {interval:>16}", cell.ctx, cell.arm);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_wilsons() {
        let near = |(low, high): (f64, f64), want: (f64, f64)| {
            assert!((low - want.0).abs() < 5e-4 && (high - want.1).abs() < 5e-4, "{low} {high}");
        };
        near(wilson(0, 20), (0.0, 0.161));
        near(wilson(20, 20), (0.839, 1.0));
        near(wilson(10, 20), (0.299, 0.701));
        near(wilson(0, 0), (0.0, 1.0));
    }

    #[test]
    fn cells_are_lines_of_json() {
        let path = std::env::temp_dir().join(format!("taper-niah-cells-{}", std::process::id()));
        let cell = Cell {
            ctx: 2048,
            arm: "window=10%".into(),
            settings: "s".into(),
            needles: 1,
            distractors: 0,
            near: false,
            n: 20,
            right: 10,
            prompt_tokens: 9,
            evicted_tokens: 5,
            evictions: 1,
            seconds: 0.5,
        };
        let mut summary = Summary::new(Some(path.clone()));
        summary.add(cell.clone()).unwrap();
        summary.add(cell).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!((lines.len(), lines[1]["right"].as_u64()), (2, Some(10)));
        assert!(lines[0]["low"].as_f64().unwrap() < 0.3);
        std::fs::remove_file(path).unwrap();
    }
}
