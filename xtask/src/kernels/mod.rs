//! `cargo xtask kernels`: the GPU kernels on any machine.
//!
//! Each file under `kernels/` is compiled by clang as C++ for OpenCL, twice: for the host, where a
//! runner with one fiber a GPU thread runs every check of `taper_tensor::gpu::conformance` under
//! AddressSanitizer, in a fixed and in random orders; and to PTX, which is committed, so that users of
//! NVIDIA GPUs need no clang. Bugs planted in the kernels show that the checks would find them.

pub(crate) mod check;
mod clang;
#[cfg(test)]
mod memory;
mod mutants;
mod params;
mod rewrite;

use anyhow::{Context, Result, bail, ensure};
use clang::{Clang, Target};
use clap::Args;
use rayon::prelude::*;
use std::{
    fs,
    path::{Path, PathBuf},
};
use taper_tensor::gpu::{FAMILIES, Family};

/// Choices of `cargo xtask kernels`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only this file of kernels.
    #[arg(long, value_name = "NAME")]
    family: Option<String>,
    /// Writes the PTX instead of comparing it with what is committed.
    #[arg(long)]
    write: bool,
    /// Random orders to run the checks in.
    #[arg(long, default_value_t = 2, value_name = "N")]
    orders: u64,
    /// Leaves the planted bugs out.
    #[arg(long)]
    no_mutants: bool,
    /// clang 19.
    #[arg(long, default_value = "clang++-19", value_name = "PROGRAM")]
    clang: PathBuf,
    /// Runs the checks of a library that was built; used by this task itself.
    #[arg(long, hide = true)]
    library: Option<PathBuf>,
    #[arg(long, hide = true, default_value_t = 0)]
    seed: u64,
    #[arg(long, hide = true)]
    quick: bool,
    /// Ends at the first check that fails.
    #[arg(long, hide = true)]
    first: bool,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let only = options.family.as_deref();
    if let Some(library) = &options.library {
        return check::run(library, only, options.seed, options.quick, options.first);
    }
    let families: Vec<_> =
        FAMILIES.iter().filter(|f| only.is_none_or(|name| name == f.name)).collect();
    ensure!(!families.is_empty(), "no family of this name");
    let clang = Clang::new(root, &options.clang)?;
    for family in &families {
        params::compare(family)?;
    }
    println!("parameter structs agree with Rust's");
    let library = clang.host_library()?;
    let orders: Vec<_> = (0..=options.orders)
        .into_par_iter()
        .map(|seed| clang.check(&library, only, seed, seed > 0))
        .collect();
    orders.into_iter().collect::<Result<()>>()?;
    if only.is_none() {
        clang.parity(&library, "mlx-4bit")?;
    }
    if !options.no_mutants {
        mutants::run(&clang, only)?;
    }
    families.par_iter().try_for_each(|family| ptx(root, &clang, family, options.write))
}

/// Builds a family's PTX and compares it with the committed one, or writes it.
fn ptx(root: &Path, clang: &Clang, family: &Family, write: bool) -> Result<()> {
    let path = root.join("kernels/ptx").join(format!("{}.ptx", family.name));
    let fresh = clang.ptx(family)?;
    if write {
        fs::write(&path, fresh).with_context(|| format!("writing {}", path.display()))?;
        println!("{} is written", path.display());
        return Ok(());
    }
    let old = fs::read_to_string(&path).with_context(|| {
        format!("reading {}; make it with `cargo xtask kernels --write`", path.display())
    })?;
    let version = |text: &str| text.lines().next().map(str::to_owned);
    if version(&old) != version(&fresh) {
        println!("{}: made by another clang, so not compared", family.name);
    } else if old != fresh {
        bail!("{} is stale: run `cargo xtask kernels --write`", path.display());
    } else {
        println!("{}.ptx is what its source gives", family.name);
    }
    Ok(())
}

/// Compiles for a target; the text of the file goes through `change` first.
type Change<'a> = dyn Fn(&Family, String) -> String + Sync + 'a;

impl Target {
    fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Ptx => "ptx",
        }
    }
}
