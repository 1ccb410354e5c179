//! taper-tensor: one linear map, in 32-bit floats and in MLX's 4 bits.

use anyhow::Result;
use taper_tensor::{
    AffineFormat, AffineWeight, Bytes, DType, DenseWeight, Linear, Phase, Precision, Rounding,
    Tensor, Weight, ops,
};

const OUT: usize = 64;
const IN: usize = 256;
const FORMAT: AffineFormat = AffineFormat { bits: 4, group: 64 };

fn main() -> Result<()> {
    // A weight is scale * code + bias, with a scale and a bias for each group of a row.
    let groups = OUT * IN / FORMAT.group;
    let scales: Vec<f32> = (0..groups).map(|g| 0.01 + 0.0001 * g as f32).collect();
    let biases: Vec<f32> = scales.iter().map(|s| -7.5 * s).collect();
    let codes: Vec<u8> = (0..OUT * IN).map(|i| ((i * 2_654_435_761) >> 20) as u8 % 16).collect();
    let weight = |(i, &code): (usize, &u8)| {
        let g = i / FORMAT.group;
        scales[g] * f32::from(code) + biases[g]
    };
    let weights: Vec<f32> = codes.iter().enumerate().map(weight).collect();
    let packed = codes.chunks_exact(2).map(|c| c[0] | c[1] << 4).collect();

    let dense = Weight::Dense(DenseWeight::new((OUT, IN), DType::F32, floats(&weights))?);
    let (scales, biases) = ((DType::F32, floats(&scales)), (DType::F32, floats(&biases)));
    let codes = Bytes::from_vec(packed);
    let affine = Weight::Affine(AffineWeight::new(FORMAT, (OUT, IN), codes, scales, biases)?);
    println!("{}; {}", dense.format(), affine.format());

    // Packed: for integer kernels, with activations rounded to 8 bits a group.
    let maps = [
        ("dense", Linear::new(dense)),
        ("quantized", Linear::new(affine.clone())),
        ("packed", Linear::new(affine).pack(Precision::Mixed { decode: Rounding::Int16 })),
    ];
    let x = (0..3 * IN).map(|i| (i as f32 * 0.11).cos()).collect();
    let x = Tensor::from_vec(x, &[3, IN])?; // three tokens
    let exact = values(&maps[0].1.forward(&x, Phase::Decode)?)?;
    let norm: f32 = exact.iter().map(|a| a * a).sum();
    for (name, map) in &maps {
        let near = values(&map.forward(&x, Phase::Decode)?)?;
        let error: f32 = exact.iter().zip(&near).map(|(a, b)| (a - b).powi(2)).sum();
        println!("{name:<10} {:>6} bytes, error {:.1e}", map.bytes(), (error / norm).sqrt());
    }
    Ok(())
}

fn floats(values: &[f32]) -> Bytes {
    Bytes::from_vec(values.iter().flat_map(|v| v.to_le_bytes()).collect())
}

fn values(x: &Tensor) -> Result<Vec<f32>> {
    Ok(ops::with_host_f32(x, <[f32]>::to_vec)?)
}

#[test]
fn runs() -> Result<()> {
    main()
}
