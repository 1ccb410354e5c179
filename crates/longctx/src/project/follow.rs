//! The thread that hears of changes and takes them in.

use super::{Error, Project, identity, lock};
use crate::watch::{News, Watch};
use std::{
    collections::BTreeSet,
    path::PathBuf,
    sync::{
        Arc, PoisonError, Weak,
        atomic::Ordering,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

/// Changes come in groups; this long after the last one they are taken in.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// How often everything is looked at, for what no news came of.
const SWEEP: Duration = Duration::from_secs(30);

/// How long changes that do not end are waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Paths after which everything is looked at instead.
const MOST_CHANGED: usize = 10_000;

impl Project {
    /// Follows the root's files from now on.
    pub(super) fn follow(self: &Arc<Self>) -> Result<(), Error> {
        let (sender, receiver) = mpsc::channel();
        *lock(&self.news) = Some(sender.clone());
        match Watch::new(sender) {
            Ok(watch) => *lock(&self.watch) = Some(watch),
            Err(error) => self.cannot_watch(&error),
        }
        self.follow_dirs();
        // What changed before the watch began.
        self.sweep(&BTreeSet::new());
        let project = Arc::downgrade(self);
        let thread = thread::Builder::new().name("taper-longctx".into());
        thread.spawn(move || run(&project, &receiver)).map_err(Error::Thread)?;
        Ok(())
    }

    /// Watches the directories that there are now. Says which were not watched before.
    pub(super) fn follow_dirs(&self) -> Vec<PathBuf> {
        let dirs = lock(&self.condition).dirs.clone();
        let mut watch = lock(&self.watch);
        let Some(own) = &*watch else { return vec![] };
        match own.follow(&self.root, &dirs) {
            Ok(begun) => {
                self.is_watching.store(true, Ordering::Relaxed);
                begun
            }
            Err(error) => {
                *watch = None;
                drop(watch);
                self.cannot_watch(&error);
                vec![]
            }
        }
    }

    /// From now on every search looks at all files.
    fn cannot_watch(&self, error: &notify::Error) {
        tracing::warn!(%error, root = %self.root.display(), "changes are not heard of; searches look for them");
        self.is_watching.store(false, Ordering::Relaxed);
    }

    /// Waits until all changes up to now are in the index, for `patience` at most. Says whether they
    /// are.
    pub fn settle(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let sender = lock(&self.news).clone();
        let Some(sender) = sender else {
            // Nobody else looks.
            self.sweep(&BTreeSet::new());
            return !lock(&self.condition).is_missing;
        };
        let number = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        let is_watched = lock(&self.condition).root == Some(identity(&self.root));
        let is_asked =
            is_watched && lock(&self.watch).as_ref().is_some_and(|watch| watch.ask(number).is_ok());
        if !is_asked && sender.send(News::Sweep(number)).is_err() {
            return false;
        }
        let mut settled = lock(&self.settled);
        while *settled < number {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.settles.wait_timeout(settled, left);
            settled = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(settled);
        !lock(&self.condition).is_missing
    }

    fn has_settled(&self, number: u64) {
        let mut settled = lock(&self.settled);
        *settled = (*settled).max(number);
        drop(settled);
        self.settles.notify_all();
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        if let Some(sender) = &*lock(&self.news) {
            // A thread that has ended needs no word.
            let _ = sender.send(News::Stop);
        }
    }
}

/// Ends with the project.
fn run(project: &Weak<Project>, news: &Receiver<News>) {
    let mut changed: BTreeSet<PathBuf> = BTreeSet::new();
    let (mut lost, mut swept) = (false, Instant::now());
    // When the first of the changes was heard.
    let mut since: Option<Instant> = None;
    loop {
        let patience = if changed.is_empty() && !lost { SWEEP } else { DEBOUNCE };
        let heard = news.recv_timeout(patience);
        let Some(project) = project.upgrade() else { return };
        let mut settled = None;
        match heard {
            Ok(news @ (News::Changed(_) | News::Lost)) => {
                match news {
                    News::Changed(path) if changed.len() < MOST_CHANGED => {
                        changed.insert(path);
                    }
                    _ => lost = true,
                }
                // A file that is written all the time holds nothing up.
                if since.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                    continue;
                }
            }
            Ok(News::Asked(number)) => settled = Some(number),
            Ok(News::Sweep(number)) => {
                lost = true;
                settled = Some(number);
            }
            Ok(News::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {}
        }
        lost |= swept.elapsed() >= SWEEP;
        let mut update = super::Update::default();
        if lost {
            update = project.sweep(&relative(&project, &changed));
            swept = Instant::now();
        } else if !changed.is_empty() {
            update = project.refresh(&changed);
        }
        changed.clear();
        (lost, since) = (false, None);
        if let Some(number) = settled {
            project.has_settled(number);
        } else if update != super::Update::default() {
            // Whoever asks is not kept waiting by the disk.
            project.save();
        }
    }
}

fn relative(project: &Project, changed: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let own = changed.iter().filter_map(|path| path.strip_prefix(project.root()).ok());
    own.map(PathBuf::from).collect()
}
