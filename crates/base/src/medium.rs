//! An image where it stands in a prompt.

use crate::{EncodedImage, TokenId};
use std::ops::Range;

/// An image of a request, with what the tower made of it.
#[derive(Debug, Clone)]
pub struct Medium {
    /// Index in the prompt of the first token that stands for the image.
    pub start: usize,
    /// Tokens that stand for it, those between its rows included.
    pub tokens: usize,
    /// The token among these that each row of `encoded` replaces, in order.
    pub image_token: TokenId,
    /// Names the image: prompts share keys and values only where their images' hashes are equal.
    pub hash: [u8; 32],
    /// Time, height and width in tokens, for rotary positions of three axes; `None` where an image's tokens count as
    /// text's.
    pub grid: Option<[u32; 3]>,
    /// What is read in place of the tokens.
    pub encoded: EncodedImage,
}

impl Medium {
    /// Indices in the prompt of the tokens that stand for it.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.start..self.start.saturating_add(self.tokens)
    }
}

/// Of two with the same hash, what was encoded is the same.
impl PartialEq for Medium {
    fn eq(&self, other: &Self) -> bool {
        let of = |m: &Self| (m.start, m.tokens, m.image_token, m.hash, m.grid);
        of(self) == of(other)
    }
}
