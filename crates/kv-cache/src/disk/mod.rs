//! Prefixes on disk: found again after a restart, and after their blocks had to go.
//!
//! A *unit* is what prefixes are reused in multiples of. Each is a file of its own, named by a hash
//! of all that its rows depend on: the model, the cache's shape, and every token up to its end. So
//! a file is either the right one or not found, whatever wrote it; `file.rs` says what is in it.
//!
//! Files are written under a random name and renamed when they are whole; only their owner reads them.
//! Several processes may share a directory: before a file makes room, those of others are counted, too.
//! Reading and writing has threads of its own. A file that is damaged is reported, forgotten and written anew.

mod file;
mod index;

pub use file::{UnitName, UnitRows};

use crate::KvCacheError;
use index::{Index, UNFINISHED};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

/// Bytes that may wait to be written; what comes beyond is not kept.
const MAX_PENDING: u64 = 256 << 20;
/// Files of other processes are counted again after so long.
const COUNT_EVERY: Duration = Duration::from_secs(2);
/// Closing waits so long for files that are being written or read.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// A disk that does nothing for so long is not waited for any more.
const DEADLINE: Duration = Duration::from_secs(4);
/// Threads that read what a step waits for.
const READERS: usize = 4;

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    max_bytes: u64,
    index: Mutex<Index>,
    /// When the directory's files were last counted.
    counted: Mutex<Instant>,
    /// Bytes that wait to be written.
    pending: Mutex<u64>,
    /// Fewer bytes wait than before.
    progress: Condvar,
    /// Somebody has waited in vain, and nothing was read or written since.
    silent: AtomicBool,
    written: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    blocks: AtomicU64,
    bytes: AtomicU64,
}

/// What was written since the directory was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// Blocks of the caches.
    pub blocks: u64,
    /// Bytes of files.
    pub bytes: u64,
}

/// A unit on its way to the disk.
#[derive(Debug)]
struct ToWrite {
    name: UnitName,
    blocks: usize,
    rows: UnitRows,
}

/// A unit that is to be read, or one part of it.
struct ToRead {
    name: UnitName,
    part: Option<usize>,
    done: Box<dyn FnOnce(Option<UnitRows>) + Send>,
}

/// Units that a step waits for.
#[derive(Debug)]
pub(crate) struct Reading {
    answers: mpsc::Receiver<(usize, Option<UnitRows>)>,
}

/// A directory of units.
#[derive(Debug)]
pub struct DiskTier {
    shared: Arc<Shared>,
    /// `None` once closing.
    writes: Option<mpsc::Sender<ToWrite>>,
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
    /// [`KvCacheError::Disk`]: it cannot be made, read or written, or there are no threads.
    pub fn open(dir: &Path, max_bytes: u64) -> Result<Self, KvCacheError> {
        let failed = |source| KvCacheError::Disk { dir: dir.to_owned(), source };
        create_private(dir).map_err(failed)?;
        let index = Mutex::new(Index::scan(dir).map_err(failed)?);
        // What cannot be written should be known now, and not with the first request.
        unfinished(dir).map_err(failed)?;
        warn_if_others_read(dir);
        let shared = Arc::new(Shared {
            dir: dir.to_owned(),
            max_bytes,
            index,
            counted: Mutex::new(Instant::now()),
            pending: Mutex::new(0),
            progress: Condvar::new(),
            silent: AtomicBool::new(false),
            written: Counters::default(),
        });
        shared.make_room(0);
        let (writes, to_write) = mpsc::channel::<ToWrite>();
        let (loads, to_load) = mpsc::channel();
        let (reads, to_read) = mpsc::channel();
        let [to_load, to_read] = [to_load, to_read].map(|queue| Arc::new(Mutex::new(queue)));
        let writer = Arc::clone(&shared);
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(name.into()).spawn(run).map_err(failed)
        };
        let mut threads = vec![spawn(
            "taper-kv-writer",
            Box::new(move || to_write.iter().for_each(|unit| writer.write(&unit))),
        )?];
        for queue in std::iter::once(&to_load).chain(std::iter::repeat_n(&to_read, READERS)) {
            let (reader, queue) = (Arc::clone(&shared), Arc::clone(queue));
            threads.push(spawn("taper-kv-reader", Box::new(move || reader.serve(&queue)))?);
        }
        Ok(Self { shared, writes: Some(writes), loads: Some(loads), reads: Some(reads), threads })
    }

    /// Whether a unit is there, as far as is known without reading it.
    #[must_use]
    pub fn holds(&self, name: &UnitName) -> bool {
        self.shared.index().holds(name)
    }

    /// Whether [`Self::store`] would take a unit now.
    #[must_use]
    pub fn takes(&self, bytes: u64) -> bool {
        let pending = *lock(&self.shared.pending);
        pending == 0 || pending + bytes <= MAX_PENDING
    }

    /// Keeps a unit's rows, those of `blocks` blocks, some time later.
    pub fn store(&self, name: UnitName, blocks: usize, rows: UnitRows) {
        *lock(&self.shared.pending) += bytes_of(&rows);
        if let Some(writes) = &self.writes {
            // The thread lives as long as the sender.
            let _ = writes.send(ToWrite { name, blocks, rows });
        }
    }

    /// Waits until everything is written that was to be. `false`: nothing was, or the disk does not answer.
    pub(crate) fn finish_writing(&self) -> bool {
        let mut pending = lock(&self.shared.pending);
        if *pending == 0 || self.is_silent() {
            return false;
        }
        while *pending > 0 {
            let before = *pending;
            let waited = self.shared.progress.wait_timeout(pending, DEADLINE);
            let (now, late) = waited.unwrap_or_else(PoisonError::into_inner);
            if late.timed_out() && *now == before {
                self.give_up();
                return false;
            }
            pending = now;
        }
        true
    }

    /// Reads a unit's rows; `done` gets them on another thread, or `None` where they are not whole. It
    /// is called at once with `None` where nothing can be read any more.
    /// Units come in the order in which they were requested.
    pub fn load(&self, name: UnitName, done: impl FnOnce(Option<UnitRows>) + Send + 'static) {
        send(self.loads.as_ref(), ToRead { name, part: None, done: Box::new(done) });
    }

    /// Requests units that a step waits for, whole or one part of them. Answers have a request's number.
    pub(crate) fn request(
        &self,
        wanted: impl IntoIterator<Item = (UnitName, Option<usize>)>,
    ) -> Reading {
        let (sender, answers) = mpsc::channel();
        // Requests to a disk that does not answer would pile up.
        let wanted = wanted.into_iter().enumerate().filter(|_| !self.is_silent());
        for (i, (name, part)) in wanted {
            let sender = sender.clone();
            // Nobody listens any more to what came too late.
            let done = move |rows| drop(sender.send((i, rows)));
            send(self.reads.as_ref(), ToRead { name, part, done: Box::new(done) });
        }
        Reading { answers }
    }

    /// The next answer; `None` after the last one, and where the disk does not answer.
    pub(crate) fn receive(&self, reading: &Reading) -> Option<(usize, Option<UnitRows>)> {
        let answer = reading.answers.recv_timeout(DEADLINE);
        if answer == Err(mpsc::RecvTimeoutError::Timeout) {
            self.give_up();
        }
        answer.ok()
    }

    /// Nobody waits for the disk until it has answered.
    fn give_up(&self) {
        if !self.shared.silent.swap(true, Ordering::Relaxed) {
            tracing::error!(dir = %self.shared.dir.display(), "the disk of the KV cache does not answer");
        }
    }

    fn is_silent(&self) -> bool {
        self.shared.silent.load(Ordering::Relaxed)
    }

    /// Keeps a unit's file, whatever needs its room. `false`: there is none, or the disk does not answer.
    pub(crate) fn pin(&self, name: UnitName) -> bool {
        !self.is_silent() && self.shared.index().pin(name)
    }

    /// Takes back one [`Self::pin`].
    pub(crate) fn unpin(&self, name: UnitName) {
        self.shared.index().unpin(name);
    }

    /// Takes a unit for lost and removes its file; the next store of it writes it anew.
    pub fn forget(&self, name: UnitName) {
        self.shared.discard(name);
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
        (self.writes, self.loads, self.reads) = (None, None, None);
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

impl Shared {
    fn index(&self) -> MutexGuard<'_, Index> {
        lock(&self.index)
    }

    /// Forgets a unit. Its file goes too, or it would be found when files are counted again.
    fn discard(&self, name: UnitName) {
        self.index().remove(name);
        // Another process may have removed it.
        let _ = fs::remove_file(self.dir.join(name.file()));
    }

    fn write(&self, unit: &ToWrite) {
        let &ToWrite { name, blocks, ref rows } = unit;
        let bytes = file::bytes(rows);
        if !self.index().holds(&name) && bytes <= self.max_bytes {
            self.count_again();
            let written = match self.make_room(bytes) {
                true => self.write_file(name, rows),
                false => Err(io::ErrorKind::QuotaExceeded.into()),
            };
            match written {
                Ok(()) => {
                    self.written.blocks.fetch_add(blocks as u64, Ordering::Relaxed);
                    self.written.bytes.fetch_add(bytes, Ordering::Relaxed);
                    self.index().add(name, bytes);
                }
                Err(error) => {
                    tracing::warn!(%error, dir = %self.dir.display(), "a KV prefix was not kept");
                }
            }
        }
        *lock(&self.pending) -= bytes_of(rows);
        self.silent.store(false, Ordering::Relaxed);
        self.progress.notify_all();
    }

    fn write_file(&self, name: UnitName, rows: &UnitRows) -> io::Result<()> {
        let mut file = match unfinished(&self.dir) {
            // Somebody has removed the directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create_private(&self.dir)?;
                unfinished(&self.dir)?
            }
            file => file?,
        };
        file::write(name, rows, file.as_file_mut())?;
        // The system's own times are coarser than those of reading.
        file.as_file().set_modified(SystemTime::now())?;
        file.persist(self.dir.join(name.file()))?;
        Ok(())
    }

    /// Counts the files of the directory again, those of other processes too, unless that was done
    /// just now. Where it cannot be read, nothing is known to be there.
    fn count_again(&self) {
        let mut counted = lock(&self.counted);
        if counted.elapsed() >= COUNT_EVERY {
            let found = Index::scan(&self.dir).unwrap_or_default();
            self.index().replace(found);
            *counted = Instant::now();
        }
    }

    /// Removes the files that were used longest ago until so many bytes more would fit. `false`: they do not, as the
    /// others are needed.
    fn make_room(&self, bytes: u64) -> bool {
        loop {
            let index = self.index();
            if index.bytes().saturating_add(bytes) <= self.max_bytes {
                return true;
            }
            let Some(oldest) = index.oldest() else { return false };
            drop(index);
            self.discard(oldest);
        }
    }

    /// Answers requests as long as there are any.
    fn serve(&self, queue: &Mutex<mpsc::Receiver<ToRead>>) {
        loop {
            let next = lock(queue).recv();
            let Ok(ToRead { name, part, done }) = next else { return };
            let rows = self.read(name, part);
            self.silent.store(false, Ordering::Relaxed);
            done(rows);
        }
    }

    fn read(&self, name: UnitName, part: Option<usize>) -> Option<UnitRows> {
        let path = self.dir.join(name.file());
        match file::read(name, &path, part) {
            Ok(rows) => {
                self.index().touch(name);
                if part.is_none() {
                    // The order of use outlives the process as the files' times.
                    let now = fs::File::options().write(true).open(&path);
                    let _ = now.and_then(|file| file.set_modified(SystemTime::now()));
                }
                Some(rows)
            }
            // Another process needed its room.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.index().remove(name);
                None
            }
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "a kept KV prefix cannot be used");
                self.discard(name);
                None
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
        done(None);
    }
}

fn bytes_of(rows: &UnitRows) -> u64 {
    rows.iter().map(|part| part.len() as u64).sum()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a directory that only its owner reads: rows say what their prompts said.
fn create_private(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// A file of a random name that did not exist, which only its owner reads. It is removed unless it is
/// renamed.
fn unfinished(dir: &Path) -> io::Result<tempfile::NamedTempFile> {
    tempfile::Builder::new().suffix(&format!(".{UNFINISHED}")).tempfile_in(dir)
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
