//! Tensors of candle go into Taper's kernels and come back: `cargo run -p examples --example candle`.

use candle_core::{Device, Tensor};
use taper_tensor::{RmsNorm, Tensor as TaperTensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // An encoder's output, made in candle.
    let encoded = Tensor::arange(1f32, 9.0, &Device::Cpu)?.reshape((2, 4))?;
    let norm = RmsNorm::new(vec![1.0; 4], 1e-6);
    let normed = norm.forward(&TaperTensor::from_candle(&encoded)?)?;
    println!("{}", normed.to_candle(&Device::Cpu)?);
    Ok(())
}

#[test]
fn runs() -> Result<(), Box<dyn std::error::Error>> {
    main()
}
