//! Development tasks: `cargo xtask help`.

mod adapters;
mod bench;
mod ci;
mod device;
mod dist;
mod kernels;
mod kv;
mod memory;
mod metallib;
mod niah;
mod package;
mod parity;
mod ppl;
mod runner;
mod subject;
mod tidy;
mod unified;

use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};

/// Development tasks of Taper.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Compare logits and greedy tokens with transformers' on tiny checkpoints of every family.
    Parity {
        /// Only the fixtures whose name contains this.
        filter: Option<String>,
        /// Another directory than tests/fixtures, with checkpoints below `parity`.
        #[arg(long, value_name = "DIR")]
        from: Option<PathBuf>,
        /// Where to run: cpu, cuda, metal, a library of kernels for the host runner, or `fake:` and the library for
        /// a fake of an Apple GPU.
        #[arg(long, default_value = "cpu", value_name = "NAME")]
        device: String,
        /// Only that sequences which share a prefix in an engine say what each says alone, of the fixture of this
        /// name: a model with recurrent layers, on a GPU.
        #[arg(long, conflicts_with = "filter", value_name = "FIXTURE")]
        shared: Option<String>,
    },
    /// Load a checkpoint, and compare the memory that it takes with the size of its files.
    Memory(memory::Options),
    /// Compare the perplexity of held-out text with transformers'.
    Ppl(ppl::Options),
    /// Find needles in haystacks, and compare with transformers' outputs.
    Niah(niah::Options),
    /// Measure what the codecs of the KV cache cost and keep, and write docs/kv-codecs.md; use
    /// `cargo run --release -p xtask -- kv`.
    Kv(kv::Options),
    /// Build the GPU kernels, and check them against the CPU on a simulated GPU.
    Kernels(kernels::Options),
    /// Compile the GPU kernels with Apple's compiler, on a Mac with Xcode.
    Metallib(metallib::Options),
    /// Load and decode on a fake of an Apple GPU that counts launches, copies and memory.
    Unified(unified::Options),
    /// Package every library, and build programs outside the workspace on the packages.
    Package,
    /// Build a release as people download it: an archive with the program, completions, manual pages and services.
    Dist(dist::Options),
    /// Write the parts of the documents that are made of the code.
    Docs,
    /// Check crate directions, file lengths and other rules of docs/architecture.md.
    Tidy,
    /// Run everything that must hold before a change goes in.
    Ci(ci::Options),
    /// Measure speed, of a release build.
    #[command(subcommand)]
    Bench(bench::Bench),
}

/// Steps take and give back buffers of megabytes; the system's allocator maps and clears them anew
/// each time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    match Cli::parse().task {
        Task::Parity { filter, from, device, shared } => {
            let dir = from.unwrap_or_else(|| root().join("tests/fixtures"));
            let gpu = device::open(&device)?;
            match shared {
                Some(name) => parity::shared::run(&dir, &name, gpu.as_ref()),
                None => parity::run(&dir, filter.as_deref(), gpu.as_ref()),
            }
        }
        Task::Memory(options) => memory::run(&options),
        Task::Bench(bench) => bench::run(&root(), &bench),
        Task::Ppl(options) => ppl::run(&root(), &options),
        Task::Kv(options) => kv::run(&root(), &options),
        Task::Niah(options) => niah::run(&root(), &options),
        Task::Ci(options) => ci::run(&root(), &options),
        Task::Kernels(options) => kernels::run(&root(), &options),
        Task::Metallib(options) => Ok(metallib::run(&options)?),
        Task::Unified(options) => unified::run(&options),
        Task::Package => package::run(&root()),
        Task::Dist(options) => dist::run(&root(), &options),
        Task::Docs => tidy::models::write(&root()),
        Task::Tidy => tidy::run(&root()),
    }
}

/// The workspace that this was started in; a build may be used by several checkouts.
fn root() -> PathBuf {
    let holds = |dir: &&Path| dir.join("xtask/Cargo.toml").is_file();
    let here = std::env::current_dir().unwrap_or_default();
    let built = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().find(holds).or(built.parent()).unwrap_or(built).to_path_buf()
}
