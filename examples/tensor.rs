//! taper-tensor: one linear map in 32-bit floats and in MLX's 4 bits.

use anyhow::Result;
use taper_tensor::{
    AffineFormat, AffineWeight, Bytes, DType, DenseWeight, Linear, Tensor, Weight, ops,
};

const OUT: usize = 64;
const IN: usize = 256;
const FORMAT: AffineFormat = AffineFormat { bits: 4, group: 64 };

fn main() -> Result<()> {
    let weights: Vec<f32> = (0..OUT * IN).map(|i| (i as f32 * 0.37).sin()).collect();
    let dense = DenseWeight::new((OUT, IN), DType::F32, floats(&weights))?;
    let dense = Linear::new(Weight::Dense(dense));
    let quantized = Linear::new(Weight::Affine(quantize(&weights)?));

    // Three tokens.
    let x = (0..3 * IN).map(|i| (i as f32 * 0.11).cos()).collect();
    let x = ops::from_host_f32(x, &[3, IN])?;
    let (exact, near) = (rows(&dense.forward(&x)?)?, rows(&quantized.forward(&x)?)?);
    let error: f32 = exact.iter().zip(&near).map(|(a, b)| (a - b).powi(2)).sum();
    let norm: f32 = exact.iter().map(|a| a * a).sum();
    println!("{}: {} bytes", dense.format(), dense.bytes());
    println!("{}: {} bytes", quantized.format(), quantized.bytes());
    println!("relative error of the output: {:.4}", (error / norm).sqrt());
    Ok(())
}

/// Codes from 0 to 15 between the least and the greatest weight of each group, two in a byte.
fn quantize(weights: &[f32]) -> Result<AffineWeight> {
    let (mut codes, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
    for group in weights.chunks_exact(FORMAT.group) {
        let low = group.iter().copied().fold(f32::MAX, f32::min);
        let high = group.iter().copied().fold(f32::MIN, f32::max);
        let scale = (high - low) / 15.0;
        let code = |w: f32| ((w - low) / scale).round() as u8;
        codes.extend(group.chunks_exact(2).map(|w| code(w[0]) | code(w[1]) << 4));
        scales.push(scale);
        biases.push(low);
    }
    let (scales, biases) = ((DType::F32, floats(&scales)), (DType::F32, floats(&biases)));
    Ok(AffineWeight::new(FORMAT, (OUT, IN), Bytes::from_vec(codes), scales, biases)?)
}

fn floats(values: &[f32]) -> Bytes {
    Bytes::from_vec(values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}

fn rows(x: &Tensor) -> Result<Vec<f32>> {
    Ok(ops::with_host_f32(x, <[f32]>::to_vec)?)
}

#[test]
fn runs() -> Result<()> {
    main()
}
