//! Checks of blocks built anew from kept rows.

use super::{Case, EXACT, PLAIN, Pair, noise, upload};
use taper_base::BlockId;
use taper_kv_codecs::{KeptBlock, KeptRow, KvCodecError, KvGeometry, LayerPages, parse_on};
use taper_tensor::{
    Tensor, TensorError,
    gpu::{Buffer, Gpu, attention::BLOCK_TOKENS},
};

pub(super) const PLAIN_CODECS: [&str; 3] = ["f32", "f16", "bf16"];

const G: KvGeometry = KvGeometry { kv_heads: 2, head_dim: 24, block_tokens: BLOCK_TOKENS };
const BLOCKS: usize = 5;

/// Rows of all blocks but the last, of which every third stays, in blocks that are read from too;
/// keys and values then, and as they should be.
pub(super) fn plain(name: &str, gpu: &Gpu, seed: u64) -> Result<Vec<Pair>, KvCodecError> {
    let codec = parse_on(name, gpu)?;
    let mut pages = LayerPages::zeroed(codec.block_bytes(G), BLOCKS);
    let n = (BLOCKS - 1) * BLOCK_TOKENS;
    let mut state = seed;
    let mut tensor = || {
        let rows = Tensor::from_vec(noise(&mut state, n * 48), &[n, G.kv_heads, G.head_dim])?;
        rows.to_gpu(gpu)
    };
    let (k, v) = (tensor()?, tensor()?);
    let all: Vec<_> = (0..n).collect();
    codec.encode(G, &k, &v, &all, &mut pages)?;
    let kept: Vec<_> = all.iter().copied().filter(|slot| slot % 3 == 0).collect();
    let (want_k, want_v) = codec.decode(G, &kept, &pages)?;
    let rows: Vec<_> = kept.iter().map(|&slot| KeptRow { slot, exact: None }).collect();
    let into = [1, 4].map(|block| KeptBlock { block: BlockId(block), exact: None });
    codec.compact(G, &rows, &into, &mut pages)?;
    let slot = |i: usize| into[i / BLOCK_TOKENS].block.0 as usize * BLOCK_TOKENS + i % BLOCK_TOKENS;
    let to: Vec<_> = (0..kept.len()).map(slot).collect();
    let (k, v) = codec.decode(G, &to, &pages)?;
    let flat = |x: Tensor| x.to_vec();
    let pair = |got, want| Ok::<_, TensorError>((flat(got)?, flat(want)?));
    Ok(vec![pair(k, want_k)?, pair(v, want_v)?])
}

pub(super) fn coded_cases(quick: bool) -> Vec<Case> {
    let names = [
        "turbo4",
        "taper4",
        "affine8",
        "turbo0v3",
        "turbo3-qjl",
        "taper3",
        "affine4g32",
        "turbo1",
        "turbo4v2",
        "taper4v2",
        "turbo8v4",
        "turbo5",
        "turbo2",
        "turbo4-qjl",
        "taper3-l9",
    ];
    let n = if quick { 5 } else { names.len() };
    let case = |(i, codec)| Case {
        codec,
        kv_heads: 1 + i % 2,
        head_dim: [128, 64, 24, 80][i % 4],
        group: 1,
        seqs: vec![(1, 100), (1, 33)],
        exact: (i % 5 != 1).then_some(EXACT),
        params: PLAIN,
        broken: false,
        sinks: false,
    };
    names.into_iter().take(n).enumerate().map(case).collect()
}

/// Rows of two sequences of which some stay, half of them with an exact row, into blocks that are read
/// from and into one that is not: every byte of the cache then, and as the host has it.
pub(super) fn coded(case: &Case, gpu: &Gpu, seed: u64) -> Result<Vec<Pair>, KvCodecError> {
    let mut filled = case.fill(case.rows(seed))?;
    let codec = parse_on(case.codec, gpu)?;
    let mut pages = case.pages(&*codec);
    upload(gpu, &filled, &mut pages)?;
    let (first, second) = (&filled.seqs[0].0, &filled.seqs[1].0);
    let stays = |(i, slot): (usize, usize)| KeptRow {
        slot,
        exact: (case.exact.is_some() && i % 2 == 0).then_some(slot),
    };
    let of_first = super::slots(first, 100).into_iter().filter(|slot| slot % 3 > 0);
    let kept = of_first.chain(super::slots(second, 33).into_iter().skip(20));
    let rows: Vec<_> = kept.enumerate().map(stays).collect();
    // The block in the middle has no exact one.
    let exact = |i: usize, block: BlockId| case.exact.filter(|_| i != 1).map(|_| block);
    let free = (0..case.blocks() as u32).map(BlockId);
    let free = free.into_iter().find(|b| !first.contains(b) && !second.contains(b));
    let into = [first[1], free.unwrap_or(first[0]), second[0]];
    let into = into.into_iter().enumerate();
    let into = into.map(|(i, block)| KeptBlock { block, exact: exact(i, block) });
    let into: Vec<_> = into.take(rows.len().div_ceil(BLOCK_TOKENS)).collect();
    codec.compact(filled.g, &rows, &into, &mut pages)?;
    filled.codec.compact(filled.g, &rows, &into, &mut filled.pages)?;
    let mut want = case.pages(&*codec);
    upload(gpu, &filled, &mut want)?;
    let both = |pages: &LayerPages| -> Result<_, KvCodecError> {
        let mut sides: Vec<_> = pages.gpu.iter().flat_map(|(k, v)| [k, v]).collect();
        if case.exact.is_some() {
            sides.extend(case.exact_sides(pages)?);
        }
        sides.into_iter().map(bytes).collect::<Result<Vec<_>, _>>()
    };
    Ok(both(&pages)?.into_iter().zip(both(&want)?).collect())
}

fn bytes(buffer: &Buffer) -> Result<Vec<f32>, KvCodecError> {
    Ok(buffer.read::<u8>(0, buffer.len())?.into_iter().map(f32::from).collect())
}
