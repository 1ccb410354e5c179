//! A sink for callers without an async runtime.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};
use taper_base::{Event, EventSink};

/// A sink and the events that come out of it.
#[must_use]
pub fn channel() -> (Box<dyn EventSink>, Events) {
    let (sender, receiver) = mpsc::channel();
    let closed = Arc::new(AtomicBool::new(false));
    let sink = ChannelSink { sender, closed: Arc::clone(&closed) };
    (Box::new(sink), Events { receiver, closed })
}

/// The engine's side.
#[derive(Debug)]
pub struct ChannelSink {
    sender: mpsc::Sender<Event>,
    closed: Arc<AtomicBool>,
}

impl EventSink for ChannelSink {
    fn send(&mut self, event: Event) {
        // A failed send means that nobody listens, which `is_closed` reports.
        let _ = self.sender.send(event);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

/// The caller's side: blocks for the next event, ends after the last. Dropping it cancels.
#[derive(Debug)]
pub struct Events {
    receiver: mpsc::Receiver<Event>,
    closed: Arc<AtomicBool>,
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
        self.receiver.recv().ok()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}
