//! Tokens to text, one at a time.

use crate::{ChatError, Tokenizer, decoding::Chain};
use taper_base::TokenId;

/// Decodes tokens one at a time; see [`Tokenizer::detokenizer`].
///
/// A character comes out whole, when its last byte is there. Bytes that are not UTF-8 become
/// U+FFFD exactly as in [`Tokenizer::decode`]. The work for a token does not grow with the text.
/// Tokenizers with byte fallback (sentencepiece) decode a run of byte tokens all or nothing, so
/// that such a run comes out when it ends.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special_tokens: bool,
    chain: Chain,
}

impl Detokenizer {
    pub(crate) fn new(tokenizer: Tokenizer, skip_special_tokens: bool, chain: Chain) -> Self {
        Self { tokenizer, skip_special_tokens, chain }
    }

    /// Takes a token and gives back the text that is certain by now, perhaps none.
    ///
    /// # Errors
    /// The tokenizer cannot decode it.
    pub fn push(&mut self, id: TokenId) -> Result<String, ChatError> {
        match self.tokenizer.shown(id, self.skip_special_tokens) {
            Some(token) => {
                self.chain.push(token).map_err(|source| ChatError::Tokenization { source })
            }
            None => Ok(String::new()),
        }
    }

    /// The end: what was held back.
    ///
    /// # Errors
    /// The tokenizer cannot decode it.
    pub fn finish(&mut self) -> Result<String, ChatError> {
        self.chain.finish().map_err(|source| ChatError::Tokenization { source })
    }
}
