//! `cargo xtask bench cuda --against llama.cpp`: a GPU's speeds beside another engine's, in
//! alternating runs.

use super::{
    cell::Work,
    files::Files,
    gpu::{Bandwidth, Own, percent, tokens},
    llama_cpp,
    report::Spread,
    shape::Shape,
};
use anyhow::{Context, Result, bail, ensure};
use std::path::PathBuf;

/// Whom to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum GpuPeer {
    #[value(name = "llama.cpp")]
    LlamaCpp,
}

/// Beside whom, and how often.
#[derive(Debug, clap::Args)]
pub(crate) struct AgainstArgs {
    /// Compare with this engine, on random weights of the same shapes (its own, in Q4_0).
    #[arg(long, value_name = "ENGINE")]
    against: Option<GpuPeer>,
    /// Alternating measurements of each; the median is shown with its range.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Folder for the peer's models and programs.
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    work: PathBuf,
    /// Folder with llama.cpp's programs, built for CUDA, or with its sources; they are built from
    /// PyPI's sources otherwise.
    #[arg(long, value_name = "DIR")]
    llama_cpp: Option<PathBuf>,
    /// A Python to build llama.cpp with.
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: PathBuf,
}

/// llama.cpp and its model of one shape.
pub(super) struct Peer {
    programs: PathBuf,
    model: PathBuf,
    repeats: usize,
}

impl AgainstArgs {
    /// The engine to compare with, if any.
    pub(super) fn peer(&self, shape: &Shape) -> Result<Option<Peer>> {
        if self.against.is_none() {
            return Ok(None);
        }
        ensure!(self.repeats > 0, "--repeats is at least 1");
        let files = Files::new(&self.work)?;
        let programs = llama_cpp::cuda_programs(self.llama_cpp.as_deref(), &files, &self.python)?;
        let model = files.random_gguf(shape)?;
        Ok(Some(Peer { programs, model, repeats: self.repeats }))
    }
}

/// Steps of a measurement of the peer's.
const STEPS: usize = 32;

impl Peer {
    /// Prints tokens a second of both, ours by theirs, and the bandwidth that ours reaches.
    pub(super) fn compare(
        &self,
        own: &mut Own<'_>,
        works: &[Work],
        bandwidth: Bandwidth,
    ) -> Result<()> {
        println!(
            "median [least .. most] of {} measurements of each, in turn; tokens/s",
            self.repeats
        );
        println!("| step | taper | llama.cpp | ratio | GB/s | of reading | of datasheet |");
        println!("|---|---:|---:|---:|---:|---:|---:|");
        for &work in works {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..self.repeats {
                let Some(time) = own.time(work)? else { break };
                ours.push(tokens(work) as f64 / time);
                let speeds = llama_cpp::cuda_speeds(&self.programs, &self.model, work, (STEPS, 1));
                let speeds = speeds.with_context(|| format!("{work} with llama.cpp"))?;
                theirs.extend(speeds.first());
            }
            let ratios: Vec<_> = ours.iter().zip(&theirs).map(|(o, t)| o / t).collect();
            let (Some(ours), Some(theirs), Some(ratio)) =
                (Spread::of(&ours), Spread::of(&theirs), Spread::of(&ratios))
            else {
                bail!("{work}: the cache does not fit");
            };
            let reached = own.bytes(work)?.map_or_else(
                || " | | ".to_owned(),
                |bytes| {
                    let speed = bytes as f64 * ours.median / tokens(work) as f64 / 1e9;
                    let [read, peak] = bandwidth.shares(speed).map(percent);
                    format!("{speed:.0} | {read} | {peak}")
                },
            );
            println!("| {work} | {ours} | {theirs} | {ratio} | {reached} |");
        }
        Ok(())
    }
}
