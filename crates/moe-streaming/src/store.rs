//! Experts by their numbers: in a slot, or read into one.

use crate::{
    ExpertDisk, ExpertError, ExpertKey, Fetch, Limits, PAGE, Policy, Touch, Trace, Uses,
    bank::{Bank, Origin},
    ranks::Ranks,
    readers::{Done, Priority, Readers},
};
use std::{
    collections::HashSet,
    error::Error,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use taper_base::ExpertStats;
use taper_cpu::{AlignedBytes, Bytes};

/// How often the system is asked how much memory there is.
const LOOK: Duration = Duration::from_millis(500);
/// What of a limit may be taken before slots are given up.
const SHARE: f64 = 0.94;
/// Below this share of it slots that were given up come back, so many a look.
const SPARE_SHARE: f64 = 0.85;
const REGAINED: usize = 8;
/// How long a disk is waited for, one over a network included.
const DEADLINE: Duration = Duration::from_secs(30);
/// Touches that a trace keeps at most.
const LONGEST_TRACE: usize = 1 << 20;

/// Makes an expert of the bytes of its record, header included.
type Make<T> = dyn Fn(ExpertKey, &Bytes) -> Result<T, Box<dyn Error + Send + Sync>> + Send + Sync;

/// Settings of a store.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StoreConfig {
    /// Bytes of memory for slots.
    pub bytes: u64,
    /// Slots that are needed at least.
    pub floor: usize,
    /// Threads that read.
    pub readers: usize,
    /// A disk that ends no read for so long does not answer: whoever waits for it gets an error.
    pub deadline: Duration,
    /// Experts of the next layer that are prefetched at most; 0 prefetches none.
    pub prefetch: usize,
    /// Who leaves.
    pub policy: Policy,
    /// What limits this process's memory.
    pub limits: Limits,
}

impl StoreConfig {
    /// Slots in so many bytes, at least `floor` of them, read by four threads.
    #[must_use]
    pub fn new(bytes: u64, floor: usize) -> Self {
        let (policy, limits) = (Policy::default(), Limits::default());
        Self { bytes, floor, readers: 4, deadline: DEADLINE, prefetch: 0, policy, limits }
    }
}

/// An expert that a step needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Its number in its layer.
    pub expert: u32,
    /// Rows that go through it.
    pub rows: u32,
}

/// Experts of a model: some in memory, all on a disk.
pub struct ExpertStore<T> {
    disk: Arc<dyn ExpertDisk>,
    pub(crate) make: Box<Make<T>>,
    pub(crate) readers: Readers,
    inner: Mutex<Inner<T>>,
    pub(crate) counts: Counts,
    slot_bytes: usize,
    floor: usize,
    prefetch: usize,
    limits: Limits,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    slots: AtomicU64,
    resident: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) useful: AtomicU64,
    wasted: AtomicU64,
    shrunk: AtomicU64,
    pub(crate) tokens: AtomicU64,
    pub(crate) stall_nanos: AtomicU64,
}

/// What one step at a time changes.
#[derive(Debug)]
pub(crate) struct Inner<T> {
    pub(crate) bank: Bank<T>,
    pub(crate) ranks: Ranks,
    trace: Option<Trace>,
    /// What was last expected of which layer, while a trace is kept.
    expected: (u32, Vec<u32>),
    looked: Instant,
    /// Slots that there are where memory allows.
    most: usize,
}

impl<T> fmt::Debug for ExpertStore<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExpertStore").field("disk", &self.disk).finish_non_exhaustive()
    }
}

impl<T> ExpertStore<T> {
    /// A store over a disk; `make` makes an expert of the bytes of its record.
    ///
    /// # Errors
    /// The memory is below the floor, or threads cannot be started.
    pub fn new(
        disk: Arc<dyn ExpertDisk>,
        make: impl Fn(ExpertKey, &Bytes) -> Result<T, Box<dyn Error + Send + Sync>>
        + Send
        + Sync
        + 'static,
        config: StoreConfig,
    ) -> Result<Self, ExpertError> {
        let experts = disk.experts();
        let layers = 0..experts.len() as u32;
        let slot_bytes = layers.map(|layer| disk.record_bytes(layer)).max().unwrap_or(0).max(PAGE);
        let all: usize = experts.iter().sum();
        let floor = config.floor.clamp(1, all.max(1));
        let slots = (config.bytes / slot_bytes as u64).min(all as u64) as usize;
        if slots < floor {
            let needed = floor as u64 * slot_bytes as u64;
            return Err(ExpertError::Floor {
                needed,
                given: config.bytes,
                slots: floor,
                slot_bytes,
            });
        }
        let readers = Readers::new(Arc::clone(&disk), config.readers, config.deadline);
        let readers = readers.map_err(|source| ExpertError::Threads { source })?;
        let counts = Counts { slots: AtomicU64::new(slots as u64), ..Counts::default() };
        let inner = Inner {
            bank: Bank::new(slot_bytes, slots, config.policy),
            ranks: Ranks::new(&experts),
            trace: None,
            expected: (0, Vec::new()),
            looked: Instant::now(),
            most: slots,
        };
        Ok(Self {
            disk,
            make: Box::new(make),
            readers,
            inner: Mutex::new(inner),
            counts,
            slot_bytes,
            floor,
            prefetch: config.prefetch,
            limits: config.limits,
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the experts of a layer that a step of so many tokens needs brought into memory, each once. Those that are
    /// there come first out of [`Fetch::next`], then those that are read, as they arrive.
    pub fn fetch(&self, layer: u32, wanted: &[Wanted], tokens: u32) -> Fetch<'_, T> {
        let mut inner = self.lock();
        self.look(&mut inner);
        self.collect(&mut inner);
        inner.record(layer, wanted, tokens);
        Fetch::begin(self, inner, layer, wanted, tokens)
    }

    /// Has some experts of a layer read that a step will need soon, perhaps, those that are most likely first, unless
    /// somebody waits for the disk.
    pub fn prefetch(&self, layer: u32, experts: impl IntoIterator<Item = u32>) {
        let mut inner = self.lock();
        self.collect(&mut inner);
        self.prefetch_in(&mut inner, layer, experts);
    }

    pub(crate) fn prefetch_in(
        &self,
        inner: &mut Inner<T>,
        layer: u32,
        experts: impl IntoIterator<Item = u32>,
    ) {
        let experts: Vec<_> = experts.into_iter().take(self.prefetch).collect();
        if inner.trace.is_some() {
            inner.expected = (layer, experts.clone());
        }
        if !self.readers.is_idle() {
            return;
        }
        for expert in experts {
            let key = ExpertKey { layer, expert };
            if inner.bank.has(key) || self.readers.has(key) {
                continue;
            }
            let Inner { bank, ranks, .. } = &mut *inner;
            let Some(memory) = bank.lend(1, ranks).pop() else { return };
            self.readers.submit(key, memory, Priority::Prefetch);
        }
    }

    /// How many experts of the next layer are worth naming to [`Self::prefetch`].
    #[must_use]
    pub fn prefetches(&self) -> usize {
        self.prefetch
    }

    /// Takes over uses of an earlier run, and reads the experts that were used most in the background.
    pub fn warm_up(&self, uses: &Uses) {
        let mut inner = self.lock();
        inner.ranks.restore(&uses.layers);
        let mut all = Vec::new();
        for (layer, experts) in (0u32..).zip(&uses.layers) {
            for (expert, &n) in (0u32..).zip(experts) {
                if n > 0.0 {
                    all.push((n, ExpertKey { layer, expert }));
                }
            }
        }
        all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let room = inner.bank.slots() - inner.bank.slots().min(self.floor);
        for (_, key) in all.into_iter().take(room) {
            let Inner { bank, ranks, .. } = &mut *inner;
            let Some(memory) = bank.lend(1, ranks).pop() else { return };
            self.readers.submit(key, memory, Priority::WarmUp);
        }
    }

    /// Bytes a second that the disk gives, of so many records that are read all over it. Nothing of them is kept.
    ///
    /// # Errors
    /// A record cannot be read, or the disk does not answer.
    pub fn measure(&self, records: usize) -> Result<f64, ExpertError> {
        let mut inner = self.lock();
        let layers = self.disk.experts();
        let key = |i: usize| {
            // Apart by a fraction that no small one is near: the golden ratio's.
            let layer = i * 13 % layers.len().max(1);
            let experts = layers.get(layer).copied().unwrap_or(0).max(1);
            ExpertKey { layer: layer as u32, expert: (i * 79 % experts) as u32 }
        };
        let mut keys: HashSet<_> = (0..records).map(key).collect();
        keys.retain(|key| !inner.bank.has(*key) && !self.readers.has(*key));
        let (since, mut bytes) = (Instant::now(), 0);
        for key in &keys {
            bytes += self.disk.record_bytes(key.layer);
            self.readers.submit(*key, AlignedBytes::pages(self.slot_bytes), Priority::Demand);
        }
        let mut failed = Ok(());
        while let Some(done) = self.readers.wait(&keys)? {
            failed = failed.and(done.result);
        }
        inner.looked = Instant::now();
        failed.map(|()| bytes as f64 / since.elapsed().as_secs_f64().max(1e-9))
    }

    /// Uses so far, to be kept.
    #[must_use]
    pub fn uses(&self) -> Uses {
        Uses { layers: self.lock().ranks.snapshot() }
    }

    /// Notes from now on which experts steps use.
    pub fn start_trace(&self) {
        self.lock().trace = Some(Trace::default());
    }

    /// What was noted.
    #[must_use]
    pub fn take_trace(&self) -> Option<Trace> {
        self.lock().trace.take()
    }

    /// Has at most so many bytes of slots from now on, but at least the floor.
    pub fn shrink_to(&self, bytes: u64) {
        let mut inner = self.lock();
        self.shrink(&mut inner, (bytes / self.slot_bytes as u64) as usize);
        inner.most = inner.bank.slots();
    }

    fn shrink(&self, inner: &mut Inner<T>, slots: usize) {
        let before = inner.bank.slots();
        let slots = slots.clamp(self.floor.min(before), before);
        if slots < before {
            for memory in self.readers.withdraw(Priority::WarmUp, usize::MAX) {
                inner.bank.give_back(memory);
            }
            let Inner { bank, ranks, .. } = inner;
            bank.resize(slots, ranks);
            self.counts.shrunk.fetch_add((before - slots) as u64, Relaxed);
            self.counts.slots.store(slots as u64, Relaxed);
        }
    }

    /// Gives slots up where memory is short, and takes them back where it no longer is.
    fn look(&self, inner: &mut Inner<T>) {
        if inner.looked.elapsed() < LOOK {
            return;
        }
        inner.looked = Instant::now();
        let Some(state) = self.limits.state() else { return };
        let (slots, slot) = (inner.bank.slots(), self.slot_bytes as u64);
        let (excess, spare) = (state.excess(SHARE), state.spare(SPARE_SHARE) / slot);
        if excess > 0 && slots > self.floor {
            self.shrink(inner, slots.saturating_sub(excess.div_ceil(slot) as usize));
            let left = inner.bank.slots();
            tracing::warn!(excess, left, "memory is short: slots of experts are given up");
        } else if slots < inner.most && spare > 0 {
            let regained = (inner.most - slots).min(REGAINED).min(spare as usize);
            let Inner { bank, ranks, .. } = inner;
            bank.resize(slots + regained, ranks);
            self.counts.slots.store((slots + regained) as u64, Relaxed);
        }
    }

    /// Takes in what was read and nobody waits for.
    pub(crate) fn collect(&self, inner: &mut Inner<T>) {
        for done in self.readers.take_others() {
            let key = done.key;
            if let Err(error) = self.take_in(inner, done, Origin::Prefetch) {
                tracing::warn!(%key, %error, "an expert could not be read ahead");
            }
        }
        self.counts.resident.store(inner.bank.resident() as u64, Relaxed);
        self.counts.wasted.store(inner.bank.wasted(), Relaxed);
    }

    /// Makes an expert of a read that has ended.
    pub(crate) fn take_in(
        &self,
        inner: &mut Inner<T>,
        done: Done,
        origin: Origin,
    ) -> Result<Arc<T>, ExpertError> {
        let Done { key, priority, memory, result } = done;
        if let Err(error) = result {
            inner.bank.give_back(memory);
            return Err(error);
        }
        let origin = if priority == Priority::WarmUp { Origin::Demand } else { origin };
        let memory = Arc::new(memory);
        match self.made(key, &memory) {
            Ok(value) => {
                let value = Arc::new(value);
                inner.bank.insert(key, Arc::clone(&value), memory, origin);
                Ok(value)
            }
            Err(source) => {
                let memory = Arc::into_inner(memory);
                let other = || AlignedBytes::pages(self.slot_bytes);
                inner.bank.give_back(memory.unwrap_or_else(other));
                Err(ExpertError::Expert { key, source })
            }
        }
    }

    fn made(
        &self,
        key: ExpertKey,
        memory: &Arc<AlignedBytes>,
    ) -> Result<T, Box<dyn Error + Send + Sync>> {
        let owner: Arc<dyn taper_cpu::ByteOwner> = Arc::<AlignedBytes>::clone(memory);
        let record = Bytes::new(owner, 0..self.disk.record_bytes(key.layer));
        (self.make)(key, &record.ok_or(ExpertError::Missing { key })?)
    }

    /// More memory for a step: what warming up has not used, or what experts have that are not needed now.
    pub(crate) fn lend(&self, inner: &mut Inner<T>, most: usize) -> Vec<AlignedBytes> {
        let Inner { bank, ranks, .. } = inner;
        let mut lent = bank.lend(most, ranks);
        for priority in [Priority::WarmUp, Priority::Prefetch] {
            let more = most - lent.len();
            lent.extend(self.readers.withdraw(priority, more));
        }
        lent
    }

    /// Takes back the memory of prefetches that have not begun and that nobody wants.
    pub(crate) fn withdraw_prefetches(&self, inner: &mut Inner<T>) {
        for memory in self.readers.withdraw(Priority::Prefetch, usize::MAX) {
            inner.bank.give_back(memory);
        }
    }

    /// Nobody waits for these reads any more.
    pub(crate) fn abandon(&self, keys: &HashSet<ExpertKey>) {
        if !keys.is_empty() {
            self.readers.abandon(keys);
        }
    }

    /// Slots that a layer has on average.
    pub(crate) fn share(&self, inner: &Inner<T>) -> usize {
        inner.bank.slots() / self.disk.experts().len().max(1)
    }

    /// Gauges and counters as they stand now. How many experts a token goes through (`active`) is for the model
    /// to say.
    #[must_use]
    pub fn stats(&self) -> ExpertStats {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let (read_bytes, retries) = self.readers.counts();
        let Counts { slots, resident, hits, misses, useful, wasted, shrunk, tokens, stall_nanos } =
            &self.counts;
        ExpertStats {
            slots: get(slots),
            floor_slots: self.floor as u64,
            slot_bytes: self.slot_bytes as u64,
            experts: self.disk.experts().iter().sum::<usize>() as u64,
            active: 0,
            resident: get(resident),
            read_bytes,
            hits: get(hits),
            misses: get(misses),
            prefetch_useful: get(useful),
            prefetch_wasted: get(wasted),
            retries,
            shrunk: get(shrunk),
            tokens: get(tokens),
            stall: Duration::from_nanos(get(stall_nanos)),
        }
    }
}

impl<T> Inner<T> {
    fn record(&mut self, layer: u32, wanted: &[Wanted], tokens: u32) {
        let Some(trace) = self.trace.as_mut().filter(|t| t.touches.len() < LONGEST_TRACE) else {
            return;
        };
        let experts = wanted.iter().map(|w| (w.expert, w.rows)).collect();
        let (of, expected) = std::mem::take(&mut self.expected);
        let expected = if of == layer { expected } else { Vec::new() };
        trace.touches.push(Touch { layer, tokens, experts, expected });
    }
}
