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
        self.receiver.recv_timeout(time)
    }
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        if let Ok(event) = self.receiver.recv() {
            self.shared.backlog.remove(&event);
            return Some(event);
        }
        let cancelled = !self.over && self.shared.backlog.overflowed();
        self.over = true;
        cancelled.then_some(Event::Failed(GenerationError::NotRead))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Relaxed);
    }
}
