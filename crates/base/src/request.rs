//! One generation: what is asked and what comes back.

use crate::{SamplingParams, TokenId};
use std::{fmt, sync::Arc};

/// A request for tokens. Text, templates and parsing are the caller's.
#[derive(Debug, Clone, PartialEq)]
pub struct GenRequest {
    /// At least one token.
    pub prompt: Vec<TokenId>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// When to stop.
    pub stop: StopRules,
    /// Report log probabilities of the prompt's own tokens, with this many of the likeliest.
    pub prompt_logprobs: Option<u8>,
    /// Bits an element of the KV cache, one of [`EngineInfo::kv_bits`](crate::EngineInfo); `None`
    /// is the engine's own choice.
    pub kv_bits: Option<u32>,
}

/// When a generation ends. Stop strings are the text layer's business: it drops the stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopRules {
    /// At most this many tokens; `None` fills the context.
    pub max_tokens: Option<u32>,
    /// No stop token, the model's own included, can be chosen before this many tokens.
    pub min_tokens: u32,
    /// Stop tokens beside the model's own.
    pub token_ids: Vec<TokenId>,
    /// Go on after the model's own end-of-sequence tokens.
    pub ignore_eos: bool,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// A stop token, or a stop string.
    Stop,
    /// `max_tokens`, or the context is full.
    Length,
}

/// A token and its log probability under the sampler's distribution before filters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub id: TokenId,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// Log probabilities at one position.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The token that stands there.
    pub chosen: TokenLogprob,
    /// The likeliest ones, best first; as many as were asked for.
    pub top: Vec<TokenLogprob>,
}

/// One new token.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedToken {
    /// The token.
    pub id: TokenId,
    /// When asked for.
    pub logprobs: Option<TokenLogprobs>,
    /// It is a stop token: it counts, but is no part of the text.
    pub stops: bool,
}

/// What happens to a request, in order: `Started`, perhaps `Prompt`, `Token`*, then `Finished` or
/// `Failed`. `Failed` may come at any time and is the last.
#[derive(Debug, Clone)]
pub enum Event {
    /// The prompt has begun to run.
    Started {
        /// Prompt tokens whose keys and values were already in the cache.
        cached_tokens: u32,
    },
    /// One entry a prompt token; the first has none.
    Prompt(Vec<Option<TokenLogprobs>>),
    /// A new token.
    Token(GeneratedToken),
    /// The last event of a generation that went well.
    Finished(FinishReason),
    /// The last event of one that did not.
    Failed(GenerationError),
}

/// What can go wrong after a request was admitted.
#[derive(Debug, Clone, thiserror::Error)]
pub enum GenerationError {
    /// The weights or the cache hold values that are not numbers.
    #[error("the model produced logits that are not finite at position {position}")]
    NonFiniteLogits {
        /// Index of the token whose logits they were.
        position: u32,
    },
    /// The device or a kernel failed; the other requests of the step fail with it.
    #[error("a model step failed: {source}")]
    Step {
        /// The backend's own error.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The engine is stopping.
    #[error("the engine is shutting down")]
    ShuttingDown,
}

/// Where the engine puts a request's events. It must not block.
///
/// Dropping the receiving side cancels the request: the engine looks at `is_closed` each step.
pub trait EventSink: Send + Sync + 'static {
    /// Takes an event; it is dropped silently when nobody listens any more.
    fn send(&mut self, event: Event);
    /// Nobody will read another event.
    fn is_closed(&self) -> bool;
}

impl fmt::Debug for dyn EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventSink").field("closed", &self.is_closed()).finish()
    }
}
