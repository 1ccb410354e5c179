//! The container: metadata and where each tensor lies.
//!
//! ```text
//! "GGUF" | version u32 | tensors u64 | pairs u64 | pairs: key, type u32, value | tensors: name,
//! dimensions u32, sizes u64.. (columns first), type u32, offset u64 | padding | data
//! ```
//! A text is a u64 of its bytes and these. All numbers are little-endian. The description is
//! `docs/gguf.md` of ggml.

use super::GgufError;
use std::collections::BTreeMap;

/// Dimensions of a tensor; ggml has no more.
const MOST_DIMENSIONS: usize = 4;
/// Lists in lists: a file of a few bytes must not use up the stack.
const DEEPEST: usize = 3;

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Meta {
    Whole(i128),
    Real(f64),
    Flag(bool),
    Text(String),
    List(Vec<Meta>),
}

/// A tensor as the file lists it.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) name: String,
    /// Rows first.
    pub(super) shape: Vec<usize>,
    /// ggml's number of the type.
    pub(super) kind: u32,
    /// Where its data begins, in the file.
    pub(super) start: usize,
}

/// What stands before the data.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) meta: BTreeMap<String, Meta>,
    pub(super) tensors: Vec<Entry>,
}

impl Header {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, GgufError> {
        let mut reader = Reader { bytes, at: 0 };
        if reader.take(4)? != b"GGUF" {
            return Err(GgufError::new("it is not a GGUF file"));
        }
        let version = reader.u32()?;
        if !(2..=3).contains(&version) {
            return Err(GgufError::new(format!(
                "it has version {version}, and versions 2 and 3 are read"
            )));
        }
        let (tensors, pairs) = (reader.count(24)?, reader.count(12)?);
        let mut meta = BTreeMap::new();
        for _ in 0..pairs {
            let (key, kind) = (reader.text()?, reader.u32()?);
            meta.insert(key, reader.value(kind, 0)?);
        }
        let mut entries = Vec::with_capacity(tensors);
        for _ in 0..tensors {
            entries.push(reader.entry()?);
        }
        let alignment = match meta.get("general.alignment") {
            Some(Meta::Whole(n)) => usize::try_from(*n).ok().filter(|n| n.is_power_of_two()),
            _ => Some(32),
        };
        let alignment =
            alignment.ok_or_else(|| GgufError::new("its alignment is no power of two"))?;
        let data = reader.at.checked_next_multiple_of(alignment);
        for entry in &mut entries {
            let start = data.and_then(|data| data.checked_add(entry.start));
            entry.start = start.ok_or_else(|| damaged(&entry.name))?;
        }
        Ok(Self { meta, tensors: entries })
    }
}

pub(super) fn damaged(name: &str) -> GgufError {
    GgufError::new(format!("tensor {name:?} lies outside the file; copy or download it again"))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], GgufError> {
        let taken = self.bytes.get(self.at..).and_then(|rest| rest.get(..n));
        let taken = taken.ok_or_else(|| GgufError::new("it ends in its header; copy it again"))?;
        self.at += n;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// How many follow, each of at least so many bytes: more than the file has room for is refused
    /// before memory is taken for them.
    fn count(&mut self, least: usize) -> Result<usize, GgufError> {
        let n = usize::try_from(self.u64()?).unwrap_or(usize::MAX);
        if n > (self.bytes.len() - self.at) / least {
            return Err(GgufError::new("it promises more than it holds; copy it again"));
        }
        Ok(n)
    }

    fn text(&mut self) -> Result<String, GgufError> {
        let n = self.count(1)?;
        let text = std::str::from_utf8(self.take(n)?);
        Ok(text.map_err(|_| GgufError::new("a text in its header is not UTF-8"))?.to_owned())
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<Meta, GgufError> {
        Ok(match kind {
            0 => Meta::Whole(self.array::<1>()?[0].into()),
            1 => Meta::Whole(i8::from_le_bytes(self.array()?).into()),
            2 => Meta::Whole(u16::from_le_bytes(self.array()?).into()),
            3 => Meta::Whole(i16::from_le_bytes(self.array()?).into()),
            4 => Meta::Whole(self.u32()?.into()),
            5 => Meta::Whole(i32::from_le_bytes(self.array()?).into()),
            6 => Meta::Real(f32::from_le_bytes(self.array()?).into()),
            7 => Meta::Flag(self.array::<1>()?[0] != 0),
            8 => Meta::Text(self.text()?),
            9 if depth < DEEPEST => {
                let (kind, n) = (self.u32()?, self.count(1)?);
                let list = (0..n).map(|_| self.value(kind, depth + 1));
                Meta::List(list.collect::<Result<_, _>>()?)
            }
            10 => Meta::Whole(self.u64()?.into()),
            11 => Meta::Whole(i64::from_le_bytes(self.array()?).into()),
            12 => Meta::Real(f64::from_le_bytes(self.array()?)),
            other => {
                return Err(GgufError::new(format!("a value in its header has type {other}")));
            }
        })
    }

    fn entry(&mut self) -> Result<Entry, GgufError> {
        let (name, dimensions) = (self.text()?, self.u32()? as usize);
        if dimensions > MOST_DIMENSIONS {
            return Err(GgufError::new(format!("tensor {name:?} has {dimensions} dimensions")));
        }
        let mut shape = Vec::with_capacity(dimensions);
        for _ in 0..dimensions {
            shape.push(usize::try_from(self.u64()?).map_err(|_| damaged(&name))?);
        }
        shape.reverse();
        let (kind, start) = (self.u32()?, self.u64()?);
        let start = usize::try_from(start).map_err(|_| damaged(&name))?;
        Ok(Entry { name, shape, kind, start })
    }
}

/// Typed access, by the architecture's keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) meta: &'a BTreeMap<String, Meta>,
    pub(super) architecture: &'a str,
}

impl<'a> Keys<'a> {
    pub(super) fn get(&self, key: &str) -> Option<&'a Meta> {
        self.meta.get(&format!("{}.{key}", self.architecture))
    }

    pub(super) fn need(&self, key: &str) -> Result<u64, GgufError> {
        let missing = || GgufError::new(format!("its metadata has no {}.{key}", self.architecture));
        self.whole(key).ok_or_else(missing)
    }

    /// A whole number; a list, as of one for each layer, must agree with itself.
    pub(super) fn whole(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Meta::Whole(n) => u64::try_from(*n).ok(),
            Meta::List(list) => {
                let first = list.first()?;
                let Meta::Whole(n) = first else { return None };
                list.iter().all(|m| m == first).then(|| u64::try_from(*n).ok()).flatten()
            }
            _ => None,
        }
    }

    pub(super) fn real(&self, key: &str) -> Option<f64> {
        match self.get(key)? {
            Meta::Real(x) => Some(*x),
            Meta::Whole(n) => Some(*n as f64),
            _ => None,
        }
    }

    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        match self.get(key)? {
            Meta::Text(text) => Some(text),
            _ => None,
        }
    }
}
