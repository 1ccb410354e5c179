//! `taper doctor`: every GPU kernel against the CPU.

use crate::{
    cli::DoctorArgs,
    output::Out,
    sizes::{count, human},
};
use anyhow::{Result, bail};
use std::collections::BTreeMap;
use taper_kv_codecs::conformance;
use taper_tensor::gpu::{self, Gpu};

pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    let gpu = find(args)?;
    let memory = gpu.memory()?;
    writeln!(Out, "{}, {} free", gpu.name(), human(memory.free))?;
    let mut kernels: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for (i, check) in conformance::checks(&gpu, false).iter().enumerate() {
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
                writeln!(Out, "  {} {}: {why}", check.family, check.name)?;
            }
        }
    }
    let mut failures = 0;
    for (family, (passed, failed)) in kernels {
        let verdict = if failed == 0 { "pass" } else { "FAIL" };
        writeln!(Out, "{family:<12} {verdict}  {passed} of {} checks", passed + failed)?;
        failures += failed;
    }
    if failures > 0 {
        let checks = count(failures as usize, "check");
        bail!("{checks} failed: do not use this GPU, and please report it");
    }
    Ok(())
}

/// The GPU that was asked for, or the first kind that opens.
fn find(args: &DoctorArgs) -> Result<Gpu> {
    if let Some(kind) = &args.device {
        return Ok(gpu::open_with(kind, args.metallib.as_deref())?);
    }
    let mut reasons = Vec::new();
    for kind in gpu::KINDS {
        match gpu::open(kind) {
            Ok(gpu) => return Ok(gpu),
            Err(error) => reasons.push(format!("{kind}: {error}")),
        }
    }
    bail!(
        "no GPU was found ({}); docs/cuda.md and docs/metal.md say how to build for one",
        reasons.join("; ")
    )
}
