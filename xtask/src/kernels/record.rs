//! What the planted bugs were caught in: a hash a family, so that CI plants them again only where a kernel, a
//! check or a bug has changed. To compile every bug takes 20 minutes on two cores.

use super::mutants::Mutant;
use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// Committed; in the form of `sha256sum`.
const RECORD: &str = "kernels/PLANTED";

/// The sources that every verdict depends on: the checks, the runner and what it fills in for the compiler.
const COMMON: [&str; 3] = ["crates/conformance/src", "kernels/runner", "kernels/include"];

/// Files among these that hold the checks of families whose names begin so, and of no other.
const OWN: [(&str, &str); 3] =
    [("experts.rs", "experts"), ("heads.rs", "head_maps"), ("routes.rs", "route")];

/// The families whose bugs are known to be caught, by the hash of what decides it.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    common: [u8; 32],
    /// Checks of single families.
    own: BTreeMap<&'static str, Vec<u8>>,
    caught: BTreeMap<String, String>,
}

impl Record {
    /// Reads the record of a repository; one that is not there is empty.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut files = Vec::new();
        for folder in COMMON {
            list(&root.join(folder), &mut files)?;
        }
        files.sort();
        let (mut common, mut own) = (Sha256::new(), BTreeMap::new());
        for file in files {
            let text = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
            let name = file.file_name().unwrap_or_default();
            match OWN.iter().find(|(file, _)| name == *file) {
                Some((_, family)) => drop(own.insert(*family, text)),
                None => add(&mut common, &text),
            }
        }
        let path = root.join(RECORD);
        let text = fs::read_to_string(&path).unwrap_or_default();
        let entry = |line: &str| {
            let (hash, family) = line.split_once("  ")?;
            Some((family.to_owned(), hash.to_owned()))
        };
        let caught = text.lines().filter_map(entry).collect();
        Ok(Self { path, common: common.finalize().into(), own, caught })
    }

    /// Whether all of these bugs were caught in a family whose source is `text`.
    pub(super) fn has(&self, family: &str, text: &str, bugs: &[&Mutant]) -> bool {
        self.caught.get(family).is_some_and(|hash| *hash == self.hash(family, text, bugs))
    }

    /// Notes that all of these bugs were caught.
    pub(super) fn add(&mut self, family: &str, text: &str, bugs: &[&Mutant]) {
        let hash = self.hash(family, text, bugs);
        self.caught.insert(family.to_owned(), hash);
    }

    /// Writes what was noted.
    ///
    /// # Errors
    /// The file can't be written.
    pub(super) fn write(&self) -> Result<()> {
        let mut text = String::new();
        for (family, hash) in &self.caught {
            writeln!(text, "{hash}  {family}")?;
        }
        fs::write(&self.path, text).with_context(|| format!("writing {}", self.path.display()))
    }

    fn hash(&self, family: &str, text: &str, bugs: &[&Mutant]) -> String {
        let mut hash = Sha256::new();
        hash.update(self.common);
        for (_, checks) in self.own.iter().filter(|(name, _)| family.starts_with(**name)) {
            add(&mut hash, checks);
        }
        add(&mut hash, text.as_bytes());
        for bug in bugs {
            for part in [bug.from, bug.to] {
                add(&mut hash, part.as_bytes());
            }
        }
        format!("{:x}", hash.finalize())
    }
}

/// Adds a text and its length, so that two texts never read as one.
fn add(hash: &mut Sha256, text: &[u8]) {
    hash.update(text.len().to_le_bytes());
    hash.update(text);
}

/// Adds the files under a folder.
fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let reading = || format!("listing {}", folder.display());
    for entry in fs::read_dir(folder).with_context(reading)? {
        let path = entry.with_context(reading)?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::mutants::mutant, *};

    #[test]
    fn a_verdict_is_kept_until_a_kernel_a_bug_or_a_check_changes() {
        let dir = tempfile::tempdir().unwrap();
        for folder in COMMON {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        let check = dir.path().join(COMMON[0]).join("check.rs");
        fs::write(&check, "one").unwrap();
        let (bug, other) = (mutant("a", "", "+", "-"), mutant("a", "", "*", "-"));
        let mut record = Record::read(dir.path()).unwrap();
        assert!(!record.has("a", "x + y", &[&bug]));
        record.add("a", "x + y", &[&bug]);
        record.write().unwrap();

        let record = Record::read(dir.path()).unwrap();
        assert!(record.has("a", "x + y", &[&bug]));
        assert!(!record.has("a", "x + z", &[&bug]));
        assert!(!record.has("a", "x + y", &[&bug, &other]));
        assert!(!record.has("b", "x + y", &[&bug]));
        // The checks of another family.
        fs::write(check.with_file_name("routes.rs"), "two").unwrap();
        assert!(Record::read(dir.path()).unwrap().has("a", "x + y", &[&bug]));
        fs::write(&check, "another").unwrap();
        assert!(!Record::read(dir.path()).unwrap().has("a", "x + y", &[&bug]));
    }
}
