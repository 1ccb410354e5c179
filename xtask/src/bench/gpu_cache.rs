//! Speed of the caches of a GPU, one layer at a time: writing rows, attention over them, and what an
//! eviction does: scores of keys, and blocks built anew.

use super::shape::Random;
use anyhow::{Context, Result};
use std::time::Instant;
use taper_base::BlockId;
use taper_kv_codecs::{
    AttnBatch, AttnParams, KeptBlock, KeptRow, KvCodec, KvGeometry, LayerPages, SeqSpan, parse_on,
};
use taper_tensor::{KeyScorer, Tensor, gpu::Gpu};

/// What to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct CacheArgs {
    /// Compressed caches to compare with f16, as `--kv-cache-dtype` takes them; none by default.
    #[arg(long, value_delimiter = ',')]
    caches: Vec<String>,
    /// Query heads, heads of keys and values, and their size.
    #[arg(long, value_delimiter = ',', default_values_t = [32, 8, 128])]
    heads: Vec<usize>,
    /// Sequences and tokens of each, as `1x32768`.
    #[arg(long, value_delimiter = ',', default_values_t = ["1x32768".to_owned(), "8x32768".to_owned()])]
    attend: Vec<String>,
}

/// Rows that are written at a time.
const ROWS: usize = 2048;
const BLOCK: usize = 32;
const REPEATS: usize = 20;

pub(super) fn run(gpu: &Gpu, args: &CacheArgs) -> Result<()> {
    if args.caches.is_empty() {
        return Ok(());
    }
    let [heads, kv_heads, head_dim] = args.heads[..] else {
        anyhow::bail!("--heads takes three numbers")
    };
    let g = KvGeometry { kv_heads, head_dim, block_tokens: BLOCK };
    println!("\none layer, {heads} heads over {kv_heads} of {head_dim}");
    println!(
        "{:<12} {:<10} {:>14} {:>14} {:>10} {:>8} {:>10} {:>15}",
        "sequences",
        "cache",
        "write 2048 us",
        "attend us",
        "GB/s",
        "of f16",
        "score us",
        "compact 64 us"
    );
    for batch in &args.attend {
        let (n, depth) = batch.split_once('x').context("sequences x tokens")?;
        let (n, depth) = (n.parse()?, depth.parse()?);
        let mut exact = None;
        for name in std::iter::once("f16").chain(args.caches.iter().map(String::as_str)) {
            let mut layer = Layer::fill(gpu, name, g, n, depth)?;
            let time = layer.attend(gpu, heads)?;
            let base = *exact.get_or_insert(time);
            let bytes = layer.codec.block_bytes(g);
            let read = (bytes.k + bytes.v) as f64 * (n * depth / BLOCK) as f64;
            println!(
                "{batch:<12} {name:<10} {:>14.1} {:>14.1} {:>10.0} {:>7.2}x {:>10.1} {:>15.1}",
                1e6 * layer.write_time,
                1e6 * time,
                read / time / 1e9,
                base / time,
                1e6 * layer.score(heads)?,
                1e6 * layer.compact(gpu)?
            );
        }
    }
    Ok(())
}

/// A layer's cache and its sequences' blocks.
struct Layer {
    codec: std::sync::Arc<dyn KvCodec>,
    g: KvGeometry,
    pages: LayerPages,
    blocks: Vec<Vec<BlockId>>,
    depth: usize,
    write_time: f64,
}

impl Layer {
    fn fill(gpu: &Gpu, name: &str, g: KvGeometry, n: usize, depth: usize) -> Result<Self> {
        let codec = parse_on(name, gpu)?;
        let each = depth.div_ceil(BLOCK);
        let mut pages = LayerPages::zeroed(codec.block_bytes(g), n * each);
        let row = g.kv_heads * g.head_dim;
        let (k, v) = (noise(1, ROWS * row), noise(2, ROWS * row));
        let tensor = |x: &[f32], rows: usize| -> Result<Tensor> {
            let x = x[..rows * row].to_vec();
            Ok(Tensor::from_vec(x, &[rows, g.kv_heads, g.head_dim])?.to_gpu(gpu)?)
        };
        let mut write_time = 0.0;
        for seq in 0..n {
            for start in (0..depth).step_by(ROWS) {
                let rows = ROWS.min(depth - start);
                let (k, v) = (tensor(&k, rows)?, tensor(&v, rows)?);
                let first = seq * each * BLOCK + start;
                let slots: Vec<_> = (first..first + rows).collect();
                gpu.wait()?;
                let begin = Instant::now();
                codec.encode(g, &k, &v, &slots, &mut pages)?;
                gpu.wait()?;
                write_time = begin.elapsed().as_secs_f64();
            }
        }
        let ids = |seq: usize| (seq * each..(seq + 1) * each).map(|b| BlockId(b as u32)).collect();
        Ok(Self { codec, g, pages, blocks: (0..n).map(ids).collect(), depth, write_time })
    }

    fn attend(&self, gpu: &Gpu, heads: usize) -> Result<f64> {
        let (n, d) = (self.blocks.len(), self.g.head_dim);
        let q = Tensor::from_vec(noise(3, n * heads * d), &[n, heads, d])?.to_gpu(gpu)?;
        let params = AttnParams::new((d as f32).sqrt().recip());
        let span =
            |blocks| SeqSpan { q_len: 1, kv_len: self.depth, blocks, exact: None, together: None };
        let batch = AttnBatch { seqs: self.blocks.iter().map(|b| span(&b[..])).collect() };
        let mut best = f64::MAX;
        for _ in 0..3 {
            let mut out = self.codec.attend(self.g, &q, &self.pages, &batch, &params)?;
            gpu.wait()?;
            let begin = Instant::now();
            for _ in 0..REPEATS {
                out = self.codec.attend(self.g, &q, &self.pages, &batch, &params)?;
            }
            gpu.wait()?;
            best = best.min(begin.elapsed().as_secs_f64() / REPEATS as f64);
            drop(out);
        }
        Ok(best)
    }
}

impl Layer {
    /// Scores of the first sequence's keys, on the host.
    fn score(&self, heads: usize) -> Result<f64> {
        let d = self.g.head_dim;
        let (vectors, weights) = (noise(4, heads * d), noise(5, heads * d / 2));
        let scorer = KeyScorer::new((heads, d), vectors, weights)?;
        let sequence = (&self.blocks[0][..], self.depth);
        let mut best = f64::MAX;
        for _ in 0..5 {
            let begin = Instant::now();
            drop(self.codec.key_scores(self.g, &scorer, &self.pages, sequence)?);
            best = best.min(begin.elapsed().as_secs_f64());
        }
        Ok(best)
    }

    /// The first 64 blocks take the rows of the 4 that follow, as when 128 of 2176 tokens go.
    fn compact(&mut self, gpu: &Gpu) -> Result<f64> {
        const KEEP: usize = 64;
        let Some(blocks) = self.blocks[0].get(..KEEP + 4) else { return Ok(f64::NAN) };
        let slot = |row: usize| blocks[row / BLOCK].0 as usize * BLOCK + row % BLOCK;
        // Two gaps a block, filled from behind.
        let gap = |row: usize| row % BLOCK % 16 == 5;
        let from = |row: usize| if gap(row) { KEEP * BLOCK + row / 16 } else { row };
        let rows = (0..KEEP * BLOCK).map(|row| KeptRow { slot: slot(from(row)), exact: None });
        let rows: Vec<_> = rows.collect();
        let into: Vec<_> =
            blocks[..KEEP].iter().map(|&block| KeptBlock { block, exact: None }).collect();
        gpu.wait()?;
        let begin = Instant::now();
        self.codec.compact(self.g, &rows, &into, &mut self.pages)?;
        gpu.wait()?;
        Ok(begin.elapsed().as_secs_f64())
    }
}

/// Numbers between -1 and 1.
fn noise(seed: u64, n: usize) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..n).map(|_| random.below(1 << 16) as f32 / 32768.0 - 1.0).collect()
}
