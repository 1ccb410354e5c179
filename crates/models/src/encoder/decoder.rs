//! Language models as encoders: whole texts at once, without a cache; those that were made for it look ahead, too.

use super::{
    EncoderText,
    attention::{Heads, Reach, attend},
};
use crate::{
    Batch, LoadOptions, Model, ModelError, Precision, StateSession, decoder::Decoder, families,
};
use taper_base::{LayerId, Phase, TokenId};
use taper_kv_cache::KvCacheError;
use taper_kv_codecs::{AttnParams, KvCodecError};
use taper_tensor::{Projected, RunSegments, Tensor, norm_rope, ops};
use taper_weights::Checkpoint;

/// A decoder whose layers see the texts of a step and nothing else.
#[derive(Debug)]
pub(super) struct TextDecoder(Decoder);

impl TextDecoder {
    pub(super) fn load(weights: &Checkpoint) -> Result<Self, ModelError> {
        let options = LoadOptions { precision: Precision::F32, ..LoadOptions::default() };
        Ok(Self(families::load_headless(weights, options)?))
    }

    pub(super) fn is_bidirectional(&self) -> bool {
        self.0.is_bidirectional()
    }

    pub(super) fn hidden(&self) -> usize {
        self.0.info().hidden
    }

    pub(super) fn vocab(&self) -> usize {
        self.0.info().vocab
    }

    pub(super) fn max_tokens(&self) -> usize {
        self.0.info().max_positions
    }

    /// Vectors of all tokens, one text after the other, as the output projection reads them.
    pub(super) fn forward(
        &self,
        texts: &[EncoderText<'_>],
        lengths: &[usize],
    ) -> Result<Tensor, ModelError> {
        let all: Vec<_> = (0..lengths.iter().sum::<usize>() as u32).collect();
        self.run(texts, lengths, &all, |batch, session| self.0.hidden(batch, session))
    }

    /// Logits of two tokens after each text.
    pub(super) fn answers(
        &self,
        texts: &[EncoderText<'_>],
        lengths: &[usize],
        tokens: [TokenId; 2],
    ) -> Result<Vec<[f32; 2]>, ModelError> {
        let vocab = self.0.info().vocab;
        for token in tokens {
            if token as usize >= vocab {
                let (what, expected, got) = ("answers in the vocabulary", vocab, token as usize);
                return Err(ModelError::Batch { what, expected, got });
            }
        }
        let ends = lengths.iter().scan(0, |end, n| {
            *end += *n as u32;
            Some(*end - 1)
        });
        let ends: Vec<_> = ends.collect();
        let logits =
            self.run(texts, lengths, &ends, |batch, session| self.0.forward(batch, session))?;
        let pick = |row: &[f32]| tokens.map(|token| row[token as usize]);
        Ok(ops::with_host_f32(&logits, |x| x.chunks_exact(vocab).map(pick).collect())?)
    }

    fn run(
        &self,
        texts: &[EncoderText<'_>],
        lengths: &[usize],
        logits_at: &[u32],
        f: impl FnOnce(&Batch<'_>, &mut dyn StateSession) -> Result<Tensor, ModelError>,
    ) -> Result<Tensor, ModelError> {
        let tokens: Vec<_> = texts.iter().flat_map(|text| text.tokens).copied().collect();
        let positions: Vec<_> = lengths.iter().flat_map(|&n| 0..n as u32).collect();
        let phase = Phase::Decode;
        let batch =
            Batch { tokens: &tokens, positions: &positions, logits_at, phase, ..Batch::default() };
        let mut session = TextSession { lengths, both: self.0.is_bidirectional() };
        f(&batch, &mut session)
    }
}

/// A step of whole texts, of which nothing is kept.
struct TextSession<'a> {
    lengths: &'a [usize],
    /// Tokens see those after them.
    both: bool,
}

impl StateSession for TextSession<'_> {
    fn attend(
        &mut self,
        layer: LayerId,
        rows: &Projected<'_>,
        params: &AttnParams<'_>,
    ) -> Result<Tensor, KvCacheError> {
        if params.sinks.is_some() || params.chunk.is_some() || params.value_dim.is_some() {
            return Err(KvCacheError::Layer { layer, layers: 0 });
        }
        let (d, t) = (rows.head_dim, rows.q.dims()[0]);
        let (q_norm, k_norm) = rows.norms.unzip();
        let turned = norm_rope([(rows.q, q_norm), (rows.k, k_norm)], d, rows.rope);
        let [q, k] = turned.map_err(KvCodecError::from)?;
        let heads = Heads { heads: q.dims()[1], kv_heads: k.dims()[1], head_dim: d };
        let reach = Reach { both: self.both, window: params.window };
        let scores = (params.scale, params.soft_cap);
        let attended = attend([&q, &k, rows.v], self.lengths, heads, reach, scores);
        let attended = attended.and_then(|x| Ok(x.reshape(&[t, heads.heads, d])?));
        attended.map_err(|error| match error {
            ModelError::Tensor(error) => KvCodecError::from(error).into(),
            _ => KvCacheError::Layer { layer, layers: 0 },
        })
    }

    fn attend_stored(
        &mut self,
        layer: LayerId,
        _: &Tensor,
        _: Option<&[u32]>,
        _: &AttnParams<'_>,
    ) -> Result<Tensor, KvCacheError> {
        Err(KvCacheError::Layer { layer, layers: 0 })
    }

    fn recur(&mut self, layer: usize, _: &mut RunSegments<'_>) -> Result<(), KvCacheError> {
        Err(KvCacheError::Recurrent { layer, layers: 0 })
    }
}
