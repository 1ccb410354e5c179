//! Bytes and error of a codec on Gaussian rows.
//!
//! ```sh
//! cargo run --release -p taper-kv-codecs --example sizes -- taper4 turbo4 affine4
//! ```

use taper_kv_codecs::{KvCodecError, KvGeometry, LayerPages, parse};
use taper_tensor::{Tensor, ops};

const TOKENS: usize = 1024;

/// Sums of uniform numbers: near enough to Gaussian.
fn rows(n: usize, mut state: u64) -> Vec<f32> {
    let mut uniform = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| (0..12).map(|_| uniform()).sum()).collect()
}

fn main() -> Result<(), KvCodecError> {
    let mut names: Vec<_> = std::env::args().skip(1).collect();
    if names.is_empty() {
        names = ["f16", "affine4", "turbo4", "taper4", "taper3"].map(str::to_owned).to_vec();
    }
    let g = KvGeometry { kv_heads: 2, head_dim: 128, block_tokens: 64 };
    let shape = [TOKENS, g.kv_heads, g.head_dim];
    let values = rows(TOKENS * g.kv_heads * g.head_dim, 1);
    let x = Tensor::from_vec(values.clone(), &shape)?;
    let slots: Vec<_> = (0..TOKENS).collect();
    println!("{:>12} {:>14} {:>14} {:>14}", "codec", "bytes a token", "error of K", "error of V");
    for name in names {
        let codec = parse(&name)?;
        let bytes = codec.block_bytes(g);
        let mut pages = LayerPages::zeroed(bytes, TOKENS / g.block_tokens);
        codec.encode(g, &x, &x, &slots, &mut pages)?;
        let (k, v) = codec.decode(g, &slots, &pages)?;
        let error = |y| {
            ops::with_host_f32(y, |y| {
                let off: f32 = values.iter().zip(y).map(|(x, y)| (x - y) * (x - y)).sum();
                off / values.iter().map(|x| x * x).sum::<f32>()
            })
        };
        let token = (bytes.k + bytes.v) as f64 / g.block_tokens as f64;
        println!("{name:>12} {token:>14.1} {:>14.6} {:>14.6}", error(&k)?, error(&v)?);
    }
    Ok(())
}
