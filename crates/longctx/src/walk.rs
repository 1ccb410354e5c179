//! Which files of a root are searched.

use crate::{
    deny::is_denied,
    read::{MAX_FILE_BYTES, Skip, Stamp},
};
use ignore::{DirEntry, WalkBuilder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// What programs write for themselves.
const LOCK_FILES: [&str; 12] = [
    "package-lock.json",
    "npm-shrinkwrap.json",
    "yarn.lock",
    "pnpm-lock.yaml",
    "bun.lock",
    "cargo.lock",
    "poetry.lock",
    "uv.lock",
    "pipfile.lock",
    "composer.lock",
    "gemfile.lock",
    "go.sum",
];

/// Files and directories that were left out, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Skipped {
    /// Names and places of secrets.
    pub denied: u64,
    /// More than a mebibyte.
    pub too_large: u64,
    /// No text.
    pub binary: u64,
    /// Lock files and minified texts.
    pub generated: u64,
    /// Links, devices and pipes.
    pub special: u64,
    /// The system refuses.
    pub unreadable: u64,
}

impl Skipped {
    pub(crate) fn count(&mut self, skip: Skip) {
        match skip {
            Skip::Denied => self.denied += 1,
            Skip::TooLarge => self.too_large += 1,
            Skip::Binary => self.binary += 1,
            Skip::Generated => self.generated += 1,
            Skip::Special => self.special += 1,
            Skip::Unreadable => self.unreadable += 1,
            Skip::Missing => {}
        }
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        let Self { denied, too_large, binary, generated, special, unreadable } = self;
        denied + too_large + binary + generated + special + unreadable
    }
}

/// What a walk found; paths are relative to the root.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) files: BTreeMap<PathBuf, Stamp>,
    pub(crate) dirs: BTreeSet<PathBuf>,
    pub(crate) skipped: Skipped,
    /// Something could not be listed, so what is missing may still be there.
    pub(crate) incomplete: bool,
}

/// Lists `below`, a directory of `root`; with `deep` also what is below that.
///
/// Every `.gitignore` and `.ignore` counts, those of directories above the root too. Links are never
/// followed, and hidden files are left out.
pub(crate) fn walk(root: &Path, below: &Path, deep: bool) -> Listing {
    let mut listing = Listing::default();
    let start = if below.as_os_str().is_empty() { root.to_path_buf() } else { root.join(below) };
    let mut builder = WalkBuilder::new(&start);
    builder.require_git(false).follow_links(false).max_depth(if deep { None } else { Some(1) });
    // Hidden files that may hold secrets are counted.
    builder.hidden(false).filter_entry(|entry| {
        let is_dir = entry.file_type().is_some_and(|kind| kind.is_dir());
        entry.depth() == 0 || !(is_dir && is_hidden(entry))
    });
    for entry in builder.build() {
        match entry {
            Ok(entry) => take(root, &entry, &mut listing),
            Err(error) => {
                // A file that vanished while it was listed is missed by nobody.
                let gone =
                    error.io_error().is_some_and(|e| e.kind() == std::io::ErrorKind::NotFound);
                if !gone {
                    listing.skipped.count(Skip::Unreadable);
                    listing.incomplete = true;
                }
            }
        }
    }
    listing
}

fn is_hidden(entry: &DirEntry) -> bool {
    entry.file_name().as_encoded_bytes().starts_with(b".")
}

fn take(root: &Path, entry: &DirEntry, listing: &mut Listing) {
    let Ok(relative) = entry.path().strip_prefix(root) else { return };
    let Some(kind) = entry.file_type() else { return };
    if is_denied(relative) {
        if !kind.is_dir() {
            listing.skipped.count(Skip::Denied);
        }
        return;
    }
    if entry.depth() > 0 && is_hidden(entry) {
        return;
    }
    if kind.is_dir() {
        listing.dirs.insert(relative.to_path_buf());
        return;
    }
    if !kind.is_file() {
        return listing.skipped.count(Skip::Special);
    }
    // The index names files by text.
    if relative.to_str().is_none() {
        return listing.skipped.count(Skip::Unreadable);
    }
    let name = entry.file_name().to_string_lossy().to_ascii_lowercase();
    if LOCK_FILES.contains(&name.as_str()) || name.ends_with(".min.js") || name.ends_with(".map") {
        return listing.skipped.count(Skip::Generated);
    }
    match entry.metadata() {
        Ok(metadata) if metadata.len() > MAX_FILE_BYTES => listing.skipped.count(Skip::TooLarge),
        Ok(metadata) => {
            listing.files.insert(relative.to_path_buf(), Stamp::of(&metadata));
        }
        Err(_) => listing.skipped.count(Skip::Unreadable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn names(listing: &Listing) -> Vec<&str> {
        listing.files.keys().map(|p| p.to_str().unwrap()).collect()
    }

    #[test]
    fn ignore_files_of_every_ancestor_count() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        write(&top, ".gitignore", "*.log\nconfig/local.yml\n");
        write(&top, "app/.gitignore", "dist/\n");
        write(&top, "app/src/.gitignore", "made.rs\n");
        for file in ["app/a.rs", "app/x.log", "app/dist/b.js", "app/src/c.rs", "app/src/made.rs"] {
            write(&top, file, "x");
        }
        write(&top, "config/local.yml", "x");
        write(&top, "config/main.yml", "x");
        let root = top.join("app");
        assert_eq!(names(&walk(&root, Path::new(""), true)), ["a.rs", "src/c.rs"]);
        // A single directory below obeys what is above it.
        assert_eq!(names(&walk(&root, Path::new("src"), false)), ["src/c.rs"]);
        assert_eq!(names(&walk(&top, Path::new("config"), false)), ["config/main.yml"]);
    }

    #[test]
    fn what_is_left_out_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        write(&root, "a.rs", "x");
        write(&root, "server.pem", "x");
        write(&root, "secrets/db.yml", "x");
        write(&root, "Cargo.lock", "x");
        fs::File::create(root.join("huge.bin")).unwrap().set_len(2 << 30).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(&root, root.join("loop")).unwrap();
        let found = walk(&root, Path::new(""), true);
        assert_eq!(names(&found), ["a.rs"]);
        let Skipped { denied, too_large, generated, special, .. } = found.skipped;
        assert_eq!((denied, too_large, generated), (2, 1, 1));
        assert_eq!(special, u64::from(cfg!(unix)));
        assert!(!found.incomplete && found.dirs.contains(Path::new("")));
    }
}
