//! Whether a disk answers those who wait for it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Requests of a kind: reads, or writes.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// Requests without an answer.
    open: AtomicUsize,
    /// Somebody has waited in vain, and nothing was answered since.
    silent: AtomicBool,
}

impl Pulse {
    /// Something is requested.
    pub(super) fn asked(&self) {
        self.open.fetch_add(1, Relaxed);
    }

    /// To be called after whoever waits has got the answer.
    pub(super) fn answered(&self) {
        self.open.fetch_sub(1, Relaxed);
        self.silent.store(false, Relaxed);
    }

    /// Nobody waits any more until there is an answer. Returns whether that is news.
    pub(super) fn give_up(&self) -> bool {
        !self.silent.swap(true, Relaxed)
    }

    /// Whether it is of no use to wait. A disk of which nothing is requested is not silent.
    pub(super) fn is_silent(&self) -> bool {
        self.silent.load(Relaxed) && self.open.load(Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever gives up just after the last answer does not silence the disk for ever.
    #[test]
    fn a_disk_without_requests_is_not_silent() {
        let pulse = Pulse::default();
        pulse.asked();
        assert!(pulse.give_up() && !pulse.give_up());
        assert!(pulse.is_silent());
        pulse.answered();
        pulse.give_up();
        assert!(!pulse.is_silent());
    }
}
