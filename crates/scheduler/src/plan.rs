//! What goes into the scheduler and what comes out: plain data.

use std::ops::Range;
use taper_base::{SeqId, TokenId};

/// A sequence that wants to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// Not in use by a sequence that waits or runs.
    pub id: SeqId,
    /// Token ids of the prompt; at least one.
    pub prompt: Vec<TokenId>,
    /// At most this many tokens are generated; 0 computes the prompt only.
    pub max_new: u32,
    /// The logits of every prompt token are wanted, not only those of the last one.
    pub all_logits: bool,
    /// Who asks. A client with many open sequences is moved back behind clients with few.
    /// `None` is a client of its own.
    pub client: Option<u64>,
    /// Sequences of a lower number come before all of a higher one.
    pub priority: i32,
    /// No work both ends the prompt and goes on after it, nor crosses a multiple of so many tokens there; 0 sets
    /// no limit.
    pub cut_tokens: u32,
    /// Tokens of the prompt that are computed together, ascending and apart: no work ends inside of one of these. It
    /// may begin there, where the cache has the tokens before.
    pub whole: Vec<Range<u32>>,
}

/// Why a sequence was not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// Try again later.
    #[error("the queue of {limit} sequences is full")]
    QueueFull {
        /// Sequences that the queue holds.
        limit: u32,
    },
    /// The sequence can never fit the KV cache, even with the whole cache to itself.
    #[error(
        "the sequence needs {need_tokens} tokens of KV cache and the cache holds {capacity_tokens}"
    )]
    NeverFits {
        /// Prompt and output; of a sequence that rows are evicted from, the rows that it has at most.
        need_tokens: u64,
        /// Tokens in all blocks of the pool.
        capacity_tokens: u64,
    },
    /// Tokens that are computed together are more than a step has room for.
    #[error("{tokens} tokens are to be computed together, and a step has room for {most}")]
    TooManyAtOnce {
        /// Tokens of the largest of [`Admission::whole`].
        tokens: u32,
        /// Tokens of a step, or logits of it where all are wanted.
        most: u32,
    },
    /// There is nothing to compute.
    #[error("the prompt of sequence {} is empty", id.0)]
    EmptyPrompt {
        /// The offender.
        id: SeqId,
    },
    /// Another sequence of that id has not ended.
    #[error("sequence {} is already admitted", id.0)]
    DuplicateId {
        /// The offender.
        id: SeqId,
    },
}

/// The part of one sequence in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqWork {
    /// The sequence that is computed.
    pub id: SeqId,
    /// Index in the sequence, prompt first, of the first token to compute. The KV cache holds the rows of
    /// the tokens before it, but for those that were evicted.
    pub start: u32,
    /// Tokens to compute, at least one.
    pub len: u32,
    /// The logits of the last token choose the next one.
    pub samples: bool,
    /// Logits of this many tokens, the last of this work, are wanted: 1 where it only samples, more
    /// with [`Admission::all_logits`], and one more for each draft. No row is asked for again after a
    /// preemption.
    pub logit_rows: u32,
    /// The last so many tokens are drafts, which the sequence may turn out not to have.
    pub drafts: u32,
}

impl SeqWork {
    /// Index after the last token computed.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.start + self.len
    }

    /// Tokens to compute without the drafts.
    #[must_use]
    pub fn known(&self) -> u32 {
        self.len - self.drafts
    }
}

/// A sequence that left the queue in this step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    /// The admitted sequence.
    pub id: SeqId,
    /// Leading tokens that were in the cache already and are not computed.
    pub cached_tokens: u32,
    /// Whether the sequence had run before and was preempted.
    pub resumed: bool,
}

/// Everything one step computes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// At most one entry a sequence; those that decode come first.
    pub works: Vec<SeqWork>,
    /// Sequences that lost their blocks and wait again, in the order they lost them.
    pub preempted: Vec<SeqId>,
    /// Sequences that begin in this step.
    pub admitted: Vec<Admitted>,
}

impl StepPlan {
    /// There is nothing to compute.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.works.is_empty()
    }

    /// Tokens that the step computes.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.works.iter().map(|w| w.len).sum()
    }

    /// Logit rows of all works.
    #[must_use]
    pub fn logit_rows(&self) -> u32 {
        self.works.iter().map(|w| w.logit_rows).sum()
    }
}

/// What became of a sequence in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqOutcome {
    /// The sequence of the outcome.
    pub id: SeqId,
    /// The token that was chosen, where the work sampled.
    pub new_token: Option<TokenId>,
    /// Whether the sequence ends: it leaves the scheduler, and its blocks are freed.
    pub finished: bool,
}
