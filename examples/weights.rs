//! taper-weights: what a checkpoint holds, and one of its layers at work.

use anyhow::Result;
use std::path::Path;
use taper_tensor::{Phase, Tensor, ops};
use taper_weights::Checkpoint;

const DIR: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/parity/qwen3-mlx-4bit-g64");

fn main() -> Result<()> {
    // Reads headers only; weights are mapped, and paged in when they are used.
    let checkpoint = Checkpoint::open(Path::new(DIR))?;
    println!("{}, {} bytes of tensors", checkpoint.config()["model_type"], checkpoint.bytes());
    for tensor in checkpoint.list().iter().take(12) {
        println!("  {:<50} {:<5} {:?}", tensor.name, tensor.dtype, tensor.shape);
    }

    // The caller says the shape; a checkpoint that disagrees is an error that names the tensor.
    let name = "model.layers.0.mlp.down_proj";
    let shape = |key: &str| checkpoint.config()[key].as_u64().unwrap_or(0) as usize;
    let (hidden, inner) = (shape("hidden_size"), shape("intermediate_size"));
    let format = checkpoint.weight(name, hidden, inner)?.format();
    let down = checkpoint.linear(name, inner, hidden, false)?;
    println!("{name}: {inner} -> {hidden}, {format}, {} bytes", down.bytes());

    let x = Tensor::from_vec(vec![1.0; inner], &[1, inner])?;
    let y = ops::with_host_f32(&down.forward(&x, Phase::Decode)?, |y| y[..4].to_vec())?;
    println!("row sums: {y:?} ...");
    if let Err(error) = checkpoint.linear(name, inner, hidden + 1, false) {
        println!("{error}");
    }
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}
