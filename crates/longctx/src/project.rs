//! One root, its index, and how that follows the files.

mod follow;
mod told;

pub use told::{Progress, ProjectStatus, Settings, Update};

use crate::{
    deny::is_denied,
    error::Error,
    index::{self, FileEntry, Index, Prepared},
    read::{self, Skip, Source},
    walk::{Listing, Skipped, walk},
    watch::{News, Watch},
};
use rayon::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::Sender,
    },
    time::{SystemTime, UNIX_EPOCH},
};
use xxhash_rust::xxh3::xxh3_64;

/// Files that are read at a time.
const BATCH: usize = 64;

/// A file that was written this short before it was read may be written again within one tick of
/// the file system's clock.
const RACY_NANOS: i64 = 50_000_000;

/// Directories that cost more one by one than all at once.
const MANY: usize = 64;

/// Changed files after which words are learned anew.
const LEARN_AFTER: usize = 200;

#[derive(Debug, Default)]
struct Condition {
    dirs: BTreeSet<PathBuf>,
    /// Which directory the root was.
    root: Option<Identity>,
    skipped: Skipped,
    is_missing: bool,
    saved: bool,
    error: Option<String>,
    indexed_through: u64,
    /// Changed files since words were learned.
    unlearned: usize,
}

/// What tells a directory from another in its place; nothing where systems do not say it.
type Identity = Option<(u64, u64)>;

fn identity(dir: &Path) -> Identity {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let about = fs::metadata(dir).ok()?;
        Some((about.dev(), about.ino()))
    }
    #[cfg(not(unix))]
    {
        let _ = dir;
        None
    }
}

/// One root and its index.
#[derive(Debug)]
pub struct Project {
    name: String,
    root: PathBuf,
    store: Option<PathBuf>,
    progress: Settings,
    index: RwLock<Index>,
    condition: Mutex<Condition>,
    /// One update at a time.
    updating: Mutex<()>,
    news: Mutex<Option<Sender<News>>>,
    watch: Mutex<Option<Watch>>,
    is_watching: AtomicBool,
    asked: AtomicU64,
    settled: Mutex<u64>,
    settles: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Project {
    /// Opens a root: reads its stored index, or builds one, and takes in what has changed since.
    ///
    /// # Errors
    /// [`Error::Root`] and [`Error::SecretRoot`]. An index that cannot be read is built anew, and
    /// one that cannot be written stays in memory; [`Project::status`] says so.
    pub fn open(root: &Path, settings: &Settings) -> Result<Arc<Self>, Error> {
        let wrong = |source| Error::Root { path: root.to_owned(), source };
        let canonical = root.canonicalize().map_err(wrong)?;
        fs::read_dir(&canonical).map_err(wrong)?;
        let own_name = canonical.file_name().map(PathBuf::from).unwrap_or_default();
        let is_secret = is_denied(&own_name)
            || canonical
                .ancestors()
                .filter_map(Path::file_name)
                .any(|n| is_secret_place(&n.to_string_lossy()));
        if is_secret {
            return Err(Error::SecretRoot { path: root.to_owned() });
        }
        let text = canonical.to_string_lossy().into_owned();
        let hash = format!("{:016x}", xxh3_64(text.as_bytes()));
        let store = settings.index_dir.as_ref().map(|dir| dir.join(hash).with_extension("index"));
        let mut condition = Condition::default();
        let loaded = store.as_deref().map(|path| index::load(&text, path)).transpose();
        let index = loaded.unwrap_or_else(|error| {
            tracing::warn!(%error, "an index is built anew");
            condition.error = Some(error.to_string());
            None
        });
        let index = index.flatten().unwrap_or_default();
        condition.saved = store.is_some() && index.live_files() > 0;
        let name = canonical
            .file_name()
            .map_or_else(|| "/".to_owned(), |n| n.to_string_lossy().into_owned());
        let project = Arc::new(Self {
            name,
            root: canonical,
            store,
            progress: settings.clone(),
            index: RwLock::new(index),
            condition: Mutex::new(condition),
            updating: Mutex::new(()),
            news: Mutex::new(None),
            watch: Mutex::new(None),
            is_watching: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            settled: Mutex::new(0),
            settles: Condvar::new(),
        });
        project.sweep(&BTreeSet::new());
        project.save();
        if settings.watch {
            project.follow()?;
        }
        Ok(project)
    }

    /// Its name in requests: that of its directory.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The canonical path of its root.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its condition.
    #[must_use]
    pub fn status(&self) -> ProjectStatus {
        let index = self.index();
        let condition = lock(&self.condition);
        let state = match (condition.is_missing, index.live_docs()) {
            (true, _) => "missing",
            (false, 0) => "empty",
            _ => "ready",
        };
        ProjectStatus {
            name: self.name.clone(),
            root: self.root.to_string_lossy().into_owned(),
            state,
            files: index.live_files(),
            chunks: index.live_docs(),
            terms: index.term_count(),
            learned_words: index.learned_words(),
            bytes: index.files().map(|f| f.bytes).sum(),
            skipped: condition.skipped,
            redacted: index.files().map(|f| u64::from(f.redacted)).sum(),
            watching: self.is_watching.load(Ordering::Relaxed),
            saved: condition.saved,
            error: condition.error.clone(),
            indexed_through: condition.indexed_through,
        }
    }

    /// Looks at the whole root. Files in `changed` are read whatever their times say.
    pub(crate) fn sweep(&self, changed: &BTreeSet<PathBuf>) -> Update {
        let mut update = self.look(changed);
        update.add(self.look_again());
        update
    }

    /// Watches directories that are new, and looks at them again: what happened in them before the watch began,
    /// and after they were looked at, was not heard.
    fn look_again(&self) -> Update {
        /// Whoever makes directories faster than this sees has the next sweep.
        const LOOKS: usize = 8;
        let mut all = Update::default();
        for _ in 0..LOOKS {
            let begun = self.follow_dirs();
            if begun.is_empty() {
                break;
            }
            if begun.len() > MANY {
                all.add(self.look(&BTreeSet::new()));
                continue;
            }
            for dir in begun {
                all.add(self.refresh_dir(&dir, &BTreeSet::new()));
            }
        }
        all
    }

    fn look(&self, changed: &BTreeSet<PathBuf>) -> Update {
        let _one = lock(&self.updating);
        if let Err(error) = fs::read_dir(&self.root) {
            // It may come back, and what is known of it stays until then.
            let mut condition = lock(&self.condition);
            condition.is_missing = true;
            condition.error =
                Some(format!("cannot read the root {}: {error}", self.root.display()));
            return Update::default();
        }
        let root = identity(&self.root);
        if lock(&self.condition).root.replace(root) != Some(root)
            && let Some(watch) = &*lock(&self.watch)
        {
            // Another directory has its place: nothing of it is watched.
            watch.forget(Path::new(""));
        }
        let listing = walk(&self.root, Path::new(""), true);
        let mut skipped = listing.skipped;
        let update = self.take(&listing, Path::new(""), true, changed, &mut skipped);
        let mut condition = lock(&self.condition);
        if condition.is_missing {
            (condition.is_missing, condition.error) = (false, None);
        }
        condition.skipped = skipped;
        condition.dirs = listing.dirs;
        update
    }

    /// Takes in changes at some paths, which are absolute.
    pub(crate) fn refresh(&self, changed: &BTreeSet<PathBuf>) -> Update {
        let changed: BTreeSet<PathBuf> = changed
            .iter()
            .filter_map(|path| path.strip_prefix(&self.root).ok().map(Path::to_path_buf))
            .collect();
        let is_ignore = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name == ".gitignore" || name == ".ignore")
        };
        let is_root = |path: &PathBuf| path.as_os_str().is_empty();
        let parents: BTreeSet<PathBuf> =
            changed.iter().filter_map(|path| path.parent().map(Path::to_path_buf)).collect();
        if parents.len() > MANY || changed.iter().any(|p| is_ignore(p) || is_root(p)) {
            return self.sweep(&changed);
        }
        if !self.root.is_dir() {
            return self.sweep(&changed);
        }
        let mut all = Update::default();
        for parent in parents {
            all.add(self.refresh_dir(&parent, &changed));
        }
        all.add(self.look_again());
        all
    }

    /// Looks at one directory, and at directories in it that are new.
    fn refresh_dir(&self, dir: &Path, changed: &BTreeSet<PathBuf>) -> Update {
        let _one = lock(&self.updating);
        // Others are ignored, or are looked at from above.
        if !lock(&self.condition).dirs.contains(dir) {
            return Update::default();
        }
        let mut listing = walk(&self.root, dir, false);
        let known = lock(&self.condition).dirs.clone();
        let is_child = |path: &Path| path.parent() == Some(dir);
        let new: Vec<PathBuf> = listing
            .dirs
            .iter()
            .filter(|d| is_child(d) && (!known.contains(*d) || changed.contains(*d)))
            .cloned()
            .collect();
        let gone: Vec<PathBuf> =
            known.iter().filter(|d| is_child(d) && !listing.dirs.contains(*d)).cloned().collect();
        let mut skipped = Skipped::default();
        let mut update = Update::default();
        for below in &gone {
            let nothing = Listing { incomplete: listing.incomplete, ..Listing::default() };
            update.removed += self.take(&nothing, below, true, changed, &mut skipped).removed;
        }
        for below in &new {
            let deep = walk(&self.root, below, true);
            update.add(self.take(&deep, below, true, changed, &mut skipped));
            listing.dirs.extend(deep.dirs);
        }
        update.add(self.take(&listing, dir, false, changed, &mut skipped));
        let replaced = |path: &PathBuf| gone.iter().chain(&new).any(|g| path.starts_with(g));
        if let Some(watch) = &*lock(&self.watch) {
            gone.iter().chain(&new).for_each(|dir| watch.forget(dir));
        }
        let mut condition = lock(&self.condition);
        condition.dirs.retain(|d| !replaced(d));
        condition.dirs.extend(listing.dirs);
        update
    }

    /// Makes the index say what a listing of `below` says.
    fn take(
        &self,
        listing: &Listing,
        below: &Path,
        deep: bool,
        changed: &BTreeSet<PathBuf>,
        skipped: &mut Skipped,
    ) -> Update {
        let (wanted, gone) = self.differences(listing, below, deep, changed);
        let mut update = Update::default();
        let total = wanted.len();
        if total + gone.len() == 0 {
            return update;
        }
        for (number, batch) in wanted.chunks(BATCH).enumerate() {
            let read: Vec<_> = batch.par_iter().map(|path| self.read(path)).collect();
            let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
            for (path, outcome) in batch.iter().zip(read) {
                match outcome {
                    Outcome::Same(source) => index.touch(&slashed(path), source.stamp),
                    Outcome::New(prepared) => {
                        index.add(prepared);
                        update.indexed += 1;
                    }
                    Outcome::Skip(skip) => {
                        skipped.count(skip);
                        update.removed += usize::from(index.remove(&slashed(path)));
                    }
                }
            }
            drop(index);
            if let Some(progress) = &self.progress.progress {
                progress(Progress { done: (number * BATCH + batch.len()).min(total), total });
            }
        }
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        update.removed += gone.iter().filter(|path| index.remove(path)).count();
        if update == Update::default() {
            return update;
        }
        index.finish();
        let mut condition = lock(&self.condition);
        condition.unlearned += update.indexed;
        if condition.unlearned > LEARN_AFTER || index.learned_words() == 0 {
            index.learn();
            condition.unlearned = 0;
        }
        if update.indexed > BATCH {
            index.shrink();
        }
        condition.saved = false;
        condition.indexed_through = seconds();
        update
    }

    /// Files to read, and files to remove.
    fn differences(
        &self,
        listing: &Listing,
        below: &Path,
        deep: bool,
        changed: &BTreeSet<PathBuf>,
    ) -> (Vec<PathBuf>, Vec<Box<str>>) {
        let index = self.index();
        let is_same = |path: &Path, stamp| {
            !changed.contains(path)
                && index.file(&slashed(path)).is_some_and(|f| f.stamp() == stamp)
        };
        let files: &BTreeMap<_, _> = &listing.files;
        let wanted = files.iter().filter(|(path, stamp)| !is_same(path, **stamp));
        let wanted = wanted.map(|(path, _)| path.clone()).collect();
        let is_below = |file: &FileEntry| {
            let path = Path::new(&*file.path);
            if deep { path.starts_with(below) } else { path.parent() == Some(below) }
        };
        let gone = index.files().filter(|file| is_below(file)).filter(|file| {
            let path = Path::new(&*file.path);
            !(files.contains_key(path) || listing.incomplete && self.is_hidden(path))
        });
        (wanted, gone.map(|file| file.path.clone()).collect())
    }

    /// Whether the system does not say if a file is there.
    fn is_hidden(&self, path: &Path) -> bool {
        let found = fs::symlink_metadata(self.root.join(path));
        found.is_err_and(|error| error.kind() != io::ErrorKind::NotFound)
    }

    fn read(&self, path: &Path) -> Outcome {
        let mut source = match read::read(&self.root, path) {
            Ok(source) => source,
            Err(skip) => return Outcome::Skip(skip),
        };
        if nanos() - source.stamp.modified < RACY_NANOS {
            // Its time says nothing: the next look compares its bytes.
            source.stamp.modified = 0;
        }
        let path = slashed(path);
        if self.index().file(&path).is_some_and(|file| file.hash == source.hash) {
            return Outcome::Same(source);
        }
        Outcome::New(index::prepare(&path, &source))
    }

    /// Writes the index, if it is not written yet.
    pub fn save(&self) {
        let Some(path) = &self.store else { return };
        if lock(&self.condition).saved {
            return;
        }
        self.index.write().unwrap_or_else(PoisonError::into_inner).tidy();
        // Searches go on while it is written.
        let saved = index::save(&self.index(), &self.root.to_string_lossy(), path);
        let mut condition = lock(&self.condition);
        match saved {
            Ok(()) => {
                condition.saved = true;
                condition.error = None;
            }
            Err(error) => {
                tracing::warn!(%error, "the index stays in memory");
                condition.error = Some(error.to_string());
            }
        }
    }
}

/// What reading a file gave.
enum Outcome {
    /// Its bytes are as they were.
    Same(Source),
    New(Prepared),
    Skip(Skip),
}

/// A directory whose every file is a secret.
fn is_secret_place(name: &str) -> bool {
    matches!(name, ".ssh" | ".aws" | ".gnupg" | ".kube")
}

/// The index names files with slashes on every system.
pub(crate) fn slashed(path: &Path) -> String {
    let text = path.to_string_lossy();
    if cfg!(windows) { text.replace('\\', "/") } else { text.into_owned() }
}

fn nanos() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.ok().and_then(|d| i64::try_from(d.as_nanos()).ok()).unwrap_or(0)
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
