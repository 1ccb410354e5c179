//! A server whose model makes vectors or scores of texts.

use taper_base::{Drafting, Engine, EngineInfo, EngineStats, EventSink, GenRequest, SubmitError};

/// The engine of such a server: it generates nothing.
#[derive(Debug)]
pub(crate) struct NoGeneration(EngineInfo);

impl NoGeneration {
    pub(crate) fn new(max_tokens: usize, vocab_size: u32) -> Self {
        Self(EngineInfo {
            max_model_len: u32::try_from(max_tokens).unwrap_or(u32::MAX),
            vocab_size,
            eos_token_ids: Vec::new(),
            kv_cache_dtype: "none".to_owned(),
            kv_bits: Vec::new(),
            kv_capacity_tokens: 0,
            kv_capacity_bytes: 0,
            kv_exact_bytes: 0,
            prefix_caching: false,
            weight_bytes: 0,
            drafting: Drafting::default(),
            kv_recall_pages: 0,
        })
    }
}

impl Engine for NoGeneration {
    fn submit(&self, _: GenRequest, _: Box<dyn EventSink>) -> Result<(), SubmitError> {
        Err(SubmitError::NoGeneration)
    }

    fn info(&self) -> &EngineInfo {
        &self.0
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }
}
