//! A sink for callers without an async runtime.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};
use taper_base::{Backlog, Event, EventSink, GenerationError};

/// A sink and the events that come out of it. A request whose events pile up unread is cancelled, at
/// [`Backlog::MAX_BYTES`].
#[must_use]
pub fn channel() -> (Box<dyn EventSink>, Events) {
    let (sender, receiver) = mpsc::channel();
    let shared = Arc::new(Shared::default());
    let sink = ChannelSink { sender, shared: Arc::clone(&shared) };
    (Box::new(sink), Events { receiver, shared, over: false })
}

#[derive(Debug, Default)]
struct Shared {
    closed: AtomicBool,
    backlog: Backlog,
}

/// The engine's side.
#[derive(Debug)]
pub struct ChannelSink {
    sender: mpsc::Sender<Event>,
    shared: Arc<Shared>,
}

impl EventSink for ChannelSink {
    fn send(&mut self, event: Event) {
        if self.shared.backlog.add(&event) {
            // A failed send means that nobody listens, which `is_closed` reports.
            let _ = self.sender.send(event);
        }
    }

    fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Relaxed) || self.shared.backlog.overflowed()
    }
}

/// The caller's side: blocks for the next event, ends after the last. Dropping it cancels.
#[derive(Debug)]
pub struct Events {
    receiver: mpsc::Receiver<Event>,
    shared: Arc<Shared>,
    over: bool,
}

impl Events {
    /// The next event, if it comes within this time.
    ///
    /// # Errors
    /// It has not come yet, or the last event has.
    pub fn next_within(&mut self, time: Duration) -> Result<Event, RecvTimeoutError> {
        match self.receiver.recv_timeout(time) {
            Ok(event) => {
                self.shared.backlog.remove(&event);
                Ok(event)
            }
            Err(RecvTimeoutError::Disconnected) if self.was_cancelled() => {
                Ok(Event::Failed(GenerationError::NotRead))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the end is that of a request that nobody read. It is so once.
    fn was_cancelled(&mut self) -> bool {
        let cancelled = !self.over && self.shared.backlog.overflowed();
        self.over = true;
        cancelled
    }
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        if let Ok(event) = self.receiver.recv() {
            self.shared.backlog.remove(&event);
            return Some(event);
        }
        self.was_cancelled().then_some(Event::Failed(GenerationError::NotRead))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taper_base::GeneratedToken;

    fn token() -> Event {
        Event::Token(GeneratedToken { id: 1, logprobs: None, stops: false, open: false })
    }

    #[test]
    fn what_is_read_makes_room_however_it_is_read() {
        let (mut sink, mut events) = channel();
        // More than a reader may leave unread.
        for _ in 0..2 * Backlog::MAX_BYTES / size_of::<GeneratedToken>() {
            sink.send(token());
            assert!(matches!(events.next_within(Duration::ZERO), Ok(Event::Token(_))));
        }
        assert!(!sink.is_closed());
    }

    #[test]
    fn a_request_that_nobody_reads_fails_once() {
        let (mut sink, mut events) = channel();
        while !sink.is_closed() {
            sink.send(token());
        }
        drop(sink);
        let mut next = || events.next_within(Duration::ZERO);
        let last = std::iter::from_fn(|| next().ok()).last();
        assert!(matches!(last, Some(Event::Failed(GenerationError::NotRead))));
        assert!(next().is_err());
    }
}
