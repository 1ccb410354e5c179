//! The seam to whatever proposes tokens.

use std::{fmt, sync::Arc};
use taper_base::{SeqId, TokenId};

/// A sequence that is about to decode.
#[derive(Debug, Clone, Copy)]
pub struct DraftInput<'a> {
    /// The sequence. What a drafter keeps of it is dropped by [`Drafter::forget`].
    pub id: SeqId,
    /// What the request says that its output is likely to contain.
    pub prediction: &'a [TokenId],
    /// Prompt, then output. Between two calls it only grows.
    pub tokens: &'a [TokenId],
    /// Tokens of the prompt.
    pub prompt_len: usize,
    /// Most tokens that are of use; 0 where nothing is to be drafted in this step.
    pub most: usize,
}

/// Hidden states of tokens that a step has computed and that stay.
#[derive(Debug, Clone, Copy)]
pub struct Computed<'a> {
    /// The sequence.
    pub id: SeqId,
    /// Prompt, then output; the first token after those that were computed is among them.
    pub tokens: &'a [TokenId],
    /// Tokens before those that were computed.
    pub start: usize,
    /// What the model's output projection read of each `[n, hidden]`.
    pub hidden: &'a [f32],
}

/// Tokens that may come next, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Draft {
    /// The tokens; none where the drafter has no idea.
    pub tokens: Vec<TokenId>,
    /// How sure the drafter is, below [`Draft::CLASSES`]. Drafts of one class are accepted alike.
    pub class: usize,
}

impl Draft {
    /// Classes that a drafter may tell apart.
    pub const CLASSES: usize = 8;
}

/// Why there are no drafts.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    /// The drafter's own model or cache failed.
    #[error("drafting failed: {0}")]
    Failed(Arc<dyn std::error::Error + Send + Sync>),
}

/// Proposes tokens. It is asked once a step, for all sequences that decode, on the engine's thread.
pub trait Drafter: Send + fmt::Debug {
    /// Its name, as `--speculative-config` has it.
    fn method(&self) -> &'static str;

    /// Whether it drafts from the model's hidden states, which [`Self::observe`] then gets.
    fn reads_hidden(&self) -> bool {
        false
    }

    /// Takes in what a step has computed of some sequences, prompts included. Where a sequence's tokens do not follow
    /// those before, it is computed again, or a known prefix of it was left out.
    ///
    /// # Errors
    /// As [`Self::propose`].
    fn observe(&mut self, _seqs: &[Computed<'_>]) -> Result<(), DraftError> {
        Ok(())
    }

    /// Does a part of the work that is done once for a sequence, such as computing its prompt, so that steps stay
    /// short. What it takes is no cost of proposing.
    ///
    /// # Errors
    /// As [`Self::propose`].
    fn prepare(&mut self, _seqs: &[DraftInput<'_>]) -> Result<(), DraftError> {
        Ok(())
    }

    /// One draft a sequence, in order, of at most so many tokens as are of use.
    ///
    /// # Errors
    /// [`DraftError`]: the step runs without drafts, and so do all later ones.
    fn propose(&mut self, seqs: &[DraftInput<'_>]) -> Result<Vec<Draft>, DraftError>;

    /// A sequence has ended.
    fn forget(&mut self, id: SeqId);

    /// The probability that a token of a draft of this class is accepted if those before it were, as
    /// long as nothing was measured.
    fn expected(&self, class: usize) -> f32;
}
