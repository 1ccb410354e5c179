//! One expert on a disk.
//!
//! ```text
//! record   [64 bytes: header | payload], padded with zeros to whole pages
//! header   magic, layer u32, expert u32, payload bytes u64, format u32, crc32c of the payload u32, zeros
//! ```
//! Numbers are little-endian. The format is the crc32c of the text that says what a layer's payloads are.

use crate::ExpertError;
use std::fmt;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 64;
/// Records begin at a multiple of this, which is what reads around the page cache ask for.
pub const PAGE: usize = if cfg!(target_os = "macos") { 16 << 10 } else { 4 << 10 };
const MAGIC: [u8; 8] = *b"TAPEREX1";

/// Which expert: the number of its layer, among those with experts, and its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertKey {
    /// Counted from 0, over the layers that have experts.
    pub layer: u32,
    /// Counted from 0.
    pub expert: u32,
}

impl fmt::Display for ExpertKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expert {} of layer {}", self.expert, self.layer)
    }
}

/// What a record's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Whose record it is.
    pub key: ExpertKey,
    /// Bytes of the payload.
    pub payload: u64,
    /// Crc32c of the text that says what the payload is.
    pub format: u32,
    /// Crc32c of the payload.
    pub crc: u32,
}

impl Header {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&self.key.layer.to_le_bytes());
        out[12..16].copy_from_slice(&self.key.expert.to_le_bytes());
        out[16..24].copy_from_slice(&self.payload.to_le_bytes());
        out[24..28].copy_from_slice(&self.format.to_le_bytes());
        out[28..32].copy_from_slice(&self.crc.to_le_bytes());
        out
    }

    /// Reads what [`Self::encode`] writes; `None` of anything else.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.get(..HEADER_BYTES)?.split_first_chunk()?;
        let word = |at: usize| {
            let word = rest.get(at..)?.first_chunk()?;
            Some(u32::from_le_bytes(*word))
        };
        let key = ExpertKey { layer: word(0)?, expert: word(4)? };
        let payload = u64::from(word(8)?) | u64::from(word(12)?) << 32;
        let plain = rest.get(24..)?.iter().all(|&b| b == 0);
        let header = Self { key, payload, format: word(16)?, crc: word(20)? };
        (*magic == MAGIC && plain).then_some(header)
    }
}

/// Bytes of a record with a payload of so many, in pages of a size.
#[must_use]
pub fn padded(payload: usize, page: usize) -> usize {
    (HEADER_BYTES + payload).next_multiple_of(page.max(1))
}

/// Writes the header of a record whose payload is there, and the zeros behind it.
pub fn seal(key: ExpertKey, format: u32, payload: usize, record: &mut [u8]) {
    let Some((header, rest)) = record.split_at_mut_checked(HEADER_BYTES) else { return };
    let (own, padding) = rest.split_at_mut(payload.min(rest.len()));
    padding.fill(0);
    let crc = crc32c::crc32c(own);
    header.copy_from_slice(&Header { key, payload: payload as u64, format, crc }.encode());
}

/// Checks that a record is that of an expert, and with `checksum` that its payload is as it was written.
///
/// # Errors
/// It is another's, of another format or length, or damaged.
pub fn verify(
    key: ExpertKey,
    format: u32,
    payload: usize,
    record: &[u8],
    checksum: bool,
) -> Result<(), ExpertError> {
    let wrong = |what| ExpertError::Header { key, what };
    let header = Header::decode(record).ok_or_else(|| wrong("it has no header"))?;
    if header.key != key {
        return Err(wrong("it is another expert's"));
    }
    if header.format != format || header.payload != payload as u64 {
        return Err(wrong("it is of another format"));
    }
    let own = record.get(HEADER_BYTES..HEADER_BYTES + payload);
    let own = own.ok_or_else(|| wrong("it is cut off"))?;
    if !checksum {
        return Ok(());
    }
    match crc32c::crc32c(own) {
        got if got == header.crc => Ok(()),
        got => Err(ExpertError::Checksum { key, stored: header.crc, got }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: ExpertKey = ExpertKey { layer: 3, expert: 7 };

    fn record() -> Vec<u8> {
        let mut record = vec![0xaa; padded(100, 256)];
        record[HEADER_BYTES..][..100].fill(9);
        seal(KEY, 5, 100, &mut record);
        record
    }

    #[test]
    fn sealed_records_are_whole_and_every_flipped_bit_is_found() {
        let whole = record();
        assert_eq!(whole.len(), 256);
        assert!(whole[164..].iter().all(|&b| b == 0), "padding is zeros");
        verify(KEY, 5, 100, &whole, true).unwrap();
        for bit in 0..164 * 8 {
            let mut bad = whole.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(verify(KEY, 5, 100, &bad, true).is_err(), "bit {bit}");
        }
        let mut unchecked = whole.clone();
        unchecked[70] ^= 1;
        verify(KEY, 5, 100, &unchecked, false).unwrap();
    }

    #[test]
    fn records_of_others_are_refused() {
        let whole = record();
        let other = ExpertKey { layer: 3, expert: 8 };
        assert!(matches!(verify(other, 5, 100, &whole, false), Err(ExpertError::Header { .. })));
        assert!(verify(KEY, 6, 100, &whole, false).is_err());
        assert!(verify(KEY, 5, 101, &whole, false).is_err());
        assert!(verify(KEY, 5, 100, &whole[..120], false).is_err());
        assert!(verify(KEY, 5, 100, &[], false).is_err());
        assert_eq!(KEY.to_string(), "expert 7 of layer 3");
    }
}
