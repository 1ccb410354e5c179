//! `cargo xtask bench cuda` and `bench metal`: decoding and prefill on a GPU, with models of real
//! shapes and random 4-bit weights that are made in memory.

use super::{
    cell::Work,
    gpu_against, gpu_cache, gpu_products, gpu_sampling, hybrid,
    shape::{self, Random, Shape, TensorSpec},
};
use crate::{
    device,
    kernels::check,
    runner::{Piece, Runner},
};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, json};
use std::{fmt, time::Instant};
use taper_kv_codecs::Exact;
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

const GROUP: usize = 64;
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
    cache: String,
    steps: usize,
    chunk: usize,
}

impl<'a> Own<'a> {
    fn load(gpu: &'a Gpu, shape: &Shape, (steps, chunk): (usize, usize)) -> Result<Self> {
        let start = Instant::now();
        let config = config(shape)?;
        let weights = Checkpoint::from_static(&config, checkpoint(shape)?.leak())?;
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
        Ok(Self { gpu, model: Some(model), cache: "f16".into(), steps, chunk })
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
        if self.kv_bytes()? * room as u64 + (2 << 30) > self.gpu.memory()?.free {
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

fn config(shape: &Shape) -> Result<Vec<u8>> {
    let mut config = shape.config();
    config.insert("quantization".into(), json!({"group_size": GROUP, "bits": 4}));
    Ok(serde_json::to_vec(&config)?)
}

/// A safetensors file in memory.
fn checkpoint(shape: &Shape) -> Result<Vec<u8>> {
    let (mut header, mut at, mut parts) = (Map::new(), 0, Vec::new());
    let tensors = shape.tensors();
    for (name, dims) in tensors.iter().flat_map(TensorSpec::parts) {
        let mut add = |name: String, dtype: &str, dims: &[usize], bytes: usize, fill: Fill| {
            let entry = json!({"dtype": dtype, "shape": dims, "data_offsets": [at, at + bytes]});
            header.insert(name, entry);
            at += bytes;
            parts.push((bytes, fill));
        };
        let &[rows, cols] = dims else {
            add(name, "BF16", dims, 2 * dims.iter().product::<usize>(), Fill::Floats(1.0));
            continue;
        };
        let prefix = name.trim_end_matches("weight").to_owned();
        // Codes are uniform in 0..16: of standard deviation 4.6 around 7.5.
        let scale = (cols as f32).sqrt().recip() / 4.6;
        add(name, "U32", &[rows, cols / 8], rows * cols / 2, Fill::Codes);
        let groups = [rows, cols / GROUP];
        let bytes = 2 * rows * (cols / GROUP);
        add(format!("{prefix}scales"), "BF16", &groups, bytes, Fill::Floats(scale));
        add(format!("{prefix}biases"), "BF16", &groups, bytes, Fill::Floats(-7.5 * scale));
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut out = Vec::with_capacity(8 + header.len() + at);
    out.extend_from_slice(&(header.len() as u64).to_le_bytes());
    out.extend_from_slice(&header);
    let mut random = Random::new(1);
    for (bytes, fill) in parts {
        match fill {
            Fill::Codes => (0..bytes / 8).for_each(|_| out.extend(random.next().to_le_bytes())),
            Fill::Floats(x) => {
                let bits = ((x.to_bits() + 0x8000) >> 16) as u16;
                (0..bytes / 2).for_each(|_| out.extend(bits.to_le_bytes()));
            }
        }
    }
    Ok(out)
}

enum Fill {
    Codes,
    Floats(f32),
}
