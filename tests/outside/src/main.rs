//! Keys and values through a 4-bit codec, with nothing but `taper-kv-codecs`: encode, score, decode.

use std::error::Error;
use taper_kv_codecs::{
    AttnBatch, AttnParams, KvGeometry, LayerPages, SeqSpan, parse, taper_base::BlockId,
    taper_tensor::Tensor,
};

const TOKENS: usize = 40;

fn main() -> Result<(), Box<dyn Error>> {
    let geometry = KvGeometry { kv_heads: 1, head_dim: 64, block_tokens: 32 };
    let codec = parse("taper4")?;
    let mut pages = LayerPages::zeroed(codec.block_bytes(geometry), 2);
    let rows = |step: f32| {
        let values = (0..TOKENS * 64).map(|i| (i as f32 * step).sin()).collect();
        Tensor::from_vec(values, &[TOKENS, 1, 64])
    };
    let (q, k, v) = (rows(0.017)?, rows(0.031)?, rows(0.043)?);
    let slots: Vec<_> = (0..TOKENS).collect();
    codec.encode(geometry, &k, &v, &slots, &mut pages)?;

    let blocks = [BlockId(0), BlockId(1)];
    let seq = SeqSpan { q_len: TOKENS, kv_len: TOKENS, blocks: &blocks, exact: None, together: None };
    let batch = AttnBatch { seqs: vec![seq] };
    let scored = codec.attend(geometry, &q, &pages, &batch, &AttnParams::new(0.125))?;

    let (decoded, _) = codec.decode(geometry, &slots, &pages)?;
    let pairs = k.to_vec()?.into_iter().zip(decoded.to_vec()?);
    let (error, norm) = pairs.fold((0.0, 0.0), |(e, n), (a, b)| (e + (a - b).powi(2), n + a * a));
    let error: f32 = (error / norm).sqrt();
    println!("{:?}: keys come back within {error:.3}", scored.dims());
    assert!(error < 0.15 && scored.to_vec()?.iter().all(|x| x.is_finite()));
    Ok(())
}
