//! What models a directory holds.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};
use taper_hub::{CacheDir, HubError};

/// Directories in directories that are looked into.
const DEPTH: usize = 4;

/// A model on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    /// Its name on the hub.
    pub(crate) id: Option<String>,
    pub(crate) gguf: bool,
    pub(crate) bytes: u64,
    pub(crate) modified: SystemTime,
}

/// The models below a directory, by their names: that of the directory or file, or, where several have it,
/// the path from `root` on. What cannot be read is left out.
///
/// # Errors
/// `root` cannot be read.
pub(crate) fn scan(root: &Path) -> Result<BTreeMap<String, Found>, HubError> {
    let mut found = Vec::new();
    let entries = fs::read_dir(root);
    let read = |source| HubError::Io { path: root.to_owned(), source };
    walk(entries.map_err(read)?, DEPTH, &mut found);
    let mut names = BTreeMap::<String, usize>::new();
    found.iter().for_each(|model| *names.entry(short(&model.path)).or_default() += 1);
    let mut models = BTreeMap::new();
    for model in found {
        let mut name = short(&model.path);
        if names.get(&name).is_some_and(|n| *n > 1) {
            let inner = model.path.strip_prefix(root).unwrap_or(&model.path);
            name = inner.with_file_name(&name).to_string_lossy().replace('\\', "/");
        }
        models.insert(name, model);
    }
    models.extend(downloads(root)?);
    Ok(models)
}

/// Models that were downloaded; of several revisions `main`, or else the last.
fn downloads(root: &Path) -> Result<BTreeMap<String, Found>, HubError> {
    let mut all = taper_hub::catalogue(&CacheDir::new(root))?;
    all.retain(|model| model.complete);
    all.sort_by_key(|model| model.revisions.iter().any(|revision| revision == "main"));
    let one = |model: taper_hub::CachedModel| {
        let (_, modified) = size_of(&model.dir);
        let (bytes, gguf) = (model.size_bytes, false);
        (model.name.clone(), Found { path: model.dir, id: Some(model.name), gguf, bytes, modified })
    };
    Ok(all.into_iter().map(one).collect())
}

fn walk(entries: fs::ReadDir, depth: usize, found: &mut Vec<Found>) {
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') || name.starts_with("models--") {
            continue;
        }
        if is_model_file(&path, &name) {
            let (bytes, modified) = parts(&path)
                .iter()
                .map(|part| size_of_file(part))
                .fold((0, UNIX_EPOCH), |(bytes, last), (own, at)| (bytes + own, last.max(at)));
            found.push(Found { path, id: None, gguf: true, bytes, modified });
        } else if is_model_dir(&path) {
            let (bytes, modified) = size_of(&path);
            found.push(Found { path, id: None, gguf: false, bytes, modified });
        } else if depth > 1
            && let Ok(inside) = fs::read_dir(&path)
        {
            walk(inside, depth - 1, found);
        }
    }
}

fn short(path: &Path) -> String {
    let is_dir = path.is_dir();
    let name = if is_dir { path.file_name() } else { path.file_stem() };
    name.unwrap_or_default().to_string_lossy().into_owned()
}

/// The first part of a GGUF file. Projectors of images are no models of their own.
fn is_model_file(path: &Path, name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let later = lower.contains("-of-") && !lower.contains("-00001-of-");
    lower.ends_with(".gguf") && !lower.starts_with("mmproj") && !later && path.is_file()
}

fn is_model_dir(path: &Path) -> bool {
    path.join("config.json").is_file()
        && files(path).iter().any(|file| has_ending(file, "safetensors"))
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|own| own.eq_ignore_ascii_case(ending))
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_file()).collect()
}

/// Bytes of a directory's files, and when the last was changed.
fn size_of(dir: &Path) -> (u64, SystemTime) {
    let all = files(dir).into_iter().map(|file| size_of_file(&file));
    all.fold((0, UNIX_EPOCH), |(bytes, last), (own, at)| (bytes + own, last.max(at)))
}

fn size_of_file(path: &Path) -> (u64, SystemTime) {
    let Ok(data) = fs::metadata(path) else { return (0, UNIX_EPOCH) };
    (data.len(), data.modified().unwrap_or(UNIX_EPOCH))
}

/// All files of a GGUF file of several parts.
pub(crate) fn parts(first: &Path) -> Vec<PathBuf> {
    let name = first.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some((stem, rest)) = name.split_once("-00001-of-") else { return vec![first.to_owned()] };
    let is_part = |file: &PathBuf| {
        let other = file.file_name().unwrap_or_default().to_string_lossy();
        other.starts_with(&format!("{stem}-")) && other.ends_with(&format!("-of-{rest}"))
    };
    files(first.parent().unwrap_or(Path::new("."))).into_iter().filter(is_part).collect()
}

/// Deletes a model's files.
pub(crate) fn delete(model: &Found) -> io::Result<()> {
    if model.gguf {
        return parts(&model.path).iter().try_for_each(fs::remove_file);
    }
    // Of a download, `models--org--name` with all revisions: they share their files.
    let whole = model.path.parent().and_then(Path::parent).filter(|_| model.id.is_some());
    let dir = whole.unwrap_or(&model.path);
    match fs::symlink_metadata(dir)?.is_symlink() {
        true => fs::remove_file(dir),
        false => fs::remove_dir_all(dir),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, name: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "1234").unwrap();
    }

    #[test]
    fn every_layout_is_found_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let commit = "0123456789abcdef0123456789abcdef01234567";
        for name in [
            "one/config.json",
            "one/model.safetensors",
            "org/two/config.json",
            "org/two/model.safetensors",
            "same/three/config.json",
            "same/three/model.safetensors",
            "three.gguf",
            "mmproj-three.gguf",
            "big-00001-of-00002.gguf",
            "big-00002-of-00002.gguf",
            "empty/config.json",
            ".hidden/config.json",
            ".hidden/model.safetensors",
            "README.md",
        ] {
            put(dir.path(), name);
        }
        let snapshot = format!("models--org--four/snapshots/{commit}");
        put(dir.path(), &format!("{snapshot}/config.json"));
        put(dir.path(), &format!("{snapshot}/model.safetensors"));
        put(dir.path(), "models--org--part/snapshots/x/config.json");
        let found = scan(dir.path()).unwrap();
        let names: Vec<_> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["big-00001-of-00002", "one", "org/four", "same/three", "three", "two"]);
        assert_eq!((found["one"].bytes, found["big-00001-of-00002"].bytes), (8, 8));
        for name in ["one", "org/four", "big-00001-of-00002"] {
            delete(&found[name]).unwrap();
        }
        let left: Vec<_> = scan(dir.path()).unwrap().into_keys().collect();
        assert_eq!(left, ["same/three", "three", "two"]);
        assert!(!dir.path().join("models--org--four").exists());
        assert!(scan(&dir.path().join("none")).is_err());
    }
}
