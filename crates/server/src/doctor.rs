//! `taper doctor`: every GPU kernel against the CPU.

use crate::{
    cli::DoctorArgs,
    output::Out,
    sizes::{count, human},
};
use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use std::{collections::BTreeMap, fs, path::Path, time::Instant};
use sysinfo::System;
use taper_conformance::Check;
use taper_tensor::gpu::{self, Gpu};

/// What `--report` writes: all that a maintainer needs to know of this machine.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    arch: &'static str,
    os: Option<String>,
    kernel: Option<String>,
    host_memory_bytes: Option<u64>,
    /// Whether kernels that were compiled ahead of time were given.
    metallib: bool,
    gpu: Option<GpuReport>,
    /// Why there is no GPU.
    error: Option<String>,
    checks: Vec<Checked>,
    passed: usize,
    failed: usize,
    /// The family whose checks run; none in a report that is complete.
    running: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct GpuReport {
    name: String,
    free_bytes: u64,
    /// What the backend has done, where it counts.
    counters: BTreeMap<&'static str, u64>,
}

/// What a check found.
#[derive(Debug, Serialize)]
struct Checked {
    family: &'static str,
    name: String,
    tolerance: f64,
    passed: bool,
    /// The largest error, if the kernel ran.
    error: Option<f64>,
    /// Why it did not run.
    message: Option<String>,
    milliseconds: f64,
}

impl Report {
    fn new(args: &DoctorArgs) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            arch: std::env::consts::ARCH,
            os: System::long_os_version().ok(),
            kernel: System::kernel_version().ok(),
            host_memory_bytes: taper::total_bytes().ok(),
            metallib: args.metallib.is_some(),
            gpu: None,
            error: None,
            checks: Vec::new(),
            passed: 0,
            failed: 0,
            running: None,
        }
    }

    fn write(&self, path: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(self)?;
        fs::write(path, json + "\n").with_context(|| format!("writing {}", path.display()))
    }
}

pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    let mut report = Report::new(args);
    if let Some(path) = &args.report {
        // Before the work, so that it is not for nothing.
        report.write(path)?;
    }
    let verdict = examine(args, &mut report);
    report.running = None;
    if let Some(path) = &args.report {
        if let Err(error) = &verdict {
            report.error = Some(format!("{error:#}"));
        }
        match report.write(path) {
            Ok(()) => writeln!(Out, "{} is written", path.display())?,
            Err(error) if verdict.is_err() => writeln!(Out, "{error:#}")?,
            Err(error) => return Err(error),
        }
    }
    verdict
}

/// Runs every check and says what came of it.
fn examine(args: &DoctorArgs, report: &mut Report) -> Result<()> {
    let gpu = find(args)?;
    let free = gpu.memory()?.free;
    writeln!(Out, "{}, {} free", gpu.name(), human(free))?;
    for (seed, check) in (1..).zip(taper_conformance::checks(&gpu, false)) {
        if let Some(path) = args.report.as_ref().filter(|_| report.running != Some(check.family)) {
            // A kernel may end the process.
            report.running = Some(check.family);
            report.write(path)?;
        }
        let checked = perform(&check, &gpu, seed);
        if let Some(why) = checked.why() {
            writeln!(Out, "  {} {}: {why}", checked.family, checked.name)?;
        }
        report.checks.push(checked);
    }
    let counters = gpu.counters().named().into();
    report.gpu = Some(GpuReport { name: gpu.name(), free_bytes: free, counters });
    report.passed = report.checks.iter().filter(|check| check.passed).count();
    report.failed = report.checks.len() - report.passed;
    let mut families: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for check in &report.checks {
        let (passed, all) = families.entry(check.family).or_default();
        *passed += u32::from(check.passed);
        *all += 1;
    }
    for (family, (passed, all)) in families {
        let verdict = if passed == all { "pass" } else { "FAIL" };
        writeln!(Out, "{family:<12} {verdict}  {passed} of {all} checks")?;
    }
    if report.failed > 0 {
        let checks = count(report.failed, "check");
        bail!("{checks} failed: do not use this GPU, and please report it");
    }
    Ok(())
}

fn perform(check: &Check, gpu: &Gpu, seed: u64) -> Checked {
    let start = Instant::now();
    let outcome = check.run(gpu, seed);
    let milliseconds = start.elapsed().as_secs_f64() * 1e3;
    let (passed, error, message) = match outcome {
        Ok(outcome) => (outcome.passed, Some(outcome.error), None),
        Err(error) => (false, None, Some(error.to_string())),
    };
    let (family, name, tolerance) = (check.family, check.name.clone(), check.tolerance);
    Checked { family, name, tolerance, passed, error, message, milliseconds }
}

impl Checked {
    /// Why it failed, if it did.
    fn why(&self) -> Option<String> {
        let error = || format!("error {:.1e}", self.error.unwrap_or(f64::NAN));
        (!self.passed).then(|| self.message.clone().unwrap_or_else(error))
    }
}

/// The GPU that was asked for, or the first kind that opens.
fn find(args: &DoctorArgs) -> Result<Gpu> {
    if let Some(kind) = &args.device {
        let opened = gpu::open_with(kind, args.metallib.as_deref());
        return opened.map_err(|error| anyhow!("{error}; docs/{kind}.md says what it needs"));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_written_where_there_is_no_gpu() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("doctor.json");
        let args = DoctorArgs {
            device: Some("none".to_owned()),
            metallib: None,
            report: Some(path.clone()),
        };
        assert!(run(&args).is_err());
        let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
        assert!(report["error"].is_string() && report["gpu"].is_null(), "{report}");
        assert_eq!(report["arch"], std::env::consts::ARCH);
        Ok(())
    }
}
