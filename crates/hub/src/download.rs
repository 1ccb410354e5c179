//! A whole model: plan, room, files, and only then the reference that makes it visible.

use crate::{
    HubConfig, HubError, ModelId, Progress, Resolved,
    client::{Client, RemoteFile},
    files, id,
    transfer::{self, part_path},
};
use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Left free beside the model: a full disk breaks other programs.
const SPARE_BYTES: u64 = 64 << 20;

/// Downloads what a model needs, at `id`'s revision, into the cache. Files that are there are kept;
/// an interrupted one goes on where it stopped.
///
/// # Errors
/// Every way this fails in practice has its own variant. What has arrived is kept.
pub fn download(
    id: &ModelId,
    config: &HubConfig,
    progress: &mut dyn Progress,
) -> Result<Resolved, HubError> {
    if config.offline {
        return Err(HubError::Offline { id: id.clone() });
    }
    let client = Client::new(config, id);
    let mut wait = Patience::new(config);
    let snapshot = loop {
        match client.snapshot() {
            Ok(snapshot) => break snapshot,
            Err(error) => wait.after(error, false)?,
        }
    };
    let has = |end: &str| snapshot.files.iter().any(|f| f.name.ends_with(end));
    for missing in [files::CONFIG, ".safetensors"] {
        if !has(missing) {
            return Err(HubError::NoWeights { id: id.clone(), missing });
        }
    }
    let repo = config.cache.repo(id);
    let dir = repo.pointer_path(&snapshot.commit);
    let blobs = repo.blob_path("x");
    for needed in [Some(dir.as_path()), blobs.parent()].into_iter().flatten() {
        fs::create_dir_all(needed).map_err(HubError::io(needed))?;
    }

    let jobs: Vec<_> = snapshot.files.iter().map(|f| (f, repo.blob_path(&f.etag))).collect();
    let total = jobs.iter().map(|(f, _)| f.size_bytes).fold(0, u64::saturating_add);
    progress.planned(jobs.len(), total);
    check_room(id, &jobs, &dir)?;
    for (file, blob) in &jobs {
        if progress.is_cancelled() {
            return Err(HubError::Cancelled);
        }
        if transfer::is_whole(file, blob) {
            progress.started(&file.name, file.size_bytes, file.size_bytes);
        } else {
            let url = client.file_url(&snapshot.commit, &file.name);
            let mut wait = Patience::new(config);
            loop {
                let before = length(&part_path(blob));
                match transfer::fetch(&client, &url, file, blob, progress) {
                    Ok(()) => break,
                    Err(error) => wait.after(error, length(&part_path(blob)) > before)?,
                }
            }
        }
        point(&dir.join(&file.name), blob)?;
        progress.finished(&file.name);
    }
    if let Some(missing) = files::first_missing(&dir)? {
        return Err(HubError::Incomplete { id: id.clone(), missing });
    }
    // A commit needs no name for itself.
    if !id::is_commit(id.revision()) {
        repo.create_ref(&snapshot.commit).map_err(HubError::io(&dir))?;
    }
    Ok(Resolved { dir, id: Some(id.clone()), commit: Some(snapshot.commit) })
}

/// Retries, with growing pauses.
struct Patience {
    full: (u32, Duration),
    retries: u32,
    pause: Duration,
}

impl Patience {
    fn new(config: &HubConfig) -> Self {
        let full = (config.retries, config.retry_wait);
        Self { full, retries: full.0, pause: full.1 }
    }

    /// Sleeps if another attempt makes sense, else gives the error back.
    fn after(&mut self, error: HubError, advanced: bool) -> Result<(), HubError> {
        if advanced {
            (self.retries, self.pause) = self.full;
        }
        if !error.is_transient() || self.retries == 0 {
            return Err(error);
        }
        self.retries -= 1;
        thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(Duration::from_secs(30));
        Ok(())
    }
}

fn length(path: &Path) -> Option<u64> {
    Some(fs::metadata(path).ok()?.len())
}

fn check_room(id: &ModelId, jobs: &[(&RemoteFile, PathBuf)], dir: &Path) -> Result<(), HubError> {
    let rest = |(file, blob): &(&RemoteFile, PathBuf)| {
        let present = length(blob).or_else(|| length(&part_path(blob))).unwrap_or(0);
        file.size_bytes.saturating_sub(present)
    };
    let needed_bytes = jobs.iter().map(rest).fold(0, u64::saturating_add);
    match free_bytes(dir) {
        Some(free_bytes)
            if needed_bytes > 0 && free_bytes < needed_bytes.saturating_add(SPARE_BYTES) =>
        {
            let dir = dir.to_owned();
            Err(HubError::NoSpace { id: id.clone(), needed_bytes, free_bytes, dir })
        }
        _ => Ok(()),
    }
}

/// What an ordinary user can still write; `None` where the system does not say.
#[cfg(unix)]
fn free_bytes(dir: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(dir).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

/// Puts a file of a snapshot in place: a relative link, so that the cache can be moved.
fn point(pointer: &Path, blob: &Path) -> Result<(), HubError> {
    if fs::symlink_metadata(pointer).is_ok() {
        fs::remove_file(pointer).map_err(HubError::io(pointer))?;
    }
    #[cfg(unix)]
    let linked = {
        let relative = Path::new("../../blobs").join(blob.file_name().unwrap_or_default());
        std::os::unix::fs::symlink(relative, pointer)
    };
    // Symbolic links need a privilege on Windows, hard links do not.
    #[cfg(not(unix))]
    let linked = fs::hard_link(blob, pointer).or_else(|_| fs::copy(blob, pointer).map(|_| ()));
    linked.map_err(HubError::io(pointer))
}
