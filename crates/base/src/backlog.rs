//! How much a listener has not read yet.

use crate::{Event, TokenLogprob};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bounds what a listener that stops reading keeps in memory: a sink adds each event before it queues
/// it, and the reader removes it. Sinks of one request may share one.
#[derive(Debug)]
pub struct Backlog {
    max_bytes: usize,
    bytes: AtomicUsize,
    overflowed: AtomicBool,
}

impl Default for Backlog {
    /// [`Self::MAX_BYTES`].
    fn default() -> Self {
        Self::new(Self::MAX_BYTES)
    }
}

impl Backlog {
    /// About 50,000 tokens, or 10,000 with the log probabilities of 20 others.
    pub const MAX_BYTES: usize = 4 << 20;

    /// Nothing is unread.
    #[must_use]
    pub const fn new(max_bytes: usize) -> Self {
        Self { max_bytes, bytes: AtomicUsize::new(0), overflowed: AtomicBool::new(false) }
    }

    /// Counts an event that is about to be queued. `false` says that it must be dropped: too much is
    /// unread, and the request is to be cancelled. A token does not overflow it alone, and what
    /// comes once a request is always taken.
    pub fn add(&self, event: &Event) -> bool {
        let bytes = size(event);
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let once = !matches!(event, Event::Token(_) | Event::Drafted { .. });
        let fits = once || before == 0 || before.saturating_add(bytes) <= self.max_bytes;
        if !fits {
            self.overflowed.store(true, Ordering::Relaxed);
        }
        fits && !self.overflowed()
    }

    /// Counts an event that was read.
    pub fn remove(&self, event: &Event) {
        self.bytes.fetch_sub(size(event), Ordering::Relaxed);
    }

    /// Whether an event was dropped because the backlog was full.
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed)
    }
}

/// Bytes of an event that comes with every token.
fn size(event: &Event) -> usize {
    let logprobs = match event {
        Event::Token(token) => token.logprobs.as_ref().map_or(0, |l| l.top.len()),
        Event::Started { .. }
        | Event::Prompt(_)
        | Event::Drafted { .. }
        | Event::Finished(_)
        | Event::Failed(_) => 0,
    };
    size_of::<Event>() + logprobs * size_of::<TokenLogprob>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FinishReason, GeneratedToken};

    #[test]
    fn unread_tokens_are_bounded_and_read_ones_are_not_counted() {
        let token =
            Event::Token(GeneratedToken { id: 1, logprobs: None, stops: false, open: false });
        let backlog = Backlog::new(3 * size(&token));
        for _ in 0..100 {
            assert!(backlog.add(&token));
            backlog.remove(&token);
        }
        assert_eq!((0..9).filter(|_| backlog.add(&token)).count(), 3);
        assert!(backlog.overflowed());
        assert!(!backlog.add(&Event::Finished(FinishReason::Stop)), "nothing comes after a gap");
    }
}
