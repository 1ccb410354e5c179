//! What towers made of images, kept for the next prompt that has them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
};
use taper_base::{EncodedImage, ImageEncoder, ImageError, PreparedImage};

/// Hash of a prepared image: [`PreparedImage::hash`].
type Hash = [u8; 32];

/// Encoded images of one model by their hashes, the latest used ones within a budget of bytes.
#[derive(Debug)]
pub struct EncodedCache {
    budget: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// With the time of the last use.
    images: HashMap<Hash, (EncodedImage, u64)>,
    /// Hashes by the time of their last use.
    order: BTreeMap<u64, Hash>,
    time: u64,
    stats: CacheStats,
}

/// What an [`EncodedCache`] did so far, and what it holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Images that were asked for and found.
    pub hits: u64,
    /// Images that were asked for and not found.
    pub misses: u64,
    /// Bytes of the rows that are held.
    pub bytes: usize,
    /// Images that are held.
    pub images: usize,
}

impl EncodedCache {
    /// A cache of at most so many bytes. With 0 nothing is kept.
    #[must_use]
    pub fn new(budget: usize) -> Self {
        Self { budget, kept: Mutex::default() }
    }

    /// What was made of an image of this hash.
    #[must_use]
    pub fn get(&self, hash: &Hash) -> Option<EncodedImage> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.find(hash)
    }

    /// Keeps what was made of an image, in the place of those that were not used for the longest time. An image that is
    /// larger than the budget is not kept.
    pub fn insert(&self, hash: Hash, image: EncodedImage) {
        let own = bytes(&image);
        if own > self.budget {
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.remove(&hash);
        while kept.stats.bytes + own > self.budget {
            let Some((_, oldest)) = kept.order.first_key_value() else { break };
            let oldest = *oldest;
            kept.remove(&oldest);
        }
        kept.add(hash, image, own);
    }

    /// What an encoder makes of an image, or made of it before.
    ///
    /// # Errors
    /// As [`ImageEncoder::encode`].
    pub fn encode(
        &self,
        encoder: &dyn ImageEncoder,
        image: &PreparedImage,
    ) -> Result<EncodedImage, ImageError> {
        if let Some(found) = self.get(&image.hash) {
            return Ok(found);
        }
        // Not under the lock: a tower takes seconds.
        let made = encoder.encode(image)?;
        self.insert(image.hash, made.clone());
        Ok(made)
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).stats
    }
}

impl Kept {
    fn find(&mut self, hash: &Hash) -> Option<EncodedImage> {
        self.time += 1;
        let Some((image, used)) = self.images.get_mut(hash) else {
            self.stats.misses += 1;
            return None;
        };
        self.stats.hits += 1;
        self.order.remove(used);
        *used = self.time;
        self.order.insert(self.time, *hash);
        Some(image.clone())
    }

    fn add(&mut self, hash: Hash, image: EncodedImage, own: usize) {
        self.time += 1;
        self.images.insert(hash, (image, self.time));
        self.order.insert(self.time, hash);
        self.stats.bytes += own;
        self.stats.images += 1;
    }

    fn remove(&mut self, hash: &Hash) {
        if let Some((image, used)) = self.images.remove(hash) {
            self.order.remove(&used);
            self.stats.bytes -= bytes(&image);
            self.stats.images -= 1;
        }
    }
}

fn bytes(image: &EncodedImage) -> usize {
    let values: usize = image.deep.iter().map(|rows| rows.len()).sum();
    (values + image.rows.len()) * size_of::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(values: usize) -> EncodedImage {
        EncodedImage { rows: vec![0.0; values].into(), deep: vec![vec![0.0; values].into()] }
    }

    #[test]
    fn the_images_used_last_stay_within_the_budget() {
        let cache = EncodedCache::new(3 * 80);
        for i in 0..3 {
            cache.insert([i; 32], image(10));
        }
        assert!(cache.get(&[0; 32]).is_some());
        cache.insert([3; 32], image(10));
        assert!(cache.get(&[1; 32]).is_none(), "it was not used for the longest time");
        assert!(cache.get(&[0; 32]).is_some());
        assert_eq!(cache.stats(), CacheStats { hits: 2, misses: 1, bytes: 240, images: 3 });
        cache.insert([4; 32], image(20));
        assert_eq!((cache.stats().images, cache.stats().bytes), (2, 240));
        cache.insert([5; 32], image(40));
        assert!(cache.get(&[5; 32]).is_none(), "it is larger than the budget");
        cache.insert([4; 32], image(5));
        assert_eq!((cache.stats().images, cache.stats().bytes), (2, 120), "it is counted once");
    }
}
