//! The checks on the host runner, or on a GPU.

use super::registers;
use anyhow::{Result, bail, ensure};
use std::{collections::BTreeMap, path::Path, time::Instant};
use taper_conformance::Check;
use taper_tensor::gpu::{FakeOptions, Gpu, HostOptions};

/// Runs the checks of a library of kernels.
pub(super) fn run(
    library: &Path,
    family: Option<&str>,
    seed: u64,
    quick: bool,
    first: bool,
) -> Result<()> {
    let gpu = Gpu::host(library, HostOptions { seed, check_inputs: true })?;
    let order = if seed == 0 { "fixed order".into() } else { format!("random order {seed}") };
    if first {
        return until_failure(&gpu, family, seed, quick);
    }
    all(&gpu, family, seed, quick, &order)
}

/// Runs the checks on a fake of an Apple GPU, and looks at what it was asked for.
pub(super) fn unified(library: &Path, seed: u64) -> Result<()> {
    // So little work that launches are cut into several.
    let options = FakeOptions { seed: seed + 1, work: 1 << 14, ..FakeOptions::default() };
    let (gpu, seen) = Gpu::fake(Some(library), options)?;
    all(&gpu, None, seed, false, "fake of an Apple GPU")?;
    ensure!(seen.faults().is_empty(), "{:?}", seen.faults());
    registers::check(&seen.kernels())
}

/// Runs the checks until one fails.
fn until_failure(gpu: &Gpu, family: Option<&str>, seed: u64, quick: bool) -> Result<()> {
    let checks = taper_conformance::checks(gpu, quick);
    for (i, check) in of_family(&checks, family) {
        let outcome = check.run(gpu, data_seed(seed, i))?;
        ensure!(outcome.passed, "{}: error {:.1e}", check.name, outcome.error);
    }
    Ok(())
}

/// The checks of a family with their numbers among all: they have the same data alone and with
/// others.
fn of_family<'a>(
    checks: &'a [Check],
    family: Option<&'a str>,
) -> impl Iterator<Item = (usize, &'a Check)> {
    checks.iter().enumerate().filter(move |(_, c)| family.is_none_or(|f| f == c.family))
}

/// Other data in every order.
fn data_seed(order: u64, check: usize) -> u64 {
    order.wrapping_mul(1009).wrapping_add(check as u64 + 1)
}

/// Runs the checks on a GPU and prints a line a family.
pub(crate) fn all(
    gpu: &Gpu,
    family: Option<&str>,
    seed: u64,
    quick: bool,
    what: &str,
) -> Result<()> {
    #[derive(Default)]
    struct Sum {
        passed: u64,
        failed: u64,
        worst: f64,
        seconds: f64,
    }
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    let checks = taper_conformance::checks(gpu, quick);
    for (i, check) in of_family(&checks, family) {
        let start = Instant::now();
        let outcome = check.run(gpu, data_seed(seed, i));
        let sum = sums.entry(check.family).or_default();
        sum.seconds += start.elapsed().as_secs_f64();
        match outcome {
            Ok(outcome) if outcome.passed => {
                sum.passed += 1;
                sum.worst = sum.worst.max(outcome.error / check.tolerance);
                continue;
            }
            Ok(outcome) => {
                println!("FAILED {}: {}: error {:.1e}", check.family, check.name, outcome.error);
            }
            Err(error) => println!("FAILED {}: {}: {error}", check.family, check.name),
        }
        sum.failed += 1;
    }
    ensure!(!sums.is_empty(), "no checks of this family");
    let (mut passed, mut failed) = (0, 0);
    for (name, sum) in &sums {
        println!(
            "{name:<12} {:>4} of {:<4} worst error {:>3.0} % of the tolerance, {:.1} s ({what})",
            sum.passed,
            sum.passed + sum.failed,
            100.0 * sum.worst,
            sum.seconds
        );
        passed += sum.passed;
        failed += sum.failed;
    }
    println!("{passed} passed, {failed} failed");
    if failed > 0 {
        bail!("{failed} checks failed");
    }
    Ok(())
}
