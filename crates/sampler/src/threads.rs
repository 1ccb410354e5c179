//! Passes over a row by several threads.

use taper_base::Threads;

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
