//! Where records are read from.

use crate::{ExpertError, ExpertKey, Manifest, record::verify};
use std::{
    fmt,
    fs::{File, OpenOptions},
    io,
    path::Path,
};

/// What direct reads begin at a multiple of, at least.
const SECTOR: usize = 512;

/// Somewhere that records come from. It is read by several threads at a time.
pub trait ExpertDisk: Send + Sync + fmt::Debug {
    /// Experts of each layer.
    fn experts(&self) -> Vec<usize>;

    /// Bytes of a record of a layer.
    fn record_bytes(&self, layer: u32) -> usize;

    /// Reads the record of an expert and checks it. `to` is [`Self::record_bytes`] long, and at an address that is
    /// a multiple of [`PAGE`](crate::PAGE).
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    fn read(&self, key: ExpertKey, to: &mut [u8]) -> Result<(), ExpertError>;
}

/// A pack, read around the page cache: what is in slots is not in memory twice.
#[derive(Debug)]
pub struct PackFiles {
    manifest: Manifest,
    files: Vec<File>,
    checksums: bool,
}

impl PackFiles {
    /// Opens the pack of a directory. With `checksums` every record that is read is compared with its checksum, and
    /// else only with its header.
    ///
    /// # Errors
    /// It has no manifest, or a file is not there or has another length.
    pub fn open(dir: &Path, checksums: bool) -> Result<Self, ExpertError> {
        let manifest = Manifest::read(dir)?;
        let mut files = Vec::with_capacity(manifest.layers.len());
        for (layer, entry) in manifest.layers.iter().enumerate() {
            let path = dir.join(Manifest::file_name(layer));
            let wrap = |source| ExpertError::File { path: path.clone(), source };
            let file = open_direct(&path).map_err(wrap)?;
            let expected = (entry.experts * entry.record_bytes(manifest.page)) as u64;
            let got = file.metadata().map_err(wrap)?.len();
            if got != expected {
                let reason = format!("it has {got} bytes, and the manifest says {expected}");
                return Err(ExpertError::Manifest { path, reason });
            }
            files.push(file);
        }
        Ok(Self { manifest, files, checksums })
    }

    /// What it says of itself.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }
}

impl ExpertDisk for PackFiles {
    fn experts(&self) -> Vec<usize> {
        self.manifest.layers.iter().map(|l| l.experts).collect()
    }

    fn record_bytes(&self, layer: u32) -> usize {
        let entry = self.manifest.layers.get(layer as usize);
        entry.map_or(0, |entry| entry.record_bytes(self.manifest.page))
    }

    fn read(&self, key: ExpertKey, to: &mut [u8]) -> Result<(), ExpertError> {
        let entry = self.manifest.layers.get(key.layer as usize);
        let entry = entry.filter(|entry| (key.expert as usize) < entry.experts);
        let (Some(entry), Some(file)) = (entry, self.files.get(key.layer as usize)) else {
            return Err(ExpertError::Missing { key });
        };
        let at = u64::from(key.expert) * to.len() as u64;
        let mut got = 0;
        while got < to.len() {
            match read_at(file, &mut to[got..], at + got as u64) {
                Ok(n) => {
                    got += n;
                    // No direct read goes on from within a page, where a file ends.
                    if got < to.len() && (n == 0 || !got.is_multiple_of(SECTOR)) {
                        return Err(ExpertError::Short { key, expected: to.len(), got });
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(ExpertError::Read { key, source }),
            }
        }
        verify(key, entry.format(), entry.payload, to, self.checksums)
    }
}

#[cfg(unix)]
fn read_at(file: &File, to: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, to, at)
}

#[cfg(windows)]
fn read_at(file: &File, to: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, to, at)
}

/// Opens a file for reads that leave the page cache alone; through it where a file system has no other way.
fn open_direct(path: &Path) -> io::Result<File> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
        match OpenOptions::new().read(true).custom_flags(direct).open(path) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            opened => return opened,
        }
    }
    let file = OpenOptions::new().read(true).open(path)?;
    #[cfg(target_os = "macos")]
    {
        // Reads work with it and without.
        let _ = rustix::fs::fcntl_nocache(&file, true);
    }
    Ok(file)
}
