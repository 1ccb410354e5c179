//! What the threads of a directory do: write files, remove them, and read them.

use super::{
    UnitName, UnitRows, Unread, file,
    index::{self, Entry, Index, UNFINISHED},
    pulse::Pulse,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant, SystemTime},
};

/// Files of other processes are counted again after so long.
const COUNT_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) dir: PathBuf,
    pub(super) max_bytes: u64,
    pub(super) index: Mutex<Index>,
    /// Held while files appear, disappear or are counted, so that the index is right about them; when they were last
    /// counted. No engine's thread takes it: a disk may hang meanwhile.
    pub(super) changing: Mutex<Instant>,
    /// Bytes that wait to be written.
    pub(super) pending: Mutex<u64>,
    /// Fewer bytes wait than before.
    pub(super) progress: Condvar,
    /// Of reads that steps wait for.
    pub(super) reads: Pulse,
    pub(super) writes: Pulse,
    pub(super) written: Counters,
    /// Says to other processes that this one is here.
    pub(super) _lock: fs::File,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) blocks: AtomicU64,
    pub(super) bytes: AtomicU64,
}

/// What the writer is to do, in this order.
#[derive(Debug)]
pub(super) enum Job {
    /// Writes a unit.
    Write { name: UnitName, blocks: usize, rows: UnitRows },
    /// Removes a unit's file.
    Remove(UnitName),
}

/// A unit that is to be read, or one part of it.
pub(super) struct ToRead {
    pub(super) name: UnitName,
    pub(super) part: Option<usize>,
    pub(super) done: Box<dyn FnOnce(Result<UnitRows, Unread>) + Send>,
}

impl Shared {
    pub(super) fn index(&self) -> MutexGuard<'_, Index> {
        lock(&self.index)
    }

    pub(super) fn run(&self, job: &Job) {
        match job {
            Job::Write { name, blocks, rows } => {
                self.write(*name, *blocks, rows);
                *lock(&self.pending) -= bytes_of(rows);
                self.progress.notify_all();
                self.writes.answered();
            }
            Job::Remove(name) => {
                let _changing = lock(&self.changing);
                let entry = self.index().remove_unpinned(*name);
                // It may have been pinned since: then it stays.
                if entry.is_some() || !self.index().holds(name) {
                    self.unlink(*name, entry);
                }
            }
        }
    }

    /// Removes a file that the index does not have any more. One that cannot be removed is put back: its bytes are
    /// taken still.
    fn unlink(&self, name: UnitName, entry: Option<Entry>) {
        match fs::remove_file(self.dir.join(name.file())) {
            Ok(()) => {}
            // Another process has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(%error, dir = %self.dir.display(), "a file of the KV cache cannot be removed");
                if let Some(entry) = entry {
                    self.index().insert(name, entry);
                }
            }
        }
    }

    fn write(&self, name: UnitName, blocks: usize, rows: &UnitRows) {
        let bytes = file::bytes(rows);
        if self.index().holds(&name) || bytes > self.max_bytes {
            return;
        }
        self.count_again();
        let written = match self.make_room(bytes) {
            true => self.write_file(name, rows, bytes),
            false => Err(io::ErrorKind::QuotaExceeded.into()),
        };
        match written {
            Ok(()) => {
                self.written.blocks.fetch_add(blocks as u64, Ordering::Relaxed);
                self.written.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Err(error) => {
                tracing::warn!(%error, dir = %self.dir.display(), "a KV prefix was not kept");
            }
        }
    }

    fn write_file(&self, name: UnitName, rows: &UnitRows, bytes: u64) -> io::Result<()> {
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
        let _changing = lock(&self.changing);
        file.persist(self.dir.join(name.file()))?;
        self.index().add(name, bytes);
        Ok(())
    }

    /// Counts the files of the directory again, those of other processes too, unless that was done
    /// just now. Where it cannot be read, nothing is known to be there.
    fn count_again(&self) {
        let mut counted = lock(&self.changing);
        if counted.elapsed() >= COUNT_EVERY {
            let found = index::scan(&self.dir).unwrap_or_default();
            self.index().replace(found);
            *counted = Instant::now();
        }
    }

    /// Removes the files that were used longest ago until so many bytes more would fit. `false`: they do not, as the
    /// others are needed, or cannot be removed.
    pub(super) fn make_room(&self, bytes: u64) -> bool {
        let _changing = lock(&self.changing);
        // Those that were tried already make no room: they come back when no other is left.
        let mut tried = 0;
        loop {
            let mut index = self.index();
            if index.bytes().saturating_add(bytes) <= self.max_bytes {
                return true;
            }
            let Some((name, entry)) = index.take_oldest(tried) else { return false };
            drop(index);
            self.unlink(name, Some(entry));
            tried += usize::from(self.index().holds(&name));
        }
    }

    /// Answers requests as long as there are any.
    pub(super) fn serve(&self, queue: &Mutex<mpsc::Receiver<ToRead>>) {
        loop {
            let next = lock(queue).recv();
            let Ok(ToRead { name, part, done }) = next else { return };
            done(self.read(name, part));
        }
    }

    fn read(&self, name: UnitName, part: Option<usize>) -> Result<UnitRows, Unread> {
        let path = self.dir.join(name.file());
        let error = match file::read(name, &path, part) {
            Ok(rows) => {
                if self.index().touch(name, part.is_none()) {
                    // The order of use outlives the process as the files' times.
                    let now = fs::File::options().write(true).open(&path);
                    let _ = now.and_then(|file| file.set_modified(SystemTime::now()));
                }
                return Ok(rows);
            }
            Err(error) => error,
        };
        match error.kind() {
            // Another process needed its room.
            io::ErrorKind::NotFound => {
                let _changing = lock(&self.changing);
                self.index().remove(name);
                Err(Unread::Gone)
            }
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                tracing::warn!(file = %path.display(), %error, "a kept KV prefix is damaged");
                let _changing = lock(&self.changing);
                let entry = self.index().remove(name);
                self.unlink(name, entry);
                Err(Unread::Gone)
            }
            // What fails may be the disk, or this process: no file is removed for that.
            _ => {
                tracing::warn!(file = %path.display(), %error, "a kept KV prefix cannot be read");
                Err(Unread::Failed)
            }
        }
    }
}

pub(super) fn bytes_of(rows: &UnitRows) -> u64 {
    rows.iter().map(|part| part.len() as u64).sum()
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a directory that only its owner reads: rows say what their prompts said.
pub(super) fn create_private(dir: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

/// A file of a random name that did not exist, which only its owner reads. It is removed unless it is
/// renamed.
pub(super) fn unfinished(dir: &Path) -> io::Result<tempfile::NamedTempFile> {
    tempfile::Builder::new().suffix(&format!(".{UNFINISHED}")).tempfile_in(dir)
}
