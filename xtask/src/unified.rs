//! `cargo xtask unified`: what the backend for shared memory does on a fake of an Apple GPU, which counts.
//! No kernel runs: the weights are holes in a file, and only work and memory are looked at.

use crate::{
    bench::{self, Shape},
    runner::{Piece, Runner},
};
use anyhow::{Result, ensure};
use serde_json::{Map, Value, json};
use std::{fs::File, io::Write, path::Path};
use taper_models::{LoadOptions, Model, Precision, Rounding};
use taper_tensor::gpu::{Counters, FakeOptions, FakeUse, Gpu};
use taper_weights::Checkpoint;

/// What must hold.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Models: qwen3-0.6b, qwen3-4b, qwen3-8b, qwen3-30b-a3b, qwen3.5-4b.
    #[arg(long, value_delimiter = ',', default_value = "qwen3-0.6b,qwen3-30b-a3b,qwen3.5-4b")]
    shapes: Vec<String>,
    /// Layers of a model with experts, of which all are alike; its whole weights would fill a small machine.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    expert_layers: u16,
    /// The most memory that a loaded model may take, of its weights.
    #[arg(long, default_value_t = 1.02)]
    memory: f64,
    /// The most encoders of a step of decoding of a model without experts; a hybrid may have one more.
    #[arg(long, default_value_t = 2)]
    encoders: u64,
    /// The most copies on the GPU in such a step.
    #[arg(long, default_value_t = 1)]
    blits: u64,
}

/// Weights of a group of codes.
const GROUP: usize = 64;
/// Tokens in the cache before the steps that are counted.
const DEPTH: usize = 100;
/// Steps that are looked at, after as many that are not.
const STEPS: usize = 4;
/// Where tensors begin in the file, as in those of `taper convert`.
const ALIGNED: usize = 64;

pub(crate) fn run(options: &Options) -> Result<()> {
    ensure!(options.memory > 0.0, "--memory is a number above 0");
    let shapes: Vec<_> =
        options.shapes.iter().map(|n| bench::gpu_shape(n)).collect::<Result<_>>()?;
    for shape in shapes {
        let mut shape = *shape;
        if shape.experts.is_some() {
            shape.layers = shape.layers.min(options.expert_layers.into());
        }
        check(&shape, options)?;
    }
    Ok(())
}

fn check(shape: &Shape, options: &Options) -> Result<()> {
    let dir = tempfile::tempdir()?;
    write(shape, dir.path())?;
    let weights = Checkpoint::open(dir.path())?;
    let (gpu, seen) = Gpu::fake(None, FakeOptions::default())?;
    let precision = Precision::Mixed { decode: Rounding::Int8 };
    let load = LoadOptions { precision, gpu: Some(&gpu), ..LoadOptions::default() };
    let model = taper_models::load(&weights, load)?;
    gpu.wait()?;
    let share = memory(shape, &*model, &gpu, &seen);
    ensure!(
        share <= options.memory,
        "{share:.4} of the weights in memory, {} at most",
        options.memory
    );
    let weights = read_bytes(shape, model.info().weight_bytes);
    let steps = decode(model, &gpu)?;
    if let (None, Some(step)) = (shape.experts, steps.last()) {
        expected(weights, step.launches);
    }
    // A hybrid's first attention brings tables along when the first command buffer may be done: the next one is then
    // sent off early too.
    let encoders = options.encoders + u64::from(shape.hybrid);
    for step in &steps {
        let counts = [("encoders", step.encoders, encoders), ("copies", step.blits, options.blits)];
        for (what, n, most) in counts {
            ensure!(shape.experts.is_some() || n <= most, "{n} {what} in a step, {most} at most");
        }
    }
    ensure!(seen.faults().is_empty(), "{:?}", seen.faults());
    Ok(())
}

/// Bytes of the weights that a step of decoding reads: all, but for an embedding that is no projection.
fn read_bytes(shape: &Shape, weights: u64) -> u64 {
    let embedding = if shape.tied { 0 } else { (bench::VOCAB * shape.hidden) as u64 * 9 / 16 };
    weights - embedding
}

/// Bytes a second of an Apple GPU's memory, in GB, and which have so many.
const CHIPS: [(f64, &str); 8] = [
    (68.0, "M1"),
    (100.0, "M2, M3"),
    (120.0, "M4"),
    (153.0, "M5, M3 Pro"),
    (200.0, "M1 Pro, M2 Pro"),
    (273.0, "M4 Pro"),
    (400.0, "M1 Max, M2 Max, M3 Max"),
    (546.0, "M4 Max"),
];
/// Shares of it that products reach: what users of other engines report of small and of large models.
const REACHED: [f64; 2] = [0.5, 0.8];
/// Seconds that a launch takes which waits for the one before it.
const LAUNCH: f64 = 2e-6;

/// Prints what a step should take, by the bytes that it reads and its launches.
fn expected(bytes: u64, launches: u64) {
    let fixed = LAUNCH * launches as f64;
    println!(
        "  expected tokens a second of one sequence: {:.0} MB read at {:.0} to {:.0} % of the memory's speed, \
         and {launches} launches of {:.0} microseconds",
        bytes as f64 / 1e6,
        100.0 * REACHED[0],
        100.0 * REACHED[1],
        1e6 * LAUNCH
    );
    for (speed, chips) in CHIPS {
        let tokens = |share: f64| 1.0 / (bytes as f64 / (1e9 * speed * share) + fixed);
        let [low, high] = REACHED.map(tokens);
        println!("    {speed:>4} GB/s {low:>6.0} to {high:>4.0}  {chips}");
    }
}

/// Prints what the weights take, and gives it as a share of their size.
fn memory(shape: &Shape, model: &dyn Model, gpu: &Gpu, seen: &FakeUse) -> f64 {
    let (weights, counted) = (model.info().weight_bytes, gpu.counters());
    let share = (seen.bytes() + counted.adopted) as f64 / weights as f64;
    let most = (seen.most_bytes() + counted.adopted) as f64 / weights as f64;
    let mb = |bytes: u64| bytes as f64 / 1e6;
    println!("{}, {} layers: {:.1} MB of weights", shape.name, shape.layers, mb(weights));
    println!("  {:>10.1} MB read where they are mapped", mb(counted.adopted));
    println!("  {:>10.1} MB in buffers of the device", mb(seen.bytes()));
    println!("  {share:>10.4} of the weights in all, {most:.4} at most while loading");
    println!("  {:>10.1} MB through staging buffers", mb(counted.staged));
    share
}

/// What each step of decoding asked for.
fn decode(model: Box<dyn Model>, gpu: &Gpu) -> Result<Vec<Counters>> {
    let mut runner = Runner::over(model, "f16", None, DEPTH + 2 * STEPS, Some(gpu))?;
    // States begin with the first token.
    let depth = if runner.info().recurrent.is_empty() { DEPTH } else { 0 };
    let mut steps = Vec::new();
    for step in 0..2 * STEPS {
        let before = gpu.counters();
        runner.greedy(&[Piece::answer(0, depth + step, &[17])])?;
        if step >= STEPS {
            steps.push(gpu.counters().since(before));
        }
    }
    if let Some(step) = steps.last() {
        let counts: Vec<_> = step.named().iter().map(|(name, n)| format!("{name} {n}")).collect();
        println!("  a step: {}", counts.join(", "));
    }
    Ok(steps)
}

/// A checkpoint of 4-bit weights that are all zero and take no space.
fn write(shape: &Shape, dir: &Path) -> Result<()> {
    let mut config = shape.config();
    config.insert("quantization".into(), json!({"group_size": GROUP, "bits": 4}));
    std::fs::write(dir.join("config.json"), serde_json::to_vec(&config)?)?;
    let (mut header, mut end) = (Map::new(), 0);
    for (name, dims) in shape.tensors().iter().flat_map(|tensor| tensor.parts()) {
        let mut add = |name: String, dtype: &str, dims: &[usize], bytes: usize| {
            let entry = json!({"dtype": dtype, "shape": dims, "data_offsets": [end, end + bytes]});
            header.insert(name, entry);
            end += bytes;
        };
        let &[rows, cols] = dims else {
            add(name, "BF16", dims, 2 * dims.iter().product::<usize>());
            continue;
        };
        let prefix = name.trim_end_matches("weight");
        let groups = [rows, cols / GROUP];
        add(name.clone(), "U32", &[rows, cols / 8], rows * cols / 2);
        add(format!("{prefix}scales"), "BF16", &groups, 2 * rows * (cols / GROUP));
        add(format!("{prefix}biases"), "BF16", &groups, 2 * rows * (cols / GROUP));
    }
    let mut header = serde_json::to_vec(&Value::Object(header))?;
    header.resize((8 + header.len()).next_multiple_of(ALIGNED) - 8, b' ');
    let mut file = File::create(dir.join("model.safetensors"))?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    Ok(file.set_len((8 + header.len() + end) as u64)?)
}
