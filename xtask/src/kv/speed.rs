//! How long one token's attention takes at some depth.

use super::{gaussian, report::Table};
use anyhow::Result;
use std::time::Instant;
use taper_base::BlockId;
use taper_kv_codecs::{AttnBatch, AttnParams, KvGeometry, LayerPages, SeqSpan, parse};
use taper_tensor::{AlignedBytes, Tensor};

/// A layer of Qwen3-0.6B.
const LAYER: KvGeometry = KvGeometry { kv_heads: 8, head_dim: 128, block_tokens: 32 };
const HEADS: usize = 16;
/// Tokens that are encoded; further blocks are copies.
const DISTINCT: usize = 512;
const CODECS: [&str; 11] = [
    "f16",
    "affine8",
    "affine4",
    "turbo8v4",
    "turbo4",
    "turbo3",
    "turbo2",
    "taper4",
    "taper3",
    "taper3-l9",
    "taper2",
];

/// Microseconds of the fastest of some calls.
fn best(mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    let begin = Instant::now();
    let mut calls = 0;
    while calls < 3 || (begin.elapsed().as_millis() < 400 && calls < 200) {
        let start = Instant::now();
        call()?;
        best = best.min(start.elapsed().as_secs_f64() * 1e6);
        calls += 1;
    }
    Ok(best)
}

pub(super) fn table(depths: &[usize]) -> Result<Table> {
    let (heads, d) = (LAYER.kv_heads, LAYER.head_dim);
    let rows = |seed| Tensor::from_vec(gaussian(DISTINCT * heads * d, seed), &[DISTINCT, heads, d]);
    let (k, v) = (rows(1)?, rows(2)?);
    let q = Tensor::from_vec(gaussian(HEADS * d, 3), &[1, HEADS, d])?;
    let params = AttnParams::new(2.0 / (d as f32).sqrt());
    let mut table = Vec::new();
    let mut f16 = Vec::new();
    for name in CODECS {
        let codec = parse(name)?;
        let bytes = codec.block_bytes(LAYER);
        let mut cells = vec![name.to_owned()];
        let slots: Vec<_> = (0..DISTINCT).collect();
        let mut encode = f64::NAN;
        for (i, &depth) in depths.iter().enumerate() {
            let blocks = depth.div_ceil(LAYER.block_tokens);
            let mut pages = LayerPages::zeroed(bytes, blocks.max(DISTINCT / LAYER.block_tokens));
            encode = best(|| Ok(codec.encode(LAYER, &k, &v, &slots, &mut pages)?))?;
            let repeat = |side: &mut AlignedBytes, block: usize| {
                let (first, rest) =
                    side.as_mut_slice().split_at_mut(block * DISTINCT / LAYER.block_tokens);
                rest.chunks_mut(first.len()).for_each(|c| c.copy_from_slice(&first[..c.len()]));
            };
            repeat(&mut pages.k, bytes.k);
            repeat(&mut pages.v, bytes.v);
            let ids: Vec<_> = (0..blocks as u32).map(BlockId).collect();
            let seqs = vec![SeqSpan {
                q_len: 1,
                kv_len: depth,
                blocks: &ids,
                exact: None,
                together: None,
            }];
            let batch = AttnBatch { seqs };
            let time = best(|| Ok(codec.attend(LAYER, &q, &pages, &batch, &params).map(drop)?))?;
            if name == "f16" {
                f16.push(time);
            }
            cells.push(format!("{time:.0}"));
            cells.push(format!("{:.2}", f16[i] / time));
        }
        cells.push(format!("{:.2}", encode / DISTINCT as f64));
        table.push(cells);
    }
    let columns = depths.iter().flat_map(|d| [format!("us at {d}"), "times f16".to_owned()]);
    Ok(Table {
        title: "Speed",
        note: format!(
            "One token's attention in one layer of {HEADS} query heads, {heads} KV heads of {d}, on \
             {} threads; the fastest call. Last: encoding of a token (both sides, all heads).",
            std::thread::available_parallelism()?
        ),
        header: std::iter::once("codec".to_owned())
            .chain(columns)
            .chain(["us to encode a token".to_owned()])
            .collect(),
        rows: table,
    })
}
