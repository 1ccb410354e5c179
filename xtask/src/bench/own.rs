//! This engine's speeds: a model driven by hand, without engine or sampler.

use super::cell::Work;
use crate::runner::{Piece, Runner};
use anyhow::{Context, Result, bail};
use std::{path::Path, time::Instant};
use taper_kv_cache::EVERY_TOKENS;
use taper_kv_codecs::Exact;
use taper_models::{LoadOptions, Precision};

/// How it is measured.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct OwnArgs {
    /// Tokens to decode in each measurement.
    #[arg(long, default_value_t = 32)]
    pub(crate) decode: usize,
    /// Measurements in each process.
    #[arg(long, default_value_t = 1)]
    pub(crate) samples: usize,
    /// Tokens of a prefill step.
    #[arg(long, default_value_t = 512)]
    pub(crate) chunk: usize,
    /// How keys and values are stored; several, separated by commas, of a checkpoint measured alone.
    #[arg(long, default_value = "f16")]
    pub(crate) kv_cache_dtype: String,
    /// Fill the cache of decode cells with random rows instead of running a prompt, which takes
    /// minutes at great depths.
    #[arg(long)]
    pub(crate) fill: bool,
    /// Pages that decoding attends to beside the first one and the recent ones; 0 attends to all.
    #[arg(long, default_value_t = 0, value_name = "PAGES")]
    pub(crate) kv_recall_pages: usize,
    /// Arithmetic of products with quantized weights, as `taper serve` takes it.
    #[arg(long, default_value = "auto", value_parser = Precision::DTYPES)]
    pub(crate) dtype: String,
    /// Threads [default: one a core].
    #[arg(long)]
    pub(crate) threads: Option<usize>,
}

impl OwnArgs {
    /// Threads are those of the whole process: to be called once.
    pub(crate) fn set_threads(&self) -> Result<()> {
        if let Some(threads) = self.threads {
            taper_tensor::pool::set_threads(threads)?;
        }
        Ok(())
    }

    /// Where at most so many sequences run together.
    pub(crate) fn precision(&self, sequences: usize) -> Result<Precision> {
        Precision::of_dtype(&self.dtype, sequences).context("--dtype")
    }

    /// Loads a checkpoint, with a cache for what `works` ask of it.
    pub(crate) fn load(&self, dir: &Path, works: &[Work]) -> Result<Runner> {
        let room = |work: &Work| match *work {
            Work::Prefill(tokens) => tokens,
            Work::Decode { depth, batch } => (depth + self.decode + 1) * batch,
            Work::FirstToken => 0,
        };
        let tokens = works.iter().map(room).max().unwrap_or(0);
        let together = |work: &Work| if let Work::Decode { batch, .. } = work { *batch } else { 1 };
        let sequences = works.iter().map(together).max().unwrap_or(1);
        let options =
            LoadOptions { precision: self.precision(sequences)?, ..LoadOptions::default() };
        Runner::load(dir, &self.kv_cache_dtype, Some(Exact::DEFAULT), tokens, options)
    }

    /// Tokens a second, once a sample, after a run that warms up.
    pub(crate) fn measure(&self, runner: &mut Runner, work: Work) -> Result<Vec<f64>> {
        match work {
            Work::Prefill(tokens) => {
                self.prefill(runner, 0, tokens.min(self.chunk))?;
                let once = |_| {
                    let start = Instant::now();
                    self.prefill(runner, 0, tokens)?;
                    Ok(tokens as f64 / start.elapsed().as_secs_f64())
                };
                let speeds = (0..self.samples).map(once).collect();
                runner.release(0);
                speeds
            }
            Work::Decode { depth, batch } => {
                for seq in (0..batch as u64).filter(|_| self.kv_recall_pages > 0) {
                    runner.recall(seq, self.kv_recall_pages, depth)?;
                }
                (0..batch as u64).try_for_each(|seq| match self.fill {
                    true => runner.fill(seq, depth),
                    false => self.prefill(runner, seq, depth),
                })?;
                let step = |runner: &mut Runner, at| {
                    let piece = |seq| Piece::answer(seq as u64, at, &[7]);
                    runner.forward(&(0..batch).map(piece).collect::<Vec<_>>(), true)
                };
                // The first choices of pages, too, where there are such.
                let warm = if self.kv_recall_pages > 0 { 2 * EVERY_TOKENS } else { 1 };
                for at in depth..depth + warm.min(self.decode + 1) {
                    step(runner, at)?;
                }
                // Every sample begins at the same depth: its tokens replace those of the last one.
                let once = |_| {
                    let start = Instant::now();
                    for at in depth..depth + self.decode {
                        step(runner, at)?;
                    }
                    Ok((self.decode * batch) as f64 / start.elapsed().as_secs_f64())
                };
                let speeds = (0..self.samples).map(once).collect();
                (0..batch as u64).for_each(|seq| runner.release(seq));
                speeds
            }
            Work::FirstToken => bail!("the first token is timed from outside, with --against"),
        }
    }

    fn prefill(&self, runner: &mut Runner, seq: u64, tokens: usize) -> Result<()> {
        let tokens: Vec<u32> = (0..tokens as u32).map(|i| i * 7 % 251).collect();
        for (i, tokens) in tokens.chunks(self.chunk).enumerate() {
            runner.step(&[Piece::prompt(seq, i * self.chunk, tokens)], true)?;
        }
        Ok(())
    }
}
