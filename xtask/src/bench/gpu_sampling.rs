//! What it costs to choose tokens on a GPU.

use super::shape::{Random, VOCAB};
use anyhow::Result;
use std::time::Instant;
use taper_base::SamplingParams;
use taper_sampler::Sampler;
use taper_tensor::{
    Tensor,
    gpu::{self, Gpu},
    ops,
};

const ROWS: [usize; 3] = [1, 8, 64];
/// Different tokens of a prompt, which penalties are for; half of them stand in the output too.
const SEEN: usize = 2000;

/// Prints the time of a choice of each kind for some rows of logits, until the tokens are here; and of
/// reading the logits back instead.
pub(super) fn run(gpu: &Gpu) -> Result<()> {
    let base = SamplingParams::default();
    let penalties =
        SamplingParams { frequency_penalty: 0.5, repetition_penalty: 1.1, ..base.clone() };
    let kinds = [
        ("greedy", SamplingParams::greedy()),
        ("temperature", base.clone()),
        ("top_k 20, top_p", SamplingParams { top_k: 20, top_p: 0.95, ..base.clone() }),
        ("top_p", SamplingParams { top_p: 0.95, ..base.clone() }),
        ("min_p", SamplingParams { min_p: 0.05, ..base.clone() }),
        ("typical_p", SamplingParams { typical_p: 0.9, ..base.clone() }),
        ("20 log probabilities", SamplingParams { logprobs: Some(20), ..base }),
        ("penalties", penalties.clone()),
        ("both", SamplingParams { logprobs: Some(20), ..penalties }),
    ];
    let prompt: Vec<u32> = (0..SEEN).map(|i| (i * 7919 % VOCAB) as u32).collect();
    println!(
        "\n{:<22} {}   µs for so many rows of {VOCAB}",
        "choice",
        ROWS.map(|n| format!("{n:>8}")).concat()
    );
    let mut random = Random::new(3);
    // Sums of uniforms: a normal distribution of deviation 2.
    let mut normal = || (0..12).map(|_| random.below(4096) as f32 / 2048.0 - 1.0).sum::<f32>();
    let most = ROWS[ROWS.len() - 1];
    let logits: Vec<f32> = (0..most * VOCAB).map(|_| normal()).collect();
    let tensor =
        |n: usize| Tensor::from_vec(logits[..n * VOCAB].to_vec(), &[n, VOCAB])?.to_gpu(gpu);
    for (name, params) in kinds {
        let mut times = String::new();
        for n in ROWS {
            let there = tensor(n)?;
            let sampler = |seed| {
                let params = SamplingParams { seed, ..params.clone() };
                let mut sampler = Sampler::new(&params, &prompt, VOCAB as u32);
                prompt.iter().take(SEEN / 2).for_each(|&token| sampler.accept(token));
                sampler
            };
            let samplers: Vec<_> = (0..n as u64).map(sampler).collect();
            let draws =
                || samplers.iter().enumerate().map(|(row, s)| Some((row, s.on_device(&[], None)?)));
            let time = best(gpu, || {
                let draws: Vec<_> = draws().flatten().collect();
                Ok(gpu::sample(&there, &draws).map(drop)?)
            })?;
            times += &format!("{:>8.0}", 1e6 * time);
        }
        println!("{name:<22} {times}");
    }
    let mut times = String::new();
    for n in ROWS {
        let there = tensor(n)?;
        let time = best(gpu, || Ok(ops::with_host_f32(&there, |x| x.len()).map(drop)?))?;
        times += &format!("{:>8.0}", 1e6 * time);
    }
    println!("{:<22} {times}", "reading them all");
    Ok(())
}

fn best(gpu: &Gpu, run: impl Fn() -> Result<()>) -> Result<f64> {
    let mut best = f64::MAX;
    for _ in 0..20 {
        gpu.wait()?;
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}
