//! What an engine is made with, and why it cannot be.

use crate::{EvictionConfig, EvictionError, Speculation};
use std::{path::PathBuf, time::Duration};
use taper_base::{AdapterRefused, KvBits, TokenId};
use taper_kv_cache::{
    ExactRoom, KvCacheError, KvConfig, KvHeads, KvScheme, RecurrentConfig, ResidentRoom,
};
use taper_kv_codecs::{Exact, KvCodecError, KvGeometry};
use taper_models::ModelInfo;

/// Settings of an engine. Name those that matter and take the rest from [`Default`], as further ones
/// may come: `EngineConfig { max_num_seqs: 8, ..EngineConfig::default() }`.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Longest sequence; `None` is the model's own, lowered to what the cache holds.
    pub max_model_len: Option<u32>,
    /// Maximum number of sequences in a step.
    pub max_num_seqs: u32,
    /// Maximum number of tokens in a step.
    pub max_num_batched_tokens: u32,
    /// The order in which requests are served.
    pub scheduling: Scheduling,
    /// Requests that may be open beside the `max_num_seqs` that run.
    pub max_waiting: u32,
    /// How keys and values are stored, layer by layer.
    pub scheme: KvScheme,
    /// Other schemes that a request may ask for. Each has a cache of its own, with an equal part of
    /// the memory.
    pub offers: Vec<KvOffer>,
    /// Which tokens stay exact beside a compressed cache.
    pub exact: Option<Exact>,
    /// Blocks of earlier requests are used again by those that begin with the same tokens.
    pub prefix_caching: bool,
    /// Prefixes are kept on disk too, and found there after a restart.
    pub disk: Option<KvDisk>,
    /// Pages of 64 tokens that a new token attends to beside the first and the recent ones, unless its request
    /// says otherwise; 0 attends to all.
    pub kv_recall_pages: u32,
    /// Pages that are on disk and that no step reads leave memory: those of so many tokens stay. `None` lets none
    /// leave.
    pub kv_hot_tokens: Option<usize>,
    /// Bytes of pages that may be in memory at a time, where pages may leave it: sequences wait for each other, and
    /// what never fits is refused. `None` sets no limit.
    pub kv_resident_bytes: Option<u64>,
    /// Memory is returned to the system after some time without requests; `None` keeps it.
    pub idle: Option<KvIdle>,
    /// Memory for the cache.
    pub kv_budget: KvBudget,
    /// Adapters that requests can name from the start, each with its directory.
    pub adapters: Vec<(String, PathBuf)>,
    /// Adapters that may be loaded at a time.
    pub max_adapters: usize,
    /// The largest rank of an adapter; `None` sets no limit.
    pub max_adapter_rank: Option<usize>,
    /// What drafts tokens; `None` drafts none. It changes the time of an output and nothing else.
    pub speculation: Option<Speculation>,
    /// Rows of a sequence are evicted from the cache while it runs; `None` keeps all.
    pub eviction: Option<EvictionConfig>,
    /// The model's own end-of-sequence tokens.
    pub eos_token_ids: Vec<TokenId>,
}

/// A server of 256 sequences with an `f16` cache of 1 GiB, suffix drafts, and no stop tokens.
impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_model_len: None,
            max_num_seqs: 256,
            max_num_batched_tokens: 512,
            scheduling: Scheduling::default(),
            max_waiting: 1024,
            scheme: KvScheme::default(),
            offers: Vec::new(),
            exact: Some(Exact::DEFAULT),
            prefix_caching: true,
            disk: None,
            kv_recall_pages: 0,
            kv_hot_tokens: None,
            kv_resident_bytes: None,
            idle: None,
            kv_budget: KvBudget::Bytes(1 << 30),
            adapters: Vec::new(),
            max_adapters: 64,
            max_adapter_rank: None,
            speculation: Some(Speculation::suffix()),
            eviction: None,
            eos_token_ids: Vec::new(),
        }
    }
}

/// The order in which requests are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scheduling {
    /// That of their arrival; a request with a priority is refused.
    #[default]
    Fcfs,
    /// The lowest [`priority`](taper_base::GenRequest::priority) first, equals in the order of
    /// their arrival.
    Priority,
}

/// A scheme that requests name by its bits.
#[derive(Debug, Clone)]
pub struct KvOffer {
    /// Value of the request's field `kv_bits`.
    pub bits: u32,
    /// KV codecs of the cache that serves such requests.
    pub scheme: KvScheme,
}

/// Where prefixes are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvDisk {
    /// A directory; several processes and models may share it.
    pub dir: PathBuf,
    /// What its files may take together.
    pub max_bytes: u64,
    /// Names the weights and the arithmetic: rows computed by others are not found.
    pub model: String,
}

/// What becomes of the cache's memory while there are no requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvIdle {
    /// How long after the last request memory is returned to the system.
    pub after: Duration,
    /// Bytes of prefixes that stay, the latest ones; `None` is a quarter of the weights' bytes.
    pub keep_bytes: Option<u64>,
}

/// What an engine will hold.
#[derive(Debug, Clone)]
pub struct EnginePlan {
    /// The cache of [`EngineConfig::scheme`], then one an offer.
    pub caches: Vec<KvConfig>,
    /// Maximum length of a sequence, in tokens.
    pub max_model_len: u32,
}

/// Memory for the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvBudget {
    /// At most so many bytes, and no more than `max_num_seqs` full sequences would fill.
    Bytes(u64),
    /// Exactly so many tokens of each scheme, rounded up to blocks.
    Tokens(u64),
}

/// Why an engine cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The cache cannot hold one sequence of the length asked for.
    #[error(
        "a sequence of {wanted} tokens needs more KV cache than the {capacity} tokens that fit {budget_bytes} bytes"
    )]
    TooLong {
        /// Tokens asked for.
        wanted: u64,
        /// Tokens that fit.
        capacity: u64,
        /// The budget.
        budget_bytes: u64,
    },
    /// Longer than the model was made for.
    #[error(
        "a context of {wanted} tokens is longer than the {max} positions of this model's config.json"
    )]
    BeyondModel {
        /// Tokens asked for.
        wanted: u64,
        /// The model's positions.
        max: u64,
    },
    /// Exact tokens that are no whole blocks.
    #[error(
        "the sink tokens and recent tokens that stay exact must be multiples of {block}, or both 0"
    )]
    Exact {
        /// Tokens of a block.
        block: usize,
    },
    /// Two schemes that requests would name alike.
    #[error("two KV schemes are offered for kv_bits {bits}")]
    SameBits {
        /// The bits.
        bits: u32,
    },
    /// A limit of zero.
    #[error("{name} must be at least 1")]
    Zero {
        /// The setting.
        name: &'static str,
    },
    /// A KV scheme that cannot keep this model's heads.
    #[error("a KV cache of {scheme} does not fit this model: {source}")]
    Scheme {
        /// The scheme.
        scheme: String,
        /// Why.
        #[source]
        source: KvCodecError,
    },
    /// A KV cache all of whose pages are attended to.
    #[error("a new token attends to all pages here: {reason}")]
    NoRecall {
        /// Why.
        reason: &'static str,
    },
    /// Pages cannot leave memory.
    #[error("no page of the KV cache can leave memory: {reason}")]
    NoHotTokens {
        /// Why.
        reason: &'static str,
    },
    /// Pages that are neither in memory nor on disk.
    #[error(
        "a KV cache of {kv_bytes} bytes is more than the {resident_bytes} that fit memory and the {disk_bytes} on disk"
    )]
    NoColdRoom {
        /// Bytes of all pages.
        kv_bytes: u64,
        /// Bytes of those that may be in memory.
        resident_bytes: u64,
        /// Bytes of those that may be on disk.
        disk_bytes: u64,
    },
    /// Prefixes on disk, of a model whose states are not written there.
    #[error("{family} has recurrent layers, whose prefixes cannot be kept on disk yet")]
    NoDisk {
        /// The model's family.
        family: &'static str,
    },
    /// The directory for prefixes cannot be used.
    #[error(transparent)]
    Disk(#[from] KvCacheError),
    /// Rows cannot be evicted so, or not of this model.
    #[error(transparent)]
    Eviction(#[from] EvictionError),
    /// An adapter cannot be loaded.
    #[error(transparent)]
    Adapter(#[from] AdapterRefused),
    /// The operating system gives no thread.
    #[error("cannot start the engine's thread: {0}")]
    Thread(#[from] std::io::Error),
}

impl EngineConfig {
    /// Values of a request's `kv_bits`, and where they lead.
    pub(crate) fn kv_bits(&self) -> Vec<KvBits> {
        let own = self.scheme.bits().and_then(|bits| u32::try_from(bits).ok());
        let offers = self.offers.iter().map(|o| (Some(o.bits), &o.scheme));
        let all = std::iter::once((own, &self.scheme)).chain(offers).enumerate();
        let named = |(lane, (bits, scheme)): (usize, (Option<u32>, &KvScheme))| {
            Some(KvBits { bits: bits?, kv_cache_dtype: scheme.to_string(), lane })
        };
        all.filter_map(named).collect()
    }

    /// The shapes of the caches and the longest sequence, for a model.
    ///
    /// # Errors
    /// The lengths asked for do not fit, or two offers have the same bits.
    pub fn plan(&self, model: &ModelInfo) -> Result<EnginePlan, EngineError> {
        let offered = self.kv_bits();
        for (i, KvBits { bits, .. }) in offered.iter().enumerate() {
            if offered[..i].iter().any(|other| other.bits == *bits) {
                return Err(EngineError::SameBits { bits: *bits });
            }
        }
        let budget = match self.kv_budget {
            KvBudget::Bytes(bytes) => KvBudget::Bytes(bytes / (1 + self.offers.len() as u64)),
            tokens @ KvBudget::Tokens(_) => tokens,
        };
        let schemes = std::iter::once(&self.scheme).chain(self.offers.iter().map(|o| &o.scheme));
        if let Some(reason) = self.cannot_cool().filter(|_| self.kv_hot_tokens.is_some()) {
            return Err(EngineError::NoHotTokens { reason });
        }
        if self.disk.is_some() && !model.recurrent.is_empty() {
            return Err(EngineError::NoDisk { family: model.family });
        }
        let mut plan = EnginePlan { caches: Vec::new(), max_model_len: u32::MAX };
        for scheme in schemes {
            let (cache, max_model_len) = self.plan_one(scheme, budget, model)?;
            plan.caches.push(cache);
            plan.max_model_len = plan.max_model_len.min(max_model_len);
        }
        self.check_cold_room(&plan.caches)?;
        match self.cannot_recall(&plan.caches).filter(|_| self.kv_recall_pages > 0) {
            Some(reason) => Err(EngineError::NoRecall { reason }),
            None => Ok(plan),
        }
    }

    /// Refuses caches of which some pages would have no place.
    fn check_cold_room(&self, caches: &[KvConfig]) -> Result<(), EngineError> {
        let limits = self.kv_hot_tokens.and(self.kv_resident_bytes).zip(self.disk.as_ref());
        let Some((resident_bytes, disk)) = limits else { return Ok(()) };
        let (kv_bytes, disk_bytes) = (caches.iter().map(KvConfig::bytes).sum(), disk.max_bytes);
        match resident_bytes.saturating_add(disk_bytes) < kv_bytes {
            true => Err(EngineError::NoColdRoom { kv_bytes, resident_bytes, disk_bytes }),
            false => Ok(()),
        }
    }

    /// What of a cache may be in memory at a time; `None` where all of it may.
    pub(crate) fn resident(&self, kv: &KvConfig, caches: usize) -> Option<ResidentRoom> {
        let (hot, bytes) = self.kv_hot_tokens.zip(self.kv_resident_bytes)?;
        let exact = kv.bytes_per_exact_block() * kv.exact_blocks() as u64;
        let bytes = (bytes / caches.max(1) as u64).saturating_sub(exact + kv.bytes_of_boxes());
        let blocks = usize::try_from(bytes / kv.bytes_per_block().max(1)).unwrap_or(usize::MAX);
        let blocks = Some(blocks).filter(|blocks| *blocks < kv.blocks)?;
        let blocks = blocks.saturating_sub(hot.div_ceil(kv.geometry.block_tokens));
        Some(ResidentRoom { blocks, step_tokens: self.max_num_batched_tokens as usize })
    }

    /// Why pages cannot leave memory; `None` where they can.
    fn cannot_cool(&self) -> Option<&'static str> {
        match () {
            () if self.disk.is_none() => Some("there is no directory for them"),
            () if !self.prefix_caching => Some("files are of prefixes, and none is cached"),
            () if self.eviction.is_some() => Some("tokens are evicted"),
            () => None,
        }
    }

    /// Why sequences over these caches cannot leave pages out; `None` where they can.
    pub(crate) fn cannot_recall(&self, caches: &[KvConfig]) -> Option<&'static str> {
        let evicts = self.eviction.is_some();
        let evicts = evicts.then_some("tokens are evicted, and pages that are left out must stay");
        evicts.or_else(|| caches.iter().find_map(KvConfig::cannot_recall))
    }

    /// The cache of one scheme, and the longest sequence that it holds.
    fn plan_one(
        &self,
        scheme: &KvScheme,
        budget: KvBudget,
        model: &ModelInfo,
    ) -> Result<(KvConfig, u32), EngineError> {
        let limits = [
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
            ("max_model_len", self.max_model_len.unwrap_or(1)),
        ];
        if let Some(&(name, _)) = limits.iter().find(|(_, n)| *n == 0) {
            return Err(EngineError::Zero { name });
        }
        let max = model.max_positions as u64;
        let wanted = self.max_model_len.map_or(max, u64::from);
        if wanted > max {
            return Err(EngineError::BeyondModel { wanted, max });
        }
        let mut kv = model.cache(scheme.clone(), KvConfig::BLOCK_TOKENS, 0);
        let geometry = kv.geometry;
        let unfit = |source| EngineError::Scheme { scheme: scheme.to_string(), source };
        kv.check().map_err(unfit)?;
        kv.prefix_caching = self.prefix_caching;
        let compressed = kv.bytes_per_exact_block() > 0;
        if let Some(Exact { sink_tokens, recent_tokens }) = self.exact {
            let whole = |n: usize| n.is_multiple_of(geometry.block_tokens);
            if recent_tokens == 0 || !whole(recent_tokens) || !whole(sink_tokens) {
                return Err(EngineError::Exact { block: geometry.block_tokens });
            }
        }
        let (sequences, step) = (self.max_num_seqs as usize, self.max_num_batched_tokens as usize);
        let room =
            |tokens| ExactRoom::for_sequences(tokens, sequences, step, geometry.block_tokens);
        kv.exact = self.exact.filter(|_| compressed).map(room);
        let block = geometry.block_tokens as u64;
        let tokens = wanted.min(USUAL_TOKENS);
        let drafts = self.speculation.as_ref().map_or(0, Speculation::longest);
        kv.recurrent = recurrent(&kv, model, budget, (self.max_num_seqs, drafts), tokens);
        kv.blocks = match budget {
            KvBudget::Tokens(tokens) => usize::try_from(tokens.div_ceil(block)),
            KvBudget::Bytes(bytes) => {
                let full = u64::from(self.max_num_seqs) * wanted.div_ceil(block);
                let states = kv.recurrent.as_ref().map_or(0, RecurrentConfig::bytes);
                let bytes = self.beside_head(bytes.saturating_sub(states), &kv, model);
                usize::try_from(divide(&mut kv, bytes, self.max_num_seqs, tokens).min(full))
            }
        }
        .unwrap_or(usize::MAX);
        let capacity = kv.blocks as u64 * block;
        if let Some(eviction) = &self.eviction {
            eviction.check(&kv)?;
        }
        // Rows of the longest output; how long a prompt may be is seen when it comes.
        let rows = self.eviction.as_ref().map_or(wanted, |e| wanted.min(e.rows()));
        if capacity == 0 || (self.max_model_len.is_some() && rows > capacity) {
            let budget_bytes = match budget {
                KvBudget::Bytes(bytes) => bytes,
                KvBudget::Tokens(_) => kv.bytes(),
            };
            return Err(EngineError::TooLong { wanted: rows, capacity, budget_bytes });
        }
        let longest = if rows < wanted && rows <= capacity { wanted } else { wanted.min(capacity) };
        let max_model_len = u32::try_from(longest).unwrap_or(u32::MAX);
        Ok((kv, max_model_len))
    }

    /// What is left of a budget where a head drafts, which has as many tokens in a cache of its own as there are in this
    /// one.
    fn beside_head(&self, bytes: u64, kv: &KvConfig, model: &ModelInfo) -> u64 {
        let reads = self.speculation.as_ref().is_some_and(Speculation::reads_head);
        let Some(heads) = model.draft_heads.filter(|_| reads) else { return bytes };
        let KvHeads { kv_heads, head_dim, .. } = heads;
        let geometry = KvGeometry { kv_heads, head_dim, ..kv.geometry };
        let its = KvConfig::new(KvScheme::default(), 1, geometry, 1).bytes_per_block();
        let (own, its) = (u128::from(kv.bytes_per_block().max(1)), u128::from(its));
        (u128::from(bytes) * own / (own + its)) as u64
    }
}

/// Length of the sequences for which exact blocks and blocks of codes run out together. Longer ones
/// leave exact blocks over, shorter ones blocks of codes.
const USUAL_TOKENS: u64 = 1000;

/// Tokens between two snapshots of recurrent states: at least, and at most.
const SNAPSHOT_TOKENS: (u64, u64) = (256, 2048);

/// Sequences whose longest drafts are verified together, of a model with recurrent states, and the share of the
/// budget that the states of drafted tokens take at most.
const DRAFTING: (u32, u64) = (4, 8);

/// The recurrent states of a model: one for each sequence that runs, for the prefix cache a snapshot for each, and
/// those of drafted tokens, of which a sequence has at most so many. A snapshot takes no more memory than the keys and values between it and the one before,
/// unless these would be too far apart.
fn recurrent(
    kv: &KvConfig,
    model: &ModelInfo,
    budget: KvBudget,
    (sequences, drafts): (u32, u32),
    tokens: u64,
) -> Option<RecurrentConfig> {
    let mut config = model.states(0, 0)?;
    let (state, block) = (config.bytes_per_slot().max(1), kv.bytes_per_block().max(1));
    let size = kv.geometry.block_tokens as u64;
    let each = if kv.prefix_caching { 2 } else { 1 };
    let drafts = u64::from(drafts) * u64::from(sequences.min(DRAFTING.0));
    // What is verified on a GPU is not taken back yet.
    let drafts = if kv.scheme.codec(0).gpu().is_some() { 0 } else { drafts };
    let (running, drafts) = match budget {
        KvBudget::Tokens(_) => (u64::from(sequences), drafts),
        KvBudget::Bytes(bytes) => {
            let drafts = drafts.min(bytes / DRAFTING.1 / state);
            let sequence = tokens.div_ceil(size) * block + each * state;
            let running = (bytes - drafts * state) / sequence;
            (running.clamp(1, u64::from(sequences)), drafts)
        }
    };
    config.draft_slots = usize::try_from(drafts).unwrap_or(usize::MAX);
    let (least, most) = SNAPSHOT_TOKENS;
    let interval = state.div_ceil(block).saturating_mul(size).clamp(least, most);
    config.slots = usize::try_from(running * each).unwrap_or(usize::MAX);
    config.interval = usize::try_from(interval.next_multiple_of(least)).unwrap_or(usize::MAX);
    Some(config)
}

/// Share of the budget that the exact tokens of a step may take; beyond it steps are shorter.
const STEP_SHARE: u64 = 16;

/// Exact blocks beyond those of the usual sequences: prompts that are being computed need one more.
const SPARE: u64 = 4;

/// Divides a budget among blocks and the exact rows beside them, so that both serve the same number
/// of sequences of `tokens` tokens; returns the number of blocks.
fn divide(kv: &mut KvConfig, bytes: u64, sequences: u32, tokens: u64) -> u64 {
    let (coded, exact) = (kv.bytes_per_block().max(1), kv.bytes_per_exact_block().max(1));
    let size = kv.geometry.block_tokens;
    let Some(room) = &mut kv.exact else { return bytes / coded };
    let step = room.step_tokens.div_ceil(size) as u64;
    let step = step.min((bytes / STEP_SHARE / exact).max(1));
    room.step_tokens = room.step_tokens.min(step as usize * size);
    let each = ((room.tokens.sink_tokens + room.tokens.recent_tokens) / size) as u64;
    let blocks = tokens.div_ceil(size as u64);
    let fixed = step + SPARE + each;
    let rest = bytes.saturating_sub(fixed * exact);
    let fit = rest / (blocks * coded + each.min(blocks) * exact);
    let exact_blocks = fixed + fit.min(u64::from(sequences)) * each;
    // Where there are fewer blocks than that, each may have an exact one.
    let both = bytes / (coded + exact);
    let (exact_blocks, blocks) = match exact_blocks >= both {
        true => (both, both),
        false => (exact_blocks, (bytes - exact_blocks * exact) / coded),
    };
    room.blocks = usize::try_from(exact_blocks).unwrap_or(usize::MAX);
    blocks
}
