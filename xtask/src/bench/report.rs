//! What was measured, as a table and as JSON lines.

use super::{
    cell::{BANDWIDTH_CELL, BANDWIDTH_GOAL, Cell, MEMORY_GOAL},
    machine::Machine,
    peer::{Engine, Peer, Reading, Settings},
};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::{fmt, fs::File, io::Write, path::Path};

/// Median, least and most of some figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    /// `None` of no figures.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let odd = sorted.len() % 2 == 1;
        let median =
            if odd { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) };
        Some(Self { median, min, max })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Three digits or more.
        let digits = match self.median {
            100.0.. => 0,
            10.0.. => 1,
            _ => 2,
        };
        let Self { median, min, max } = self;
        write!(f, "{median:.digits$} [{min:.digits$} .. {max:.digits$}]")
    }
}

/// Readings of one cell, in the order they were taken: ours, the peer's, ours, ...
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) cell: Cell,
    /// Bytes of the model's file, ours and the peer's.
    pub(crate) bytes: [u64; 2],
    pub(crate) readings: [Vec<Reading>; 2],
}

impl Line {
    pub(crate) fn values(&self, side: usize) -> Vec<f64> {
        self.readings[side].iter().flat_map(|r| r.values.clone()).collect()
    }

    /// Ours by the peer's, of figures taken one after the other.
    pub(crate) fn ratios(&self) -> Vec<f64> {
        self.values(0).iter().zip(self.values(1)).map(|(ours, peer)| ours / peer).collect()
    }

    fn peak(&self, side: usize) -> Option<f64> {
        let peaks: Option<Vec<f64>> = self.readings[side].iter().map(|r| r.peak_mib).collect();
        Spread::of(&peaks?).map(|s| s.median)
    }
}

/// A whole run.
pub(crate) struct Report<'a> {
    pub(crate) machine: Machine,
    pub(crate) settings: Settings,
    pub(crate) peer: Peer,
    /// Ours and the peer.
    pub(crate) engines: [&'a dyn Engine; 2],
    pub(crate) lines: Vec<Line>,
    /// Bytes a second, taken before each round of the cell whose bandwidth is reported.
    pub(crate) bandwidth: Vec<f64>,
}

const GIGA: f64 = 1e9;

impl Report<'_> {
    /// Markdown.
    pub(crate) fn table(&self) -> String {
        let Machine { cpu, features, cores, load } = &self.machine;
        let [ours, peer] = self.engines;
        let mut text = format!(
            "{cpu}, {cores} cores, {}; {} threads",
            features.join(" "),
            self.settings.threads
        );
        if let Some(load) = load {
            text += &format!("; load {load:.2} before");
        }
        text += "\n\n";
        for engine in [ours, peer] {
            text += &format!("- {} {}: {}\n", engine.name(), engine.version(), engine.options());
        }
        text += &format!(
            "\n| cell | {0} | {1} | ratio | goal | {0} MiB | {1} MiB | ratio |\n\
             |---|---:|---:|---:|---:|---:|---:|---:|\n",
            ours.name(),
            peer.name(),
        );
        self.lines.iter().for_each(|line| text += &self.row(line));
        text += "\nTokens a second, seconds for the first token; median [min .. max]. MiB: peak resident \
                 memory, goal";
        text += &format!(" <= {MEMORY_GOAL}.\n");
        text + &self.bandwidth_text().unwrap_or_default()
    }

    /// One cell's row of the table.
    pub(crate) fn row(&self, line: &Line) -> String {
        let spread =
            |values: &[f64]| Spread::of(values).map_or_else(String::new, |s| s.to_string());
        let sign = if line.cell.is_time() { "<=" } else { ">=" };
        let goal = line.cell.goal(self.peer).map_or_else(String::new, |g| format!("{sign} {g}"));
        let peaks = [line.peak(0), line.peak(1)];
        let [ours, peer] = peaks.map(|p| p.map_or_else(String::new, |mib| format!("{mib:.0}")));
        let memory =
            peaks[0].zip(peaks[1]).map_or_else(String::new, |(a, b)| format!("{:.2}", a / b));
        format!(
            "| {} | {} | {} | {} | {goal} | {ours} | {peer} | {memory} |\n",
            line.cell,
            spread(&line.values(0)),
            spread(&line.values(1)),
            spread(&line.ratios()),
        )
    }

    /// How much of the memory's bandwidth decoding uses.
    fn bandwidth_text(&self) -> Option<String> {
        let line = self.lines.iter().find(|l| l.cell.to_string() == BANDWIDTH_CELL)?;
        let read = Spread::of(&self.bandwidth)?;
        let gb =
            |s: Spread| Spread { median: s.median / GIGA, min: s.min / GIGA, max: s.max / GIGA };
        let mut text = format!("Memory read in the same run: {} GB/s.", gb(read));
        for (side, engine) in self.engines.iter().enumerate() {
            let rate = Spread::of(&line.values(side))?.median * line.bytes[side] as f64;
            text += &format!(
                " {}: {BANDWIDTH_CELL} reads {:.1} GB/s of weights ({:.0} MB), {:.2} of that{}.",
                engine.name(),
                rate / GIGA,
                line.bytes[side] as f64 / 1e6,
                rate / read.median,
                if side == 0 { format!(" (goal >= {BANDWIDTH_GOAL})") } else { String::new() },
            );
        }
        Some(text + "\n")
    }

    /// One JSON object for each engine and cell, after one for the run.
    pub(crate) fn write_json(&self, path: &Path) -> Result<()> {
        let mut file = File::create(path).with_context(|| format!("writing {}", path.display()))?;
        let Settings { threads, samples, decode } = self.settings;
        let engine = |e: &dyn Engine| json!({"name": e.name(), "version": e.version(), "options": e.options()});
        let run = json!({
            "machine": self.machine, "threads": threads, "samples": samples, "decode_tokens": decode,
            "engines": self.engines.map(engine), "read_bytes_per_s": self.bandwidth,
        });
        writeln!(file, "{run}")?;
        for line in &self.lines {
            for (side, engine) in self.engines.iter().enumerate() {
                writeln!(file, "{}", reading_json(line, side, engine.name()))?;
            }
        }
        Ok(())
    }
}

fn reading_json(line: &Line, side: usize, engine: &str) -> Value {
    json!({
        "cell": line.cell.to_string(),
        "engine": engine,
        "unit": if line.cell.is_time() { "s" } else { "tokens/s" },
        "model_bytes": line.bytes[side],
        "rounds": line.readings[side],
        "median": Spread::of(&line.values(side)).map(|s| s.median),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_middle_and_the_ends() {
        assert_eq!(Spread::of(&[]), None);
        let spread = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!(spread.to_string(), "2.00 [1.00 .. 3.00]");
        assert_eq!(Spread::of(&[120.0, 130.0]).unwrap().to_string(), "125 [120 .. 130]");
    }

    #[test]
    fn ratios_are_of_neighbours() {
        let reading = |v: f64| Reading { values: vec![v], peak_mib: Some(v) };
        let line = Line {
            cell: "decode-0".parse().unwrap(),
            bytes: [1, 1],
            readings: [vec![reading(2.0), reading(6.0)], vec![reading(1.0), reading(2.0)]],
        };
        assert_eq!(line.ratios(), [2.0, 3.0]);
        assert_eq!(line.peak(0), Some(4.0));
    }
}
