//! Tokens to text, one at a time.

use crate::{ChatError, Tokenizer, decoding::Chain};
use std::sync::Arc;
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
    /// Special tokens that are shown all the same.
    kept: Arc<[TokenId]>,
    chain: Chain,
}

/// Tokens at the end of a prompt that can matter to what follows: more than the bytes of an
/// unfinished character.
const CONTEXT: usize = 16;

impl Detokenizer {
    pub(crate) fn new(tokenizer: Tokenizer, skip_special_tokens: bool, chain: Chain) -> Self {
        Self { tokenizer, skip_special_tokens, kept: Arc::default(), chain }
    }

    /// Shows these tokens even if they are special.
    pub(crate) fn keep(&mut self, tokens: Arc<[TokenId]>) {
        self.kept = tokens;
    }

    /// Goes on where a prompt ends. The prompt's own text does not come out again.
    pub(crate) fn follow(&mut self, prompt: &[TokenId]) -> Result<(), ChatError> {
        let shown = prompt.iter().rev().filter_map(|&id| self.shown(id));
        let last: Vec<String> = shown.take(CONTEXT).collect();
        let tokens = last.into_iter().rev().collect();
        self.chain.follow(tokens).map_err(|source| ChatError::Tokenization { source })
    }

    fn shown(&self, id: TokenId) -> Option<String> {
        let skip = self.skip_special_tokens && !self.kept.contains(&id);
        self.tokenizer.shown(id, skip)
    }

    /// Takes a token and gives back the text that is certain by now, perhaps none.
    ///
    /// # Errors
    /// The tokenizer cannot decode it.
    pub fn push(&mut self, id: TokenId) -> Result<String, ChatError> {
        match self.shown(id) {
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
