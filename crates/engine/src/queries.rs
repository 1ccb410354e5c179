//! What a model's queries are like, before their rotation: seen while it runs over a text.

use taper_base::{LayerId, Phase, SeqId, TokenId};
use taper_kv_cache::{KvCache, KvCacheError, KvConfig, KvScheme, SeqRange, StateSession};
use taper_kv_codecs::AttnParams;
use taper_models::{Batch, Model, ModelError};
use taper_tensor::{Projected, RopeTable, RunSegments, Tensor, TensorError, gpu::Gpu, norm_rope};
use taper_triattention::{HeadStatistics, QueryStatistics, Rope, TriAttentionError};

/// Tokens of a step.
const STEP: usize = 256;

/// Why a model's queries cannot be seen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// Too few tokens, or more than the model has positions.
    #[error("statistics need from 1 to {most} tokens of text, and there are {tokens}")]
    Text {
        /// Tokens of the text.
        tokens: usize,
        /// The model's positions.
        most: usize,
    },
    /// A model whose queries have no statistics that a score could be made of.
    #[error("{family} has {what}, of which no statistics can be made")]
    Unsupported {
        /// The model's family.
        family: &'static str,
        /// What stands in the way.
        what: &'static str,
    },
    /// Queries that are no numbers.
    #[error(transparent)]
    Statistics(#[from] TriAttentionError),
    /// The model failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The cache failed.
    #[error(transparent)]
    Cache(#[from] KvCacheError),
    /// Queries cannot be read.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// `progress` said so.
    #[error("interrupted")]
    Interrupted,
}

/// How a model attends.
#[derive(Debug, Default)]
pub(crate) struct Shape {
    /// Why rows are not as many as its layers look back at.
    pub(crate) windowed: Option<&'static str>,
    /// Why keys have no score.
    pub(crate) unscored: Option<&'static str>,
    pub(crate) rope: Option<Rope>,
}

/// Statistics of the queries of each of a model's layers over a text: what TriAttention scores keys with. Any
/// coherent text will do, up to some 32768 tokens.
///
/// `progress(done)` hears of tokens; `false` ends it.
///
/// # Returns
/// For each layer the statistics of each query head.
///
/// # Errors
/// The text is empty or longer than the model's context, the model fails, or it has no rotary embedding that turns
/// whole heads alike in all layers.
pub fn observe_queries(
    model: &dyn Model,
    tokens: &[TokenId],
    gpu: Option<&Gpu>,
    mut progress: impl FnMut(usize) -> bool,
) -> Result<Vec<Vec<HeadStatistics>>, QueryError> {
    let info = model.info();
    let most = info.max_positions;
    if tokens.is_empty() || tokens.len() > most {
        return Err(QueryError::Text { tokens: tokens.len(), most });
    }
    let new = |_| QueryStatistics::new(info.heads, info.head_dim);
    let mut seen = (0..info.layers).map(new).collect::<Result<Vec<_>, _>>()?;
    let family = info.family;
    let mut cache = cache(model, gpu, tokens.len())?;
    for start in (0..tokens.len()).step_by(STEP) {
        let end = tokens.len().min(start + STEP);
        let shape = run(model, &mut cache, &tokens[start..end], start, Some(&mut seen))?;
        if let Some(what) = shape.unscored {
            return Err(QueryError::Unsupported { family, what });
        }
        if !progress(end) {
            return Err(QueryError::Interrupted);
        }
    }
    Ok(seen.iter().map(QueryStatistics::finish).collect::<Result<_, _>>()?)
}

/// Runs one token, to see how the model attends.
pub(crate) fn probe(model: &dyn Model, gpu: Option<&Gpu>) -> Result<Shape, QueryError> {
    let mut cache = cache(model, gpu, 1)?;
    run(model, &mut cache, &[0], 0, None)
}

/// A cache for a text.
fn cache(model: &dyn Model, gpu: Option<&Gpu>, tokens: usize) -> Result<KvCache, KvCacheError> {
    let codec = match gpu {
        Some(gpu) => taper_kv_codecs::parse_on("f16", gpu)?,
        None => taper_kv_codecs::f16(),
    };
    let size = KvConfig::BLOCK_TOKENS;
    let config = model.info().cache(KvScheme::from(codec), size, tokens.div_ceil(size));
    Ok(KvCache::new(KvConfig { recurrent: model.info().states(1, 0), ..config }))
}

fn run(
    model: &dyn Model,
    cache: &mut KvCache,
    tokens: &[TokenId],
    start: usize,
    seen: Option<&mut Vec<QueryStatistics>>,
) -> Result<Shape, QueryError> {
    let seq = SeqId(0);
    let (len, end) = (tokens.len(), start + tokens.len());
    let positions: Vec<u32> = (start..end).map(|p| p as u32).collect();
    let logits_at = [len as u32 - 1];
    let phase = model.info().phase(Phase::Prefill);
    let batch =
        Batch { tokens, positions: &positions, logits_at: &logits_at, phase, ..Batch::default() };
    cache.grow(seq, end)?;
    let mut observer = Observer {
        inner: &mut cache.session(&[SeqRange { seq, start, len }])?,
        seen,
        shape: Shape::default(),
        table: None,
        failed: None,
    };
    model.forward(&batch, &mut observer)?;
    match observer.failed {
        Some(error) => Err(error),
        None => Ok(observer.shape),
    }
}

/// Looks at what a session is given.
struct Observer<'a> {
    inner: &'a mut dyn StateSession,
    /// Statistics of each layer; `None` only looks at the shape.
    seen: Option<&'a mut Vec<QueryStatistics>>,
    shape: Shape,
    /// The embedding of the first layer.
    table: Option<RopeTable>,
    failed: Option<QueryError>,
}

impl Observer<'_> {
    fn look(&mut self, layer: LayerId, rows: &Projected<'_>) -> Result<(), QueryError> {
        let Some(rope) = rows.rope else {
            self.shape
                .unscored
                .get_or_insert("layers without a rotary embedding, or with norms behind it");
            return Ok(());
        };
        let table = rope.table();
        if 2 * table.pairs() != rows.head_dim {
            self.shape.unscored.get_or_insert("rotary embeddings of a part of each head");
            return Ok(());
        }
        match &self.table {
            Some(first) if first != table => {
                self.shape.unscored.get_or_insert("layers with different rotary embeddings");
                return Ok(());
            }
            Some(_) => {}
            None => {
                let omega = table.frequencies().iter().map(|&f| f64::from(f)).collect();
                self.shape.rope = Some(Rope::of_frequencies(omega, f64::from(table.scale()))?);
                self.table = Some(table.clone());
            }
        }
        if let Some(seen) = self.seen.as_mut().and_then(|seen| seen.get_mut(layer.index())) {
            let (q_norm, k_norm) = rows.norms.unzip();
            let [q, _] = norm_rope([(rows.q, q_norm), (rows.k, k_norm)], rows.head_dim, None)?;
            seen.observe(&q.to_vec()?)?;
        }
        Ok(())
    }
}

impl StateSession for Observer<'_> {
    fn attend(
        &mut self,
        layer: LayerId,
        rows: &Projected<'_>,
        params: &AttnParams<'_>,
    ) -> Result<Tensor, KvCacheError> {
        if params.window.is_some() || params.chunk.is_some() {
            self.shape.windowed.get_or_insert("layers that look back a window of tokens");
        }
        if let Err(error) = self.look(layer, rows) {
            self.failed.get_or_insert(error);
        }
        self.inner.attend(layer, rows, params)
    }

    fn attend_stored(
        &mut self,
        layer: LayerId,
        q: &Tensor,
        rows: Option<&[u32]>,
        params: &AttnParams<'_>,
    ) -> Result<Tensor, KvCacheError> {
        self.shape.windowed.get_or_insert("layers that read the keys of others");
        self.inner.attend_stored(layer, q, rows, params)
    }

    fn recur(&mut self, layer: usize, f: &mut RunSegments<'_>) -> Result<(), KvCacheError> {
        self.inner.recur(layer, f)
    }
}
