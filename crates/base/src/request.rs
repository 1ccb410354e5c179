//! One generation: what is asked and what comes back.

use crate::{
    ConstraintError, Medium, SamplingParams, SharedGrammar, SubmitError, TokenId, TokenMask,
    TokenSet,
};
use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    sync::Arc,
};

/// A request for tokens. Text, templates and parsing are the caller's.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GenRequest {
    /// Token ids of the prompt; at least one.
    pub prompt: Vec<TokenId>,
    /// Images that stand in the prompt, in order.
    pub media: Arc<[Medium]>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Stop tokens and the maximum length of the output.
    pub stop: StopRules,
    /// Report log probabilities of the prompt's own tokens, with this many of the likeliest.
    pub prompt_logprobs: Option<u8>,
    /// Bits an element of the KV cache, one of [`EngineInfo::kv_bits`](crate::EngineInfo); `None`
    /// is the engine's own choice.
    pub kv_bits: Option<u32>,
    /// Pages of 64 tokens that each new token attends to beside the first and the recent ones: the prompt is
    /// computed over all of them. 0 attends to all, and `None` leaves it to the engine.
    pub kv_recall_pages: Option<u32>,
    /// Who asks, as a number. The queue is shared among clients: one with many open requests does not
    /// keep out the others. `None` is a client of its own.
    pub client: Option<u64>,
    /// Keys and values are shared only with requests of the same salt, and those without one among
    /// themselves.
    pub cache_salt: Option<Arc<str>>,
    /// Name of the adapter that the model runs with, one of [`Engine::adapters`](crate::Engine::adapters); `None`
    /// is the model itself.
    pub adapter: Option<Arc<str>>,
    /// What the output must match.
    pub grammar: Option<SharedGrammar>,
    /// The only tokens that may be chosen; `None` allows all.
    pub allowed: Option<TokenMask>,
    /// Sequences of tokens that the output must not contain.
    pub bad_words: Arc<[Vec<TokenId>]>,
    /// Requests of a lower number come first, on an engine that schedules by priority.
    pub priority: i32,
    /// Most tokens that are drafted at a time: 0 drafts none, and `None` leaves it to the engine. It changes
    /// the time, never the output.
    pub max_draft_tokens: Option<u32>,
    /// What the output is likely to contain: drafts come from there too.
    pub prediction: Arc<[TokenId]>,
}

/// When a generation ends. Stop strings are the text layer's business: it drops the stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopRules {
    /// At most this many tokens; `None` fills the context.
    pub max_tokens: Option<u32>,
    /// No stop token, the model's own included, can be chosen before this many tokens.
    pub min_tokens: u32,
    /// Stop tokens beside the model's own.
    pub token_ids: TokenSet,
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
    /// Id of the token.
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
    /// How many tokens are at least as likely as `chosen`, itself included; only of prompt tokens.
    pub rank: Option<u32>,
}

/// One new token.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedToken {
    /// Id of the token.
    pub id: TokenId,
    /// Log probabilities, when the request asked for them.
    pub logprobs: Option<TokenLogprobs>,
    /// Whether this is a stop token: it is counted, but is no part of the text.
    pub stops: bool,
    /// The request's grammar wants more: the output should not be ended here, by a stop string or
    /// otherwise.
    pub open: bool,
}

/// What happens to a request, in order: `Started`, perhaps `Prompt`, `Token`* and `Drafted`*, then `Finished` or
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
    /// After the tokens of a step that verified drafts.
    Drafted {
        /// Drafts that were what was chosen; their tokens came before.
        accepted: u32,
        /// Drafts that were not.
        rejected: u32,
    },
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
    #[error("a model step failed; the server's log has the details under error id {id}")]
    Step {
        /// Names the error in the log.
        id: ErrorId,
        /// The backend's own error. It may name paths and devices, and is not for clients.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The request leaves no token to choose from, as when all are stop tokens before `min_tokens`.
    #[error("no token is left to choose from at position {position}")]
    NoCandidate {
        /// Index of the token whose successor was to be chosen.
        position: u32,
    },
    /// The request's grammar has no token to go on with.
    #[error("no token is left to choose from at position {position}: {source}")]
    Grammar {
        /// Index of the token whose successor was to be chosen.
        position: u32,
        /// Why.
        #[source]
        source: ConstraintError,
    },
    /// The scheduler refused what [`Engine::submit`](crate::Engine::submit) had taken.
    #[error(transparent)]
    NotAdmitted(#[from] SubmitError),
    /// A bug of the engine.
    #[error("internal error; the server's log has the details under error id {id}")]
    Internal {
        /// Names the error in the log.
        id: ErrorId,
        /// What went wrong. It is not for clients.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The listener stopped reading, and the request was cancelled.
    #[error("the request was cancelled because its output was not read")]
    NotRead,
    /// The engine failed outside of a step, and every request with it. It goes on with others.
    #[error("the engine failed and was restarted; send the request again")]
    Restarted,
    /// The engine has ended without being asked to.
    #[error("the engine has failed; the server must be restarted")]
    EngineDead,
    /// The engine is stopping.
    #[error("the engine is shutting down")]
    ShuttingDown,
}

/// Names one occurrence of an error, for clients to quote and for operators to find in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorId(u64);

impl ErrorId {
    /// Makes a new random id.
    #[must_use]
    pub fn random() -> Self {
        Self(RandomState::new().build_hasher().finish())
    }
}

impl fmt::Display for ErrorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
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
