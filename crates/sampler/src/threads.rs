//! Passes over a row by several threads.

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

/// Runs `pass` for parts of at least so many items, one a thread, with the index of the first; its results are in
/// order.
pub(crate) fn by_parts<T: Send, R: Send>(
    threads: &impl Threads,
    items: &mut [T],
    least: usize,
    pass: impl Fn(usize, &mut [T]) -> R + Sync,
) -> Vec<R> {
    let each = items.len().div_ceil(threads.count().max(1)).max(least);
    let firsts = (0..).step_by(each);
    let mut parts: Vec<_> =
        firsts.zip(items.chunks_mut(each)).map(|(first, part)| (first, part, None)).collect();
    threads.for_each(&mut parts, |(first, part, result)| *result = Some(pass(*first, part)));
    parts.into_iter().filter_map(|(_, _, result)| result).collect()
}
