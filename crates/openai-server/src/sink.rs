//! Where the engine puts a choice's events, and where they are read.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};
use taper_base::{Backlog, Event, EventSink, GenerationError};
use tokio::sync::mpsc;

/// The engine's end of a choice. Events are stamped here, so that a client that reads slowly does
/// not count as an engine that is slow.
pub(crate) struct Sink {
    sender: mpsc::UnboundedSender<(Instant, Event)>,
    backlog: Arc<Backlog>,
}

/// The reader's end.
#[derive(Debug)]
pub(crate) struct Events {
    receiver: mpsc::UnboundedReceiver<(Instant, Event)>,
    backlog: Arc<Backlog>,
}

/// Both ends. The choices of one request share a backlog: a client that stops reading keeps no more
/// than that in memory, and its request is cancelled.
pub(crate) fn channel(backlog: &Arc<Backlog>) -> (Sink, Events) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let sink = Sink { sender, backlog: Arc::clone(backlog) };
    (sink, Events { receiver, backlog: Arc::clone(backlog) })
}

impl EventSink for Sink {
    fn send(&mut self, event: Event) {
        if self.backlog.add(&event) {
            // Nobody listening is no error: `is_closed` says so to the engine.
            let _ = self.sender.send((Instant::now(), event));
        }
    }

    fn is_closed(&self) -> bool {
        self.sender.is_closed() || self.backlog.overflowed()
    }
}

impl Events {
    /// The next event; `None` when the engine dropped its end.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<(Instant, Event)>> {
        self.receiver.poll_recv(cx).map(|event| match event {
            Some((at, event)) => {
                self.backlog.remove(&event);
                Some((at, event))
            }
            None if self.backlog.overflowed() => {
                Some((Instant::now(), Event::Failed(GenerationError::NotRead)))
            }
            None => None,
        })
    }
}
