//! One file: from the hub into `blobs/`.

use crate::{
    HubError, Progress,
    client::{Client, RemoteFile, header, network},
    hash::Hash,
};
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};
use ureq::{
    Body,
    http::{Response, StatusCode},
};

/// Where the bytes of an unfinished blob gather.
pub(crate) fn part_path(blob: &Path) -> PathBuf {
    blob.with_extension("part")
}

/// Whether a blob that is there is the file. One gets its name only after its hash was right, so
/// that of large files the length is enough; files of Git itself are small, and hashed again.
pub(crate) fn is_whole(file: &RemoteFile, blob: &Path) -> bool {
    if fs::metadata(blob).ok().map(|m| m.len()) != Some(file.size_bytes) {
        return false;
    }
    let mut hash = Hash::new(file);
    match &hash {
        Hash::GitBlob(_) => {
            let read = File::open(blob).and_then(|mut blob| io::copy(&mut blob, &mut hash));
            read.is_ok() && hash.matches(file)
        }
        Hash::Sha256(_) | Hash::Unknown => true,
    }
}

/// A file on its way. What has arrived stays when the connection breaks; the next attempt asks for
/// the rest only.
struct Part<'a> {
    file: &'a RemoteFile,
    path: PathBuf,
    out: File,
    present: u64,
    hash: Hash,
}

/// Fetches a file to `blob`.
pub(crate) fn fetch(
    client: &Client<'_>,
    url: &str,
    file: &RemoteFile,
    blob: &Path,
    progress: &mut dyn Progress,
) -> Result<(), HubError> {
    let mut part = Part::open(file, part_path(blob))?;
    if is_whole(file, blob) {
        // Another process finished it between our look and our lock.
        progress.started(&file.name, file.size_bytes, file.size_bytes);
        return Ok(());
    }
    if part.present < file.size_bytes {
        let mut response = client.get(url, part.present)?;
        client.check(url, &response)?;
        if !continues_at(part.present, &response) {
            part.restart()?;
        }
        progress.started(&file.name, file.size_bytes, part.present);
        part.fill(&mut response.body_mut().as_reader(), url, progress)?;
    } else {
        progress.started(&file.name, file.size_bytes, part.present);
    }
    part.finish(blob)
}

impl<'a> Part<'a> {
    /// Locks the file and reads what is there: the hash runs over all bytes.
    fn open(file: &'a RemoteFile, path: PathBuf) -> Result<Self, HubError> {
        let mut options = OpenOptions::new();
        let out = options.read(true).append(true).create(true).open(&path);
        let out = out.map_err(HubError::io(&path))?;
        match out.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(HubError::Busy { file: file.name.clone() });
            }
            Err(TryLockError::Error(e)) => return Err(HubError::io(path)(e)),
        }
        let mut part = Self { file, path, out, present: 0, hash: Hash::new(file) };
        let length = part.out.metadata().map_err(HubError::io(&part.path))?.len();
        if length > file.size_bytes {
            part.restart()?;
        } else {
            part.present = io::copy(&mut &part.out, &mut part.hash).map_err(part.io())?;
        }
        Ok(part)
    }

    fn io(&self) -> impl FnOnce(io::Error) -> HubError + use<> {
        HubError::io(self.path.clone())
    }

    fn restart(&mut self) -> Result<(), HubError> {
        (self.present, self.hash) = (0, Hash::new(self.file));
        self.out.set_len(0).map_err(self.io())
    }

    fn fill(
        &mut self,
        body: &mut impl Read,
        url: &str,
        progress: &mut dyn Progress,
    ) -> Result<(), HubError> {
        let mut buffer = vec![0; 256 << 10];
        while self.present <= self.file.size_bytes {
            if progress.is_cancelled() {
                return Err(HubError::Cancelled);
            }
            let n = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(network(url)(ureq::Error::Io(e))),
            };
            self.out.write_all(&buffer[..n]).map_err(self.io())?;
            self.hash.write_all(&buffer[..n]).map_err(self.io())?;
            self.present += n as u64;
            progress.advanced(n as u64);
        }
        Ok(())
    }

    fn finish(self, blob: &Path) -> Result<(), HubError> {
        let file = self.file.name.clone();
        let (expected_bytes, got_bytes) = (self.file.size_bytes, self.present);
        if got_bytes != expected_bytes {
            return Err(HubError::WrongSize { file, expected_bytes, got_bytes });
        }
        let failed = self.io();
        if !self.hash.matches(self.file) {
            fs::remove_file(&self.path).map_err(failed)?;
            return Err(HubError::WrongHash { file });
        }
        self.out.sync_all().map_err(failed)?;
        fs::rename(&self.path, blob).map_err(HubError::io(blob))
    }
}

/// Whether the body starts at this byte. A server may ignore a range and send everything.
fn continues_at(start: u64, response: &Response<Body>) -> bool {
    let range = || header(response.headers(), "content-range")?.strip_prefix("bytes ");
    let first = || range()?.split_once('-')?.0.parse().ok();
    start == 0 || response.status() == StatusCode::PARTIAL_CONTENT && first() == Some(start)
}
