//! A loaded model, as a server takes it.

use crate::{config::ServerConfig, vectors::NoGeneration};
use std::sync::Arc;
use taper_base::{Engine, TextScores, TextVectors, Transcriber};
use taper_chat::{ChatTemplate, Tokenizer};

/// A loaded model and how requests are answered with it.
#[derive(Debug)]
pub struct Model {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) vectors: Option<Arc<dyn TextVectors>>,
    pub(crate) scores: Option<Arc<dyn TextScores>>,
    pub(crate) transcriber: Option<Arc<dyn Transcriber>>,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) config: ServerConfig,
}

impl Model {
    /// A model that generates. Without a chat template it serves completions only.
    #[must_use]
    pub fn new(
        engine: Arc<dyn Engine>,
        tokenizer: Tokenizer,
        template: Option<ChatTemplate>,
        config: ServerConfig,
    ) -> Self {
        let (vectors, scores, transcriber) = (None, None, None);
        Self { engine, vectors, scores, transcriber, tokenizer, template, config }
    }

    /// A model that makes vectors of texts: `/v1/embeddings`, and by them `/v1/rerank` and `/v1/score`.
    #[must_use]
    pub fn of_vectors(
        vectors: Arc<dyn TextVectors>,
        tokenizer: Tokenizer,
        config: ServerConfig,
    ) -> Self {
        let engine = Arc::new(NoGeneration::new(vectors.max_tokens(), vectors.vocab_size()));
        let model = Self::new(engine, tokenizer, None, config);
        Self { vectors: Some(vectors), ..model }
    }

    /// A model that scores texts: `/v1/rerank` and `/v1/score`.
    #[must_use]
    pub fn of_scores(
        scores: Arc<dyn TextScores>,
        tokenizer: Tokenizer,
        config: ServerConfig,
    ) -> Self {
        let engine = Arc::new(NoGeneration::new(scores.max_tokens(), scores.vocab_size()));
        let model = Self::new(engine, tokenizer, None, config);
        Self { scores: Some(scores), ..model }
    }

    /// A model that writes down speech: `/v1/audio/transcriptions` and `/v1/audio/translations`.
    #[must_use]
    pub fn of_transcriber(
        transcriber: Arc<dyn Transcriber>,
        tokenizer: Tokenizer,
        config: ServerConfig,
    ) -> Self {
        let engine =
            Arc::new(NoGeneration::new(transcriber.max_tokens(), transcriber.vocab_size()));
        let model = Self::new(engine, tokenizer, None, config);
        Self { transcriber: Some(transcriber), ..model }
    }
}
