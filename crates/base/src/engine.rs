//! The seam between whoever has requests (HTTP, a terminal, a benchmark) and whoever runs them.

use crate::{AdapterInfo, AdapterRefused, EventSink, GenRequest, InvalidParam, TokenId};
use std::{fmt, path::Path, sync::Arc, time::Duration};

/// Runs requests. Implementations own their thread; calls never wait for a model step.
pub trait Engine: Send + Sync + fmt::Debug + 'static {
    /// Queues a request. Events arrive at `events` until one that is final, or until it is closed.
    ///
    /// # Errors
    /// The request can never run, or there is no room in the queue.
    fn submit(&self, request: GenRequest, events: Box<dyn EventSink>) -> Result<(), SubmitError>;
    /// What this engine serves; fixed for its life.
    fn info(&self) -> &EngineInfo;
    /// Counters and gauges as they stand now.
    fn stats(&self) -> EngineStats;
    /// Adapters that a request can name, by name.
    fn adapters(&self) -> Vec<AdapterInfo> {
        Vec::new()
    }
    /// Loads the adapter of a directory under a name. It returns when requests can name it.
    ///
    /// # Errors
    /// The name is taken, there is no room, or the files are no adapter of this model.
    fn load_adapter(&self, name: &str, dir: &Path) -> Result<(), AdapterRefused> {
        let _ = dir;
        Err(AdapterRefused::NotServed { name: name.to_owned() })
    }
    /// Forgets an adapter. Requests that have begun with it end with it.
    ///
    /// # Errors
    /// There is none of that name.
    fn unload_adapter(&self, name: &str) -> Result<(), AdapterRefused> {
        Err(AdapterRefused::Unknown { name: name.to_owned() })
    }
    /// `false` once the engine has ended without being asked to. It does not come back.
    fn is_alive(&self) -> bool {
        true
    }
}

/// What an engine serves: its model, limits and memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineInfo {
    /// Longest sequence, prompt and output together, in tokens.
    pub max_model_len: u32,
    /// Size of the vocabulary: token ids are below this.
    pub vocab_size: u32,
    /// The model's own end-of-sequence tokens.
    pub eos_token_ids: Vec<TokenId>,
    /// Name of the KV scheme in use, as `--kv-cache-dtype` takes it.
    pub kv_cache_dtype: String,
    /// Values of a request's `kv_bits` that are honoured.
    pub kv_bits: Vec<KvBits>,
    /// Tokens that the KV cache can hold.
    pub kv_capacity_tokens: u64,
    /// Bytes reserved for the KV cache, `kv_exact_bytes` included.
    pub kv_capacity_bytes: u64,
    /// Bytes of uncompressed tokens, included in `kv_capacity_bytes`.
    pub kv_exact_bytes: u64,
    /// Whether requests that begin alike share their KV blocks.
    pub prefix_caching: bool,
    /// Bytes of weights in memory or mapped.
    pub weight_bytes: u64,
    /// Whether tokens are drafted and verified several at a time.
    pub drafting: Drafting,
    /// Pages that a new token attends to beside the first and the recent ones, unless its request says otherwise;
    /// 0 attends to all.
    pub kv_recall_pages: u32,
}

/// Speculative decoding of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drafting {
    /// Each step computes one token of a sequence.
    Off {
        /// Why, in words that end "no tokens are drafted: ...".
        reason: String,
    },
    /// Steps verify drafts where they are likely to save time.
    On {
        /// What drafts: `suffix`, `ngram`, `draft_model`, `mtp`.
        method: String,
        /// Most tokens of a draft.
        most: u32,
    },
}

impl Default for Drafting {
    fn default() -> Self {
        Self::Off { reason: "the engine has no drafter".to_owned() }
    }
}

/// Positions of a draft that are counted apart, and the longest draft.
pub const MAX_DRAFT_TOKENS: usize = 8;

/// A value of [`GenRequest::kv_bits`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvBits {
    /// Value of the request's field `kv_bits`.
    pub bits: u32,
    /// The KV scheme they get.
    pub kv_cache_dtype: String,
    /// Which of the engine's caches that is.
    pub lane: usize,
}

/// Tokens by which steps are counted, as vLLM does.
pub const STEP_TOKENS: [u32; 13] = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384];

/// Gauges, then counters since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineStats {
    /// Requests with a part in the current step.
    pub running: u32,
    /// Requests in the queue.
    pub waiting: u32,
    /// KV blocks in use, of `kv_blocks_total`.
    pub kv_blocks_used: u32,
    /// KV blocks that nobody holds and whose contents may be used again; they count as free.
    pub kv_blocks_idle: u32,
    /// KV blocks in all.
    pub kv_blocks_total: u32,
    /// Blocks of exact tokens that are promised to sequences, of `kv_exact_blocks_total`.
    pub kv_exact_blocks_used: u32,
    /// Blocks of exact tokens that can be promised; 0 where the cache keeps none.
    pub kv_exact_blocks_total: u32,
    /// Bytes of the blocks in use and of the exact tokens beside them.
    pub kv_used_bytes: u64,
    /// Bytes of uncompressed tokens, included in `kv_used_bytes`.
    pub kv_exact_bytes: u64,
    /// Tokens of prompts that a step takes where several requests share it.
    pub step_prompt_tokens: u32,
    /// Prompt tokens computed.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
    /// Tokens chosen under a grammar's mask.
    pub masked_tokens: u64,
    /// Tokens that a grammar left no choice about: they were not sampled.
    pub forced_tokens: u64,
    /// Time that threads spent on finding the tokens that grammars allow.
    pub mask_time: Duration,
    /// How much of it steps waited for, after the forward pass beside which it is spent.
    pub mask_wait: Duration,
    /// Sequences preempted because the KV cache was full.
    pub preemptions: u64,
    /// Requests that ended because nobody listened.
    pub cancelled: u64,
    /// Steps run: forward passes over a batch.
    pub steps: u64,
    /// Steps that failed or panicked; the requests of each failed with it.
    pub failed_steps: u64,
    /// Times that the engine failed outside of a step, and went on with an empty KV cache.
    pub restarts: u64,
    /// How long the step that runs has taken so far; zero between steps.
    pub step_time: Duration,
    /// Steps by their tokens: up to each of [`STEP_TOKENS`], and more.
    pub steps_by_tokens: [u64; STEP_TOKENS.len() + 1],
    /// Tokens of all steps.
    pub step_tokens: u64,
    /// Times that rows of a sequence were evicted from the KV cache.
    pub kv_evictions: u64,
    /// Tokens whose rows were evicted.
    pub kv_evicted_tokens: u64,
    /// KV blocks written to disk.
    pub disk_written_blocks: u64,
    /// Bytes of the files that hold them.
    pub disk_written_bytes: u64,
    /// Prompt tokens whose keys and values came from disk.
    pub disk_hit_tokens: u64,
    /// Drafts that were verified.
    pub drafts: u64,
    /// Tokens of these drafts.
    pub draft_tokens: u64,
    /// Tokens of them that were what was chosen.
    pub accepted_draft_tokens: u64,
    /// How often the token at each position of a draft was what was chosen.
    pub accepted_per_position: [u64; MAX_DRAFT_TOKENS],
    /// Time spent on finding drafts.
    pub draft_time: Duration,
    /// Steps of sequences that attended to some of their pages.
    pub recall_steps: u64,
    /// Pages that they attended to.
    pub recall_attended_pages: u64,
    /// Pages that they left out.
    pub recall_skipped_pages: u64,
    /// Choices of pages.
    pub recall_choices: u64,
    /// Pages of running sequences that are on disk alone.
    pub kv_cold_pages: u32,
    /// Pages that have left memory; a file has them.
    pub kv_evicted_pages: u64,
    /// Pages that came back from disk for a step.
    pub kv_recalled_pages: u64,
    /// Pages that prompts have read from disk without keeping them, once a step.
    pub kv_streamed_pages: u64,
    /// How long steps waited for pages on disk.
    pub kv_recall_wait: Duration,
    /// Experts that stay on a disk; `None` where all weights are in memory.
    pub experts: Option<ExpertStats>,
}

/// Experts of a model that are in memory only while they are used: gauges, then counters since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExpertStats {
    /// Experts that there is room for.
    pub slots: u64,
    /// Slots that are needed at least.
    pub floor_slots: u64,
    /// Bytes of a slot.
    pub slot_bytes: u64,
    /// Experts of all layers.
    pub experts: u64,
    /// Experts in memory.
    pub resident: u64,
    /// Experts that a token goes through, over all layers.
    pub active: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Experts that were in memory when they were needed.
    pub hits: u64,
    /// Experts that had to be waited for.
    pub misses: u64,
    /// Experts that were read ahead and then needed.
    pub prefetch_useful: u64,
    /// Experts that were read ahead in vain.
    pub prefetch_wasted: u64,
    /// Reads that failed and were tried again.
    pub retries: u64,
    /// Slots that were given up because memory was short.
    pub shrunk: u64,
    /// Tokens that went through experts.
    pub tokens: u64,
    /// How long steps waited for the disk.
    pub stall: Duration,
}

/// Why a request was not admitted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// Nothing to run.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// Prompt and `max_tokens` do not fit the model's context.
    #[error(
        "this model's maximum context length is {max} tokens, and the request needs {prompt} for the prompt and {new} for the output"
    )]
    TooLong {
        /// Prompt tokens.
        prompt: u32,
        /// Output tokens asked for.
        new: u32,
        /// The limit.
        max: u32,
    },
    /// The request can never fit the KV cache.
    #[error("the request needs {need} tokens of KV cache and the cache holds {capacity}")]
    NeverFits {
        /// Tokens needed.
        need: u64,
        /// Tokens there are.
        capacity: u64,
    },
    /// A token is not in the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    UnknownToken {
        /// The offender.
        token: TokenId,
        /// Vocabulary size.
        vocab: u32,
    },
    /// A sampling parameter is out of range.
    #[error(transparent)]
    InvalidParam(#[from] InvalidParam),
    /// No cache of that many bits.
    #[error("kv_bits {asked} is not served here; {}", served(offered))]
    KvBits {
        /// What was asked for.
        asked: u32,
        /// KV-cache bits that the engine offers.
        offered: Vec<u32>,
    },
    /// A KV cache all of whose pages are attended to.
    #[error("kv_recall_pages {asked} is not possible here: {reason}; leave it out, or say 0")]
    NoRecall {
        /// What was asked for.
        asked: u32,
        /// Why.
        reason: &'static str,
    },
    /// Images, of a model that takes none.
    #[error("this model does not take images")]
    NoImages,
    /// Images, where rows are evicted by rules that take a row's index for its position.
    #[error(
        "images are not possible here: tokens are evicted from the KV cache; start the server without eviction"
    )]
    ImagesEvicted,
    /// Tokens that see each other, of an image or of a whole prompt, which no step has room for.
    #[error(
        "{tokens} tokens of the prompt see each other and are computed at once, and a step has {most}; use a smaller image or a shorter prompt, or raise --max-num-batched-tokens"
    )]
    TooManyAtOnce {
        /// How many they are.
        tokens: u32,
        /// Tokens that a step computes at most.
        most: u32,
    },
    /// An image that does not fit the prompt or the model.
    #[error("image {image} does not fit the prompt: {reason}")]
    Medium {
        /// Index of the image.
        image: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// No adapter of that name.
    #[error("there is no adapter {name:?}")]
    UnknownAdapter {
        /// What was asked for.
        name: Arc<str>,
    },
    /// A priority, where requests are served in the order of arrival.
    #[error("priority {asked} is not possible here: requests are served in the order of arrival")]
    NoPriorities {
        /// What was asked for.
        asked: i32,
    },
    /// Try again later.
    #[error("the queue of {limit} requests is full")]
    QueueFull {
        /// Requests that the queue holds.
        limit: u32,
    },
    /// This client has its share of the queue; others still find room.
    #[error(
        "{open} requests of this client are open, and the queue of {limit} has only {free} places left for others"
    )]
    ClientQueueFull {
        /// Requests of the client that have not ended.
        open: u32,
        /// Places that are left.
        free: u32,
        /// Length of the queue.
        limit: u32,
    },
    /// The model makes vectors of texts.
    #[error("this model makes vectors or scores of texts, and no text")]
    NoGeneration,
    /// Every token would end the output before `min_tokens`.
    #[error("no token is left to choose from: before min_tokens, no stop token can be chosen")]
    NoCandidate,
    /// The engine has ended without being asked to.
    #[error("the engine has failed; the server must be restarted")]
    EngineDead,
    /// The engine takes no more requests.
    #[error("the engine is shutting down")]
    ShuttingDown,
}

fn served(bits: &[u32]) -> String {
    let names: Vec<_> = bits.iter().map(u32::to_string).collect();
    match names.as_slice() {
        [] => "leave it out".to_owned(),
        names => format!("leave it out, or say {}", names.join(" or ")),
    }
}
