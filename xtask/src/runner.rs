//! A model with a cache of its own, driven by hand: no engine, no sampler.

use crate::kv::gaussian;
use anyhow::{Context, Result, ensure};
use std::{collections::HashMap, path::Path, sync::Arc};
use taper_base::{LayerId, Phase, SeqId, TokenId};
use taper_kv_cache::{
    DiskTier, Eviction, EvictionPolicy, ExactRoom, KvCache, KvConfig, Recall, RecallCounts,
    SeqRange,
};
use taper_kv_codecs::Exact;
use taper_models::{Batch, LoadOptions, Model};
use taper_tensor::{
    Tensor,
    gpu::{self, Gpu},
    ops,
};
use taper_weights::{Checkpoint, Gguf};

/// Tokens of a step of [`Runner::fill`], and sets of random rows that it has.
const FILL_TOKENS: usize = 512;
const FILL_SETS: usize = 7;

/// Sequences that a runner serves at a time.
const SEQUENCES: usize = 64;
/// Tokens of a step, where a cache keeps exact ones beside codes.
pub(crate) const LONGEST_STEP: usize = 32_768;

/// A model and room for its sequences.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) model: Box<dyn Model>,
    cache: KvCache,
    /// Bytes of the cache that were in use at most.
    pub(crate) peak: u64,
    cold: Option<Cold>,
}

/// Where pages lie that no step reads, and the tokens whose rows are there.
#[derive(Debug)]
struct Cold {
    tokens: HashMap<SeqId, Vec<TokenId>>,
    /// Removed with all that is in it.
    _dir: tempfile::TempDir,
}

/// Some tokens of a sequence to run, after `start` that are in the cache.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) seq: u64,
    pub(crate) start: usize,
    pub(crate) tokens: &'a [TokenId],
    /// Whether they are prefilled or decoded.
    pub(crate) phase: Phase,
}

impl<'a> Piece<'a> {
    /// Tokens of a prompt.
    pub(crate) fn prompt(seq: u64, start: usize, tokens: &'a [TokenId]) -> Self {
        Self { seq, start, tokens, phase: Phase::Prefill }
    }

    /// Generated tokens.
    pub(crate) fn answer(seq: u64, start: usize, tokens: &'a [TokenId]) -> Self {
        Self { seq, start, tokens, phase: Phase::Decode }
    }
}

impl Runner {
    /// Loads a checkpoint, with a cache of `kv_dtype` for `tokens` tokens, beside which it keeps
    /// `exact` ones. It is the longest sequence too.
    pub(crate) fn load(
        dir: &Path,
        kv_dtype: &str,
        exact: Option<Exact>,
        tokens: usize,
        options: LoadOptions<'_>,
    ) -> Result<Self> {
        let weights = match dir.extension().is_some_and(|e| e == "gguf") {
            true => Gguf::open(dir)?.checkpoint()?,
            false => Checkpoint::open(dir)?,
        };
        let gpu = options.gpu;
        let options = LoadOptions { max_model_len: Some(tokens), ..options };
        let model = taper_models::load(&weights, options)
            .with_context(|| format!("loading {}", dir.display()))?;
        Self::over(model, kv_dtype, exact, tokens, gpu)
    }

    /// A model that is loaded, with a cache for so many tokens.
    pub(crate) fn over(
        model: Box<dyn Model>,
        kv_dtype: &str,
        exact: Option<Exact>,
        tokens: usize,
        gpu: Option<&Gpu>,
    ) -> Result<Self> {
        let info = model.info();
        let size = KvConfig::BLOCK_TOKENS;
        // Partial blocks of several sequences need room too.
        let blocks = tokens.div_ceil(size) + 64;
        let codec = match gpu {
            Some(gpu) => taper_kv_codecs::parse_on(kv_dtype, gpu)?,
            None => taper_kv_codecs::parse(kv_dtype)?,
        };
        let tokens_of_cache = blocks * size;
        let step = tokens_of_cache.min(LONGEST_STEP);
        let room = |tokens| ExactRoom::for_sequences(tokens, SEQUENCES, step, size);
        let cache = KvCache::new(KvConfig {
            exact: exact.map(room),
            recurrent: info.states(SEQUENCES, 0),
            ..info.cache(codec, size, blocks)
        });
        Ok(Self { model, cache, peak: 0, cold: None })
    }

    /// Runs chunks as one packed step, or one of each phase where the model has two, and returns
    /// the logits of every token of every chunk, or of each chunk's last token only.
    pub(crate) fn step(&mut self, pieces: &[Piece<'_>], last_only: bool) -> Result<Vec<Vec<f32>>> {
        let mut rows = vec![Vec::new(); pieces.len()];
        for phase in [Phase::Prefill, Phase::Decode] {
            let apart = self.model.info();
            let own = |i: &usize| apart.phase(pieces[*i].phase) == phase;
            let own: Vec<_> = (0..pieces.len()).filter(own).collect();
            if own.is_empty() {
                continue;
            }
            let some: Vec<_> = own.iter().map(|&i| pieces[i]).collect();
            let logits = self.forward(&some, last_only)?;
            let vocab = self.model.info().vocab;
            ops::with_host_f32(&logits, |logits| {
                let mut logits = logits.chunks_exact(vocab).map(<[f32]>::to_vec);
                for i in own {
                    let n = if last_only { 1 } else { pieces[i].tokens.len() };
                    rows[i] = logits.by_ref().take(n).collect();
                }
            })?;
        }
        Ok(rows.concat())
    }

    /// Runs chunks as one packed step; the most likely token after each. From a GPU only the tokens
    /// come back.
    pub(crate) fn greedy(&mut self, pieces: &[Piece<'_>]) -> Result<Vec<TokenId>> {
        let logits = self.forward(pieces, true)?;
        if logits.gpu().is_some() {
            return Ok(gpu::argmax(&logits)?);
        }
        let vocab = self.model.info().vocab;
        Ok(ops::with_host_f32(&logits, |l| l.chunks_exact(vocab).map(argmax).collect())?)
    }

    /// Puts random rows of unit variance into the cache, as the first `tokens` of a sequence: what
    /// decoding at this depth costs is known without the time of a prompt. Layers and stretches of
    /// tokens share a few sets of rows.
    pub(crate) fn fill(&mut self, seq: u64, tokens: usize) -> Result<()> {
        let config = self.cache.config();
        let (g, layers) = (config.geometry, config.layers);
        let alike = (0..layers).all(|layer| config.geometry_of(layer) == g);
        ensure!(alike, "layers of different heads are not filled yet");
        let rows = |len: usize, seed: usize| {
            let rows = gaussian(len * g.kv_heads * g.head_dim, seed as u64);
            Tensor::from_vec(rows, &[len, g.kv_heads, g.head_dim])
        };
        let seq = SeqId(seq);
        let mut sets: Vec<Tensor> = Vec::new();
        for start in (0..tokens).step_by(FILL_TOKENS) {
            let len = FILL_TOKENS.min(tokens - start);
            if sets.first().is_none_or(|set| set.dims()[0] != len) {
                sets = (0..FILL_SETS).map(|set| rows(len, set)).collect::<Result<_, _>>()?;
            }
            self.cache.grow(seq, start + len)?;
            let mut session = self.cache.session(&[SeqRange { seq, start, len }])?;
            for layer in 0..layers {
                let set = start / FILL_TOKENS + 2 * layer;
                let (k, v) = (&sets[set % FILL_SETS], &sets[(set + 1) % FILL_SETS]);
                session.store(LayerId(layer as u16), k, v)?;
            }
        }
        Ok(())
    }

    /// Lets a sequence attend to some of its pages once its prompt is there.
    pub(crate) fn recall(&mut self, seq: u64, pages: usize, prompt_tokens: usize) -> Result<()> {
        Ok(self.cache.set_recall(SeqId(seq), Some(Recall { pages, prompt_tokens }))?)
    }

    /// Lets pages that no step reads lie on disk alone, but those of `hot_tokens` tokens. The cache begins anew.
    pub(crate) fn keep_hot(&mut self, hot_tokens: usize) -> Result<()> {
        let dir = tempfile::tempdir()?;
        let tier = Arc::new(DiskTier::open_alone(dir.path(), u64::MAX)?);
        let config = KvConfig { prefix_caching: true, ..self.cache.config().clone() };
        self.cache = KvCache::new(config).with_disk(tier, "bench").with_hot_tokens(hot_tokens);
        self.cold = Some(Cold { tokens: HashMap::new(), _dir: dir });
        Ok(())
    }

    /// Hands the rows of a step to the disk, where pages may lie there.
    fn publish(&mut self, pieces: &[Piece<'_>]) -> Result<()> {
        let Some(cold) = &mut self.cold else { return Ok(()) };
        ensure!(self.cache.take_lost().is_empty(), "pages on disk cannot be read");
        for piece in pieces {
            let tokens = cold.tokens.entry(SeqId(piece.seq)).or_default();
            tokens.truncate(piece.start);
            tokens.extend_from_slice(piece.tokens);
            self.cache.publish(SeqId(piece.seq), tokens);
        }
        Ok(())
    }

    /// How many pages were attended to since this was last asked; `None` if all were.
    pub(crate) fn pages(&mut self) -> Option<String> {
        let counts = self.cache.take_recall_counts();
        let RecallCounts { steps, attended_pages, skipped_pages, choices, .. } = counts;
        if steps == 0 {
            return None;
        }
        let share = 100.0 * attended_pages as f64 / (attended_pages + skipped_pages) as f64;
        let each = attended_pages as f64 / steps as f64;
        let peak = self.peak as f64 / (1 << 20) as f64;
        let cold = self.cold.as_ref().map(|_| {
            let RecallCounts { evicted_blocks, recalled_blocks, streamed_blocks, wait, .. } = counts;
            format!(
                "; blocks: {evicted_blocks} left memory, {recalled_blocks} came back, {streamed_blocks} read by \
                 prompts; {:.1} s waited; {peak:.1} MiB in memory at most",
                wait.as_secs_f64()
            )
        });
        let cold = cold.unwrap_or_default();
        Some(format!(
            "{each:.1} pages a step, {share:.1} %; {choices} choices in {steps} steps{cold}"
        ))
    }

    /// What the model is.
    pub(crate) fn info(&self) -> &taper_models::ModelInfo {
        self.model.info()
    }

    /// The GPU that the cache is on.
    pub(crate) fn gpu(&self) -> Option<&Gpu> {
        self.cache.config().scheme.codec(0).gpu()
    }

    /// The model, without its cache.
    pub(crate) fn into_model(self) -> Box<dyn Model> {
        self.model
    }

    /// As [`Self::step`], of chunks of one phase, with logits as the model gives them,
    /// `[tokens, vocab]`.
    pub(crate) fn forward(&mut self, pieces: &[Piece<'_>], last_only: bool) -> Result<Tensor> {
        let (mut tokens, mut positions, mut logits_at) = (Vec::new(), Vec::new(), Vec::new());
        let mut ranges = Vec::new();
        for piece in pieces {
            let (start, len) = (piece.start, piece.tokens.len());
            let first = tokens.len();
            tokens.extend_from_slice(piece.tokens);
            positions.extend((start..start + len).map(|p| p as u32));
            let wanted = if last_only { first + len - 1 } else { first };
            logits_at.extend((wanted..first + len).map(|i| i as u32));
            let seq = SeqId(piece.seq);
            let rows = self.cache.rows(seq, start + len);
            self.cache.grow(seq, rows)?;
            ranges.push(SeqRange { seq, start, len });
        }
        let phase_of = |piece: &Piece<'_>| self.model.info().phase(piece.phase);
        let phase = pieces.first().map(phase_of).unwrap_or_default();
        ensure!(pieces.iter().all(|p| phase_of(p) == phase), "pieces of one phase");
        let (tokens, positions, logits_at) = (&*tokens, &*positions, &*logits_at);
        let batch = Batch { tokens, positions, logits_at, phase, ..Batch::default() };
        self.peak = self.peak.max(self.cache.usage().used_bytes());
        let mut session = self.cache.session(&ranges)?;
        let logits = self.model.forward(&batch, &mut session)?;
        self.publish(pieces)?;
        let rows = logits.dims().first();
        ensure!(rows == Some(&logits_at.len()), "one row of logits a token asked for");
        Ok(logits)
    }

    /// Evicts rows of a sequence of `tokens` tokens, so that at most `keep` stay: the first `prefix`, the latest
    /// `window` and those that the policy chooses. There is room for `room` more then. Returns how many went.
    pub(crate) fn evict(
        &mut self,
        (seq, tokens): (u64, usize),
        (keep, prefix, window): (usize, usize, usize),
        room: usize,
        policy: &EvictionPolicy,
    ) -> Result<usize> {
        let seq = SeqId(seq);
        let rows = self.cache.rows(seq, tokens);
        let evict = rows.saturating_sub(keep).next_multiple_of(self.cache.eviction_unit());
        if evict > 0 {
            let eviction = Eviction { seq, tokens, evict, prefix, window, room };
            self.cache.evict(eviction, policy)?;
        }
        Ok(evict)
    }

    /// Forgets a sequence.
    pub(crate) fn release(&mut self, seq: u64) {
        self.cache.release(SeqId(seq));
        self.cache.forget(SeqId(seq));
        if let Some(cold) = &mut self.cold {
            cold.tokens.remove(&SeqId(seq));
        }
    }
}

/// Index of the largest element; the first of equals.
pub(crate) fn argmax(row: &[f32]) -> TokenId {
    let better = |best: (usize, f32), x: (usize, f32)| if x.1 > best.1 { x } else { best };
    let start = (0, f32::NEG_INFINITY);
    row.iter().copied().enumerate().fold(start, better).0 as TokenId
}
