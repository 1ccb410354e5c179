//! Tokens of a sequence that are taken back: drafts that were not accepted.

use crate::{KvCache, KvCacheError, RowRange, states::States};
use taper_base::{BlockId, LayerId, SeqId};
use taper_tensor::{Tensor, ops};

/// What a layer's blocks held before a step wrote to them, and the rows that it wrote: enough to write only
/// the first of them again.
#[derive(Debug)]
pub(crate) struct Before {
    layer: usize,
    range: RowRange,
    blocks: Vec<(BlockId, Vec<u8>, Vec<u8>)>,
    /// Keys and values `[t, kv_heads, head_dim]` of the range.
    rows: [Vec<f32>; 2],
}

impl KvCache {
    /// Why tokens of a sequence cannot be taken back; `None` where they can.
    #[must_use]
    pub fn cannot_rewind(&self) -> Option<&'static str> {
        let codecs = (0..self.config.layers).map(|layer| self.config.scheme.codec(layer));
        let (mut gpu, mut chunked) = (false, false);
        for codec in codecs {
            gpu |= codec.gpu().is_some();
            chunked |= !codec.rewrites() && self.config.exact.is_none();
        }
        match () {
            () if self.states.as_ref().is_some_and(|states| states.draft_room() == 0) => {
                Some("there is no memory for the states of drafted tokens")
            }
            () if gpu => Some("tokens of a KV cache on a GPU are not taken back yet"),
            () if chunked => Some(
                "without recent tokens kept exact, this KV cache depends on how tokens are grouped",
            ),
            () => None,
        }
    }

    /// Tokens that a step may compute and [`Self::rewind`] then take back, of all sequences together; `None` where
    /// any number may be.
    #[must_use]
    pub fn draft_room(&self) -> Option<usize> {
        self.states.as_ref().map(States::draft_room)
    }

    /// Says that the next step may compute tokens of this sequence beyond its first `tokens` that [`Self::rewind`]
    /// takes back: of all sequences together no more than [`Self::draft_room`] says.
    pub fn may_rewind(&mut self, seq: SeqId, tokens: usize) {
        if let Some(states) = &mut self.states {
            states.may_rewind(seq, tokens);
        }
        if let Some(table) = self.tables.get_mut(&seq) {
            table.before = Some(Vec::new());
        }
    }

    /// Takes back what the last step computed of a sequence beyond its first `tokens` tokens. The cache
    /// then is as if they had never been computed; blocks that were taken for them stay the sequence's.
    ///
    /// To be called before [`Self::publish`], of a sequence that [`Self::may_rewind`] was called for.
    ///
    /// # Errors
    /// Rows cannot be written again, which writing them the first time has refused too; or there were more tokens than
    /// [`Self::draft_room`].
    pub fn rewind(&mut self, seq: SeqId, tokens: usize) -> Result<(), KvCacheError> {
        self.take_watched();
        if let Some(states) = &mut self.states {
            states.rewind(seq, tokens)?;
        }
        let rows = self.rows(seq, tokens);
        let Some(table) = self.tables.get_mut(&seq) else { return Ok(()) };
        table.broken = table.broken.filter(|&at| at < rows);
        let before = table.before.take().unwrap_or_default();
        if table.computed <= rows {
            return Ok(());
        }
        table.computed = rows;
        before.into_iter().try_for_each(|before| self.write_again(before, rows))
    }

    /// Keeps what a layer's blocks hold of the sequences that may be rewound, where writing leaves a trace,
    /// and the rows that are to be written.
    pub(crate) fn keep_before(
        &mut self,
        layer: LayerId,
        ranges: &[RowRange],
        k: &Tensor,
        v: &Tensor,
    ) -> Result<(), KvCacheError> {
        let at = layer.index();
        if self.config.scheme.codec(at).rewrites() {
            return Ok(());
        }
        let (geometry, bytes) = (self.config.geometry_of(at), self.config.block_bytes(at));
        let width = geometry.kv_heads * geometry.head_dim;
        let mut first = 0;
        for range in ranges {
            let own = first * width..(first + range.len) * width;
            first += range.len;
            let Some(table) = self.tables.get_mut(&range.seq) else { continue };
            let Some(before) = &mut table.before else { continue };
            let rows = |x: &Tensor| {
                ops::with_host_f32(x, |x| x.get(own.clone()).unwrap_or_default().to_vec())
            };
            let size = geometry.block_tokens;
            let held = range.start / size..(range.start + range.len).div_ceil(size);
            let pages = &self.pages[at];
            let copy = |&block: &BlockId| {
                let of = |side: &[u8], n: usize| side[block.0 as usize * n..][..n].to_vec();
                (block, of(pages.k.as_slice(), bytes.k), of(pages.v.as_slice(), bytes.v))
            };
            let blocks = table.blocks[held].iter().map(copy).collect();
            let rows = [rows(k).map_err(codec)?, rows(v).map_err(codec)?];
            before.push(Before { layer: at, range: *range, blocks, rows });
        }
        Ok(())
    }

    /// Brings a layer's blocks back, and writes those of the step's rows that stay.
    fn write_again(&mut self, before: Before, rows: usize) -> Result<(), KvCacheError> {
        let Before { layer, range, blocks, rows: [k, v] } = before;
        let (geometry, bytes) = (self.config.geometry_of(layer), self.config.block_bytes(layer));
        let pages = &mut self.pages[layer];
        for (block, old_k, old_v) in &blocks {
            let at = block.0 as usize;
            pages.k.as_mut_slice()[at * bytes.k..][..bytes.k].copy_from_slice(old_k);
            pages.v.as_mut_slice()[at * bytes.v..][..bytes.v].copy_from_slice(old_v);
        }
        let (size, stay) = (geometry.block_tokens, rows.saturating_sub(range.start));
        let first = range.start / size;
        let slot = |i: usize| blocks[i / size - first].0.0 as usize * size + i % size;
        let slots: Vec<_> = (range.start..range.start + stay).map(slot).collect();
        let shape = [stay, geometry.kv_heads, geometry.head_dim];
        let rows = |x: Vec<f32>| {
            Tensor::from_vec(x[..shape.iter().product()].to_vec(), &shape).map_err(codec)
        };
        let scheme = &self.config.scheme;
        Ok(scheme.codec(layer).encode(geometry, &rows(k)?, &rows(v)?, &slots, pages)?)
    }
}

fn codec(error: taper_tensor::TensorError) -> KvCacheError {
    taper_kv_codecs::KvCodecError::from(error).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExactRoom, KvConfig, SeqRange};
    use taper_kv_codecs::{Exact, KvGeometry};

    const GEOMETRY: KvGeometry = KvGeometry { kv_heads: 2, head_dim: 32, block_tokens: 16 };
    const WIDTH: usize = 64;
    const TOKENS: usize = 48;
    const SEQ: SeqId = SeqId(1);

    fn cache(codec: &str) -> KvCache {
        let tokens = Exact { sink_tokens: 0, recent_tokens: 16 };
        let mut cache = KvCache::new(KvConfig {
            exact: Some(ExactRoom::for_sequences(tokens, 2, 64, 16)),
            ..KvConfig::new(taper_kv_codecs::parse(codec).unwrap(), 1, GEOMETRY, 4)
        });
        cache.grow(SEQ, TOKENS).unwrap();
        cache
    }

    /// Rows of a range; from token `wrong` on they are others, and larger ones.
    fn store(cache: &mut KvCache, start: usize, len: usize, wrong: usize) {
        let row = |at: usize| {
            let (seed, size) = if at < wrong { (at, 1.0) } else { (at * 31 + 7, 40.0) };
            (0..WIDTH).map(move |i| ((seed * 131 + i * 17) % 97) as f32 / 97.0 * size - 0.3)
        };
        let rows: Vec<_> = (start..start + len).flat_map(row).collect();
        let rows = Tensor::from_vec(rows, &[len, 2, 32]).unwrap();
        let mut session = cache.session(&[SeqRange { seq: SEQ, start, len }]).unwrap();
        session.store(LayerId(0), &rows, &rows).unwrap();
    }

    /// A thousand schedules of accepted and rejected rows leave the bytes that one row at a time leaves.
    #[test]
    fn rejected_rows_leave_no_trace() {
        let mut state = 5u64;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % n
        };
        for codec in ["f16", "affine4", "turbo3", "turbo3-qjl", "taper2", "taper4"] {
            let mut plain = cache(codec);
            (0..TOKENS).for_each(|at| store(&mut plain, at, 1, TOKENS));
            for _ in 0..170 {
                let mut cache = cache(codec);
                let mut at = 0;
                while at < TOKENS {
                    let len = (1 + below(9)).min(TOKENS - at);
                    let right = 1 + below(len);
                    cache.may_rewind(SEQ, at + 1);
                    store(&mut cache, at, len, at + right);
                    cache.rewind(SEQ, at + right).unwrap();
                    at += right;
                }
                let blocks = |cache: &KvCache| cache.blocks(SEQ).to_vec();
                assert_eq!(blocks(&cache), blocks(&plain));
                let bytes = cache.config.block_bytes(0);
                for block in blocks(&plain) {
                    let at = block.0 as usize;
                    let of = |c: &KvCache| {
                        let (k, v) = (c.pages[0].k.as_slice(), c.pages[0].v.as_slice());
                        [&k[at * bytes.k..][..bytes.k], &v[at * bytes.v..][..bytes.v]].concat()
                    };
                    assert!(of(&cache) == of(&plain), "{codec}, block {at}");
                }
            }
        }
    }
}
