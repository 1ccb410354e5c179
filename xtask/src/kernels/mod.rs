//! `cargo xtask kernels`: the GPU kernels on any machine.
//!
//! Each file under `kernels/` is compiled by clang as C++ for OpenCL, twice: for the host, where a
//! runner with one fiber a GPU thread runs every check of `taper_conformance` under
//! AddressSanitizer, in a fixed and in random orders; and to PTX, which is committed, so that users of
//! NVIDIA GPUs need no clang. Bugs planted in the kernels show that the checks would find them.

pub(crate) mod check;
mod clang;
#[cfg(test)]
mod memory;
mod mutants;
mod params;
mod ptx;
mod record;
mod registers;
mod rewrite;

use crate::parity;
use anyhow::{Context, Result, bail, ensure};
use clang::{Clang, Target};
use clap::Args;
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use taper_tensor::gpu::{FAMILIES, Family};

/// The checkpoint whose sequences share a prefix in an engine on the host runner.
const SHARED: &str = "qwen3_5-mlx-4bit-g32";

/// Checkpoints that together have what a model's layers can be made of, but for what the quantized ones have.
const MECHANISMS: [&str; 12] = [
    "apertus-bf16",
    "deepseek-v3-bf16",
    "falcon-h1-bf16",
    "gemma3n-active-f16",
    "gemma4-moe-bf16",
    "granitemoehybrid-bf16",
    "jamba-bf16",
    "kimi-linear-bf16",
    "lfm2-moe-bf16",
    "llama4-text-f16",
    "longcat-flash-f16",
    "recurrent-gemma-bf16",
];

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
    /// Plants every bug, those too that are on record as caught in the sources as they are.
    #[arg(long, conflicts_with = "no_mutants")]
    plant_all: bool,
    /// Runs a model of every family, a quarter of an hour on two cores; else one of each mechanism.
    #[arg(long)]
    every_family: bool,
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
    /// On a fake of an Apple GPU.
    #[arg(long, hide = true)]
    fake: bool,
    /// Ends at the first check that fails.
    #[arg(long, hide = true)]
    first: bool,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let only = options.family.as_deref();
    if let Some(library) = &options.library {
        if options.fake {
            return check::unified(library, options.seed);
        }
        return check::run(library, only, options.seed, options.quick, options.first);
    }
    let families: Vec<_> =
        FAMILIES.iter().filter(|f| only.is_none_or(|name| name == f.source.name)).collect();
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
        clang.unified(&library)?;
        let library = library.display();
        for device in [library.to_string(), format!("fake:{library}")] {
            clang.parity(&device, "mlx-4bit")?;
            // With its adapters.
            clang.parity(&device, "qwen3-bf16")?;
            clang.shared_prefix(&device, SHARED)?;
        }
        let models = match options.every_family {
            true => parity::one_of_each_family(root)?,
            false => MECHANISMS.map(str::to_owned).to_vec(),
        };
        let device = library.to_string();
        models.par_iter().try_for_each(|name| clang.parity(&device, name))?;
    }
    if !options.no_mutants {
        let mut record = record::Record::read(root)?;
        mutants::run(&clang, &families, &mut record, options.plant_all)?;
        if options.write {
            record.write()?;
        }
    }
    families.par_iter().try_for_each(|family| ptx(root, &clang, family, options.write))?;
    match options.write {
        true => ptx::write_manifest(root),
        false => ptx::compare_manifest(root),
    }
}

/// Builds a family's PTX and compares it with the committed one, or writes it.
fn ptx(root: &Path, clang: &Clang, family: &Family, write: bool) -> Result<()> {
    let (source, fresh) = (family.source, clang.ptx(family)?);
    if write {
        return ptx::write(root, source.name, &fresh);
    }
    let old = source.ptx().with_context(|| format!("the PTX of {}", source.name))?;
    let version = |text: &str| text.lines().next().map(str::to_owned);
    if version(&old) != version(&fresh) {
        println!("{}: made by another clang, so not compared", source.name);
    } else if old != fresh {
        bail!("the PTX of {} is stale: run `cargo xtask kernels --write`", source.name);
    } else {
        println!("{}.ptx is what its source gives", source.name);
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
