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

/// A prompt with the tokens of each image in place of its placeholder, and where each begins. `None` if there are not as
/// many placeholders as images.
#[must_use]
pub fn expand_images(
    prompt: &[TokenId],
    placeholder: TokenId,
    images: &[&[TokenId]],
) -> Option<(Vec<TokenId>, Vec<usize>)> {
    let (mut expanded, mut starts) = (Vec::with_capacity(prompt.len()), Vec::new());
    let mut rest = images.iter();
    for &token in prompt {
        if token == placeholder {
            starts.push(expanded.len());
            expanded.extend_from_slice(rest.next()?);
        } else {
            expanded.push(token);
        }
    }
    rest.next().is_none().then_some((expanded, starts))
}

/// Of two with the same hash, what was encoded is the same.
impl PartialEq for Medium {
    fn eq(&self, other: &Self) -> bool {
        let of = |m: &Self| (m.start, m.tokens, m.image_token, m.hash, m.grid);
        of(self) == of(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_placeholder_becomes_its_image() {
        let images: [&[TokenId]; 2] = [&[5, 5, 5], &[9, 5]];
        let (prompt, starts) = expand_images(&[1, 9, 2, 9], 9, &images).unwrap();
        assert_eq!((prompt, starts), (vec![1, 5, 5, 5, 2, 9, 5], vec![1, 5]));
        for prompt in [&[1, 2][..], &[9], &[9, 9, 9]] {
            assert_eq!(expand_images(prompt, 9, &images), None);
        }
        assert_eq!(expand_images(&[1], 9, &[]), Some((vec![1], vec![])));
    }
}
