//! `taper doctor`: every GPU kernel against the CPU.

use crate::{cli::DoctorArgs, memory};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use taper_kv_codecs::conformance;
use taper_tensor::gpu::{self, Gpu};

pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    let gpu = find(args)?;
    let memory = gpu.memory()?;
    println!("{}, {} free", gpu.name(), memory::human(memory.free));
    let mut kernels: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for (i, check) in conformance::checks(false).iter().enumerate() {
        let (passed, failed) = kernels.entry(check.family).or_default();
        let why = match check.run(&gpu, i as u64 + 1) {
            Ok(outcome) if outcome.passed => None,
            Ok(outcome) => Some(format!("error {:.1e}", outcome.error)),
            Err(error) => Some(error.to_string()),
        };
        match why {
            None => *passed += 1,
            Some(why) => {
                *failed += 1;
                println!("  {} {}: {why}", check.family, check.name);
            }
        }
    }
    let mut failures = 0;
    for (family, (passed, failed)) in kernels {
        let verdict = if failed == 0 { "pass" } else { "FAIL" };
        println!("{family:<12} {verdict}  {passed} of {} checks", passed + failed);
        failures += failed;
    }
    if failures > 0 {
        bail!("{failures} checks failed: do not use this GPU, and please report it");
    }
    Ok(())
}

/// The GPU that was asked for, or the first kind that opens.
fn find(args: &DoctorArgs) -> Result<Gpu> {
    if let Some(kind) = &args.device {
        return Ok(gpu::open_with(kind, args.metallib.as_deref())?);
    }
    let mut tried = gpu::KINDS.iter().map(|kind| gpu::open(kind));
    let found = tried.find_map(Result::ok);
    found.context("no GPU: this build supports none that is here; see --device and docs/cuda.md")
}
