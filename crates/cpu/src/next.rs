//! What a thread reads next, fetched while it waits.
//!
//! Between the products of a step are parts that one thread does, and one thread ends before the other;
//! memory is idle meanwhile. Layers follow each other in the same order every time, so a thread remembers
//! what it read first after a weight, and prefetches that when it has read the weight again and waits. A
//! hint: nothing is read, and no result depends on it.

use super::soon::Lines;
use crate::pool;
use std::{cell::RefCell, ops::Range};

/// Streams that a thread reads at a time, at most.
const STREAMS: usize = 4;
/// Bytes that are prefetched, at most: a part of the second-level cache.
const BYTES: usize = 256 << 10;
/// Weights that are remembered, a power of two.
const PLACES: usize = 1 << 10;

/// Where streams begin.
type Starts = [Lines; STREAMS];

#[derive(Default)]
struct Next {
    /// A weight's address and what was read first after it, in a slot that the address chooses.
    after: Vec<(usize, Starts)>,
    /// The weight that was read last.
    last: usize,
    /// What is still to be prefetched.
    rest: Starts,
}

thread_local! {
    static NEXT: RefCell<Next> = RefCell::default();
}

/// Shares out parts of the weight at this address as [`pool::lanes`] does; `streams` are the streams that
/// the first part of a range belongs to, each from there on.
pub(super) fn lanes<'a, S: Iterator<Item = &'a [u8]>>(
    weight: usize,
    parts: usize,
    streams: impl Fn(Range<usize>) -> S + Sync,
    task: impl Fn(Range<usize>) + Sync,
) {
    pool::lanes(parts, |ranges| {
        // Who comes too late for a part of its own has read nothing.
        let Some(first) = ranges.next() else { return };
        NEXT.with_borrow_mut(|next| next.begin(weight, streams(first.clone())));
        task(first);
        ranges.for_each(&task);
        NEXT.with_borrow_mut(Next::end);
    });
}

/// Prefetches a line of each stream that this thread reads next.
pub(crate) fn wait() {
    NEXT.with_borrow_mut(|next| next.rest.iter_mut().for_each(|lines| lines.ask(1)));
}

impl Next {
    fn begin<'a>(&mut self, weight: usize, streams: impl Iterator<Item = &'a [u8]>) {
        self.rest = Starts::default();
        for (start, stream) in self.rest.iter_mut().zip(streams) {
            *start = Lines::of(&stream[..stream.len().min(BYTES / STREAMS)]);
        }
        self.after.resize(PLACES, Default::default());
        self.after[place(self.last)] = (self.last, std::mem::take(&mut self.rest));
        self.last = weight;
    }

    fn end(&mut self) {
        let (weight, starts) = self.after[place(self.last)];
        if weight == self.last {
            self.rest = starts;
        }
    }
}

/// Fibonacci hashing: addresses of weights are multiples of much.
fn place(weight: usize) -> usize {
    let mixed = (weight as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - PLACES.trailing_zeros())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_after_a_weight_is_asked_for_after_it() {
        let (a, b) = (vec![1u8; 128], vec![2u8; 128]);
        let address = |x: &[u8]| x.as_ptr().addr();
        let mut next = Next::default();
        let mut read = |weight: &[u8]| {
            next.begin(address(weight), [weight].into_iter());
            assert_eq!(next.rest, Starts::default(), "nothing is asked for while it reads");
            next.end();
            next.rest[0]
        };
        assert_eq!(read(&a), Lines::default());
        assert_eq!(read(&b), Lines::default());
        assert_eq!(read(&a), Lines::of(&b));
        assert_eq!(read(&b), Lines::of(&a));
    }
}
