//! What can go wrong.

use taper_tensor::TensorError;

/// Errors of statistics, scores and choices.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TriAttentionError {
    /// Rows, statistics or frequencies for heads of another size.
    #[error("{what}: expected {expected} elements, got {got}")]
    Length {
        /// What came.
        what: &'static str,
        /// How many there should be.
        expected: usize,
        /// How many there were.
        got: usize,
    },
    /// Statistics of no queries at all.
    #[error("no queries were observed")]
    NoQueries,
    /// A number that none of this can be computed from.
    #[error("{what} {index} is not finite")]
    NotFinite {
        /// What was looked at.
        what: &'static str,
        /// Which of them.
        index: usize,
    },
    /// A budget that cannot be kept.
    #[error(
        "a budget of {keep} tokens, evicting every {every}, cannot protect {protected} of them"
    )]
    Budget {
        /// Tokens to keep.
        keep: usize,
        /// Tokens beyond them before an eviction.
        every: usize,
        /// First and latest tokens that are always kept.
        protected: usize,
    },
    /// Scores that do not belong together, or to these tokens.
    #[error("scores: expected {expected}, got {got}")]
    Scores {
        /// In words.
        expected: String,
        /// In words.
        got: String,
    },
    /// Two rows at one position of the text.
    #[error("position {position} stands in the cache twice")]
    Position {
        /// The position.
        position: u32,
    },
    /// The scorer itself.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}
