//! News of files, in the order in which they happened.
//!
//! Whoever wants to know that all news until now have been heard makes a file in a private
//! directory, which the same queue of the system watches: when that is heard of, so is everything
//! before it. (Watchman's cookies.)

use crate::fence::random_word;
use notify::{
    Config, Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode},
};
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError, mpsc::Sender},
};

/// What the thread of a project is told.
#[derive(Debug)]
pub(crate) enum News {
    /// Something is or was at this path.
    Changed(PathBuf),
    /// Some news were lost.
    Lost,
    /// Everything before this request has been heard.
    Asked(u64),
    /// Everything should be looked at, for this request.
    Sweep(u64),
    Stop,
}

/// Watches the directories of a root.
#[derive(Debug)]
pub(crate) struct Watch {
    watcher: Mutex<RecommendedWatcher>,
    watched: Mutex<BTreeSet<PathBuf>>,
    cookies: PathBuf,
}

impl Watch {
    /// Starts to send news. Nothing is watched yet.
    pub(crate) fn new(news: Sender<News>) -> notify::Result<Self> {
        // Nobody else has it: not one that was killed either, whose number this process may have.
        let cookies = std::env::temp_dir().join(format!("taper-longctx-{}", random_word()));
        private_dir(&cookies)?;
        let cookies = cookies.canonicalize()?;
        let own = cookies.clone();
        let hear = move |event: notify::Result<Event>| hear(event, &own, &news);
        let watcher = RecommendedWatcher::new(hear, Config::default()).and_then(|mut watcher| {
            watcher.watch(&cookies, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        match watcher {
            Ok(watcher) => {
                Ok(Self { watcher: Mutex::new(watcher), watched: Mutex::default(), cookies })
            }
            Err(error) => {
                let _ = fs::remove_dir_all(&cookies);
                Err(error)
            }
        }
    }

    /// Watches these directories of a root, and no others. Says which were not watched before: what
    /// happened in them until now was not heard.
    pub(crate) fn follow(
        &self,
        root: &Path,
        dirs: &BTreeSet<PathBuf>,
    ) -> notify::Result<Vec<PathBuf>> {
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        // Elsewhere one watch sees a whole tree; here ignored directories would cost a watch each.
        if !cfg!(any(target_os = "linux", target_os = "android")) {
            if watched.is_empty() {
                watcher.watch(root, RecursiveMode::Recursive)?;
                watched.insert(PathBuf::new());
                return Ok(vec![PathBuf::new()]);
            }
            return Ok(vec![]);
        }
        for gone in watched.difference(dirs) {
            // The system has forgotten a directory that was removed.
            let _ = watcher.unwatch(&join(root, gone));
        }
        watched.retain(|dir| dirs.contains(dir));
        let mut begun = Vec::new();
        for new in dirs {
            if watched.contains(new) {
                continue;
            }
            match watcher.watch(&join(root, new), RecursiveMode::NonRecursive) {
                Ok(()) => {
                    watched.insert(new.clone());
                    begun.push(new.clone());
                }
                // It is gone already.
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(begun)
    }

    /// Forgets a directory, so that one that comes in its place is watched.
    pub(crate) fn forget(&self, dir: &Path) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain(|own| !own.starts_with(dir));
    }

    /// Has [`News::Asked`] sent after all news until now.
    pub(crate) fn ask(&self, number: u64) -> io::Result<()> {
        let cookie = self.cookies.join(number.to_string());
        fs::OpenOptions::new().write(true).create(true).truncate(true).open(&cookie)?;
        fs::remove_file(cookie)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // It is empty, and the system clears its directory.
        let _ = fs::remove_dir_all(&self.cookies);
    }
}

/// `root` itself where nothing is joined, without a slash behind it.
fn join(root: &Path, relative: &Path) -> PathBuf {
    if relative.as_os_str().is_empty() { root.to_path_buf() } else { root.join(relative) }
}

fn private_dir(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

fn is_gone(error: &notify::Error) -> bool {
    match &error.kind {
        notify::ErrorKind::PathNotFound => true,
        notify::ErrorKind::Io(error) => error.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

/// If nobody listens, the project is gone.
fn hear(event: notify::Result<Event>, cookies: &Path, news: &Sender<News>) {
    let Ok(event) = event else {
        let _ = news.send(News::Lost);
        return;
    };
    if event.need_rescan() {
        let _ = news.send(News::Lost);
    }
    // Reading is no change.
    if let EventKind::Access(kind) = event.kind
        && kind != AccessKind::Close(AccessMode::Write)
    {
        return;
    }
    for path in event.paths {
        if path.parent() != Some(cookies) {
            let _ = news.send(News::Changed(path));
            continue;
        }
        let name = path.file_name().and_then(|n| n.to_str());
        if let Some(number) = name.and_then(|n| n.parse().ok()) {
            let _ = news.send(News::Asked(number));
        }
    }
}
