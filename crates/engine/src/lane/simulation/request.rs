//! Clients and their requests, and numbers to choose them by.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};
use taper_base::{Event, EventSink, FinishReason, TokenId};

/// Numbers that look random (splitmix64; Steele et al. 2014).
#[derive(Debug)]
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// `from..=to`.
    pub(super) fn within(&mut self, from: u32, to: u32) -> u32 {
        from + (self.next() % u64::from(to - from + 1)) as u32
    }

    pub(super) fn one_in(&mut self, n: u32) -> bool {
        self.within(1, n) == 1
    }
}

/// What a client sees of its request, and whether it is still there.
#[derive(Debug, Default)]
pub(super) struct Client {
    pub(super) gone: AtomicBool,
    pub(super) events: Mutex<Vec<Event>>,
}

pub(super) struct Ear(pub(super) Arc<Client>);

impl EventSink for Ear {
    fn send(&mut self, event: Event) {
        self.0.events.lock().unwrap().push(event);
    }

    fn is_closed(&self) -> bool {
        self.0.gone.load(Ordering::Relaxed)
    }
}

/// Priority, turn and arrival: who is lower comes first.
pub(super) type Place = (i32, u64, u64);

pub(super) struct Request {
    pub(super) prompt: Vec<TokenId>,
    /// What comes of it, and how it ends.
    pub(super) expected: (Vec<TokenId>, FinishReason),
    /// Tokens of the whole sequence, at most.
    pub(super) longest: usize,
    pub(super) salt: Option<Arc<str>>,
    pub(super) who: Option<u64>,
    pub(super) priority: i32,
    pub(super) place: Option<Place>,
    pub(super) client: Arc<Client>,
}

impl Request {
    pub(super) fn tokens(&self) -> Vec<TokenId> {
        let events = self.client.events.lock().unwrap();
        let tokens = events.iter().filter_map(|event| match event {
            Event::Token(token) => Some(token.id),
            _ => None,
        });
        tokens.collect()
    }

    pub(super) fn is_gone(&self) -> bool {
        self.client.gone.load(Ordering::Relaxed)
    }
}
