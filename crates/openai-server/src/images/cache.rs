//! What was made of the last images, and counts of all of them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use taper_base::EncodedImage;

type Hash = [u8; 32];

/// The encoded images that were used last, up to a limit of bytes.
#[derive(Debug)]
pub(super) struct Cache {
    most_bytes: usize,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    images: HashMap<Hash, (u64, EncodedImage)>,
    /// By when they were last used.
    order: BTreeMap<u64, Hash>,
    clock: u64,
    bytes: usize,
}

impl Cache {
    pub(super) fn new(most_bytes: usize) -> Self {
        Self { most_bytes, entries: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, hash: &Hash) -> Option<EncodedImage> {
        let entries = &mut *self.lock();
        entries.clock += 1;
        let (used, image) = entries.images.get_mut(hash)?;
        entries.order.remove(used);
        entries.order.insert(entries.clock, *hash);
        *used = entries.clock;
        Some(image.clone())
    }

    pub(super) fn put(&self, hash: Hash, image: &EncodedImage) {
        let bytes = bytes(image);
        let entries = &mut *self.lock();
        if bytes > self.most_bytes || entries.images.contains_key(&hash) {
            return;
        }
        while entries.bytes + bytes > self.most_bytes {
            let Some((_, oldest)) = entries.order.pop_first() else { break };
            let gone = entries.images.remove(&oldest);
            entries.bytes -= gone.map_or(0, |(_, image)| self::bytes(&image));
        }
        entries.clock += 1;
        entries.bytes += bytes;
        entries.order.insert(entries.clock, hash);
        entries.images.insert(hash, (entries.clock, image.clone()));
    }
}

/// Bytes of what a tower made of an image.
pub(super) fn bytes(image: &EncodedImage) -> usize {
    let floats = image.rows.len() + image.deep.iter().map(|deep| deep.len()).sum::<usize>();
    floats * size_of::<f32>()
}

/// What was done about images since the start.
#[derive(Debug, Default)]
pub(crate) struct ImageCounts {
    /// Images of requests.
    pub(crate) images: AtomicU64,
    /// Tokens that stand for them.
    pub(crate) tokens: AtomicU64,
    /// Images that were encoded already.
    pub(crate) hits: AtomicU64,
    /// Images that came from the web.
    pub(crate) fetched: AtomicU64,
    /// Videos of requests.
    pub(crate) videos: AtomicU64,
    /// Frames of them that are looked at.
    pub(crate) frames: AtomicU64,
    prepare_nanos: AtomicU64,
    encode_nanos: AtomicU64,
}

impl ImageCounts {
    pub(super) fn count(&self, tokens: usize) {
        self.images.fetch_add(1, Relaxed);
        self.tokens.fetch_add(tokens as u64, Relaxed);
    }

    pub(super) fn video(&self, frames: usize) {
        self.videos.fetch_add(1, Relaxed);
        self.frames.fetch_add(frames as u64, Relaxed);
    }

    pub(super) fn prepared(&self, took: Duration) {
        self.prepare_nanos.fetch_add(nanos(took), Relaxed);
    }

    pub(super) fn encoded(&self, took: Duration) {
        self.encode_nanos.fetch_add(nanos(took), Relaxed);
    }

    /// Time spent on reading and resizing, and on towers.
    pub(crate) fn times(&self) -> [Duration; 2] {
        [&self.prepare_nanos, &self.encode_nanos].map(|n| Duration::from_nanos(n.load(Relaxed)))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_images_used_last_stay() {
        let image = |n: usize| EncodedImage { rows: vec![0.0; n].into(), deep: Vec::new() };
        let cache = Cache::new(40);
        let has = |name: u8| cache.get(&[name; 32]).is_some();
        cache.put([1; 32], &image(4));
        cache.put([2; 32], &image(4));
        assert!(has(1));
        cache.put([3; 32], &image(5));
        assert!(!has(2) && has(1) && has(3));
        cache.put([4; 32], &image(11));
        assert!(!has(4) && has(1) && has(3), "too large for all of it");
        cache.put([3; 32], &image(1));
        assert_eq!(cache.get(&[3; 32]).unwrap().rows.len(), 5);
        let deep = EncodedImage { rows: vec![0.0; 2].into(), deep: vec![vec![0.0; 9].into()] };
        cache.put([5; 32], &deep);
        assert!(!has(5) && has(3), "rows behind layers are counted");
        let none = Cache::new(0);
        none.put([1; 32], &image(1));
        assert!(none.get(&[1; 32]).is_none());
    }
}
