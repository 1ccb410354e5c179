//! Threads that read records into memory that is lent to them.

use crate::{ExpertDisk, ExpertError, ExpertKey};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};
use taper_cpu::AlignedBytes;

/// What a read is for; those before go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Priority {
    /// Somebody waits for it.
    Demand,
    /// The next layer may need it.
    Prefetch,
    /// It was used often before.
    WarmUp,
}

/// A read that has ended, and its memory.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) key: ExpertKey,
    pub(crate) priority: Priority,
    pub(crate) memory: AlignedBytes,
    pub(crate) result: Result<(), ExpertError>,
}

#[derive(Debug)]
pub(crate) struct Readers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// A disk that ends no read for so long is not waited for.
    deadline: Duration,
}

/// Closing waits so long for reads.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Shared {
    disk: Arc<dyn ExpertDisk>,
    state: Mutex<State>,
    /// There is something to read, or the pool is closed.
    work: Condvar,
    /// A read has ended.
    ended: Condvar,
    bytes: AtomicU64,
    retries: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    queues: [VecDeque<(ExpertKey, AlignedBytes)>; 3],
    reading: HashMap<ExpertKey, Priority>,
    done: Vec<Done>,
    /// Reads that have ended so far.
    ended: u64,
    closed: bool,
}

impl Readers {
    /// So many threads over a disk, which is waited for until it has ended no read for `deadline`.
    pub(crate) fn new(
        disk: Arc<dyn ExpertDisk>,
        threads: usize,
        deadline: Duration,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            disk,
            state: Mutex::default(),
            work: Condvar::new(),
            ended: Condvar::new(),
            bytes: AtomicU64::new(0),
            retries: AtomicU64::new(0),
        });
        let mut pool = Self { shared, threads: Vec::new(), deadline };
        for i in 0..threads.max(1) {
            let shared = Arc::clone(&pool.shared);
            let builder = thread::Builder::new().name(format!("experts-{i}"));
            pool.threads.push(builder.spawn(move || shared.run())?);
        }
        Ok(pool)
    }

    /// Bytes read, and reads that were tried again.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.shared.bytes.load(Relaxed), self.shared.retries.load(Relaxed))
    }

    /// Has a record read into memory that is as long as it, or longer.
    pub(crate) fn submit(&self, key: ExpertKey, memory: AlignedBytes, priority: Priority) {
        self.shared.lock().queues[priority as usize].push_back((key, memory));
        self.shared.work.notify_one();
    }

    /// Whether a record is waited for or read, or was read and not taken yet. If so, it is demanded from now on.
    pub(crate) fn urge(&self, key: ExpertKey) -> bool {
        let mut state = self.shared.lock();
        if let Some(priority) = state.reading.get_mut(&key) {
            *priority = Priority::Demand;
            return true;
        }
        if let Some(done) = state.done.iter_mut().find(|done| done.key == key) {
            done.priority = Priority::Demand;
            return true;
        }
        for priority in [Priority::Prefetch, Priority::WarmUp] {
            let queue = &mut state.queues[priority as usize];
            let at = queue.iter().position(|(queued, _)| *queued == key);
            if let Some(job) = at.and_then(|at| queue.remove(at)) {
                state.queues[Priority::Demand as usize].push_back(job);
                return true;
            }
        }
        state.queues[Priority::Demand as usize].iter().any(|(queued, _)| *queued == key)
    }

    /// Whether a record is on its way.
    pub(crate) fn has(&self, key: ExpertKey) -> bool {
        let state = self.shared.lock();
        state.reading.contains_key(&key)
            || state.done.iter().any(|done| done.key == key)
            || state.queues.iter().flatten().any(|(queued, _)| *queued == key)
    }

    /// Whether nobody waits for the disk.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.shared.lock();
        state.queues[Priority::Demand as usize].is_empty()
            && state.reading.values().all(|priority| *priority != Priority::Demand)
    }

    /// Takes back the memory of reads of a kind that have not begun, at most so many.
    pub(crate) fn withdraw(&self, priority: Priority, most: usize) -> Vec<AlignedBytes> {
        let queue = &mut self.shared.lock().queues[priority as usize];
        let first = queue.len() - queue.len().min(most);
        queue.drain(first..).map(|(_, memory)| memory).collect()
    }

    /// Nobody waits for these any more.
    pub(crate) fn abandon(&self, keys: &HashSet<ExpertKey>) {
        let state = &mut *self.shared.lock();
        for (key, priority) in &mut state.reading {
            if keys.contains(key) {
                *priority = Priority::Prefetch;
            }
        }
        for done in &mut state.done {
            if keys.contains(&done.key) {
                done.priority = Priority::Prefetch;
            }
        }
        let (gone, kept) = std::mem::take(&mut state.queues[Priority::Demand as usize])
            .into_iter()
            .partition::<VecDeque<_>, _>(|(key, _)| keys.contains(key));
        state.queues[Priority::Demand as usize] = kept;
        state.queues[Priority::Prefetch as usize].extend(gone);
    }

    /// Reads that have ended and that nobody waits for.
    pub(crate) fn take_others(&self) -> Vec<Done> {
        let mut state = self.shared.lock();
        let (others, waited) = std::mem::take(&mut state.done)
            .into_iter()
            .partition(|done| done.priority != Priority::Demand);
        state.done = waited;
        others
    }

    /// Waits for the first of some reads to end; `None` where none of them is on its way.
    ///
    /// # Errors
    /// [`ExpertError::Silent`].
    pub(crate) fn wait(&self, keys: &HashSet<ExpertKey>) -> Result<Option<Done>, ExpertError> {
        let mut state = self.shared.lock();
        let (mut ended, mut since) = (state.ended, Instant::now());
        loop {
            if let Some(at) = state.done.iter().position(|done| keys.contains(&done.key)) {
                return Ok(Some(state.done.remove(at)));
            }
            let queued = state.queues.iter().flatten().map(|(key, _)| key);
            if !queued.chain(state.reading.keys()).any(|key| keys.contains(key)) {
                return Ok(None);
            }
            if state.ended != ended {
                (ended, since) = (state.ended, Instant::now());
            }
            let left = self.deadline.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Err(ExpertError::Silent { after: self.deadline });
            }
            let waited = self.shared.ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A read that hangs is left alone after some seconds: its thread ends with the process.
impl Drop for Readers {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
        let (since, within) = (Instant::now(), self.deadline.min(CLOSE_WITHIN));
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && since.elapsed() < within {
                thread::sleep(Duration::from_millis(1));
            }
            match thread.is_finished() {
                // Its panic has been printed.
                true => drop(thread.join()),
                false => tracing::error!("the disk of the experts does not answer"),
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        while let Some((key, mut memory)) = self.next() {
            let result = self.read(key, &mut memory);
            let mut state = self.lock();
            let priority = state.reading.remove(&key).unwrap_or(Priority::Prefetch);
            state.done.push(Done { key, priority, memory, result });
            state.ended += 1;
            drop(state);
            self.ended.notify_all();
        }
    }

    /// Waits for a read to do; `None` ends the thread.
    fn next(&self) -> Option<(ExpertKey, AlignedBytes)> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            for priority in [Priority::Demand, Priority::Prefetch, Priority::WarmUp] {
                if let Some(job) = state.queues[priority as usize].pop_front() {
                    state.reading.insert(job.0, priority);
                    return Some(job);
                }
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Reads a record, a second time where the first one fails: cables and buses have moments.
    fn read(&self, key: ExpertKey, memory: &mut AlignedBytes) -> Result<(), ExpertError> {
        let size = self.disk.record_bytes(key.layer);
        let to = memory.as_mut_slice().get_mut(..size).ok_or(ExpertError::Missing { key })?;
        self.bytes.fetch_add(size as u64, Relaxed);
        let Err(first) = self.try_read(key, to) else { return Ok(()) };
        tracing::warn!(%key, error = %first, "reading an expert failed; trying again");
        self.retries.fetch_add(1, Relaxed);
        self.bytes.fetch_add(size as u64, Relaxed);
        self.try_read(key, to)
    }

    /// A panic is a failed read: somebody waits for its end.
    fn try_read(&self, key: ExpertKey, to: &mut [u8]) -> Result<(), ExpertError> {
        let read = AssertUnwindSafe(|| self.disk.read(key, to));
        catch_unwind(read).unwrap_or(Err(ExpertError::Panicked { key }))
    }
}
