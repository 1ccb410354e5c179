//! `cargo xtask bench cpu`: prefill and decode speed of a checkpoint, without engine or sampler.

use crate::runner::{Piece, Runner};
use anyhow::{Result, ensure};
use std::{path::PathBuf, time::Instant};
use taper_models::Activations;
use taper_tensor::{cpu, pool};

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CpuArgs {
    /// A checkpoint; random weights of the right shapes are as fast as trained ones.
    model: PathBuf,
    /// Prompt lengths for prefill.
    #[arg(long, value_delimiter = ',', default_value = "512")]
    prompt: Vec<usize>,
    /// Tokens in the cache before decoding.
    #[arg(long, value_delimiter = ',', default_value = "0")]
    depth: Vec<usize>,
    /// Sequences that decode together.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    batch: Vec<usize>,
    /// Tokens to decode in each measurement.
    #[arg(long, default_value_t = 32)]
    decode: usize,
    /// Measurements a cell; the median is shown with its range.
    #[arg(long, default_value_t = 3)]
    repeats: usize,
    /// Tokens of a prefill step.
    #[arg(long, default_value_t = 512)]
    chunk: usize,
    /// How keys and values are stored.
    #[arg(long, default_value = "f16")]
    kv_cache_dtype: String,
    /// Exact products with quantized weights.
    #[arg(long)]
    float32: bool,
    /// Threads [default: one a core].
    #[arg(long)]
    threads: Option<usize>,
}

/// Speeds of one cell in tokens a second.
struct Cell(Vec<f64>);

impl Cell {
    fn measure(repeats: usize, mut once: impl FnMut() -> Result<f64>) -> Result<Self> {
        let mut speeds = (0..repeats.max(1)).map(|_| once()).collect::<Result<Vec<_>>>()?;
        speeds.sort_by(f64::total_cmp);
        Ok(Self(speeds))
    }

    fn show(&self, what: &str) {
        let (min, max) = (self.0[0], self.0[self.0.len() - 1]);
        println!("{what:<36} {:>9.1}  [{min:.1} .. {max:.1}]", self.0[self.0.len() / 2]);
    }
}

pub(crate) fn run(args: &CpuArgs) -> Result<()> {
    if let Some(threads) = args.threads {
        pool::set_threads(threads)?;
    }
    let most = args.depth.iter().chain(&args.prompt).copied().max().unwrap_or(0);
    let sequences = args.batch.iter().copied().max().unwrap_or(1).max(1);
    let room = (most + args.decode + 64) * sequences;
    let activations = if args.float32 { Activations::F32 } else { Activations::Int8 };
    let start = Instant::now();
    let mut runner = Runner::load(&args.model, &args.kv_cache_dtype, room, activations)?;
    let (float, int8) = (cpu::Level::detect(), cpu::int8::Int8Level::detect());
    println!("loaded in {:.2} s; {float:?}, integers {int8:?}", start.elapsed().as_secs_f64());
    println!("{:<36} {:>9}  tokens/s, median [min .. max]", "cell", "");
    for &n in &args.prompt {
        let cell = Cell::measure(args.repeats, || {
            let start = Instant::now();
            prefill(&mut runner, 0, n, args.chunk)?;
            runner.release(0);
            Ok(n as f64 / start.elapsed().as_secs_f64())
        })?;
        cell.show(&format!("prefill {n}"));
    }
    for &depth in &args.depth {
        for &batch in &args.batch {
            decode(args, &mut runner, depth, batch)?;
        }
    }
    Ok(())
}

fn decode(args: &CpuArgs, runner: &mut Runner, depth: usize, batch: usize) -> Result<()> {
    ensure!(batch > 0, "a batch has sequences");
    for seq in 0..batch {
        prefill(runner, seq as u64, depth, args.chunk)?;
    }
    let mut at = depth;
    let cell = Cell::measure(args.repeats, || {
        let start = Instant::now();
        let steps = args.decode / args.repeats.max(1) + 1;
        for _ in 0..steps {
            let piece = |seq| Piece { seq: seq as u64, start: at, tokens: &[7] };
            runner.step(&(0..batch).map(piece).collect::<Vec<_>>(), true)?;
            at += 1;
        }
        Ok((steps * batch) as f64 / start.elapsed().as_secs_f64())
    })?;
    cell.show(&format!("decode, depth {depth}, batch {batch}"));
    (0..batch as u64).for_each(|seq| runner.release(seq));
    Ok(())
}

fn prefill(runner: &mut Runner, seq: u64, n: usize, chunk: usize) -> Result<()> {
    let tokens: Vec<u32> = (0..n as u32).map(|i| i * 7 % 251).collect();
    for (i, tokens) in tokens.chunks(chunk).enumerate() {
        runner.step(&[Piece { seq, start: i * chunk, tokens }], true)?;
    }
    Ok(())
}
