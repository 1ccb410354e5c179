//! Checks of blocks built anew from rows that stay.

use super::{Pair, noise};
use crate::{KeptBlock, KeptRow, KvCodecError, KvGeometry, LayerPages, parse_on};
use taper_base::BlockId;
use taper_tensor::{
    Tensor, TensorError,
    gpu::{Gpu, attention::BLOCK_TOKENS},
    ops,
};

/// Compressed ones refuse, and say so.
pub(super) const CODECS: [&str; 5] = ["f32", "f16", "bf16", "turbo4", "taper3"];

const G: KvGeometry = KvGeometry { kv_heads: 2, head_dim: 24, block_tokens: BLOCK_TOKENS };
const BLOCKS: usize = 5;

/// Rows of all blocks but the last, of which every third stays, in blocks that are read from too;
/// keys and values then, and as they should be.
pub(super) fn run(name: &str, gpu: &Gpu, seed: u64) -> Result<Vec<Pair>, KvCodecError> {
    let codec = parse_on(name, gpu)?;
    let mut pages = LayerPages::zeroed(codec.block_bytes(G), BLOCKS);
    let n = (BLOCKS - 1) * BLOCK_TOKENS;
    let mut state = seed;
    let mut tensor = || {
        let rows = ops::from_host_f32(noise(&mut state, n * 48), &[n, G.kv_heads, G.head_dim])?;
        rows.to_gpu(gpu)
    };
    let (k, v) = (tensor()?, tensor()?);
    let all: Vec<_> = (0..n).collect();
    codec.encode(G, &k, &v, &all, &mut pages)?;
    let kept: Vec<_> = all.iter().copied().filter(|slot| slot % 3 == 0).collect();
    let (want_k, want_v) = codec.decode(G, &kept, &pages)?;
    let rows: Vec<_> = kept.iter().map(|&slot| KeptRow { slot, exact: None }).collect();
    let into = [1, 4].map(|block| KeptBlock { block: BlockId(block), exact: None });
    match codec.compact(G, &rows, &into, &mut pages) {
        Ok(()) => {}
        // What is refused leaves everything as it was.
        Err(KvCodecError::Tensor(TensorError::Device { .. })) if name.starts_with('t') => {
            let (k, v) = codec.decode(G, &kept, &pages)?;
            return pairs([(k, want_k), (v, want_v)]);
        }
        Err(error) => return Err(error),
    }
    let slot = |i: usize| into[i / BLOCK_TOKENS].block.0 as usize * BLOCK_TOKENS + i % BLOCK_TOKENS;
    let to: Vec<_> = (0..kept.len()).map(slot).collect();
    let (k, v) = codec.decode(G, &to, &pages)?;
    pairs([(k, want_k), (v, want_v)])
}

fn pairs(sides: [(Tensor, Tensor); 2]) -> Result<Vec<Pair>, KvCodecError> {
    let flat = |x: Tensor| x.flatten_all()?.to_vec1();
    let [k, v] = sides.map(|(got, want)| Ok::<_, TensorError>((flat(got)?, flat(want)?)));
    Ok(vec![k?, v?])
}
