//! Settings of a model.

use crate::{Error, Eviction, Experts, KvPlan, ModelSource, Result, Taper, load};
use serde_json::{Map, Value};
use std::{fmt, path::PathBuf, sync::Arc};
use taper_engine::{KvIdle, Scheduling, Speculation};
use taper_kv_codecs::Exact;
use taper_models::Precision;
use taper_tensor::gpu::Gpu;

/// Where a chat template comes from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ChatTemplateFrom {
    /// The model.
    #[default]
    Model,
    /// A file.
    File(PathBuf),
    /// There is none: text can only be continued as it is.
    Nowhere,
}

/// A function that is told how far a load is.
#[derive(Clone)]
pub struct Progress(Arc<dyn Fn(u64, u64) + Send + Sync>);

impl Progress {
    pub(crate) fn report(&self, done: u64, total: u64) {
        (self.0)(done, total);
    }
}

impl<F: Fn(u64, u64) + Send + Sync + 'static> From<F> for Progress {
    fn from(report: F) -> Self {
        Self(Arc::new(report))
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}

/// Which model it is.
#[derive(Debug, Clone)]
enum Which {
    Named(String),
    Found(ModelSource),
}

/// Settings of a model; [`Self::build`] loads it.
///
/// Names and defaults are those of `taper run`: one sequence at a time, an f16 KV cache, and up to 0.6
/// of the free memory.
#[derive(Debug, Clone)]
pub struct Builder {
    which: Which,
    dtype: String,
    pub(crate) kv: KvPlan,
    pub(crate) kv_offers: Vec<(u32, KvPlan)>,
    pub(crate) kv_exact: Option<Exact>,
    pub(crate) kv_recall_pages: u32,
    pub(crate) kv_hot_tokens: Option<usize>,
    pub(crate) kv_disk: Option<(PathBuf, u64)>,
    pub(crate) kv_idle: Option<KvIdle>,
    pub(crate) kv_bytes: Option<u64>,
    pub(crate) memory_share: f64,
    pub(crate) prefix_caching: bool,
    pub(crate) max_model_len: Option<u32>,
    pub(crate) max_num_seqs: u32,
    pub(crate) max_num_batched_tokens: Option<u32>,
    pub(crate) max_waiting: u32,
    pub(crate) scheduling: Scheduling,
    pub(crate) threads: Option<usize>,
    pub(crate) gpu: Option<Gpu>,
    pub(crate) chat_template: ChatTemplateFrom,
    pub(crate) progress: Option<Progress>,
    pub(crate) adapters: Vec<(String, PathBuf)>,
    pub(crate) max_adapters: usize,
    pub(crate) max_adapter_rank: Option<usize>,
    pub(crate) speculation: Option<Speculation>,
    pub(crate) draft_model: Option<(ModelSource, u32)>,
    pub(crate) eviction: Option<Eviction>,
    pub(crate) experts: Option<Experts>,
    pub(crate) moe_top_k: Option<usize>,
    pub(crate) images: bool,
    pub(crate) processor_kwargs: Map<String, Value>,
}

impl Builder {
    fn new(which: Which) -> Self {
        Self {
            which,
            dtype: "auto".to_owned(),
            kv: KvPlan::All("auto".to_owned()),
            kv_offers: Vec::new(),
            kv_exact: Some(Exact::DEFAULT),
            kv_recall_pages: 0,
            kv_hot_tokens: None,
            kv_disk: None,
            kv_idle: None,
            kv_bytes: None,
            memory_share: 0.6,
            prefix_caching: true,
            max_model_len: None,
            max_num_seqs: 1,
            max_num_batched_tokens: None,
            max_waiting: 1,
            scheduling: Scheduling::default(),
            threads: None,
            gpu: None,
            chat_template: ChatTemplateFrom::Model,
            progress: None,
            adapters: Vec::new(),
            max_adapters: 64,
            max_adapter_rank: None,
            speculation: Some(Speculation::suffix()),
            draft_model: None,
            eviction: None,
            experts: None,
            moe_top_k: None,
            images: false,
            processor_kwargs: Map::new(),
        }
    }

    pub(crate) fn named(model: &str) -> Self {
        Self::new(Which::Named(model.to_owned()))
    }

    /// The codec of the KV cache: a name such as `"taper4"`, or a plan by layers [f16].
    #[must_use]
    pub fn kv(self, plan: impl Into<KvPlan>) -> Self {
        Self { kv: plan.into(), ..self }
    }

    /// A further cache, for requests that ask for so many bits. All caches have equal parts of the
    /// memory.
    #[must_use]
    pub fn kv_offer(mut self, bits: u32, plan: impl Into<KvPlan>) -> Self {
        self.kv_offers.push((bits, plan.into()));
        self
    }

    /// Pages of 64 tokens that each new token attends to beside the first and the recent ones; prompts are computed
    /// over all pages [0: each token attends to all].
    #[must_use]
    pub fn kv_recall_pages(self, pages: u32) -> Self {
        Self { kv_recall_pages: pages, ..self }
    }

    /// Evicts tokens from the cache while a sequence runs; see [`Eviction`] [`None`].
    #[must_use]
    pub fn evict(self, eviction: Option<Eviction>) -> Self {
        Self { eviction, ..self }
    }

    /// Tokens of the cache that stay in memory beside those that a step reads; others lie on disk alone
    /// ([`Self::kv_disk`]), where [`Self::kv_recall_pages`] leaves them out [all stay].
    #[must_use]
    pub fn kv_hot_tokens(self, tokens: Option<usize>) -> Self {
        Self { kv_hot_tokens: tokens, ..self }
    }

    /// Tokens that a compressed cache keeps exactly [`Exact::DEFAULT`]; `None` keeps none.
    #[must_use]
    pub fn kv_exact(self, exact: Option<Exact>) -> Self {
        Self { kv_exact: exact, ..self }
    }

    /// Keeps computed prompts in a directory of at most so many bytes, and finds them there after a
    /// restart. All weights are read once more to name them.
    #[must_use]
    pub fn kv_disk(self, dir: impl Into<PathBuf>, max_bytes: u64) -> Self {
        Self { kv_disk: Some((dir.into(), max_bytes)), ..self }
    }

    /// Gives memory of the cache back after a time without requests [never].
    #[must_use]
    pub fn kv_idle(self, idle: Option<KvIdle>) -> Self {
        Self { kv_idle: idle, ..self }
    }

    /// What drafts tokens, which changes the time of an output and nothing else [[`Speculation::suffix`]];
    /// `None` drafts none.
    #[must_use]
    pub fn speculation(self, speculation: Option<Speculation>) -> Self {
        Self { speculation, ..self }
    }

    /// Drafts with a smaller model of the same vocabulary, up to so many tokens at a time, instead of
    /// [`Self::speculation`]. It runs on the CPU.
    #[must_use]
    pub fn draft_model(self, model: ModelSource, most: u32) -> Self {
        Self { draft_model: Some((model, most)), ..self }
    }

    /// Bytes of the KV cache, instead of a share of the memory. With [`Self::kv_hot_tokens`] they count pages on disk
    /// too, and the share limits what is in memory.
    #[must_use]
    pub fn kv_bytes(self, bytes: u64) -> Self {
        Self { kv_bytes: Some(bytes), ..self }
    }

    /// Share of the free memory that weights and KV cache may take [0.6].
    #[must_use]
    pub fn memory_share(self, share: f64) -> Self {
        Self { memory_share: share, ..self }
    }

    /// Lets requests that begin alike share keys and values [true].
    #[must_use]
    pub fn prefix_caching(self, shared: bool) -> Self {
        Self { prefix_caching: shared, ..self }
    }

    /// Longest sequence, prompt and output together [the model's own, as far as memory goes].
    #[must_use]
    pub fn max_model_len(self, tokens: u32) -> Self {
        Self { max_model_len: Some(tokens), ..self }
    }

    /// Sequences computed together [1].
    #[must_use]
    pub fn max_num_seqs(self, sequences: u32) -> Self {
        Self { max_num_seqs: sequences, ..self }
    }

    /// Tokens computed together; longer prompts are cut [512 on a CPU; on a GPU 8,192, or 2,048 where it has
    /// less than 32 GB].
    #[must_use]
    pub fn max_num_batched_tokens(self, tokens: u32) -> Self {
        Self { max_num_batched_tokens: Some(tokens), ..self }
    }

    /// Requests that may wait before further ones are refused [1].
    #[must_use]
    pub fn max_waiting(self, requests: u32) -> Self {
        Self { max_waiting: requests, ..self }
    }

    /// The order in which requests are served [that of their arrival].
    #[must_use]
    pub fn scheduling(self, scheduling: Scheduling) -> Self {
        Self { scheduling, ..self }
    }

    /// Threads that compute [one a core]. They are the process's: the first model decides.
    #[must_use]
    pub fn threads(self, threads: usize) -> Self {
        Self { threads: Some(threads), ..self }
    }

    /// Arithmetic of products with quantized weights, one of [`Precision::DTYPES`] ["auto"].
    #[must_use]
    pub fn dtype(self, name: &str) -> Self {
        Self { dtype: name.to_owned(), ..self }
    }

    /// A GPU that computes instead of the CPU: see [`crate::gpu::open`].
    #[must_use]
    pub fn gpu(self, gpu: Gpu) -> Self {
        Self { gpu: Some(gpu), ..self }
    }

    /// Where the chat template comes from [the model].
    #[must_use]
    pub fn chat_template(self, from: ChatTemplateFrom) -> Self {
        Self { chat_template: from, ..self }
    }

    /// A function `(done, total)` that is told how many bytes of the weights are loaded.
    #[must_use]
    pub fn progress(self, report: impl Into<Progress>) -> Self {
        Self { progress: Some(report.into()), ..self }
    }

    /// A LoRA adapter that requests can name ([`Options::adapter`](crate::Options::adapter)): a directory in PEFT's
    /// layout or mlx-lm's.
    #[must_use]
    pub fn adapter(mut self, name: &str, dir: impl Into<PathBuf>) -> Self {
        self.adapters.push((name.to_owned(), dir.into()));
        self
    }

    /// Adapters that may be loaded at a time [64].
    #[must_use]
    pub fn max_adapters(self, adapters: usize) -> Self {
        Self { max_adapters: adapters, ..self }
    }

    /// The largest rank of an adapter [no limit].
    #[must_use]
    pub fn max_adapter_rank(self, rank: usize) -> Self {
        Self { max_adapter_rank: Some(rank), ..self }
    }

    /// Keeps experts on disk, and in memory only while they are used: see [`Experts`] [all are in memory].
    #[must_use]
    pub fn stream_experts(self, experts: Experts) -> Self {
        Self { experts: Some(experts), ..self }
    }

    /// Experts that a token goes through, fewer than the model was trained with, which costs quality [as many].
    #[must_use]
    pub fn moe_top_k(self, experts: usize) -> Self {
        Self { moe_top_k: Some(experts), ..self }
    }

    /// Loads the vision tower too, of a model that has one, so that prompts can have images.
    #[must_use]
    pub fn images(self, images: bool) -> Self {
        Self { images, ..self }
    }

    /// Fields that count instead of those of the file that says how images are prepared, such as `max_pixels`.
    #[must_use]
    pub fn mm_processor_kwargs(self, processor_kwargs: Map<String, Value>) -> Self {
        Self { processor_kwargs, ..self }
    }

    /// The arithmetic, for so many sequences.
    pub(crate) fn precision(&self) -> Result<Precision> {
        let found = Precision::of_dtype(&self.dtype, self.max_num_seqs as usize);
        found.ok_or_else(|| Error::Dtype { name: self.dtype.clone() })
    }

    /// Finds and loads the model, and starts its engine.
    ///
    /// # Errors
    /// It is not found, cannot be read or is not supported, a setting is out of range, or there is not
    /// enough memory.
    pub fn build(self) -> Result<Taper> {
        match &self.which {
            Which::Found(source) => load::build(&self, source),
            Which::Named(name) => load::build(&self, &ModelSource::find(name)?),
        }
    }
}

impl From<ModelSource> for Builder {
    fn from(source: ModelSource) -> Self {
        Self::new(Which::Found(source))
    }
}
