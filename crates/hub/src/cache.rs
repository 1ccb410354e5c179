//! Models that are on this machine.
//!
//! The layout is that of huggingface_hub, so that all tools share one copy:
//! `models--org--name/{refs/REVISION, snapshots/COMMIT/FILE -> blobs/ETAG}`.

use crate::{HubError, ModelId, files, id::is_commit};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// The Hugging Face cache: the folder with `models--*` in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheDir(PathBuf);

impl CacheDir {
    /// A cache at a path, which need not exist yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Directory of the cache.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn repo(&self, id: &ModelId) -> hf_hub::CacheRepo {
        hf_hub::Cache::new(self.0.clone()).repo(id.repo())
    }

    pub(crate) fn folder(&self, id: &ModelId) -> PathBuf {
        self.0.join(id.repo().folder_name())
    }

    /// The commit of a revision, as far as this cache knows.
    fn commit(&self, id: &ModelId) -> Option<String> {
        let named = fs::read_to_string(self.folder(id).join("refs").join(id.revision())).ok();
        let commit = named.map_or_else(|| id.revision().to_owned(), |text| text.trim().to_owned());
        is_commit(&commit).then_some(commit)
    }
}

/// A model that can be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// Holds config.json and the weights.
    pub dir: PathBuf,
    /// Id of the model on the hub; `None` for a directory that the user named.
    pub id: Option<ModelId>,
    /// Commit of the model on the hub.
    pub commit: Option<String>,
}

/// Finds a model: a directory, or `org/name[@revision]` in the cache. Uses no network.
///
/// # Errors
/// It is not there or not whole; the message says what to do.
pub fn resolve(name: &str, cache: &CacheDir) -> Result<Resolved, HubError> {
    let dir = Path::new(name);
    if dir.is_dir() {
        return match files::first_missing(dir)? {
            Some(missing) => Err(HubError::NotAModel { dir: dir.to_owned(), missing }),
            None => Ok(Resolved { dir: dir.to_owned(), id: None, commit: None }),
        };
    }
    if dir.exists() {
        return Err(HubError::NotADirectory { path: dir.to_owned() });
    }
    if is_path(name) {
        return Err(HubError::NoDirectory { name: name.to_owned() });
    }
    let id: ModelId = name.parse()?;
    let not_cached = || HubError::NotCached { id: id.clone(), cache: cache.0.clone() };
    let commit = cache.commit(&id).ok_or_else(not_cached)?;
    let dir = cache.repo(&id).pointer_path(&commit);
    if !dir.is_dir() {
        return Err(not_cached());
    }
    match files::first_missing(&dir)? {
        Some(missing) => Err(HubError::Incomplete { id, missing }),
        None => Ok(Resolved { dir, id: Some(id), commit: Some(commit) }),
    }
}

/// Whether a name can only be meant as a path: those on the hub have one slash, inside.
fn is_path(name: &str) -> bool {
    let id = name.split('@').next().unwrap_or(name);
    let has_edge = id.starts_with(['.', '/', '~']) || id.ends_with('/') || id.contains('\\');
    has_edge || id.matches('/').count() != 1
}

/// A snapshot of a model in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedModel {
    /// Model id, `org/name`.
    pub name: String,
    /// Commit of the snapshot.
    pub commit: String,
    /// Branches and tags that point to it.
    pub revisions: Vec<String>,
    /// Bytes of the snapshot's files.
    pub size_bytes: u64,
    /// Whether it can be loaded. Snapshots of other formats are not listed at all.
    pub complete: bool,
    /// Directory of the snapshot.
    pub dir: PathBuf,
}

/// Models in the cache, by name. Empty when there is no cache.
///
/// # Errors
/// A directory cannot be read.
pub fn catalogue(cache: &CacheDir) -> Result<Vec<CachedModel>, HubError> {
    let mut models = Vec::new();
    for folder in list(cache.path())? {
        let Some(id) = file_name(&folder).and_then(|f| ModelId::from_folder(&f)) else { continue };
        let mut revisions = BTreeMap::<String, Vec<String>>::new();
        collect_refs(&folder.join("refs"), "", &mut revisions)?;
        for dir in list(&folder.join("snapshots"))? {
            let Some(commit) = file_name(&dir).filter(|c| is_commit(c)) else { continue };
            // Snapshots of speech models, data and so on lie in the same cache.
            let files: Vec<_> = list(&dir)?;
            let is_weights = |f: &PathBuf| f.extension().is_some_and(|e| e == "safetensors");
            if !dir.join(files::CONFIG).is_file() && !files.iter().any(is_weights) {
                continue;
            }
            models.push(CachedModel {
                name: id.name().to_owned(),
                revisions: revisions.remove(&commit).unwrap_or_default(),
                commit,
                size_bytes: files
                    .iter()
                    .filter_map(|f| fs::metadata(f).ok())
                    .map(|m| m.len())
                    .sum(),
                // A broken index makes one model unusable, not the listing.
                complete: matches!(files::first_missing(&dir), Ok(None)),
                dir,
            });
        }
    }
    models.sort_by(|a, b| (&a.name, &a.commit).cmp(&(&b.name, &b.commit)));
    Ok(models)
}

/// A directory's entries; none if it is not there.
fn list(dir: &Path) -> Result<Vec<PathBuf>, HubError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(HubError::io(dir)(e)),
    };
    entries.map(|entry| Ok(entry.map_err(HubError::io(dir))?.path())).collect()
}

fn file_name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

/// References by commit. `refs/pr/1` lies in nested folders.
fn collect_refs(
    dir: &Path,
    prefix: &str,
    found: &mut BTreeMap<String, Vec<String>>,
) -> Result<(), HubError> {
    for path in list(dir)? {
        let Some(name) = file_name(&path).map(|n| format!("{prefix}{n}")) else { continue };
        if path.is_dir() {
            collect_refs(&path, &format!("{name}/"), found)?;
        } else if let Ok(commit) = fs::read_to_string(&path) {
            found.entry(commit.trim().to_owned()).or_default().push(name);
        }
    }
    Ok(())
}
