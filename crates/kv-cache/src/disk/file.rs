//! The file of a unit.
//!
//! ```text
//! NAME.kv:  "taperkv2"  name, 32 bytes  number of parts, u32  length of each part, u64  SHA-256 of all of that
//!           of each part: its rows  SHA-256 of the name, the part's number, u32, and the rows
//! ```
//! Numbers are little-endian. A part has a layer's rows, so that one layer is read and checked without the others.

use sha2::{Digest, Sha256};
use std::{
    fs,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
    sync::Arc,
};
use taper_base::TokenId;

const MAGIC: &[u8; 8] = b"taperkv2";
const HASH: usize = 32;
const EXTENSION: &str = "kv";
/// More parts than any model has layers.
const MAX_PARTS: usize = 1 << 12;

/// The rows of a unit, layer by layer.
pub type UnitRows = Vec<Vec<u8>>;

/// A unit's rows and all before it, as a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnitName([u8; HASH]);

impl UnitName {
    /// What stands before the first unit: everything but tokens that rows depend on.
    #[must_use]
    pub fn root(identity: &str) -> Self {
        Self(Sha256::digest(identity).into())
    }

    /// What stands before the first unit of prompts of a salt.
    pub(crate) fn salted(&self, salt: Option<&Arc<str>>) -> Self {
        let Some(salt) = salt else { return *self };
        Self(
            Sha256::new_with_prefix(self.0)
                .chain_update("salt")
                .chain_update(&**salt)
                .finalize()
                .into(),
        )
    }

    /// The unit of these tokens after this one.
    #[must_use]
    pub fn next(&self, tokens: &[TokenId]) -> Self {
        self.next_with(tokens, &[])
    }

    /// [`Self::next`] of tokens of which some stand for images: where each begins, and its hash.
    pub(crate) fn next_with(&self, tokens: &[TokenId], images: &[(isize, [u8; HASH])]) -> Self {
        let mut hash = Sha256::new_with_prefix(self.0);
        tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
        for (at, image) in images {
            hash.update("image");
            hash.update((*at as i64).to_le_bytes());
            hash.update(image);
        }
        Self(hash.finalize().into())
    }

    pub(super) fn file(&self) -> String {
        let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{hex}.{EXTENSION}")
    }

    pub(super) fn of_file(name: &str) -> Option<Self> {
        let hex = name.strip_suffix(EXTENSION)?.strip_suffix('.')?;
        let mut bytes = [0; HASH];
        if hex.len() != 2 * HASH || !hex.is_ascii() {
            return None;
        }
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }
}

/// Bytes of a unit's file.
pub(super) fn bytes(rows: &UnitRows) -> u64 {
    let parts: usize = rows.iter().map(|part| part.len() + HASH).sum();
    (fixed().len() + 8 * rows.len() + HASH + parts) as u64
}

/// Bytes of the head before the lengths of the parts.
fn fixed() -> [u8; MAGIC.len() + HASH + 4] {
    [0; MAGIC.len() + HASH + 4]
}

/// Writes a unit's file.
pub(super) fn write(name: UnitName, rows: &UnitRows, to: &mut dyn Write) -> io::Result<()> {
    let mut head = [&MAGIC[..], &name.0, &number(rows.len())].concat();
    rows.iter().for_each(|part| head.extend((part.len() as u64).to_le_bytes()));
    to.write_all(&head)?;
    to.write_all(&Sha256::digest(&head))?;
    for (i, part) in rows.iter().enumerate() {
        to.write_all(part)?;
        to.write_all(&hash(name, i, part))?;
    }
    Ok(())
}

fn number(n: usize) -> [u8; 4] {
    u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes()
}

fn hash(name: UnitName, part: usize, rows: &[u8]) -> [u8; HASH] {
    Sha256::new_with_prefix(name.0).chain_update(number(part)).chain_update(rows).finalize().into()
}

/// Reads a unit's parts, all of them or one, which then is alone in the answer.
///
/// # Errors
/// The file cannot be read, or holds anything but what was written for this unit.
pub(super) fn read(name: UnitName, path: &Path, part: Option<usize>) -> io::Result<UnitRows> {
    let mut file = fs::File::open(path)?;
    let lengths = read_head(name, &mut file)?;
    // No length is trusted before all of them together are the file's.
    let head = file.stream_position()?;
    let end = lengths
        .iter()
        .try_fold(head, |end, length| end.checked_add(*length)?.checked_add(HASH as u64));
    if end != Some(file.metadata()?.len()) {
        return Err(damaged("it is not as long as what was written"));
    }
    let wanted = part.map_or(0..lengths.len(), |part| part..part + 1);
    let before = lengths.get(..wanted.start).unwrap_or_default();
    let skipped: u64 = before.iter().map(|length| length + HASH as u64).sum();
    file.seek(SeekFrom::Current(skipped.cast_signed()))?;
    wanted.map(|part| read_part(name, &mut file, part, lengths.get(part).copied())).collect()
}

/// Lengths of the parts.
fn read_head(name: UnitName, file: &mut fs::File) -> io::Result<Vec<u64>> {
    let mut head = fixed().to_vec();
    file.read_exact(&mut head)?;
    if head[..MAGIC.len()] != *MAGIC {
        return Err(damaged("it is no file of this cache, or of another version"));
    }
    if head[MAGIC.len()..][..HASH] != name.0 {
        return Err(damaged("it holds another prefix"));
    }
    let count = head.last_chunk().map_or(0, |count| u32::from_le_bytes(*count)) as usize;
    if count > MAX_PARTS {
        return Err(damaged(CHANGED));
    }
    let mut lengths = vec![0; 8 * count];
    file.read_exact(&mut lengths)?;
    head.extend_from_slice(&lengths);
    let mut hash = [0; HASH];
    file.read_exact(&mut hash)?;
    if hash[..] != Sha256::digest(&head)[..] {
        return Err(damaged(CHANGED));
    }
    Ok(lengths.as_chunks().0.iter().map(|length| u64::from_le_bytes(*length)).collect())
}

fn read_part(
    name: UnitName,
    file: &mut fs::File,
    part: usize,
    length: Option<u64>,
) -> io::Result<Vec<u8>> {
    let length = length.and_then(|length| usize::try_from(length).ok());
    let mut rows = vec![0; length.ok_or_else(|| damaged("it lacks a layer"))? + HASH];
    file.read_exact(&mut rows)?;
    let end = rows.len() - HASH;
    if rows[end..] != hash(name, part, &rows[..end]) {
        return Err(damaged(CHANGED));
    }
    rows.truncate(end);
    Ok(rows)
}

const CHANGED: &str = "its bytes are not those that were written";

fn damaged(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths whose sum is the right one only because it has wrapped.
    #[test]
    fn lengths_that_wrap_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (path, name) = (dir.path().join("unit"), UnitName::root("model"));
        let mut head = [&MAGIC[..], &name.0, &number(4)].concat();
        let fill = (1u64 << 62) - HASH as u64;
        [fill, fill, fill, fill].iter().for_each(|length| head.extend(length.to_le_bytes()));
        let hash = Sha256::digest(&head);
        fs::write(&path, [&head[..], &hash[..]].concat()).unwrap();
        for part in [None, Some(0), Some(3)] {
            let error = read(name, &path, part).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        }
    }
}
