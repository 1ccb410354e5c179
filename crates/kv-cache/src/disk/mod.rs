//! Prefixes on disk: found again after a restart, and after their blocks had to go.
//!
//! A *unit* is what prefixes are reused in multiples of. Each is a file of its own, named by a hash
//! of all that its rows depend on: the model, the cache's shape, and every token up to its end. So
//! a file is either the right one or not found, whatever wrote it; `file.rs` says what is in it.
//!
//! Files are written under a random name and renamed when they are whole; only their owner reads them.
//! Several processes may share a directory: before a file makes room, those of others are counted, too. A process whose
//! rows may be nowhere else has it alone (`lock.rs`).
//! Reading and writing has threads of its own. A file that is damaged is reported, forgotten and written anew.

mod file;
mod index;
mod lock;
mod pulse;
mod shared;
#[cfg(test)]
mod tests;

pub use file::{UnitName, UnitRows};

use crate::KvCacheError;
use index::Index;
use pulse::Pulse;
use shared::{Counters, Job, Shared, ToRead, bytes_of, create_private, unfinished};
use std::{
    fs,
    path::Path,
    sync::{Arc, Condvar, Mutex, PoisonError, atomic::Ordering, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Bytes that may wait to be written; what comes beyond is not kept.
const MAX_PENDING: u64 = 256 << 20;
/// Closing waits so long for files that are being written or read.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// A disk that does nothing for so long is not waited for any more.
pub(crate) const DEADLINE: Duration = Duration::from_secs(4);
/// Threads that read what a step waits for.
const READERS: usize = 4;

/// Why a unit was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// There is no such file, or it is damaged. It is forgotten, and written anew with the next store.
    #[error("the unit is not on disk, or damaged there")]
    Gone,
    /// The disk fails, or does not answer. What it has may be good.
    #[error("the disk of the KV cache fails, or does not answer")]
    Failed,
}

/// What was written since the directory was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// Blocks of the caches.
    pub blocks: u64,
    /// Bytes of files.
    pub bytes: u64,
}

/// Units that a step waits for.
#[derive(Debug)]
pub(crate) struct Reading {
    answers: mpsc::Receiver<(usize, Result<UnitRows, Unread>)>,
}

/// A directory of units.
#[derive(Debug)]
pub struct DiskTier {
    shared: Arc<Shared>,
    /// `None` once closing.
    jobs: Option<mpsc::Sender<Job>>,
    /// Units in the order in which they are requested.
    loads: Option<mpsc::Sender<ToRead>>,
    /// What steps wait for, in any order.
    reads: Option<mpsc::Sender<ToRead>>,
    threads: Vec<JoinHandle<()>>,
}

impl DiskTier {
    /// Opens a directory, or makes it. `max_bytes` is what its files may take together; those that
    /// were used longest ago make room. Other programs' files stay as they are.
    ///
    /// # Errors
    /// [`KvCacheError::Disk`]: it cannot be made, read or written, or there are no threads. [`KvCacheError::DiskInUse`]:
    /// somebody has it alone.
    pub fn open(dir: &Path, max_bytes: u64) -> Result<Self, KvCacheError> {
        Self::open_as(dir, max_bytes, false)
    }

    /// As [`Self::open`], for a cache whose rows may be nowhere but in a file: no other process may open the directory
    /// meanwhile, as it would remove them to make room.
    ///
    /// # Errors
    /// [`KvCacheError::Disk`], as [`Self::open`]. [`KvCacheError::DiskInUse`]: somebody else uses it.
    pub fn open_alone(dir: &Path, max_bytes: u64) -> Result<Self, KvCacheError> {
        Self::open_as(dir, max_bytes, true)
    }

    fn open_as(dir: &Path, max_bytes: u64, alone: bool) -> Result<Self, KvCacheError> {
        let failed = |source| KvCacheError::Disk { dir: dir.to_owned(), source };
        create_private(dir).map_err(failed)?;
        let lock = lock::lock(dir, alone)?;
        let mut index = Index::default();
        index.replace(index::scan(dir).map_err(failed)?);
        // What cannot be written should be known now, and not with the first request.
        unfinished(dir).map_err(failed)?;
        warn_if_others_read(dir);
        let shared = Arc::new(Shared {
            dir: dir.to_owned(),
            max_bytes,
            index: Mutex::new(index),
            changing: Mutex::new(Instant::now()),
            pending: Mutex::new(0),
            progress: Condvar::new(),
            reads: Pulse::default(),
            writes: Pulse::default(),
            written: Counters::default(),
            _lock: lock,
        });
        shared.make_room(0);
        let (jobs, to_do) = mpsc::channel::<Job>();
        let (loads, to_load) = mpsc::channel();
        let (reads, to_read) = mpsc::channel();
        let [to_load, to_read] = [to_load, to_read].map(|queue| Arc::new(Mutex::new(queue)));
        let writer = Arc::clone(&shared);
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(name.into()).spawn(run).map_err(failed)
        };
        let mut threads = vec![spawn(
            "taper-kv-writer",
            Box::new(move || to_do.iter().for_each(|job| writer.run(&job))),
        )?];
        for queue in std::iter::once(&to_load).chain(std::iter::repeat_n(&to_read, READERS)) {
            let (reader, queue) = (Arc::clone(&shared), Arc::clone(queue));
            threads.push(spawn("taper-kv-reader", Box::new(move || reader.serve(&queue)))?);
        }
        Ok(Self { shared, jobs: Some(jobs), loads: Some(loads), reads: Some(reads), threads })
    }

    /// Whether a unit is there, as far as is known without reading it.
    #[must_use]
    pub fn holds(&self, name: &UnitName) -> bool {
        self.shared.index().holds(name)
    }

    /// Whether [`Self::store`] would take a unit now.
    #[must_use]
    pub fn takes(&self, bytes: u64) -> bool {
        let pending = *shared::lock(&self.shared.pending);
        pending == 0 || pending + bytes <= MAX_PENDING
    }

    /// Keeps a unit's rows, those of `blocks` blocks, some time later.
    pub fn store(&self, name: UnitName, blocks: usize, rows: UnitRows) {
        *shared::lock(&self.shared.pending) += bytes_of(&rows);
        self.shared.writes.asked();
        self.to_do(Job::Write { name, blocks, rows });
    }

    fn to_do(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // The thread lives as long as the sender.
            let _ = jobs.send(job);
        }
    }

    /// Waits until less is to be written than now. `false`: nothing is, it takes too long, or the disk does not
    /// answer.
    pub(crate) fn wait_written(&self, until: Instant) -> bool {
        let since = Instant::now();
        let mut pending = shared::lock(&self.shared.pending);
        let before = *pending;
        if before == 0 || self.shared.writes.is_silent() {
            return false;
        }
        while *pending >= before {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                if since.elapsed() >= DEADLINE {
                    self.give_up(&self.shared.writes);
                }
                return false;
            }
            let waited = self.shared.progress.wait_timeout(pending, left);
            pending = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Reads a unit's rows; `done` gets them on another thread, or why there are none. It is called at once where
    /// nothing can be read any more.
    /// Units come in the order in which they were requested.
    pub fn load(
        &self,
        name: UnitName,
        done: impl FnOnce(Result<UnitRows, Unread>) + Send + 'static,
    ) {
        send(self.loads.as_ref(), ToRead { name, part: None, done: Box::new(done) });
    }

    /// Requests units that a step waits for, whole or one part of them. Answers have a request's number.
    pub(crate) fn request(
        &self,
        wanted: impl IntoIterator<Item = (UnitName, Option<usize>)>,
    ) -> Reading {
        let (sender, answers) = mpsc::channel();
        // Requests to a disk that does not answer would pile up.
        let wanted = wanted.into_iter().enumerate().filter(|_| !self.shared.reads.is_silent());
        for (i, (name, part)) in wanted {
            let (sender, shared) = (sender.clone(), Arc::clone(&self.shared));
            shared.reads.asked();
            let done = move |rows| {
                // Nobody listens any more to what came too late.
                drop(sender.send((i, rows)));
                shared.reads.answered();
            };
            send(self.reads.as_ref(), ToRead { name, part, done: Box::new(done) });
        }
        Reading { answers }
    }

    /// The next answer; `None` after the last one, and where the disk does not answer.
    pub(crate) fn receive(&self, reading: &Reading) -> Option<(usize, Result<UnitRows, Unread>)> {
        let answer = reading.answers.recv_timeout(DEADLINE);
        if answer == Err(mpsc::RecvTimeoutError::Timeout) {
            self.give_up(&self.shared.reads);
        }
        answer.ok()
    }

    /// Nobody waits for the disk until it has answered.
    fn give_up(&self, pulse: &Pulse) {
        if pulse.give_up() {
            tracing::error!(dir = %self.shared.dir.display(), "the disk of the KV cache does not answer");
        }
    }

    /// Keeps a unit's file, whatever needs its room. `false`: there is none, or the disk does not answer.
    pub(crate) fn pin(&self, name: UnitName) -> bool {
        !self.shared.reads.is_silent() && self.shared.index().pin(name)
    }

    /// Takes back one [`Self::pin`].
    pub(crate) fn unpin(&self, name: UnitName) {
        self.shared.index().unpin(name);
    }

    /// Takes a unit for lost, and removes its file some time later; the next store of it writes it anew. One whose rows
    /// are nowhere else stays.
    pub fn forget(&self, name: UnitName) {
        if self.shared.index().remove_unpinned(name).is_some() {
            self.to_do(Job::Remove(name));
        }
    }

    /// What was written so far.
    #[must_use]
    pub fn written(&self) -> Written {
        let Counters { blocks, bytes } = &self.shared.written;
        let [blocks, bytes] = [blocks, bytes].map(|counter| counter.load(Ordering::Relaxed));
        Written { blocks, bytes }
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.index().bytes()
    }
}

/// Writes what is pending. A disk that hangs is left alone after some seconds: its threads end with
/// the process.
impl Drop for DiskTier {
    fn drop(&mut self) {
        (self.jobs, self.loads, self.reads) = (None, None, None);
        let start = Instant::now();
        for thread in self.threads.drain(..) {
            while !thread.is_finished() && start.elapsed() < CLOSE_WITHIN {
                thread::sleep(Duration::from_millis(1));
            }
            if !thread.is_finished() {
                tracing::error!(
                    "the disk of the KV cache does not answer; what was to be written is lost"
                );
            } else if thread.join().is_err() {
                tracing::error!("a thread of the KV cache's disk tier panicked");
            }
        }
    }
}

/// Hands a request to a thread, or refuses it where there is none any more.
fn send(to: Option<&mpsc::Sender<ToRead>>, read: ToRead) {
    let unread = match to {
        Some(reads) => reads.send(read).err().map(|error| error.0),
        None => Some(read),
    };
    if let Some(ToRead { done, .. }) = unread {
        done(Err(Unread::Failed));
    }
}

/// Names of files tell who asked what, so others should not even list them.
fn warn_if_others_read(dir: &Path) {
    #[cfg(unix)]
    if fs::metadata(dir)
        .is_ok_and(|meta| std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o077 != 0)
    {
        tracing::warn!(dir = %dir.display(), "others can read the directory of KV prefixes; chmod 700 keeps them out");
    }
    #[cfg(not(unix))]
    let _ = dir;
}
