//! `cargo xtask bench`: speeds of a checkpoint on the CPU, alone or beside another engine's, and of
//! models of random weights on a GPU.

mod cell;
mod child;
mod experts;
mod experts_model;
mod experts_top_k;
mod files;
mod gguf;
mod gpu;
mod gpu_against;
mod gpu_cache;
mod gpu_products;
mod gpu_sampling;
mod hybrid;
mod llama_cpp;
mod machine;
mod matrix;
mod own;
mod peer;
mod prefix;
mod python;
mod random;
mod report;
mod serve;
mod shape;
mod speculation;
mod structured;
mod taper;
mod vocabulary;

use anyhow::{Context, Result, ensure};
use cell::{BANDWIDTH_CELL, Cell, Work};
use clap::{Args, Subcommand};
use files::Files;
use machine::Machine;
use own::OwnArgs;
use peer::{Engine, Peer, Settings};
use report::{Line, Report, Spread};
use std::{
    path::{Path, PathBuf},
    process::Command,
    thread,
};

pub(crate) use gpu::shape_of as gpu_shape;
pub(crate) use shape::{Shape, VOCAB};

/// What is measured.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Prefill and decode on this CPU: of a checkpoint, or beside another engine.
    Cpu(CpuArgs),
    /// Time to the first token of prompts that begin like an earlier one.
    Prefix(prefix::PrefixArgs),
    /// Caches by depth by sequences, with their memory: a table, JSON lines and a plot.
    Matrix(matrix::MatrixArgs),
    /// A server under load over HTTP, as its users see it; several beside each other.
    Serve(serve::ServeArgs),
    /// Throughput with drafts beside without, by task, temperature and batch.
    Speculation(speculation::SpeculationArgs),
    /// Experts streamed from disk, beside the disk's bound, and policies by replay.
    Experts(experts::ExpertsArgs),
    /// Throughput with a JSON schema beside without, and times of masks.
    Structured(structured::StructuredArgs),
    /// Prefill and decode on an NVIDIA GPU (feature `cuda`).
    Cuda(gpu::GpuArgs),
    /// Prefill and decode on an Apple GPU (feature `metal`).
    Metal(gpu::GpuArgs),
    /// Recall, speed and memory of searches over a directory of Python sources.
    Longctx(LongctxArgs),
    /// One cell, as JSON: what `bench cpu --against` starts.
    #[command(hide = true, name = taper::CELL_COMMAND)]
    CpuCell(CellArgs),
    /// Bytes a second that this machine reads, as JSON.
    #[command(hide = true, name = READ_COMMAND)]
    CpuRead {
        /// Threads that read.
        threads: usize,
    },
}

/// What to search.
#[derive(Debug, Args)]
pub(crate) struct LongctxArgs {
    /// A directory of packages, such as a site-packages.
    dir: PathBuf,
    /// Bytes of sources to take.
    #[arg(long, default_value_t = 48_000_000)]
    bytes: u64,
    /// Questions of each kind.
    #[arg(long, default_value_t = 600)]
    questions: u32,
    /// Print the figures as JSON.
    #[arg(long)]
    json: bool,
}

/// The measuring program is an example of the crate: it needs nothing else of the workspace.
fn longctx(root: &Path, args: &LongctxArgs) -> Result<()> {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["run", "--quiet", "--release", "-p", "taper-longctx"]);
    command.args(["--features", "tree-sitter", "--example", "recall", "--"]);
    command.arg(args.dir.canonicalize().context("the directory of packages")?);
    command.args(["--bytes", &args.bytes.to_string()]);
    command.args(["--questions", &args.questions.to_string()]);
    if args.json {
        command.arg("--json");
    }
    ensure!(command.status()?.success(), "the measurement failed");
    Ok(())
}

const READ_COMMAND: &str = "cpu-read";

/// What to measure, and beside whom.
#[derive(Debug, Args)]
pub(crate) struct CpuArgs {
    /// A checkpoint to measure alone; random weights of the right shapes are as fast as trained
    /// ones.
    #[arg(required_unless_present = "against")]
    model: Option<PathBuf>,
    /// Compare with this engine, on models of random weights that are made for it.
    #[arg(long, value_name = "ENGINE", conflicts_with = "model")]
    against: Option<Peer>,
    /// Cells such as prefill-512, decode-4096 (tokens in the cache), decode-128x8 (sequences);
    /// beside another engine also first-token, -8bit or -bf16 behind a name, wide- before it.
    #[arg(long, value_delimiter = ',', value_name = "CELL")]
    cells: Vec<String>,
    /// Measurements of a cell, alternating with another engine's, each in a process of its own; the
    /// median is shown with its range.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    #[command(flatten)]
    own: OwnArgs,
    /// Folder for the models and programs of comparisons [default: target/bench].
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Folder with llama.cpp's programs; they are built from PyPI's sources otherwise.
    #[arg(long, value_name = "DIR")]
    llama_cpp: Option<PathBuf>,
    /// Have llama-quantize keep the tied embedding at 4 bits too.
    #[arg(long)]
    pure: bool,
    /// Type of llama.cpp's KV cache.
    #[arg(long, default_value = "f16", value_name = "TYPE")]
    peer_kv: String,
    /// A Python: with the engine to compare with, or to build llama.cpp.
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: PathBuf,
    /// Write every figure to this file, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One cell of one checkpoint.
#[derive(Debug, Args)]
pub(crate) struct CellArgs {
    model: PathBuf,
    work: Work,
    #[command(flatten)]
    own: OwnArgs,
}

pub(crate) fn run(root: &Path, bench: &Bench) -> Result<()> {
    let built = match bench {
        Bench::Cuda(_) => ("cuda", cfg!(feature = "cuda")),
        Bench::Metal(_) => ("metal", cfg!(feature = "metal")),
        _ => ("", true),
    };
    ensure!(
        built.1,
        "`cargo run --release -p xtask --features {0} -- bench {0}` measures there",
        built.0
    );
    // What measures searches builds its own program.
    if cfg!(debug_assertions) && !matches!(bench, Bench::Longctx(_)) {
        // Where this program was copied to there may be nothing to build with.
        let cargo = Path::new(env!("CARGO"));
        if cargo.exists() {
            return in_release(cargo);
        }
        eprintln!("this is a debug build: its figures do not count");
    }
    match bench {
        Bench::Experts(args) => experts::run(args),
        Bench::Longctx(args) => longctx(root, args),
        Bench::Prefix(args) => prefix::run(args),
        Bench::Matrix(args) => matrix::run(args),
        Bench::Serve(args) => serve::run(args),
        Bench::Structured(args) => structured::run(args),
        Bench::Speculation(args) => speculation::run(root, args),
        Bench::Cpu(args) => match (&args.model, args.against) {
            (Some(model), None) => alone(model, args),
            (_, Some(peer)) => compare(root, peer, args),
            (None, None) => Ok(()),
        },
        Bench::Cuda(args) => gpu::run("cuda", args),
        Bench::Metal(args) => gpu::run("metal", args),
        Bench::CpuCell(args) => {
            args.own.set_threads()?;
            let mut runner = args.own.load(&args.model, &[args.work])?;
            let speeds = args.own.measure(&mut runner, args.work)?;
            println!("{}", serde_json::to_string(&speeds)?);
            Ok(())
        }
        Bench::CpuRead { threads } => {
            println!("{}", machine::read_bandwidth(*threads));
            Ok(())
        }
    }
}

/// Builds for release, and measures with that.
fn in_release(cargo: &Path) -> Result<()> {
    let features = [("cuda", cfg!(feature = "cuda")), ("metal", cfg!(feature = "metal"))];
    let features: Vec<_> = features.iter().filter(|f| f.1).map(|f| f.0).collect();
    let mut command = Command::new(cargo);
    command.args(["run", "--release", "--package", "xtask", "--features", &features.join(",")]);
    command.arg("--").args(std::env::args_os().skip(1));
    let status = command.status().context("building for release")?;
    ensure!(status.success(), "the measurement failed");
    Ok(())
}

/// Measures one checkpoint, loaded once.
fn alone(model: &Path, args: &CpuArgs) -> Result<()> {
    let own = OwnArgs { samples: args.repeats, ..args.own.clone() };
    own.set_threads()?;
    let cells = if args.cells.is_empty() {
        vec!["prefill-512".to_owned(), "decode-0".to_owned()]
    } else {
        args.cells.clone()
    };
    let works: Vec<Work> = cells.iter().map(|c| c.parse()).collect::<Result<_>>()?;
    println!("{}", taper::instructions());
    println!("{:<20} {:<10} tokens/s, median [min .. max], times the first KV type", "cell", "KV");
    let mut first: Vec<f64> = Vec::new();
    for kv in own.kv_cache_dtype.split(',') {
        let own = OwnArgs { kv_cache_dtype: kv.to_owned(), ..own.clone() };
        for (i, work) in works.iter().enumerate() {
            // A cache of its own for each cell: it is as large as the cell asks for.
            let mut runner = own.load(model, &[*work])?;
            let speeds = own.measure(&mut runner, *work)?;
            let spread = Spread::of(&speeds).context("--repeats is 0")?;
            if first.len() == i {
                first.push(spread.median);
            }
            let times = spread.median / first[i];
            println!("{:<20} {kv:<10} {spread} {times:.2}", work.to_string());
        }
    }
    Ok(())
}

/// Measures every cell, alternating with another engine.
fn compare(root: &Path, peer: Peer, args: &CpuArgs) -> Result<()> {
    let files = Files::new(&args.work.clone().unwrap_or_else(|| root.join("target/bench")))?;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = args.own.threads.unwrap_or(cores);
    let settings = Settings { threads, samples: args.own.samples, decode: args.own.decode };
    ensure!(args.repeats > 0 && settings.samples > 0, "--repeats and --samples are at least 1");
    let cells: Vec<Cell> = match args.cells.is_empty() {
        true => Cell::usual(peer)?,
        false => args.cells.iter().map(|c| c.parse()).collect::<Result<_>>()?,
    };
    let ours = taper::Taper::new(root, &args.own)?;
    let theirs: Box<dyn Engine> = match peer {
        Peer::LlamaCpp => {
            let dir = args.llama_cpp.as_deref();
            Box::new(llama_cpp::LlamaCpp::find(
                dir,
                &files,
                &args.python,
                args.pure,
                &args.peer_kv,
            )?)
        }
        Peer::MlxLm | Peer::Transformers => Box::new(python::PythonPeer::new(peer, &args.python)?),
    };
    let engines: [&dyn Engine; 2] = [&ours, theirs.as_ref()];
    let machine = Machine::this();
    let mut report = Report { machine, settings, peer, engines, lines: vec![], bandwidth: vec![] };
    for cell in cells {
        let models = [ours.prepare(&cell, &files)?, theirs.prepare(&cell, &files)?];
        let bytes = [files::weight_bytes(&models[0])?, files::weight_bytes(&models[1])?];
        let mut line = Line { cell, bytes, readings: [vec![], vec![]] };
        for _ in 0..args.repeats {
            if cell.to_string() == BANDWIDTH_CELL {
                report.bandwidth.push(read_bandwidth(threads)?);
            }
            for (side, engine) in engines.iter().enumerate() {
                let reading = engine.measure(cell.work, &models[side], settings);
                let reading = reading.with_context(|| format!("{cell} with {}", engine.name()))?;
                line.readings[side].push(reading);
            }
        }
        print!("{}", report.row(&line));
        report.lines.push(line);
        // Whatever happens later, what was measured is kept.
        if let Some(path) = &args.json {
            report.write_json(path)?;
        }
    }
    println!("\n{}", report.table());
    Ok(())
}

/// In a process of its own, so that its memory is gone before anything else is measured.
fn read_bandwidth(threads: usize) -> Result<f64> {
    let mut command = Command::new(std::env::current_exe()?);
    let done = child::run(command.args(["bench", READ_COMMAND, &threads.to_string()]))?;
    done.stdout.trim().parse().context("reading the bytes a second")
}
