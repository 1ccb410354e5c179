//! Exact recall: see the README below.
#![doc = include_str!("../README.md")]

mod boxes;
mod queries;
mod scores;
mod select;

pub use boxes::KeyBoxes;
pub use queries::Queries;
pub use scores::{LayerQueries, scores};
pub use select::Rule;

/// Pages are chosen anew at positions that are multiples of this.
pub const EVERY_TOKENS: usize = 8;
/// Tokens at the end of a prompt whose queries make the first choice: the question, most often.
pub const QUESTION_TOKENS: usize = 64;
/// Recent tokens that every step attends to, at least.
pub const RECENT_TOKENS: usize = 256;
