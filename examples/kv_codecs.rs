//! taper-kv-codecs: encode keys and values, attend over the bytes, and see what it cost.

use anyhow::Result;
use taper_base::BlockId;
use taper_kv_codecs::{AttnBatch, AttnParams, KvGeometry, LayerPages, SeqSpan, parse};
use taper_tensor::{Tensor, ops};

const TOKENS: usize = 100;
const HEADS: usize = 8;

fn main() -> Result<()> {
    let geometry = KvGeometry { kv_heads: 2, head_dim: 64, block_tokens: 32 };
    let rows = |heads: usize, step: f32| -> Result<Tensor> {
        let values = (0..TOKENS * heads * 64).map(|i| (i as f32 * step).sin()).collect();
        Ok(Tensor::from_vec(values, &[TOKENS, heads, 64])?)
    };
    let (q, k, v) = (rows(HEADS, 0.017)?, rows(2, 0.031)?, rows(2, 0.043)?);

    // Four blocks, used in no particular order: a slot is block * block_tokens + offset.
    let blocks = [3, 0, 2, 1].map(BlockId);
    let slots: Vec<_> = (0..TOKENS).map(|i| blocks[i / 32].0 as usize * 32 + i % 32).collect();
    let seq =
        SeqSpan { q_len: TOKENS, kv_len: TOKENS, blocks: &blocks, exact: None, together: None };
    let batch = AttnBatch { seqs: vec![seq] };
    let params = AttnParams::new(1.0 / 8.0);

    println!("codec  bytes/token  error of k  error of the output");
    let mut exact = None;
    for name in ["f32", "f16", "bf16"] {
        let codec = parse(name)?;
        let bytes = codec.block_bytes(geometry);
        let mut pages = LayerPages::zeroed(bytes, blocks.len());
        codec.encode(geometry, &k, &v, &slots, &mut pages)?;
        let (k_back, _) = codec.decode(geometry, &slots, &pages)?;
        let output = codec.attend(geometry, &q, &pages, &batch, &params)?;
        let exact = exact.get_or_insert_with(|| output.clone());
        let per_token = (bytes.k + bytes.v) / geometry.block_tokens;
        let (key, out) = (error(&k, &k_back)?, error(exact, &output)?);
        println!("{name:<6} {per_token:>11}  {key:>10.1e}  {out:>19.1e}");
    }
    Ok(())
}

/// Root of the squared error over the squared norm.
fn error(exact: &Tensor, near: &Tensor) -> Result<f32> {
    let exact = ops::with_host_f32(exact, <[f32]>::to_vec)?;
    let near = ops::with_host_f32(near, <[f32]>::to_vec)?;
    let square: f32 = exact.iter().zip(&near).map(|(a, b)| (a - b).powi(2)).sum();
    Ok((square / exact.iter().map(|a| a * a).sum::<f32>()).sqrt())
}

#[test]
fn runs() -> Result<()> {
    main()
}
