//! `cargo xtask bench cuda` and `bench metal`: decoding and prefill on a GPU, with models of real
//! shapes and random 4-bit weights that are made in memory.

use super::{
    gpu_cache, gpu_products, gpu_sampling,
    shape::{self, Random, Shape, TensorSpec},
};
use crate::{
    device,
    kernels::check,
    runner::{Piece, Runner},
};
use anyhow::{Context, Result, ensure};
use serde_json::{Map, json};
use std::time::Instant;
use taper_models::{Activations, LoadOptions, Model};
use taper_tensor::{gpu::Gpu, ops};
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
};
const SHAPES: [Shape; 4] = [shape::SMALL, MIDDLE, LARGE, EXPERTS];

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct GpuArgs {
    /// Models: qwen3-0.6b, qwen3-4b, qwen3-8b, qwen3-30b-a3b.
    #[arg(long, value_delimiter = ',', default_value = "qwen3-0.6b,qwen3-8b")]
    shapes: Vec<String>,
    /// Sequences that decode together.
    #[arg(long, value_delimiter = ',', default_value = "1,8,32,64")]
    batches: Vec<usize>,
    /// Tokens in the cache of each. Their contents are whatever the memory held.
    #[arg(long, value_delimiter = ',', default_value = "128,8192,32768")]
    depths: Vec<usize>,
    /// Tokens of a prompt.
    #[arg(long, default_value_t = 2048)]
    prefill: usize,
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
}

const GROUP: usize = 64;

pub(crate) fn run(device: &str, args: &GpuArgs) -> Result<()> {
    let gpu = device::open(device)?.context("a GPU")?;
    let memory = gpu.memory()?;
    println!("{}, {:.1} of {:.1} GB free", gpu.name(), gb(memory.free), gb(memory.total));
    if args.check {
        check::all(&gpu, None, 1, false, &gpu.name())?;
    }
    let bandwidth = bandwidth(&gpu)?;
    println!("copying: {bandwidth:.0} GB/s");
    if args.products {
        gpu_products::run(&gpu)?;
    }
    if args.sampling {
        gpu_sampling::run(&gpu)?;
    }
    gpu_cache::run(&gpu, &args.cache)?;
    for name in &args.shapes {
        let shape = SHAPES.iter().find(|s| s.name == name);
        model(&gpu, shape.with_context(|| format!("no shape {name}"))?, args, bandwidth)?;
    }
    Ok(())
}

fn gb(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

/// Bytes read and written a second by a kernel that scales a gigabyte, in GB.
fn bandwidth(gpu: &Gpu) -> Result<f64> {
    const N: usize = 1 << 28;
    let x =
        ops::from_host_f32((0..N).map(|i| (i % 8191) as f32).collect(), &[1, N])?.to_gpu(gpu)?;
    let mut best = f64::MAX;
    for _ in 0..8 {
        gpu.wait()?;
        let start = Instant::now();
        let y = ops::scale(&x, 1.5)?;
        gpu.wait()?;
        best = best.min(start.elapsed().as_secs_f64());
        drop(y);
    }
    Ok(8.0 * N as f64 / best / 1e9)
}

fn model(gpu: &Gpu, shape: &Shape, args: &GpuArgs, bandwidth: f64) -> Result<()> {
    let start = Instant::now();
    let config = config(shape)?;
    let weights = Checkpoint::from_static(&config, checkpoint(shape)?.leak())?;
    let options =
        LoadOptions { max_model_len: None, activations: Activations::Int8, gpu: Some(gpu) };
    let model = taper_models::load(&weights, options)?;
    gpu.wait()?;
    println!(
        "\n{}: {:.2} GB of weights, made and loaded in {:.1} s",
        shape.name,
        gb(model.info().weight_bytes),
        start.elapsed().as_secs_f64()
    );
    println!("{:<18} {:>10} {:>10} {:>10} {:>9}", "", "ms a step", "tokens/s", "GB/s", "of copy");
    let mut model = model;
    model = prefill(model, gpu, args)?;
    for &depth in &args.depths {
        for &batch in &args.batches {
            model = decode(model, gpu, args, (batch, depth), bandwidth)?;
        }
    }
    Ok(())
}

/// Bytes of the cache that a token takes.
fn kv_bytes(model: &dyn Model) -> u64 {
    let info = model.info();
    4 * (info.layers * info.kv_heads * info.head_dim) as u64
}

fn prefill(model: Box<dyn Model>, gpu: &Gpu, args: &GpuArgs) -> Result<Box<dyn Model>> {
    let n = args.prefill;
    if n == 0 {
        return Ok(model);
    }
    let mut runner = Runner::over(model, "f16", None, n, Some(gpu))?;
    let mut random = Random::new(7);
    let tokens: Vec<u32> = (0..n).map(|_| random.below(shape::VOCAB) as u32).collect();
    let mut times = Vec::new();
    for _ in 0..4 {
        let start = Instant::now();
        runner.greedy(&[Piece { seq: 0, start: 0, tokens: &tokens }])?;
        times.push(start.elapsed().as_secs_f64());
        runner.release(0);
    }
    let time = median(&mut times);
    println!("{:<18} {:>10.2} {:>10.0}", format!("prefill {n}"), 1e3 * time, n as f64 / time);
    Ok(runner.into_model())
}

fn decode(
    model: Box<dyn Model>,
    gpu: &Gpu,
    args: &GpuArgs,
    (batch, depth): (usize, usize),
    bandwidth: f64,
) -> Result<Box<dyn Model>> {
    let name = format!("decode {batch} @ {depth}");
    let room = depth + 4 * args.steps;
    let cache = kv_bytes(&*model) * (batch * room) as u64;
    if cache + (2 << 30) > gpu.memory()?.free {
        println!("{name:<18} a cache of {:.0} GB does not fit", gb(cache));
        return Ok(model);
    }
    let mut runner = Runner::over(model, "f16", None, batch * (room + 64), Some(gpu))?;
    let mut tokens = vec![17u32; batch];
    let mut times = Vec::new();
    for step in 0..args.steps + 3 {
        let start = Instant::now();
        let piece =
            |(seq, token): (usize, &u32)| (seq as u64, std::slice::from_ref(token).to_vec());
        let own: Vec<_> = tokens.iter().enumerate().map(piece).collect();
        let pieces: Vec<_> = own
            .iter()
            .map(|(seq, tokens)| Piece { seq: *seq, start: depth + step, tokens })
            .collect();
        tokens = runner.greedy(&pieces)?;
        times.push(start.elapsed().as_secs_f64());
    }
    ensure!(tokens.len() == batch, "a token a sequence");
    let time = median(&mut times[3..]);
    let info = runner.model.info();
    // Of an embedding that is no projection, only rows are read.
    let embed = (shape::VOCAB * info.hidden) as u64 * 9 / 16;
    let tied = info.parameters < 5_000_000_000;
    let weights = info.weight_bytes - if tied { 0 } else { embed };
    if info.family == "qwen3_moe" {
        // Which experts are read is up to the tokens.
        println!("{name:<18} {:>10.3} {:>10.1}", 1e3 * time, batch as f64 / time);
        return Ok(runner.into_model());
    }
    let bytes = weights + kv_bytes(&*runner.model) * (batch * depth) as u64;
    let speed = gb(bytes) / time;
    println!(
        "{name:<18} {:>10.3} {:>10.1} {speed:>10.0} {:>7.0} %",
        1e3 * time,
        batch as f64 / time,
        100.0 * speed / bandwidth
    );
    Ok(runner.into_model())
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
