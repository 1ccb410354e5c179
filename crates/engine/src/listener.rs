//! Whoever waits for a request's events, and its slot in the queue.

use crate::open::Ticket;
use taper_base::{Event, EventSink, GenerationError};

/// A request's sink. It hears of the request's end whatever happens: one that is dropped without an
/// end gets [`GenerationError::Restarted`] where the engine's thread has just panicked and goes on, and
/// [`GenerationError::EngineDead`] where it does not.
#[derive(Debug)]
pub(crate) struct Listener {
    sink: Box<dyn EventSink>,
    /// `None` once the request has ended.
    ticket: Option<Ticket>,
}

impl Listener {
    pub(crate) fn new(sink: Box<dyn EventSink>, ticket: Ticket) -> Self {
        Self { sink, ticket: Some(ticket) }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.sink.is_closed()
    }

    pub(crate) fn send(&mut self, event: Event) {
        self.sink.send(event);
    }

    /// Sends the last event. Whoever has read it finds the slot in the queue free.
    pub(crate) fn end(&mut self, last: Event) {
        drop(self.ticket.take());
        self.sink.send(last);
    }

    /// Ends without an event: nobody listens, or was told otherwise.
    pub(crate) fn dismiss(&mut self) {
        drop(self.ticket.take());
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            self.end(Event::Failed(match std::thread::panicking() {
                true => GenerationError::Restarted,
                false => GenerationError::EngineDead,
            }));
        }
    }
}
