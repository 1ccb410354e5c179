//! Prefixes on disk: found again after a restart, and after their blocks had to go.
//!
//! A *unit* is what prefixes are reused in multiples of. Each is a file of its own, named by a hash
//! of all that its rows depend on: the model, the cache's shape, and every token up to its end. So
//! a file is either the right one or not found, whatever wrote it.
//!
//! ```text
//! NAME.kv:  "taperkv1"  name, 32 bytes  length of the rows, u64 little-endian  rows
//!           SHA-256 of all of that
//! ```
//! Files are written under a random name and renamed when they are whole; only their owner reads them.
//! Several processes may share a directory: before a file makes room, those of others are counted, too.
//! Reading and writing has threads of its own. A file that is damaged is reported, forgotten and written anew.

use crate::KvCacheError;
use sha2::{Digest, Sha256};
use std::{
    collections::{BTreeMap, HashMap},
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};
use taper_base::TokenId;

const MAGIC: &[u8; 8] = b"taperkv1";
const HASH: usize = 32;
const HEAD: usize = MAGIC.len() + HASH + 8;
const EXTENSION: &str = "kv";
/// Extension of files that are being written.
const UNFINISHED: &str = "tmp";
/// A file that was left unfinished so long ago is nobody's any more.
const ABANDONED: Duration = Duration::from_secs(3600);
/// Bytes that may wait to be written; what comes beyond is not kept.
const MAX_PENDING: u64 = 256 << 20;

/// Files of other processes are counted again after so long.
const COUNT_EVERY: Duration = Duration::from_secs(2);
/// Closing waits so long for files that are being written or read.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// A unit's rows and all before it, as a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnitName([u8; HASH]);

impl UnitName {
    /// What stands before the first unit: everything but tokens that rows depend on.
    #[must_use]
    pub fn root(identity: &str) -> Self {
        Self(Sha256::digest(identity).into())
    }

    /// What stands before the first unit of prompts of a salt.
    pub(crate) fn salted(&self, salt: Option<&Arc<str>>) -> Self {
        let Some(salt) = salt else { return *self };
        Self(
            Sha256::new_with_prefix(self.0)
                .chain_update("salt")
                .chain_update(&**salt)
                .finalize()
                .into(),
        )
    }

    /// The unit of these tokens after this one.
    #[must_use]
    pub fn next(&self, tokens: &[TokenId]) -> Self {
        self.next_with(tokens, &[])
    }

    /// [`Self::next`] of tokens of which some stand for images: where each begins, and its hash.
    pub(crate) fn next_with(&self, tokens: &[TokenId], images: &[(isize, [u8; HASH])]) -> Self {
        let mut hash = Sha256::new_with_prefix(self.0);
        tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        for (at, image) in images {
            hash.update("image");
            hash.update((*at as i64).to_le_bytes());
            hash.update(image);
        }
        Self(hash.finalize().into())
    }

    fn file(&self) -> String {
        let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{hex}.{EXTENSION}")
    }

    fn of_file(name: &str) -> Option<Self> {
        let hex = name.strip_suffix(EXTENSION)?.strip_suffix('.')?;
        let mut bytes = [0; HASH];
        if hex.len() != 2 * HASH || !hex.is_ascii() {
            return None;
        }
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }
}

/// Files there are, and in which order they were used.
#[derive(Debug, Default)]
struct Index {
    /// Bytes, and when last used.
    files: HashMap<UnitName, (u64, u64)>,
    /// By when they were last used.
    order: BTreeMap<u64, UnitName>,
    clock: u64,
    bytes: u64,
}

impl Index {
    fn add(&mut self, name: UnitName, bytes: u64) {
        self.remove(name);
        self.clock += 1;
        self.files.insert(name, (bytes, self.clock));
        self.order.insert(self.clock, name);
        self.bytes += bytes;
    }

    fn remove(&mut self, name: UnitName) {
        if let Some((bytes, used)) = self.files.remove(&name) {
            self.order.remove(&used);
            self.bytes -= bytes;
        }
    }

    fn touch(&mut self, name: UnitName) {
        if let Some(&(bytes, _)) = self.files.get(&name) {
            self.add(name, bytes);
        }
    }
}

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    max_bytes: u64,
    index: Mutex<Index>,
    /// When the directory's files were last counted.
    counted: Mutex<Instant>,
    pending: AtomicU64,
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
    rows: Vec<u8>,
}

type Loaded = Box<dyn FnOnce(Option<Vec<u8>>) + Send>;

/// A directory of units.
#[derive(Debug)]
pub struct DiskTier {
    shared: Arc<Shared>,
    /// `None` once closing.
    writes: Option<mpsc::Sender<ToWrite>>,
    reads: Option<mpsc::Sender<(UnitName, Loaded)>>,
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
        let index = Mutex::new(scan(dir).map_err(failed)?);
        // What cannot be written should be known now, and not with the first request.
        unfinished(dir).map_err(failed)?;
        warn_if_others_read(dir);
        let pending = AtomicU64::new(0);
        let written = Counters::default();
        let counted = Mutex::new(Instant::now());
        let shared = Shared { dir: dir.to_owned(), max_bytes, index, counted, pending, written };
        let shared = Arc::new(shared);
        shared.make_room(0);
        let (writes, to_write) = mpsc::channel::<ToWrite>();
        let (reads, to_read) = mpsc::channel::<(UnitName, Loaded)>();
        let (writer, reader) = (Arc::clone(&shared), Arc::clone(&shared));
        let threads = vec![
            thread::Builder::new()
                .name("taper-kv-writer".into())
                .spawn(move || to_write.iter().for_each(|unit| writer.write(&unit)))
                .map_err(failed)?,
            thread::Builder::new()
                .name("taper-kv-reader".into())
                .spawn(move || to_read.iter().for_each(|(name, done)| done(reader.read(name))))
                .map_err(failed)?,
        ];
        Ok(Self { shared, writes: Some(writes), reads: Some(reads), threads })
    }

    /// Whether a unit is there, as far as is known without reading it.
    #[must_use]
    pub fn holds(&self, name: &UnitName) -> bool {
        self.shared.index().files.contains_key(name)
    }

    /// Whether [`Self::store`] would take a unit now.
    #[must_use]
    pub fn takes(&self, bytes: u64) -> bool {
        let pending = self.shared.pending.load(Ordering::Relaxed);
        pending == 0 || pending + bytes <= MAX_PENDING
    }

    /// Keeps a unit's rows, those of `blocks` blocks, some time later.
    pub fn store(&self, name: UnitName, blocks: usize, rows: Vec<u8>) {
        self.shared.pending.fetch_add(rows.len() as u64, Ordering::Relaxed);
        if let Some(writes) = &self.writes {
            // The thread lives as long as the sender.
            let _ = writes.send(ToWrite { name, blocks, rows });
        }
    }

    /// Reads a unit's rows; `done` gets them on another thread, or `None` where they are not whole. It
    /// is called at once with `None` where nothing can be read any more.
    /// Units come in the order in which they were requested.
    pub fn load(&self, name: UnitName, done: impl FnOnce(Option<Vec<u8>>) + Send + 'static) {
        let read = (name, Box::new(done) as Loaded);
        let unread = match &self.reads {
            Some(reads) => reads.send(read).err().map(|error| error.0),
            None => Some(read),
        };
        if let Some((_, done)) = unread {
            done(None);
        }
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
        self.shared.index().bytes
    }
}

/// Writes what is pending. A disk that hangs is left alone after some seconds: its threads end with
/// the process.
impl Drop for DiskTier {
    fn drop(&mut self) {
        (self.writes, self.reads) = (None, None);
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
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a unit. Its file goes too, or it would be found when files are counted again.
    fn discard(&self, name: UnitName) {
        self.index().remove(name);
        // Another process may have removed it.
        let _ = fs::remove_file(self.dir.join(name.file()));
    }

    fn write(&self, unit: &ToWrite) {
        let &ToWrite { name, blocks, ref rows } = unit;
        let bytes = (HEAD + rows.len() + HASH) as u64;
        let known = self.index().files.contains_key(&name);
        if !known && bytes <= self.max_bytes {
            self.count_again();
            self.make_room(bytes);
            match self.write_file(name, rows) {
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
        self.pending.fetch_sub(rows.len() as u64, Ordering::Relaxed);
    }

    fn write_file(&self, name: UnitName, rows: &[u8]) -> io::Result<()> {
        let head = [&MAGIC[..], &name.0, &(rows.len() as u64).to_le_bytes()].concat();
        let hash = Sha256::new_with_prefix(&head).chain_update(rows).finalize();
        let mut file = match unfinished(&self.dir) {
            // Somebody has removed the directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create_private(&self.dir)?;
                unfinished(&self.dir)?
            }
            file => file?,
        };
        file.write_all(&head)?;
        file.write_all(rows)?;
        file.write_all(&hash)?;
        // The system's own times are coarser than those of reading.
        file.as_file().set_modified(SystemTime::now())?;
        file.persist(self.dir.join(name.file()))?;
        Ok(())
    }

    /// Counts the files of the directory again, those of other processes too, unless that was done
    /// just now. Where it cannot be read, nothing is known to be there.
    fn count_again(&self) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.elapsed() >= COUNT_EVERY {
            *self.index() = scan(&self.dir).unwrap_or_default();
            *counted = Instant::now();
        }
    }

    /// Removes the files that were used longest ago until so many bytes more would fit.
    fn make_room(&self, bytes: u64) {
        loop {
            let index = self.index();
            let Some((_, &oldest)) = index.order.first_key_value() else { return };
            if index.bytes.saturating_add(bytes) <= self.max_bytes {
                return;
            }
            drop(index);
            self.discard(oldest);
        }
    }

    fn read(&self, name: UnitName) -> Option<Vec<u8>> {
        let path = self.dir.join(name.file());
        let file = fs::read(&path);
        if file.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            // Another process needed its room.
            self.index().remove(name);
            return None;
        }
        match file.map_err(|e| e.to_string()).and_then(|file| rows(name, file)) {
            Ok(rows) => {
                self.index().touch(name);
                // The order of use outlives the process as the files' times.
                let now = fs::File::options().write(true).open(&path);
                let _ = now.and_then(|file| file.set_modified(SystemTime::now()));
                Some(rows)
            }
            Err(why) => {
                tracing::warn!(file = %path.display(), why, "a kept KV prefix cannot be used");
                self.discard(name);
                None
            }
        }
    }
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

/// The rows of a file that is whole and the right one.
fn rows(name: UnitName, mut file: Vec<u8>) -> Result<Vec<u8>, String> {
    let Some(end) = file.len().checked_sub(HASH).filter(|end| *end >= HEAD) else {
        return Err("it is too short".to_owned());
    };
    if file[..MAGIC.len()] != *MAGIC {
        return Err("it is no file of this cache, or of another version".to_owned());
    }
    if file[MAGIC.len()..][..HASH] != name.0 {
        return Err("it holds another prefix".to_owned());
    }
    let length = ((end - HEAD) as u64).to_le_bytes();
    if file[HEAD - 8..HEAD] != length || file[end..] != Sha256::digest(&file[..end])[..] {
        return Err("its bytes are not those that were written".to_owned());
    }
    file.truncate(end);
    file.drain(..HEAD);
    Ok(file)
}

/// The units in a directory, longest unused first. Unfinished files of long ago are removed.
fn scan(dir: &Path) -> io::Result<Index> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let file = entry.file_name();
        // Another process may be removing files.
        let Ok(meta) = entry.metadata() else { continue };
        let modified = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        match file.to_str().and_then(UnitName::of_file) {
            Some(name) if meta.is_file() => found.push((modified, name, meta.len())),
            _ if Path::new(&file).extension().is_some_and(|e| e == UNFINISHED) => {
                if modified.elapsed().is_ok_and(|age| age > ABANDONED) {
                    let _ = fs::remove_file(entry.path());
                }
            }
            _ => tracing::debug!(file = %entry.path().display(), "not a file of the KV cache"),
        }
    }
    found.sort();
    let mut index = Index::default();
    found.into_iter().for_each(|(_, name, bytes)| index.add(name, bytes));
    Ok(index)
}
