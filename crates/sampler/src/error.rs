//! What can be wrong with a row of logits.

use taper_base::TokenId;

/// Why no token could be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SamplerError {
    /// The row is not as long as the vocabulary.
    #[error("{got} logits for a vocabulary of {vocab}")]
    WrongVocab {
        /// Logits in the row.
        got: usize,
        /// The sampler's vocabulary.
        vocab: u32,
    },
    /// A token of `logit_bias`, of the history or asked about is not in the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    UnknownToken {
        /// The offender.
        token: TokenId,
        /// Logits in the row.
        vocab: usize,
    },
    /// The model produced something that is not a logit.
    #[error("the logit of token {token} is NaN or positive infinity")]
    NotANumber {
        /// The first offender.
        token: TokenId,
    },
    /// Every token has a logit of negative infinity.
    #[error("no token is left to choose from")]
    NoCandidate,
}
