//! What an engine is made with, and why it cannot be.

use std::sync::Arc;
use taper_base::TokenId;
use taper_kv_cache::KvConfig;
use taper_kv_codecs::{KvCodec, KvGeometry};
use taper_models::ModelInfo;

/// Settings of an engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Longest sequence; `None` is the model's own, lowered to what the cache holds.
    pub max_model_len: Option<u32>,
    /// Sequences in a step.
    pub max_num_seqs: u32,
    /// Tokens in a step.
    pub max_num_batched_tokens: u32,
    /// Requests that may be open beside the `max_num_seqs` that run.
    pub max_waiting: u32,
    /// How keys and values are stored.
    pub codec: Arc<dyn KvCodec>,
    /// Memory for the cache.
    pub kv_budget: KvBudget,
    /// The model's own end-of-sequence tokens.
    pub eos_token_ids: Vec<TokenId>,
}

/// Memory for the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvBudget {
    /// At most so many bytes, and no more than `max_num_seqs` full sequences would fill.
    Bytes(u64),
    /// Exactly so many tokens, rounded up to blocks.
    Tokens(u64),
}

/// Why an engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The cache cannot hold one sequence of the length asked for.
    #[error(
        "a sequence of {wanted} tokens needs more KV cache than the {capacity} tokens that fit {budget_bytes} bytes; lower --max-model-len, raise --gpu-memory-utilization or choose a smaller --kv-cache-dtype"
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
        "--max-model-len {wanted} is longer than the {max} positions of this model's config.json"
    )]
    BeyondModel {
        /// Tokens asked for.
        wanted: u64,
        /// The model's positions.
        max: u64,
    },
    /// A limit of zero.
    #[error("{name} must be at least 1")]
    Zero {
        /// The setting.
        name: &'static str,
    },
    /// The operating system gives no thread.
    #[error("cannot start the engine's thread: {0}")]
    Thread(#[from] std::io::Error),
}

impl EngineConfig {
    /// The cache's shape and the longest sequence, for a model.
    ///
    /// # Errors
    /// The lengths asked for do not fit.
    pub fn plan(&self, model: &ModelInfo) -> Result<(KvConfig, u32), EngineError> {
        let limits = [
            ("--max-num-seqs", self.max_num_seqs),
            ("--max-num-batched-tokens", self.max_num_batched_tokens),
            ("--max-model-len", self.max_model_len.unwrap_or(1)),
        ];
        if let Some(&(name, _)) = limits.iter().find(|(_, n)| *n == 0) {
            return Err(EngineError::Zero { name });
        }
        let max = model.max_positions as u64;
        let wanted = self.max_model_len.map_or(max, u64::from);
        if wanted > max {
            return Err(EngineError::BeyondModel { wanted, max });
        }
        let geometry = KvGeometry {
            kv_heads: model.kv_heads,
            head_dim: model.head_dim,
            block_tokens: KvConfig::BLOCK_TOKENS,
        };
        let codec = Arc::clone(&self.codec);
        let mut kv = KvConfig { codec, layers: model.layers, geometry, blocks: 0 };
        let (block, per_block) = (geometry.block_tokens as u64, kv.bytes_per_block().max(1));
        let (blocks, budget_bytes) = match self.kv_budget {
            KvBudget::Tokens(tokens) => {
                (tokens.div_ceil(block), tokens.div_ceil(block) * per_block)
            }
            KvBudget::Bytes(bytes) => {
                let full = u64::from(self.max_num_seqs) * wanted.div_ceil(block);
                ((bytes / per_block).min(full), bytes)
            }
        };
        let capacity = blocks * block;
        if capacity == 0 || (self.max_model_len.is_some() && wanted > capacity) {
            return Err(EngineError::TooLong { wanted, capacity, budget_bytes });
        }
        kv.blocks = usize::try_from(blocks).unwrap_or(usize::MAX);
        let max_model_len = u32::try_from(wanted.min(capacity)).unwrap_or(u32::MAX);
        Ok((kv, max_model_len))
    }
}
