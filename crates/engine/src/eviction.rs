//! Rows that leave the KV cache while a sequence runs: what the settings mean for a model, and carrying it out.

use crate::{
    pool::Pool,
    queries::{self, QueryError},
    step::{OverCacheError, over_cache},
};
use std::sync::Arc;
use taper_base::SeqId;
use taper_kv_cache::{Eviction, EvictionPolicy, KvCache, KvCacheError, KvConfig};
use taper_models::Model;
use taper_scheduler::{DueEviction, EvictionSchedule, Scheduler};
use taper_tensor::gpu::Gpu;
use taper_triattention::{Budget, HeadStatistics, Sharing, TriAttention, TriAttentionError};

/// Which rows stay when others are evicted.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Evict {
    /// The first ones and the latest (StreamingLLM; Xiao et al., arXiv 2309.17453).
    Window,
    /// Those that later queries will look at most, by statistics of each layer's query heads (TriAttention), as
    /// [`observe_queries`](crate::observe_queries) gives them.
    TriAttention(Arc<Vec<Vec<HeadStatistics>>>),
}

/// When rows are evicted, and which.
#[derive(Debug, Clone)]
pub struct EvictionConfig {
    /// Which rows stay.
    pub policy: Evict,
    /// Rows of a sequence that stay, at most.
    pub budget: u32,
    /// Tokens between two evictions; a multiple of a block's tokens and of the recent ones that stay exact.
    pub every: u32,
    /// First tokens whose rows always stay.
    pub prefix: u32,
    /// Latest tokens whose rows always stay.
    pub window: u32,
    /// The rows of a prompt stay, beside a budget for what follows it.
    pub keep_prompt: bool,
}

impl EvictionConfig {
    /// A policy with TriAttention's numbers: 2048 rows, an eviction every 128 tokens, 128 protected ones at either
    /// end.
    #[must_use]
    pub fn new(policy: Evict) -> Self {
        Self { policy, budget: 2048, every: 128, prefix: 128, window: 128, keep_prompt: false }
    }

    /// Rows of a sequence with a short prompt, at most.
    pub(crate) fn rows(&self) -> u64 {
        u64::from(self.budget) + u64::from(self.every)
    }

    /// When rows of a cache of this shape go.
    pub(crate) fn schedule(&self, kv: &KvConfig) -> EvictionSchedule {
        let &Self { budget: keep, every, keep_prompt, .. } = self;
        let unit = u32::try_from(kv.eviction_unit()).unwrap_or(u32::MAX);
        EvictionSchedule { keep, every, unit, keep_prompt }
    }

    /// Refuses numbers that a cache of this shape cannot keep to.
    pub(crate) fn check(&self, kv: &KvConfig) -> Result<(), EvictionError> {
        let &Self { budget, every, prefix, window, .. } = self;
        let unit = self.schedule(kv).unit;
        if every == 0 || !every.is_multiple_of(unit) {
            return Err(EvictionError::Every { every, unit });
        }
        let exact = kv.exact.map(|room| room.tokens);
        let (sinks, recent) = exact.map_or((0, 0), |e| (e.sink_tokens, e.recent_tokens));
        if (prefix as usize) < sinks || (window as usize) < recent {
            return Err(EvictionError::Exact { sinks, recent, prefix, window });
        }
        // As many rows as stay at least, since whole units go.
        let least = budget.saturating_sub(unit - 1);
        if prefix.saturating_add(window) > least {
            return Err(EvictionError::Budget { budget, prefix, window, unit });
        }
        Ok(())
    }
}

/// Why rows cannot be evicted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvictionError {
    /// Evictions that are not of whole units.
    #[error("rows are evicted every {every} tokens, which must be a multiple of {unit}")]
    Every {
        /// What was asked for.
        every: u32,
        /// Tokens of a block, or of the recent ones that stay exact.
        unit: u32,
    },
    /// More rows are protected than stay.
    #[error(
        "a budget of {budget} rows cannot protect the first {prefix} and the latest {window}: these and {unit} more must fit"
    )]
    Budget {
        /// Rows that stay.
        budget: u32,
        /// First ones that always stay.
        prefix: u32,
        /// Latest ones that always stay.
        window: u32,
        /// Rows go in multiples of this.
        unit: u32,
    },
    /// Exact rows that would be evicted.
    #[error(
        "{sinks} sink tokens and {recent} recent tokens are kept exact, more than the protected {prefix} first and {window} latest ones"
    )]
    Exact {
        /// First tokens that are kept exact.
        sinks: usize,
        /// Recent tokens that are kept exact.
        recent: usize,
        /// First tokens whose rows always stay.
        prefix: u32,
        /// Latest tokens whose rows always stay.
        window: u32,
    },
    /// A model whose rows are not all alike.
    #[error("{family} has {what}, from whose cache no rows can be evicted yet")]
    Unsupported {
        /// The model's family.
        family: &'static str,
        /// What stands in the way.
        what: &'static str,
    },
    /// Statistics of another model.
    #[error("the statistics are of {got}, and this model has {expected}")]
    Statistics {
        /// Layers and heads of the model.
        expected: String,
        /// What the statistics have.
        got: String,
    },
    /// The policy refuses its statistics.
    #[error(transparent)]
    Policy(#[from] TriAttentionError),
    /// The model cannot be asked.
    #[error(transparent)]
    Queries(#[from] QueryError),
}

/// Evicts rows of the sequences over one cache.
#[derive(Debug, Clone)]
pub(crate) struct Evictor {
    policy: EvictionPolicy,
    config: EvictionConfig,
}

/// How many rows a sequence may have.
#[derive(Debug)]
pub(crate) struct Rows {
    schedule: EvictionSchedule,
    /// Rows of the smallest cache.
    capacity: u64,
}

impl Rows {
    pub(crate) fn new(schedule: EvictionSchedule, caches: &[KvConfig]) -> Self {
        let rows = caches.iter().map(|kv| (kv.blocks * kv.geometry.block_tokens) as u64);
        Self { schedule, capacity: rows.min().unwrap_or(0) }
    }

    /// Refuses a prompt that no cache has room for: the rows that are needed, and those there are.
    pub(crate) fn check(&self, prompt: u32, new: u32) -> Result<(), (u64, u64)> {
        let all = u64::from(prompt) + u64::from(new);
        let need = all.min(u64::from(self.schedule.first(prompt)));
        if need <= self.capacity { Ok(()) } else { Err((need, self.capacity)) }
    }
}

/// What became of the evictions that were due.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Sequences that lost rows.
    pub(crate) evictions: usize,
    /// Rows that went.
    pub(crate) rows: usize,
    /// Sequences that lost their blocks to one that had none to build its own anew, as others read what it would have
    /// to write. They come to the same rows when they are computed again.
    pub(crate) preempted: usize,
    /// Sequences that cannot go on.
    pub(crate) failed: Vec<(SeqId, OverCacheError)>,
}

impl Evictor {
    /// Checks that the model's rows can be evicted so.
    pub(crate) fn new(
        config: &EvictionConfig,
        model: &dyn Model,
        gpu: Option<&Gpu>,
    ) -> Result<Self, EvictionError> {
        Ok(Self { policy: eviction_policy(&config.policy, model, gpu)?, config: config.clone() })
    }

    /// Carries out what is due, in the order of the queue. Where there is no block for it, the last in that order gives
    /// its own up, one after the other: the first one gets on whatever the others hold.
    pub(crate) fn run(&self, scheduler: &mut Scheduler, cache: &mut KvCache) -> Done {
        let mut done = Done::default();
        loop {
            let failed = |id: SeqId| done.failed.iter().any(|(other, _)| *other == id);
            let Some(due) = scheduler.due().find(|due| !failed(due.id)) else { return done };
            match over_cache(|| cache.evict(self.eviction(&due), &self.policy)) {
                Ok(()) => {
                    scheduler.evicted(due.id);
                    done.evictions += 1;
                    done.rows += due.evict as usize;
                }
                Err(OverCacheError::Cache(KvCacheError::Full { .. })) => {
                    done.preempted +=
                        usize::from(scheduler.preempt_last(&mut Pool(cache)).is_some());
                }
                Err(error) => done.failed.push((due.id, error)),
            }
        }
    }

    fn eviction(&self, due: &DueEviction) -> Eviction {
        let EvictionConfig { every, prefix, window, keep_prompt, .. } = self.config;
        let prompt = if keep_prompt { due.prompt } else { 0 };
        Eviction {
            seq: due.id,
            tokens: due.tokens as usize,
            evict: due.evict as usize,
            prefix: prefix.max(prompt) as usize,
            window: window as usize,
            room: every as usize,
        }
    }
}

/// What a cache needs to evict rows of a model.
///
/// # Errors
/// The model cannot be evicted from, or the statistics are of another one.
pub fn eviction_policy(
    policy: &Evict,
    model: &dyn Model,
    gpu: Option<&Gpu>,
) -> Result<EvictionPolicy, EvictionError> {
    let info = model.info();
    let unsupported = |what| Err(EvictionError::Unsupported { family: info.family, what });
    if !info.recurrent.is_empty() {
        return unsupported("recurrent layers");
    }
    if !info.layer_heads.is_empty() {
        return unsupported("layers with different heads");
    }
    let shape = queries::probe(model, gpu)?;
    if let Some(what) = shape.windowed {
        return unsupported(what);
    }
    let Evict::TriAttention(layers) = policy else { return Ok(EvictionPolicy::Window) };
    let rope = match (shape.unscored, shape.rope) {
        (Some(what), _) => return unsupported(what),
        (None, None) => return unsupported("no rotary embedding"),
        (None, Some(rope)) => rope,
    };
    let of = |layers: usize, heads: usize, bands: usize| {
        format!("{layers} layers of {heads} heads of {}", 2 * bands)
    };
    let expected = of(info.layers, info.heads, info.head_dim / 2);
    let first = layers.first().and_then(|layer| Some((layer.len(), layer.first()?.modulus.len())));
    let got = first.map_or_else(|| "no layers".to_owned(), |(h, bands)| of(layers.len(), h, bands));
    if got != expected {
        return Err(EvictionError::Statistics { expected, got });
    }
    // Each eviction brings a budget of its own.
    let budget = Budget { keep: 1, every: 1, prefix: 0, window: 0 };
    let layers = layers.to_vec();
    let scores = TriAttention::new(rope, layers, info.kv_heads, budget, Sharing::All)?;
    Ok(EvictionPolicy::TriAttention(Arc::new(scores)))
}
