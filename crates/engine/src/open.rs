//! Which requests are open, so that the queue has an end and one client cannot fill it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use taper_base::SubmitError;

/// Requests that have not ended.
#[derive(Debug)]
pub(crate) struct Open {
    limit: u32,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    all: u32,
    clients: HashMap<u64, u32>,
}

/// A slot in the queue, released when it is dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    open: Arc<Open>,
    client: Option<u64>,
}

impl Open {
    pub(crate) fn new(limit: u32) -> Self {
        Self { limit, counts: Mutex::default() }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot. A client may hold no more slots than it leaves free, so that there is always
    /// one for another.
    pub(crate) fn enter(self: &Arc<Self>, client: Option<u64>) -> Result<Ticket, SubmitError> {
        let mut counts = self.counts();
        let (limit, free) = (self.limit, self.limit.saturating_sub(counts.all));
        let open = client.and_then(|c| counts.clients.get(&c)).copied().unwrap_or(0);
        if free == 0 {
            return Err(SubmitError::QueueFull { limit });
        }
        if open >= free {
            return Err(SubmitError::ClientQueueFull { open, free, limit });
        }
        counts.all += 1;
        if let Some(client) = client {
            counts.clients.insert(client, open + 1);
        }
        drop(counts);
        Ok(Ticket { open: Arc::clone(self), client })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut counts = self.open.counts();
        counts.all -= 1;
        let Some(client) = self.client else { return };
        if let Some(open) = counts.clients.get_mut(&client) {
            *open -= 1;
            if *open == 0 {
                counts.clients.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_leaves_places_to_others() {
        let open = Arc::new(Open::new(8));
        let own: Vec<_> = (0..9).filter_map(|_| open.enter(Some(1)).ok()).collect();
        assert_eq!(own.len(), 4);
        let refused = open.enter(Some(1)).unwrap_err();
        assert_eq!(refused, SubmitError::ClientQueueFull { open: 4, free: 4, limit: 8 });
        let other: Vec<_> = (0..9).filter_map(|_| open.enter(Some(2)).ok()).collect();
        assert_eq!(other.len(), 2);
        let unnamed: Vec<_> = (0..9).filter_map(|_| open.enter(None).ok()).collect();
        assert_eq!(unnamed.len(), 2, "each is a client of its own");
        assert_eq!(open.enter(Some(3)).unwrap_err(), SubmitError::QueueFull { limit: 8 });
        drop((own, other, unnamed));
        assert!(open.counts().clients.is_empty());
        assert_eq!(open.counts().all, 0);
    }
}
