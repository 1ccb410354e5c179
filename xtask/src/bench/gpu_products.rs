//! Speed of products of few rows on a GPU, one matrix at a time.

use super::shape::Random;
use anyhow::Result;
use std::time::Instant;
use taper_tensor::{
    AffineFormat, AffineWeight, Bytes, DType, Linear, Phase, Tensor, Weight, gpu::Gpu,
};

/// Rows and columns of the matrices of Qwen3-8B: q, k and v; o; gate and up; down.
const SHAPES: [(usize, usize); 4] = [(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)];
const GROUP: usize = 64;
/// Weights at different addresses, so that no cache holds them all.
const BYTES: usize = 400 << 20;

/// Prints the bandwidth of 4-bit matrices, for exact products and for those of the default.
pub(super) fn run(gpu: &Gpu) -> Result<()> {
    println!("\n{:<16} {:>8} {:>12} {:>12}   GB/s", "4-bit matrix", "tokens", "float32", "auto");
    for (rows, cols) in SHAPES {
        for tokens in [1, 4, 8, 16, 32, 64, 128] {
            let speed = |exact| product(gpu, (rows, cols), tokens, exact);
            let name = format!("{rows} x {cols}");
            println!("{name:<16} {tokens:>8} {:>12.0} {:>12.0}", speed(true)?, speed(false)?);
        }
    }
    Ok(())
}

fn product(gpu: &Gpu, (rows, cols): (usize, usize), tokens: usize, exact: bool) -> Result<f64> {
    let mut random = Random::new(5);
    let codes: Vec<u8> = (0..rows * cols / 16).flat_map(|_| random.next().to_le_bytes()).collect();
    let floats = |x: f32| {
        let bits = ((x.to_bits() >> 16) as u16).to_le_bytes();
        Bytes::from_vec(bits.repeat(rows * cols / GROUP))
    };
    let format = AffineFormat { bits: 4, group: GROUP };
    let pair = |x| (DType::BF16, floats(x));
    let weight =
        AffineWeight::new(format, (rows, cols), Bytes::from_vec(codes), pair(0.01), pair(-0.08))?;
    let bytes = rows * cols * 9 / 16;
    let copies = (BYTES / bytes).max(1);
    let linears = (0..copies)
        .map(|_| Ok(Linear::new(Weight::Affine(weight.clone())).on(gpu, exact)?))
        .collect::<Result<Vec<_>>>()?;
    let x = (0..tokens * cols).map(|i| (i % 17) as f32 / 8.0 - 1.0).collect();
    let x: Tensor = Tensor::from_vec(x, &[tokens, cols])?.to_gpu(gpu)?;
    let mut best = f64::MAX;
    for _ in 0..4 {
        gpu.wait()?;
        let start = Instant::now();
        for linear in &linears {
            linear.forward(&x, Phase::Decode)?;
        }
        gpu.wait()?;
        best = best.min(start.elapsed().as_secs_f64() / copies as f64);
    }
    Ok(bytes as f64 / best / 1e9)
}
