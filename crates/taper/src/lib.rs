//! Language models in a few lines: see the README below.
#![doc = include_str!("../README.md")]

mod answer;
mod builder;
mod chat;
mod draft;
mod embedder;
mod error;
mod eviction;
mod experts;
mod generation_config;
mod identity;
mod kv_plan;
mod load;
mod memory;
mod pooling;
mod reranker;
mod source;
mod speech;
mod vision;

pub use answer::{Answer, Part, Stream};
pub use builder::{Builder, ChatTemplateFrom, Progress};
pub use chat::{Chat, Options};
pub use embedder::{EmbedOptions, Embedder};
pub use error::Error;
pub use eviction::{EvictBy, Eviction, QueryText, StatisticsError, calibrate, can_write};
pub use experts::{Experts, pack as pack_experts};
pub use kv_plan::{KvPlan, KvPlanError, LayerSpan};
pub use load::load_weights;
pub use memory::{available_bytes, total_bytes};
pub use pooling::Pooling;
pub use reranker::{Ranked, Reranker};
pub use source::{ModelSource, StaticModel};
pub use speech::Speech;
pub use vision::{decode_image, video_frames};

// What the functions here take and return.
pub use taper_audio::{DecodeLimits as SpeechLimits, WhisperError};
pub use taper_base::{
    AdapterInfo, AdapterRefused, Engine, FinishReason, GenerationError, ImageEncoder, ImageError,
    RgbImage, SamplingParams, SubmitError, TranscribeError, TranscribeOptions, Transcript,
    TranscriptSegment,
};
pub use taper_chat::{ChatError, ChatTemplate, Delta, Message, ParsedMessage, Role, Tokenizer};
pub use taper_engine::speculative::DraftModelError;
pub use taper_engine::{
    EngineError, EvictionError, KvIdle, LocalEngine, QueryError, Scheduling, Speculation,
};
pub use taper_hub::HubError;
pub use taper_kv_cache::{KvCacheError, KvScheme, Prices};
pub use taper_kv_codecs::{Exact, KvCodecError};
pub use taper_models::{AdapterError, LoadOptions, Model, ModelError, PackReport, Precision};
pub use taper_tensor::{TensorError, gpu, pool::set_threads};
pub use taper_weights::{Checkpoint, Gguf, WeightsError};

use std::{path::Path, sync::Arc};
use taper_chat::{Content, TemplateRequest};

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// A model that answers: its engine, and the text around it.
///
/// The engine runs on its own thread and takes requests from any thread; [`Self::chat`] and
/// [`Self::complete`] are the short way to it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Taper {
    /// Its name, such as `Qwen/Qwen3-0.6B`.
    pub name: String,
    /// Its architecture, as `model_type` of config.json names it.
    pub family: &'static str,
    /// Number of its weights.
    pub parameters: u64,
    /// What computes.
    pub engine: Arc<LocalEngine>,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// How a conversation becomes a prompt; `None` where only plain text can be continued.
    pub template: Option<ChatTemplate>,
    /// Sampling that the model's makers recommend.
    pub sampling: SamplingParams,
    /// What sees images, of a model that takes them and was built with [`Builder::images`].
    pub vision: Option<Arc<dyn ImageEncoder>>,
}

impl Taper {
    /// Settings for a model: a directory, a GGUF file, or the name of one that was downloaded.
    #[must_use]
    pub fn builder(model: &str) -> Builder {
        Builder::named(model)
    }

    /// A conversation.
    #[must_use]
    pub fn chat(&self) -> Chat<'_> {
        Chat::new(self)
    }

    /// Continues a text as it is, without a chat template.
    ///
    /// # Errors
    /// The text cannot be tokenized, or the engine refuses the request.
    pub fn complete(&self, text: &str, options: &Options) -> Result<Stream> {
        let prompt = self.tokenizer.encode(text, true)?;
        let parser = taper_chat::ParserOptions::default();
        Stream::start(self, (prompt, Arc::default()), parser, options)
    }

    /// The adapters that requests can name.
    #[must_use]
    pub fn adapters(&self) -> Vec<AdapterInfo> {
        taper_base::Engine::adapters(&*self.engine)
    }

    /// Loads a LoRA adapter, as [`Builder::adapter`] does.
    ///
    /// # Errors
    /// The name is taken, there is no room, or the files are no adapter of this model.
    pub fn load_adapter(&self, name: &str, dir: &Path) -> Result<()> {
        Ok(taper_base::Engine::load_adapter(&*self.engine, name, dir)?)
    }

    /// Forgets an adapter. Requests that have begun with it end with it.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn unload_adapter(&self, name: &str) -> Result<()> {
        Ok(taper_base::Engine::unload_adapter(&*self.engine, name)?)
    }

    /// Why no chat can be answered, if none can. Plain text may be continued all the same.
    #[must_use]
    pub fn no_chat(&self) -> Option<String> {
        let messages = [Message::text(Role::User, "Hello")];
        let prompt = self.template.as_ref()?.render(&TemplateRequest {
            messages: &messages,
            tools: &[],
            add_generation_prompt: true,
            continue_final_message: false,
            kwargs: &serde_json::Map::new(),
        });
        let prompt = match prompt {
            Ok(prompt) => prompt,
            Err(error) => return Some(format!("the template cannot write one message: {error}")),
        };
        let info = taper_base::Engine::info(&*self.engine);
        match self.tokenizer.encode(&prompt, false) {
            Err(error) => Some(error.to_string()),
            Ok(tokens) if tokens.is_empty() => Some("the template writes nothing".to_owned()),
            Ok(tokens) if tokens.iter().any(|id| *id >= info.vocab_size) => {
                Some(format!("the tokenizer has tokens above the model's {}", info.vocab_size))
            }
            Ok(tokens) if tokens.len() >= info.max_model_len as usize => Some(format!(
                "one word takes {} tokens and the context has {}",
                tokens.len(),
                info.max_model_len
            )),
            Ok(_) => None,
        }
    }
}

/// The message that an answer becomes in a conversation.
impl From<&Answer> for Message {
    fn from(answer: &Answer) -> Self {
        Self {
            content: answer.message.content.clone().map(Content::Text),
            reasoning_content: answer.message.reasoning.clone(),
            tool_calls: answer.message.tool_calls.clone(),
            ..Self::text(Role::Assistant, "")
        }
    }
}
