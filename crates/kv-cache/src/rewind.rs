//! Tokens of a sequence that are taken back: drafts that were not accepted.

use crate::{KvCache, KvCacheError, SeqRange};
use taper_base::{BlockId, LayerId, SeqId};
use taper_tensor::{Tensor, ops};

/// What a layer's blocks held before a step wrote to them, and the rows that it wrote: enough to write only
/// the first of them again.
#[derive(Debug)]
pub(crate) struct Before {
    layer: usize,
    range: SeqRange,
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
            () if self.states.is_some() => Some("the states of recurrent layers cannot go back"),
            () if gpu => Some("tokens of a KV cache on a GPU are not taken back yet"),
            () if chunked => Some(
                "without recent tokens kept exact, this KV cache depends on how tokens are grouped",
            ),
            () => None,
        }
    }

    /// Says that the next step may compute tokens of this sequence that [`Self::rewind`] takes back.
    pub fn may_rewind(&mut self, seq: SeqId) {
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
    /// Rows cannot be written again, which writing them the first time has refused too.
    pub fn rewind(&mut self, seq: SeqId, tokens: usize) -> Result<(), KvCacheError> {
        self.take_watched();
        let Some(table) = self.tables.get_mut(&seq) else { return Ok(()) };
        table.broken = table.broken.filter(|&at| at < tokens);
        let before = table.before.take().unwrap_or_default();
        if table.computed <= tokens {
            return Ok(());
        }
        table.computed = tokens;
        before.into_iter().try_for_each(|before| self.write_again(before, tokens))
    }

    /// Keeps what a layer's blocks hold of the sequences that may be rewound, where writing leaves a trace,
    /// and the rows that are to be written.
    pub(crate) fn keep_before(
        &mut self,
        layer: LayerId,
        ranges: &[SeqRange],
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
    fn write_again(&mut self, before: Before, tokens: usize) -> Result<(), KvCacheError> {
        let Before { layer, range, blocks, rows: [k, v] } = before;
        let (geometry, bytes) = (self.config.geometry_of(layer), self.config.block_bytes(layer));
        let pages = &mut self.pages[layer];
        for (block, old_k, old_v) in &blocks {
            let at = block.0 as usize;
            pages.k.as_mut_slice()[at * bytes.k..][..bytes.k].copy_from_slice(old_k);
            pages.v.as_mut_slice()[at * bytes.v..][..bytes.v].copy_from_slice(old_v);
        }
        let (size, stay) = (geometry.block_tokens, tokens.saturating_sub(range.start));
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
