//! An index in a file.
//!
//! The file begins with a mark, the version and a checksum. An index of another version, of a build
//! with other languages, or of another root is refused, and so is one that is damaged.

use super::{Doc, Expansion, FIELD_COUNT, FileEntry, Index, List};
use crate::{
    chunk,
    error::{Error, LoadError},
    terms::Term,
};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::Path,
};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

const MARK: &[u8; 8] = b"TAPERIDX";

/// Changes with the layout, with how files are cut, redacted and left out, and with how words are
/// made.
const FORMAT: u64 = 2;

const HEADER: usize = 8 + 8 + 16;

#[derive(Serialize)]
struct StoredRef<'a> {
    root: &'a str,
    files: &'a [FileEntry],
    docs: &'a [Doc],
    terms: Vec<(Term, u32)>,
    lists: &'a [List],
    expansion: &'a Expansion,
}

#[derive(Deserialize)]
struct Stored {
    root: String,
    files: Vec<FileEntry>,
    docs: Vec<Doc>,
    terms: Vec<(Term, u32)>,
    lists: Vec<List>,
    expansion: Expansion,
}

/// The format, and the languages of this build.
pub(crate) fn version() -> u64 {
    FORMAT << 48 | xxh3_64(chunk::languages().join(" ").as_bytes()) >> 16
}

/// Writes an index, whole or not at all. Only its owner may read it.
pub(crate) fn save(index: &Index, root: &str, path: &Path) -> Result<(), Error> {
    write(index, root, path).map_err(|source| Error::Save { path: path.to_owned(), source })
}

fn write(index: &Index, root: &str, path: &Path) -> io::Result<()> {
    let mut terms: Vec<_> = index.terms.iter().map(|(term, list)| (*term, *list)).collect();
    terms.sort_unstable();
    let (files, docs) = (index.files.as_slice(), index.docs.as_slice());
    let (lists, expansion) = (index.lists.as_slice(), &index.expansion);
    let stored = StoredRef { root, files, docs, terms, lists, expansion };
    let body = postcard::to_stdvec(&stored).map_err(io::Error::other)?;
    let (version, sum) = (version().to_le_bytes(), xxh3_128(&body).to_le_bytes());
    write_whole(path, &[MARK, &version, &sum, &body])
}

/// Writes a file whole or not at all. Only its owner may read it.
pub(crate) fn write_whole(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    let temporary = path.with_extension(format!("{}.part", std::process::id()));
    let written = (|| {
        let mut file = private(&temporary)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    })();
    if written.is_err() {
        // What is half written helps nobody. If it cannot be removed, the first error says why.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Reads an index of a root; none if there is no file.
pub(crate) fn load(root: &str, path: &Path) -> Result<Option<Index>, Error> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::Load { path: path.to_owned(), why: error.into() }),
    };
    let read = read(root, &bytes).map_err(|why| Error::Load { path: path.to_owned(), why })?;
    Ok(Some(read))
}

fn read(root: &str, bytes: &[u8]) -> Result<Index, LoadError> {
    let (header, body) = bytes.split_at_checked(HEADER).ok_or(LoadError::NotAnIndex)?;
    if &header[..8] != MARK {
        return Err(LoadError::NotAnIndex);
    }
    let number =
        |range| u64::from_le_bytes(<[u8; 8]>::try_from(&header[range]).unwrap_or_default());
    let (found, expected) = (number(8..16), version());
    if found != expected {
        return Err(LoadError::Version { found, expected });
    }
    if header[16..] != xxh3_128(body).to_le_bytes() {
        return Err(LoadError::Damaged);
    }
    let stored: Stored = postcard::from_bytes(body).map_err(|_| LoadError::Damaged)?;
    if stored.root != root {
        return Err(LoadError::OtherRoot);
    }
    let (files, docs, lists) = (stored.files.len(), stored.docs.len(), stored.lists.len());
    let whole = stored.docs.iter().all(|doc| (doc.file as usize) < files)
        && stored.files.iter().all(|f| f.docs.start <= f.docs.end && f.docs.end as usize <= docs)
        && stored.terms.iter().all(|(_, list)| (*list as usize) < lists)
        && stored.expansion.is_within(lists);
    if !whole {
        return Err(LoadError::Damaged);
    }
    let mut total = [0; FIELD_COUNT];
    let is_live = |doc: &&Doc| stored.files[doc.file as usize].is_live;
    let dead = stored.docs.iter().filter(|doc| !is_live(doc)).count();
    for doc in stored.docs.iter().filter(is_live) {
        total.iter_mut().zip(doc.lengths).for_each(|(all, own)| *all += u64::from(own));
    }
    let mut index = Index {
        by_path: live(&stored.files),
        terms: stored.terms.into_iter().collect(),
        files: stored.files,
        docs: stored.docs,
        lists: stored.lists,
        total,
        dead,
        expansion: stored.expansion,
        ..Index::default()
    };
    index.finish();
    Ok(index)
}

/// Files that have not been removed, by path.
fn live(files: &[FileEntry]) -> std::collections::BTreeMap<Box<str>, u32> {
    let files = (0..).zip(files).filter(|(_, file): &(u32, _)| file.is_live);
    files.map(|(id, file)| (file.path.clone(), id)).collect()
}
