//! Writes packs: a record at a time, going on where an earlier attempt ended.

use crate::{
    ExpertError, ExpertKey, HEADER_BYTES, LayerEntry, Manifest, PAGE, SourceFile,
    manifest::write_json, record::verify, seal,
};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// What the records in a directory are made of, until its manifest says so.
const SOURCE: &str = "source.json";

/// What was written, and what an earlier attempt had left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// Records written now.
    pub records: usize,
    /// Records that were there.
    pub resumed: usize,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// Writes a pack into a directory. Memory is one record.
#[derive(Debug)]
pub struct PackWriter {
    dir: PathBuf,
    source: Vec<SourceFile>,
    layers: Vec<LayerEntry>,
    written: Written,
}

impl PackWriter {
    /// A writer of what is made of `source` into `dir`, which is made if it is not there.
    ///
    /// # Errors
    /// It cannot be made, or has a pack that is whole, or a part of one of other files.
    pub fn new(dir: &Path, source: Vec<SourceFile>) -> Result<Self, ExpertError> {
        let file = |source| ExpertError::File { path: dir.to_owned(), source };
        if Manifest::is_in(dir) {
            return Err(file(io::Error::from(io::ErrorKind::AlreadyExists)));
        }
        fs::create_dir_all(dir).map_err(file)?;
        let path = dir.join(SOURCE);
        match fs::read(&path) {
            Ok(text) => {
                let before: Vec<SourceFile> = serde_json::from_slice(&text)
                    .map_err(|source| ExpertError::Json { path: path.clone(), source })?;
                let same =
                    |(a, b): (&SourceFile, &SourceFile)| a.name == b.name && a.sha256 == b.sha256;
                if before.len() != source.len() || !before.iter().zip(&source).all(same) {
                    let reason = "what is there was begun with other files".to_owned();
                    return Err(ExpertError::OtherModel { path: dir.to_owned(), reason });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => write_json(&path, &source)?,
            Err(source) => return Err(ExpertError::File { path, source }),
        }
        let (layers, written) = (Vec::new(), Written::default());
        Ok(Self { dir: dir.to_owned(), source, layers, written })
    }

    /// Writes the next layer. `fill(expert, payload)` makes a payload; experts whose records an earlier attempt has
    /// left are not asked for, but for the last one, whose bytes say whether the source is still the same.
    /// `progress` gets the bytes of each record.
    ///
    /// # Errors
    /// `fill` fails, a file cannot be written, or what is there is of another model.
    pub fn layer(
        &mut self,
        entry: LayerEntry,
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<(), ExpertError>,
        mut progress: impl FnMut(u64),
    ) -> Result<(), ExpertError> {
        let layer = self.layers.len();
        let path = self.dir.join(Manifest::file_name(layer));
        let io = |source| ExpertError::File { path: path.clone(), source };
        let (size, format) = (entry.record_bytes(PAGE), entry.format());
        let mut record = vec![0; size];
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path).map_err(io)?;
        let key = |expert: usize| ExpertKey { layer: layer as u32, expert: expert as u32 };
        let good = |expert: usize, record: &[u8]| {
            verify(key(expert), format, entry.payload, record, true).is_ok()
        };
        let resumed = whole_records(&mut file, entry.experts, &mut record, good).map_err(io)?;
        if let Some(last) = resumed.checked_sub(1) {
            let mut stored = vec![0; size];
            file.seek(SeekFrom::Start((last * size) as u64)).map_err(io)?;
            file.read_exact(&mut stored).map_err(io)?;
            record.fill(0);
            fill(last, &mut record[HEADER_BYTES..][..entry.payload])?;
            seal(key(last), format, entry.payload, &mut record);
            if record != stored {
                let reason = "what is there was written of other weights".to_owned();
                return Err(ExpertError::OtherModel { path, reason });
            }
            progress((resumed * size) as u64);
        }
        file.seek(SeekFrom::Start((resumed * size) as u64)).map_err(io)?;
        for expert in resumed..entry.experts {
            fill(expert, &mut record[HEADER_BYTES..][..entry.payload])?;
            seal(key(expert), format, entry.payload, &mut record);
            file.write_all(&record).map_err(io)?;
            progress(size as u64);
        }
        file.set_len((entry.experts * size) as u64).and_then(|()| file.sync_data()).map_err(io)?;
        forget(&file);
        self.written.records += entry.experts - resumed;
        self.written.resumed += resumed;
        self.written.bytes += (entry.experts * size) as u64;
        self.layers.push(entry);
        Ok(())
    }

    /// Writes the manifest: the pack is whole.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn finish(self) -> Result<Written, ExpertError> {
        Manifest::new(PAGE, self.source, self.layers).write(&self.dir)?;
        // The manifest has it now.
        let _ = fs::remove_file(self.dir.join(SOURCE));
        Ok(self.written)
    }
}

/// How many records from the first on are whole.
fn whole_records(
    file: &mut File,
    experts: usize,
    record: &mut [u8],
    good: impl Fn(usize, &[u8]) -> bool,
) -> io::Result<usize> {
    let there = file.metadata()?.len() as usize / record.len().max(1);
    for expert in 0..there.min(experts) {
        file.read_exact(record)?;
        if !good(expert, record) {
            return Ok(expert);
        }
    }
    Ok(there.min(experts))
}

/// Lets the system's copy of a file go, so that writing gigabytes does not push out what others read.
pub(crate) fn forget(file: &File) {
    #[cfg(target_os = "linux")]
    {
        // A hint that is not taken costs memory, nothing else.
        let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}
