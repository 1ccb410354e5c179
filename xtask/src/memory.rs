//! `cargo xtask memory`: what a loaded model takes, beside the size of its files.

use crate::device;
use anyhow::{Context, Result, ensure};
use std::{fs, path::PathBuf};
use taper_models::{LoadOptions, Precision, Rounding};
use taper_tensor::gpu::Gpu;
use taper_weights::Checkpoint;

/// Choices of `cargo xtask memory`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Directory of the checkpoint.
    dir: PathBuf,
    /// Where to load it, as for parity.
    #[arg(long, default_value = "cpu", value_name = "NAME")]
    device: String,
    /// The most that it may take, of the size of its files.
    #[arg(long, default_value_t = 1.1)]
    most: f64,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let files = weight_files(&options.dir)?;
    let gpu = device::open(&options.device)?;
    let before = used(gpu.as_ref())?;
    let weights = Checkpoint::open(&options.dir)?;
    let precision = Precision::Mixed { decode: Rounding::Int8 };
    let load = LoadOptions {
        max_model_len: Some(4096),
        precision,
        gpu: gpu.as_ref(),
        ..LoadOptions::default()
    };
    let model = taper_models::load(&weights, load)?;
    gpu.as_ref().map_or(Ok(()), Gpu::wait)?;
    let taken = used(gpu.as_ref())?.saturating_sub(before);
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let share = taken as f64 / files as f64;
    println!("{:>10.1} MB in files", mb(files));
    println!("{:>10.1} MB of weights, as the model counts them", mb(model.info().weight_bytes));
    println!("{:>10.1} MB in memory, {share:.3} of the files", mb(taken));
    ensure!(share <= options.most, "{share:.3} of the files, {} at most", options.most);
    Ok(())
}

fn weight_files(dir: &PathBuf) -> Result<u64> {
    let entries = fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))?;
    let mut bytes = 0;
    for entry in entries {
        let entry = entry?;
        if entry.path().extension().is_some_and(|end| end == "safetensors") {
            bytes += entry.metadata()?.len();
        }
    }
    ensure!(bytes > 0, "{} has no safetensors", dir.display());
    Ok(bytes)
}

/// Bytes of a GPU that are in use, or this process's resident ones, mapped files included.
fn used(gpu: Option<&Gpu>) -> Result<u64> {
    if let Some(gpu) = gpu {
        let memory = gpu.memory()?;
        return Ok(memory.total - memory.free);
    }
    let status = fs::read_to_string("/proc/self/status").context("memory is measured on Linux")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kib: u64 = line.split_whitespace().next().context("VmRSS")?.parse()?;
    Ok(kib * 1024)
}
