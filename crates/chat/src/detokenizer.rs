//! Tokens to text, one at a time.

use crate::{ChatError, Tokenizer};
use taper_base::TokenId;

/// Decodes tokens one at a time; see [`Tokenizer::detokenizer`].
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special_tokens: bool,
}

impl Detokenizer {
    pub(crate) fn new(tokenizer: Tokenizer, skip_special_tokens: bool) -> Self {
        Self { tokenizer, skip_special_tokens }
    }

    /// Takes a token and gives back the text that is certain by now, perhaps none.
    ///
    /// # Errors
    /// The tokenizer cannot decode it.
    pub fn push(&mut self, id: TokenId) -> Result<String, ChatError> {
        self.tokenizer.decode(&[id], self.skip_special_tokens)
    }

    /// The end: what was held back.
    ///
    /// # Errors
    /// The tokenizer cannot decode it.
    pub fn finish(&mut self) -> Result<String, ChatError> {
        Ok(String::new())
    }
}
