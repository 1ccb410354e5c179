//! Threads that a caller lends.

/// Threads that share out the passes over a row.
pub trait Threads: Sync {
    /// How many there are, the calling one included.
    fn count(&self) -> usize;
    /// Runs `task` for every item, each once, and returns when all are done.
    fn for_each<T: Send>(&self, items: &mut [T], task: impl Fn(&mut T) + Sync);
}

/// The calling thread alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

impl Threads for Alone {
    fn count(&self) -> usize {
        1
    }
    fn for_each<T: Send>(&self, items: &mut [T], task: impl Fn(&mut T) + Sync) {
        items.iter_mut().for_each(task);
    }
}
