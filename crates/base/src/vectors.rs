//! The seams between whoever wants vectors or scores of texts and whoever makes them.

use crate::TokenId;
use std::{error::Error, fmt, sync::Arc};

/// Makes a vector of a text: an embedding model. Calls return when the vectors are computed.
pub trait TextVectors: Send + Sync + fmt::Debug + 'static {
    /// Elements of a vector.
    fn dimensions(&self) -> usize;
    /// The longest text, in tokens.
    fn max_tokens(&self) -> usize;
    /// Size of the vocabulary: token ids are below this.
    fn vocab_size(&self) -> u32;
    /// Tokens of a text, with what the model wants around them.
    ///
    /// # Errors
    /// The text cannot be tokenized.
    fn tokenize(&self, text: &str) -> Result<Vec<TokenId>, VectorsError>;
    /// A vector of each text, of all elements or of the first so many.
    ///
    /// # Errors
    /// A text or a number of elements that the model does not take, or it fails.
    fn vectors(
        &self,
        texts: &[Vec<TokenId>],
        dimensions: Option<usize>,
    ) -> Result<Vec<Vec<f32>>, VectorsError>;
}

/// Says how well a text answers a query: a reranker. Calls return when the scores are computed.
pub trait TextScores: Send + Sync + fmt::Debug + 'static {
    /// The longest query and text together, in tokens.
    fn max_tokens(&self) -> usize;
    /// Size of the vocabulary: token ids are below this.
    fn vocab_size(&self) -> u32;
    /// Tokens of a query and a text, with what the model wants around them.
    ///
    /// # Errors
    /// They cannot be tokenized.
    fn tokenize(&self, query: &str, text: &str) -> Result<TextPair, VectorsError>;
    /// The score of each pair, higher for what answers the query better.
    ///
    /// # Errors
    /// A pair is longer than the model reads, or it fails.
    fn scores(&self, pairs: &[TextPair]) -> Result<Vec<f32>, VectorsError>;
}

/// Tokens of a query and a text that are read together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextPair {
    /// All of them.
    pub tokens: Vec<TokenId>,
    /// Where the text begins, for models that are told so.
    pub first_of_second: usize,
}

impl AsRef<[TokenId]> for TextPair {
    fn as_ref(&self) -> &[TokenId] {
        &self.tokens
    }
}

/// Why there are no vectors, or no scores.
#[derive(Debug, Clone, thiserror::Error)]
pub enum VectorsError {
    /// A text of no tokens, or of too many.
    #[error("text {text} has {got} tokens; from 1 to {most} are possible")]
    Length {
        /// Which of the texts, from 0.
        text: usize,
        /// Its tokens.
        got: usize,
        /// The most that the model reads.
        most: usize,
    },
    /// More elements than a vector has, or none.
    #[error("vectors of this model have from 1 to {most} elements")]
    Dimensions {
        /// Elements that a vector has.
        most: usize,
    },
    /// A token is not in the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    UnknownToken {
        /// The offender.
        token: TokenId,
        /// Vocabulary size.
        vocab: u32,
    },
    /// The model failed.
    #[error("the model failed")]
    Failed(#[source] Arc<dyn Error + Send + Sync>),
}
