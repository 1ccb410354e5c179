//! The experts of one step and one layer, as they come.

use crate::{
    ExpertError, ExpertKey, ExpertStore, Wanted,
    bank::Origin,
    readers::Priority,
    store::{Counts, Inner},
};
use std::{
    collections::{HashSet, VecDeque},
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

/// Records that are read at a time where a step needs more experts than its layer has room for: enough that all
/// threads read while one record is computed with.
const WINDOW: usize = 8;

/// Experts on their way to a step; see [`ExpertStore::fetch`]. One step at a time has one.
#[derive(Debug)]
pub struct Fetch<'a, T> {
    store: &'a ExpertStore<T>,
    inner: MutexGuard<'a, Inner<T>>,
    layer: u32,
    hits: VecDeque<(u32, Arc<T>)>,
    /// What is still to be submitted, in the order of the file.
    pending: VecDeque<u32>,
    flying: HashSet<ExpertKey>,
    /// Reads in `flying` that had begun as prefetches: if one fails, the error may be an old one.
    urged: HashSet<ExpertKey>,
    /// Reads at a time.
    window: usize,
    origin: Origin,
}

impl<'a, T> Fetch<'a, T> {
    pub(crate) fn begin(
        store: &'a ExpertStore<T>,
        mut inner: MutexGuard<'a, Inner<T>>,
        layer: u32,
        wanted: &[Wanted],
        tokens: u32,
    ) -> Self {
        let scan = wanted.len() > store.share(&inner);
        let (window, origin) = match scan {
            true => (WINDOW, Origin::Scan),
            false => (usize::MAX, Origin::Demand),
        };
        inner.ranks.advance(layer, tokens.into());
        let (mut hits, mut pending) = (VecDeque::new(), VecDeque::new());
        let (mut flying, mut urged) = (HashSet::new(), HashSet::new());
        for &Wanted { expert, rows } in wanted {
            let key = ExpertKey { layer, expert };
            inner.ranks.touch(key, rows.into(), tokens.into());
            match inner.bank.get(key, scan) {
                Some((value, prefetched)) => {
                    add(&store.counts.useful, u64::from(prefetched));
                    hits.push_back((expert, value));
                }
                None if store.readers.urge(key) => {
                    add(&store.counts.useful, 1);
                    flying.insert(key);
                    urged.insert(key);
                }
                None => pending.push_back(expert),
            }
        }
        store.withdraw_prefetches(&mut inner);
        let Counts { hits: all_hits, misses, tokens: all_tokens, .. } = &store.counts;
        add(all_hits, hits.len() as u64);
        add(misses, (pending.len() + flying.len()) as u64);
        add(all_tokens, if layer == 0 { tokens.into() } else { 0 });
        let mut fetch = Self { store, inner, layer, hits, pending, flying, urged, window, origin };
        fetch.submit();
        fetch
    }

    /// Has as much read as there is room for.
    fn submit(&mut self) {
        let open = self.window.saturating_sub(self.flying.len()).min(self.pending.len());
        if open == 0 {
            return;
        }
        for memory in self.store.lend(&mut self.inner, open) {
            let Some(expert) = self.pending.pop_front() else { return };
            let key = ExpertKey { layer: self.layer, expert };
            self.flying.insert(key);
            self.store.readers.submit(key, memory, Priority::Demand);
        }
    }

    /// The next expert, and its number: first those that were in memory, then those that are read, as they arrive;
    /// `None` after the last one. An expert stays in memory as long as it is held, so that holding all of them may
    /// leave no room for others.
    ///
    /// # Errors
    /// An expert cannot be read, the disk does not answer, or there is no room for it.
    #[expect(clippy::should_implement_trait, reason = "an iterator would go on after an error")]
    pub fn next(&mut self) -> Result<Option<(u32, Arc<T>)>, ExpertError> {
        self.submit();
        if let Some(hit) = self.hits.pop_front() {
            return Ok(Some(hit));
        }
        if self.flying.is_empty() {
            return match self.pending.is_empty() {
                true => Ok(None),
                false => Err(ExpertError::NoSlot { slots: self.inner.bank.slots() }),
            };
        }
        let since = Instant::now();
        let done = self.store.readers.wait(&self.flying);
        let nanos = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        add(&self.store.counts.stall_nanos, nanos);
        let Some(done) = done? else {
            return Err(ExpertError::NoSlot { slots: self.inner.bank.slots() });
        };
        let key = done.key;
        if done.result.is_err() && self.urged.remove(&key) {
            self.store.readers.submit(key, done.memory, Priority::Demand);
            return self.next();
        }
        self.flying.remove(&key);
        let value = self.store.take_in(&mut self.inner, done, self.origin)?;
        // The disk goes on while this one is computed with.
        self.submit();
        Ok(Some((key.expert, value)))
    }

    /// As [`ExpertStore::prefetch`], while this step goes on.
    pub fn prefetch(&mut self, layer: u32, experts: impl IntoIterator<Item = u32>) {
        self.store.prefetch_in(&mut self.inner, layer, experts);
    }

    /// Whether all that is missing has arrived.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.pending.is_empty() && self.flying.is_empty()
    }
}

impl<T> Drop for Fetch<'_, T> {
    fn drop(&mut self) {
        self.store.abandon(&self.flying);
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}
