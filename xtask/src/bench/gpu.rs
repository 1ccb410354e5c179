//! `cargo xtask bench cuda` and `bench metal`: decoding and prefill on a GPU, with models of real
//! shapes and random 4-bit weights that are made in memory.

use super::{
    cell::Work,
    gpu_against, gpu_cache, gpu_products, gpu_sampling, hybrid, random,
    shape::{self, Random, Shape},
};
use crate::{
    device,
    kernels::check,
    runner::{self, Piece, Runner},
};
use anyhow::{Context, Result, bail, ensure};
use std::{fmt, time::Instant};
use taper_kv_cache::KvConfig;
use taper_kv_codecs::{Exact, KvGeometry};
use taper_models::{LoadOptions, Model, Precision, Rounding};
use taper_tensor::gpu::{self, Gpu};
use taper_weights::Checkpoint;

/// Qwen3-8B.
const LARGE: Shape = Shape { name: "qwen3-8b", layers: 36, ..shape::WIDE };
/// Qwen3-4B.
const MIDDLE: Shape = Shape {
    name: "qwen3-4b",
    hidden: 2560,
    layers: 36,
    heads: 32,
    kv_heads: 8,
    intermediate: 9728,
    tied: true,
    experts: None,
    hybrid: false,
};
/// Qwen3-30B-A3B.
const EXPERTS: Shape = Shape {
    name: "qwen3-30b-a3b",
    hidden: 2048,
    layers: 48,
    heads: 32,
    kv_heads: 4,
    intermediate: 768,
    tied: false,
    experts: Some((128, 8)),
    hybrid: false,
};
static SHAPES: [Shape; 5] = [shape::SMALL, MIDDLE, LARGE, EXPERTS, hybrid::QWEN];

/// The shape of a name.
pub(crate) fn shape_of(name: &str) -> Result<&'static Shape> {
    let names = || SHAPES.map(|shape| shape.name).join(", ");
    let found = SHAPES.iter().find(|shape| shape.name == name);
    found.with_context(|| format!("no shape `{name}`; there are {}", names()))
}

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct GpuArgs {
    /// Models: qwen3-0.6b, qwen3-4b, qwen3-8b, qwen3-30b-a3b, qwen3.5-4b (with --depths 0).
    #[arg(long, value_delimiter = ',', default_value = "qwen3-0.6b,qwen3-8b")]
    shapes: Vec<String>,
    /// Sequences that decode together.
    #[arg(long, value_delimiter = ',', default_value = "1,8,32,64")]
    batches: Vec<usize>,
    /// Tokens in the cache of each. Their contents are whatever the memory held.
    #[arg(long, value_delimiter = ',', default_value = "128,8192,32768")]
    depths: Vec<usize>,
    /// Tokens of a prompt.
    #[arg(long, value_delimiter = ',', default_value = "2048")]
    prefill: Vec<usize>,
    /// Caches of the whole models. Compressed ones keep the tokens exactly that the server does.
    #[arg(long, value_delimiter = ',', default_value = "f16")]
    kv_cache_dtype: Vec<String>,
    /// Tokens of a step of a prompt.
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    chunk: usize,
    /// Steps of a measurement; its median is shown.
    #[arg(long, default_value_t = 20)]
    steps: usize,
    /// Checks every kernel first.
    #[arg(long)]
    check: bool,
    /// Measures products of few rows first, one matrix at a time.
    #[arg(long)]
    products: bool,
    /// Measures what choosing tokens costs.
    #[arg(long)]
    sampling: bool,
    #[command(flatten)]
    cache: gpu_cache::CacheArgs,
    #[command(flatten)]
    against: gpu_against::AgainstArgs,
}

/// Tokens of a step of a prompt, as the server has it.
pub(super) const CHUNK: usize = 8192;
/// Steps before those that count: launches become CUDA graphs in the first ones.
const WARM_UP: usize = 32;

pub(crate) fn run(device: &str, args: &GpuArgs) -> Result<()> {
    let gpu = device::open(device)?.context("a GPU")?;
    let memory = gpu.memory()?;
    println!("{}, {:.1} of {:.1} GB free", gpu.name(), gb(memory.free), gb(memory.total));
    if args.check {
        check::all(&gpu, None, 1, false, &gpu.name())?;
    }
    let bandwidth = Bandwidth::measure(&gpu)?;
    println!("{bandwidth}");
    if args.products {
        gpu_products::run(&gpu)?;
    }
    if args.sampling {
        gpu_sampling::run(&gpu)?;
    }
    gpu_cache::run(&gpu, &args.cache)?;
    for name in &args.shapes {
        let shape = shape_of(name)?;
        let mut own = Own::load(&gpu, shape, (args.steps, args.chunk))?;
        for cache in &args.kv_cache_dtype {
            own.cache.clone_from(cache);
            match args.against.peer(shape)? {
                Some(peer) => peer.compare(&mut own, &args.works(), bandwidth)?,
                None => own.table(&args.works(), bandwidth)?,
            }
        }
    }
    Ok(())
}

impl GpuArgs {
    fn works(&self) -> Vec<Work> {
        let prefill = self.prefill.iter().filter(|&&n| n > 0).map(|&n| Work::Prefill(n));
        let decode = self.depths.iter().flat_map(|&depth| {
            self.batches.iter().map(move |&batch| Work::Decode { depth, batch })
        });
        prefill.chain(decode).collect()
    }
}

fn gb(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

/// What a GPU's memory gives, in GB/s.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bandwidth {
    /// Measured: a kernel that only reads.
    pub(super) read: f64,
    /// As the driver has it from the memory's clock and width.
    pub(super) peak: Option<f64>,
}

/// Bytes that are read to measure it, where so many are free: far more than caches hold.
const READ: u64 = 4 << 30;
/// Threadgroups that read, one setting after the other: multiples of an H100's multiprocessors; the
/// fastest counts.
const READERS: [u32; 4] = [264, 528, 1056, 2112];

impl Bandwidth {
    fn measure(gpu: &Gpu) -> Result<Self> {
        let bytes = READ.min(gpu.memory()?.free / 2) / 16 * 16;
        let buffer = gpu.allocate(bytes as usize)?;
        let mut best = f64::MAX;
        for round in 0..6 * READERS.len() {
            gpu.wait()?;
            let start = Instant::now();
            gpu::sum_words(&buffer, READERS[round % READERS.len()])?;
            gpu.wait()?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        Ok(Self { read: gb(bytes) / best, peak: gpu.peak_bandwidth()?.map(gb) })
    }

    /// Shares of both that a speed in GB/s is, in percent.
    pub(super) fn shares(self, speed: f64) -> [Option<f64>; 2] {
        [Some(self.read), self.peak].map(|of| of.map(|of| 100.0 * speed / of))
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reading: {:.0} GB/s", self.read)?;
        match self.peak {
            Some(peak) => {
                write!(f, ", {:.0} % of the {peak:.0} of its datasheet", 100.0 * self.read / peak)
            }
            None => Ok(()),
        }
    }
}

/// A share of a bandwidth, if it is known.
pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(String::new, |share| format!("{share:.0} %"))
}

/// A model of random weights on a GPU.
pub(super) struct Own<'a> {
    gpu: &'a Gpu,
    /// Always there between measurements.
    model: Option<Box<dyn Model>>,
    /// As `--kv-cache-dtype` has it.
    pub(super) cache: String,
    /// Bytes of weights and of the cache that the last measurement had in use.
    pub(super) memory: u64,
    steps: usize,
    chunk: usize,
}

impl<'a> Own<'a> {
    pub(super) fn load(
        gpu: &'a Gpu,
        shape: &Shape,
        (steps, chunk): (usize, usize),
    ) -> Result<Self> {
        let start = Instant::now();
        let config = serde_json::to_vec(&random::config(shape))?;
        let weights = Checkpoint::from_static(&config, random::checkpoint(shape)?.leak())?;
        let options = LoadOptions {
            max_model_len: None,
            precision: Precision::Mixed { decode: Rounding::Int8 },
            gpu: Some(gpu),
            ..LoadOptions::default()
        };
        let model = taper_models::load(&weights, options)?;
        gpu.wait()?;
        println!(
            "\n{}: {:.2} GB of weights, made and loaded in {:.1} s",
            shape.name,
            gb(model.info().weight_bytes),
            start.elapsed().as_secs_f64()
        );
        Ok(Self { gpu, model: Some(model), cache: "f16".into(), memory: 0, steps, chunk })
    }

    fn table(&mut self, works: &[Work], bandwidth: Bandwidth) -> Result<()> {
        println!(
            "{:<18} {:>10} {:>10} {:>10} {:>10} {:>13}",
            self.cache, "ms a step", "tokens/s", "GB/s", "of reading", "of datasheet"
        );
        for &work in works {
            let Some(time) = self.time(work)? else {
                println!("{work:<18} its cache does not fit");
                continue;
            };
            let tokens = tokens(work) as f64;
            print!("{:<18} {:>10.3} {:>10.1}", work.to_string(), 1e3 * time, tokens / time);
            match self.bytes(work)? {
                None => println!(),
                Some(bytes) => {
                    let speed = gb(bytes) / time;
                    let [read, peak] = bandwidth.shares(speed).map(percent);
                    println!(" {speed:>10.0} {read:>10} {peak:>13}");
                }
            }
        }
        Ok(())
    }

    fn model(&self) -> Result<&dyn Model> {
        self.model.as_deref().context("an earlier measurement failed")
    }

    /// Bytes of the cache that a token takes.
    fn kv_bytes(&self) -> Result<u64> {
        let info = self.model()?.info();
        Ok(4 * (info.layers * info.kv_heads * info.head_dim) as u64)
    }

    /// Bytes of the cache that so many tokens take, and their exact rows.
    fn cache_bytes(&self, tokens: usize) -> Result<u64> {
        let exact = (self.kv_bytes()?, tokens as u64);
        if self.cache == "f16" {
            return Ok(exact.0 * exact.1);
        }
        let info = self.model()?.info();
        let size = KvConfig::BLOCK_TOKENS;
        let (kv_heads, head_dim) = (info.kv_heads, info.head_dim);
        let g = KvGeometry { kv_heads, head_dim, block_tokens: size };
        let block = taper_kv_codecs::parse_on(&self.cache, self.gpu)?.block_bytes(g);
        let codes = (block.k + block.v) * info.layers * tokens.div_ceil(size);
        // Of a step, and about as many of all sequences that a runner serves.
        let rows = exact.0 * exact.1.min(2 * runner::LONGEST_STEP as u64);
        Ok(codes as u64 + rows)
    }

    /// Bytes of weights and cache that a step of decoding reads.
    pub(super) fn bytes(&self, work: Work) -> Result<Option<u64>> {
        let Work::Decode { depth, batch } = work else { return Ok(None) };
        let info = self.model()?.info();
        if info.family == "qwen3_moe" || self.cache != "f16" {
            // Which experts are read is up to the tokens, and codes are of many sizes.
            return Ok(None);
        }
        // Of an embedding that is no projection, only rows are read.
        let embed = (shape::VOCAB * info.hidden) as u64 * 9 / 16;
        let tied = info.parameters < 5_000_000_000;
        let weights = info.weight_bytes - if tied { 0 } else { embed };
        Ok(Some(weights + self.kv_bytes()? * (batch * depth) as u64))
    }

    /// Seconds of a step; `None` where the cache does not fit.
    pub(super) fn time(&mut self, work: Work) -> Result<Option<f64>> {
        let room = match work {
            Work::Prefill(n) => n,
            Work::Decode { depth, batch } => batch * (depth + 4 * self.steps + 64),
            Work::FirstToken => bail!("the first token is not timed on a GPU"),
        };
        if self.cache_bytes(room)? + (2 << 30) > self.gpu.memory()?.free {
            return Ok(None);
        }
        let model = self.model.take().context("an earlier measurement failed")?;
        let exact = (self.cache != "f16").then_some(Exact::DEFAULT);
        let mut runner = Runner::over(model, &self.cache, exact, room, Some(self.gpu))?;
        let time = match work {
            Work::Prefill(n) => prefill(&mut runner, n, self.chunk)?,
            Work::Decode { depth, batch } => decode(&mut runner, self.steps, depth, batch)?,
            Work::FirstToken => f64::NAN,
        };
        self.memory = runner.peak + runner.info().weight_bytes;
        self.model = Some(runner.into_model());
        Ok(Some(time))
    }
}

/// Tokens of a step.
pub(super) fn tokens(work: Work) -> usize {
    match work {
        Work::Prefill(tokens) => tokens,
        Work::Decode { batch, .. } => batch,
        Work::FirstToken => 1,
    }
}

fn prefill(runner: &mut Runner, n: usize, chunk: usize) -> Result<f64> {
    let mut random = Random::new(7);
    let tokens: Vec<u32> = (0..n).map(|_| random.below(shape::VOCAB) as u32).collect();
    let mut times = Vec::new();
    for _ in 0..4 {
        let start = Instant::now();
        for (i, part) in tokens.chunks(chunk).enumerate() {
            runner.greedy(&[Piece::prompt(0, i * chunk, part)])?;
        }
        times.push(start.elapsed().as_secs_f64());
        runner.release(0);
    }
    Ok(median(&mut times))
}

fn decode(runner: &mut Runner, steps: usize, depth: usize, batch: usize) -> Result<f64> {
    let is_recurrent = !runner.info().recurrent.is_empty();
    ensure!(depth == 0 || !is_recurrent, "states begin with the first token: --depths 0");
    let mut tokens = vec![17u32; batch];
    let mut times = Vec::new();
    for step in 0..steps + WARM_UP {
        let start = Instant::now();
        let piece =
            |(seq, token): (usize, &u32)| (seq as u64, std::slice::from_ref(token).to_vec());
        let own: Vec<_> = tokens.iter().enumerate().map(piece).collect();
        let pieces: Vec<_> =
            own.iter().map(|(seq, tokens)| Piece::answer(*seq, depth + step, tokens)).collect();
        // Codes that nobody wrote may be no numbers, and then no token is the likeliest.
        tokens = runner.greedy(&pieces)?.into_iter().map(|t| t.min(17)).collect();
        times.push(start.elapsed().as_secs_f64());
    }
    ensure!(tokens.len() == batch, "a token a sequence");
    Ok(median(&mut times[WARM_UP..]))
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}
