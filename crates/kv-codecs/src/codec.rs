//! The codec seam.

use crate::{
    AttnBatch, AttnParams, DenseCodec, Exact, GpuCodec, KeptBlock, KeptRow, PagedCodec, Scheme,
    compact, gpu_coded::GpuCodedCodec,
};
use std::{fmt, ops::Range, sync::Arc};
use taper_base::BlockId;
use taper_tensor::{
    AlignedBytes, DType, KeyScorer, Projected, Tensor, TensorError,
    gpu::{Buffer, Gpu},
};

/// Shape of one layer's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvGeometry {
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Tokens of a block.
    pub block_tokens: usize,
}

/// Bytes of one block of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockBytes {
    /// Bytes of a block's keys.
    pub k: usize,
    /// Bytes of a block's values.
    pub v: usize,
}

/// The encoded blocks of one layer. One buffer a side: GPUs order work by buffer.
#[derive(Debug)]
pub struct LayerPages {
    /// Keys, block after block.
    pub k: AlignedBytes,
    /// Values, block after block.
    pub v: AlignedBytes,
    /// Keys of the exact blocks; empty without them.
    pub exact_k: AlignedBytes,
    /// Values of the exact blocks.
    pub exact_v: AlignedBytes,
    /// Keys and values on a GPU, once a codec has written there; the host's memory then stays
    /// untouched.
    pub gpu: Option<(Buffer, Buffer)>,
    /// Exact keys and values on a GPU, once a codec has written there.
    pub gpu_exact: Option<(Buffer, Buffer)>,
    /// Keys and values of a step's new tokens on a GPU, which are written into the codes while later layers run.
    pub gpu_new: Option<(Buffer, Buffer)>,
}

impl LayerPages {
    /// Room for `blocks` blocks. Memory is taken when a block is first written.
    #[must_use]
    pub fn zeroed(bytes: BlockBytes, blocks: usize) -> Self {
        let none = || AlignedBytes::zeroed(0);
        let BlockBytes { k, v } = bytes;
        Self {
            k: room(k, blocks),
            v: room(v, blocks),
            exact_k: none(),
            exact_v: none(),
            gpu: None,
            gpu_exact: None,
            gpu_new: None,
        }
    }

    /// Requests huge pages for the blocks that were not written yet, as
    /// [`AlignedBytes::prefer_huge_pages`].
    pub fn prefer_huge_pages(&self) {
        self.k.prefer_huge_pages();
        self.v.prefer_huge_pages();
    }

    /// Gives the memory of consecutive blocks without contents back to the system; a GPU keeps its own.
    pub fn discard(&mut self, bytes: BlockBytes, blocks: &Range<usize>) {
        self.k.discard(blocks.start * bytes.k..blocks.end * bytes.k);
        self.v.discard(blocks.start * bytes.v..blocks.end * bytes.v);
    }

    /// As [`Self::discard`], of exact blocks.
    pub fn discard_exact(&mut self, bytes: BlockBytes, blocks: &Range<usize>) {
        self.exact_k.discard(blocks.start * bytes.k..blocks.end * bytes.k);
        self.exact_v.discard(blocks.start * bytes.v..blocks.end * bytes.v);
    }

    /// Adds zeroed room for `blocks` exact blocks of [`KvCodec::exact_block_bytes`].
    #[must_use]
    pub fn with_exact(self, bytes: BlockBytes, blocks: usize) -> Self {
        Self { exact_k: room(bytes.k, blocks), exact_v: room(bytes.v, blocks), ..self }
    }
}

fn room(block: usize, blocks: usize) -> AlignedBytes {
    AlignedBytes::zeroed(block.saturating_mul(blocks))
}

/// Turns key and value rows into block bytes and attends over them.
///
/// Laws, tested for every codec: `decode` after `encode` gives the row back within the codec's
/// stated error, and `attend` equals `decode` followed by softmax attention within the rounding of
/// its sums, where rows that a sequence keeps exactly replace decoded ones. A query row's
/// result does not depend on the other rows of the batch, and no bit of it on what it may not see:
/// later tokens, tokens outside its window, and what pages held before, NaN and infinities
/// included. Attention after `compact` is attention over the rows that were kept.
pub trait KvCodec: Send + Sync + fmt::Debug {
    /// As `--kv-cache-dtype` takes it.
    fn name(&self) -> &str;

    /// Fails where the codec cannot keep rows of this shape, which its other functions then refuse too.
    ///
    /// # Errors
    /// [`KvCodecError::HeadDim`].
    fn check(&self, _geometry: KvGeometry) -> Result<(), KvCodecError> {
        Ok(())
    }

    /// The GPU that pages are on; `None` is the host.
    fn gpu(&self) -> Option<&Gpu> {
        None
    }

    /// Whether values that are the ends of their keys can be read there: pages without room for values then
    /// have all.
    fn reads_values_in_keys(&self) -> bool {
        false
    }

    /// Bytes of one block of one layer.
    fn block_bytes(&self, geometry: KvGeometry) -> BlockBytes;

    /// Writes rows into their slots; a slot is `block * block_tokens + offset`.
    ///
    /// # Shapes
    /// `k`, `v`: `[t, kv_heads, head_dim]` f32; `slots`: `t` of them.
    ///
    /// # Errors
    /// Another shape or type, or a slot outside the pages.
    fn encode(
        &self,
        geometry: KvGeometry,
        k: &Tensor,
        v: &Tensor,
        slots: &[usize],
        pages: &mut LayerPages,
    ) -> Result<(), KvCodecError>;

    /// Whether a row that is written over another leaves no trace of it in its block: rows can then be taken
    /// back by writing others.
    fn rewrites(&self) -> bool {
        true
    }

    /// Writes a step's rows into their slots and attends to all up to there, in one launch; `None`,
    /// with nothing written, where a codec does not, or not for such rows.
    ///
    /// # Shapes
    /// As [`Projected`]'s -> `[t, heads, head_dim]`; `slots`: `t` of them.
    ///
    /// # Errors
    /// Another shape or type, or a slot or block outside the pages.
    fn attend_new(
        &self,
        _geometry: KvGeometry,
        _rows: &Projected<'_>,
        _slots: &[usize],
        _pages: &mut LayerPages,
        _batch: &AttnBatch<'_>,
        _params: &AttnParams<'_>,
    ) -> Result<Option<Tensor>, KvCodecError> {
        Ok(None)
    }

    /// Bytes of an exact block of one layer; `None` when the codec's own rows are exact enough to
    /// need none ([`Exact`]).
    fn exact_block_bytes(&self, _geometry: KvGeometry) -> Option<BlockBytes> {
        None
    }

    /// Writes those rows that have a slot among the exact blocks into it. A codec that has exact blocks
    /// must implement this.
    ///
    /// # Shapes
    /// `k`, `v`: `[t, kv_heads, head_dim]` f32; `slots`: `t` of them.
    ///
    /// # Errors
    /// Another shape or type, a slot outside the exact blocks, or a codec without such blocks.
    fn encode_exact(
        &self,
        _geometry: KvGeometry,
        _k: &Tensor,
        _v: &Tensor,
        _slots: &[Option<usize>],
        _pages: &mut LayerPages,
    ) -> Result<(), KvCodecError> {
        Err(KvCodecError::NoExactRows { codec: self.name().to_owned() })
    }

    /// Reads rows back: the oracle for tests.
    ///
    /// # Shapes
    /// Two of `[slots.len(), kv_heads, head_dim]` f32.
    ///
    /// # Errors
    /// A slot is outside the pages.
    fn decode(
        &self,
        geometry: KvGeometry,
        slots: &[usize],
        pages: &LayerPages,
    ) -> Result<(Tensor, Tensor), KvCodecError>;

    /// The keys of [`Self::decode`] alone.
    ///
    /// # Errors
    /// As [`Self::decode`].
    fn decode_keys(
        &self,
        geometry: KvGeometry,
        slots: &[usize],
        pages: &LayerPages,
    ) -> Result<Tensor, KvCodecError> {
        Ok(self.decode(geometry, slots, pages)?.0)
    }

    /// Reads rows of the exact blocks back, as [`Self::decode`] does with codes. Codecs without
    /// exact blocks decode instead.
    ///
    /// # Errors
    /// As [`Self::decode`].
    fn decode_exact(
        &self,
        geometry: KvGeometry,
        slots: &[usize],
        pages: &LayerPages,
    ) -> Result<(Tensor, Tensor), KvCodecError> {
        self.decode(geometry, slots, pages)
    }

    /// Builds blocks anew from kept rows: row `i` of `rows` becomes row `i % block_tokens` of
    /// block `i / block_tokens` of `into`. All rows are read before one is written, so that blocks
    /// may take rows from each other; other rows of the blocks of `into` are lost. An exact block is
    /// filled from exact rows, and from decoded ones where there are none.
    ///
    /// Encoded rows are moved as they are, where the layout allows it; each codec's own
    /// documentation says where it does not. Unless a codec says otherwise rows are decoded and
    /// encoded again, which plain floats survive without a change.
    ///
    /// # Errors
    /// Rows that do not fill the blocks, a block given twice, or slots or blocks outside the pages.
    fn compact(
        &self,
        g: KvGeometry,
        rows: &[KeptRow],
        into: &[KeptBlock],
        pages: &mut LayerPages,
    ) -> Result<(), KvCodecError> {
        let blocks = |bytes: usize, block: usize| bytes.checked_div(block).unwrap_or(0);
        let bytes = self.block_bytes(g);
        let room = blocks(pages.k.len(), bytes.k).min(blocks(pages.v.len(), bytes.v));
        compact::check(g, rows, into, (room, 0))?;
        if rows.is_empty() {
            return Ok(());
        }
        let from: Vec<_> = rows.iter().map(|r| r.slot).collect();
        let (k, v) = self.decode(g, &from, pages)?;
        let slot = |i: usize| into[i / g.block_tokens].block.0 as usize * g.block_tokens;
        let to: Vec<_> = (0..rows.len()).map(|i| slot(i) + i % g.block_tokens).collect();
        self.encode(g, &k, &v, &to, pages)
    }

    /// Scores of the keys of a sequence that has `tokens` tokens in `blocks`: what an eviction policy
    /// asks. Keys are scored as [`Self::decode`] gives them, a block at a time.
    ///
    /// # Shapes
    /// `[scorer.heads(), tokens]`.
    ///
    /// # Errors
    /// The scorer is for other heads, or the blocks are too few or outside the pages.
    fn key_scores(
        &self,
        g: KvGeometry,
        scorer: &KeyScorer,
        pages: &LayerPages,
        (blocks, tokens): (&[BlockId], usize),
    ) -> Result<Vec<f32>, KvCodecError> {
        scorer.check(g.kv_heads, g.head_dim)?;
        if tokens > blocks.len() * g.block_tokens {
            return Err(KvCodecError::Slot {
                slot: tokens - 1,
                slots: blocks.len() * g.block_tokens,
            });
        }
        let mut out = vec![0.0; scorer.heads() * tokens];
        for (first, block) in (0..tokens).step_by(g.block_tokens).zip(blocks) {
            let n = g.block_tokens.min(tokens - first);
            let slots: Vec<_> = (0..n).map(|i| block.0 as usize * g.block_tokens + i).collect();
            let keys = self.decode(g, &slots, pages)?.0.to_vec()?;
            scorer.score(&keys, g.kv_heads, &mut out, first)?;
        }
        Ok(out)
    }

    /// Causal attention of a packed batch over the pages.
    ///
    /// # Shapes
    /// `q [t, heads, head_dim]` f32 -> the same.
    ///
    /// # Errors
    /// Another shape or type, or a block outside the pages.
    fn attend(
        &self,
        geometry: KvGeometry,
        q: &Tensor,
        pages: &LayerPages,
        batch: &AttnBatch<'_>,
        params: &AttnParams<'_>,
    ) -> Result<Tensor, KvCodecError>;
}

/// Errors of the codecs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvCodecError {
    /// No such codec.
    #[error("unknown KV cache type {name:?}; there are: {}, {}", NAMES.join(", "), Scheme::NAMES.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// Query, key or value of a shape that does not fit the cache.
    #[error("attention: expected {expected}, got shape {got:?}")]
    Shape {
        /// The shape in words.
        expected: &'static str,
        /// The shape that came.
        got: Vec<usize>,
    },
    /// A slot or block outside the pages.
    #[error("slot {slot} is outside the cache of {slots}")]
    Slot {
        /// The offender.
        slot: usize,
        /// Slots there are.
        slots: usize,
    },
    /// Exact tokens that are no whole blocks.
    #[error("{tokens:?} are not multiples of a block of {block} tokens")]
    Exact {
        /// What was asked for.
        tokens: Exact,
        /// Tokens of a block.
        block: usize,
    },
    /// [`KvCodec::encode_exact`] of a codec that keeps no rows beside its own.
    #[error("a KV cache of {codec} keeps no exact rows beside its own")]
    NoExactRows {
        /// The codec.
        codec: String,
    },
    /// Rows to keep that are not for these blocks.
    #[error("{rows} rows do not fill {blocks} different blocks")]
    Compact {
        /// Rows that are kept.
        rows: usize,
        /// Blocks that were to take them.
        blocks: usize,
    },
    /// No rotation for rows of this length.
    #[error("no Hadamard rotation is known for heads of {head_dim} elements")]
    HeadDim {
        /// Elements of a head.
        head_dim: usize,
    },
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// The uncompressed types; [`Scheme::NAMES`] has the others.
const NAMES: [&str; 4] = ["auto", "f16", "bf16", "f32"];

/// The codec of a name, as `--kv-cache-dtype` takes it. `auto` is `f16`; [`Scheme::parse`] has the
/// grammar of the compressed ones.
///
/// # Errors
/// [`KvCodecError::Unknown`], listing the names.
pub fn parse(name: &str) -> Result<Arc<dyn KvCodec>, KvCodecError> {
    let dtype = match name {
        "auto" | "f16" | "float16" | "half" => DType::F16,
        "bf16" | "bfloat16" => DType::BF16,
        "f32" | "float32" | "float" => DType::F32,
        _ => {
            let unknown = || KvCodecError::Unknown { name: name.to_owned() };
            let scheme = Scheme::parse(name).ok_or_else(unknown)?;
            return Ok(Arc::new(PagedCodec::new(name, scheme)));
        }
    };
    Ok(Arc::new(DenseCodec::new(dtype)))
}

/// Keys and values as halves: [`parse`]'s `f16`.
#[must_use]
pub fn f16() -> Arc<dyn KvCodec> {
    Arc::new(DenseCodec::new(DType::F16))
}

/// Bits an element of a codec that has the same for keys and values, its scales not counted: 16 of
/// `f16`, 4 of `turbo4`; `None` for unknown names and for codecs such as `turbo4v2`.
#[must_use]
pub fn bits(name: &str) -> Option<usize> {
    match name {
        "f16" | "bf16" => Some(16),
        "f32" => Some(32),
        _ => {
            let Scheme { k, v } = Scheme::parse(name)?;
            (k.bits() == v.bits()).then(|| k.bits())
        }
    }
}

/// As [`parse`], for a cache on a GPU.
///
/// # Errors
/// The name is unknown.
pub fn parse_on(name: &str, gpu: &Gpu) -> Result<Arc<dyn KvCodec>, KvCodecError> {
    let rows = parse(name)?;
    Ok(match Scheme::parse(name) {
        Some(scheme) => Arc::new(GpuCodedCodec::new(rows, scheme, gpu)),
        None => Arc::new(GpuCodec::new(rows, gpu)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_unknown_ones_list_the_choices() {
        assert_eq!(parse("auto").unwrap().name(), "f16");
        assert_eq!(parse("bfloat16").unwrap().name(), "bf16");
        assert_eq!(parse("f32").unwrap().name(), "f32");
        assert_eq!(parse("turbo4v2").unwrap().name(), "turbo4v2");
        let message = parse("f17").unwrap_err().to_string();
        assert!(message.contains("f17") && message.contains("bf16"), "{message}");
    }
}
