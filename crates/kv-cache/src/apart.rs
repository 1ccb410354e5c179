//! What keeps the blocks of a sequence apart from those of others with equal tokens: a salt, and images.

use std::{ops::Range, sync::Arc};

/// An image among a sequence's tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSpan {
    /// The tokens that stand for it.
    pub tokens: Range<usize>,
    /// Names it: sequences share blocks only where their images' hashes are equal.
    pub hash: [u8; 32],
}

/// Who may share a sequence's blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Apart {
    pub(crate) salt: Option<Arc<str>>,
    /// In the order of their tokens.
    images: Arc<[ImageSpan]>,
}

/// The images of which a block has tokens: where each begins, as seen from the block's first token, and its hash.
pub(crate) type BlockImages = Box<[(isize, [u8; 32])]>;

impl Apart {
    pub(crate) fn set_images(&mut self, images: Arc<[ImageSpan]>) {
        self.images = images;
    }

    /// Whether it keeps nobody out.
    pub(crate) fn is_nothing(&self) -> bool {
        self.salt.is_none() && self.images.is_empty()
    }

    /// The images of a stretch of tokens. Later blocks need those before no more: names of blocks are chains.
    pub(crate) fn images(&self, tokens: Range<usize>) -> BlockImages {
        let first = self.images.partition_point(|image| image.tokens.end <= tokens.start);
        let own = self.images[first..].iter().take_while(|i| i.tokens.start < tokens.end);
        own.map(|image| (image.tokens.start.cast_signed() - tokens.start.cast_signed(), image.hash))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_the_images_of_its_tokens() {
        let image = |tokens, name| ImageSpan { tokens, hash: [name; 32] };
        let mut apart = Apart::default();
        assert!(apart.is_nothing() && apart.images(0..16).is_empty());
        apart.set_images([image(3..20, 1), image(20..24, 2), image(40..41, 3)].into());
        let of = |tokens| -> Vec<_> {
            apart.images(tokens).iter().map(|(at, hash)| (*at, hash[0])).collect()
        };
        assert_eq!(of(0..3), []);
        assert_eq!(of(0..16), [(3, 1)]);
        assert_eq!(of(16..32), [(-13, 1), (4, 2)]);
        assert_eq!(of(32..48), [(8, 3)]);
        assert_eq!(of(48..64), []);
    }
}
