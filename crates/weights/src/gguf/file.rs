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
/// Kinds of values that have no fixed size.
const TEXT: u32 = 8;
const LIST: u32 = 9;
/// Lists in lists: a file of a few bytes must not use up the stack.
const DEEPEST: usize = 3;

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Meta {
    Whole(i128),
    Real(f64),
    Flag(bool),
    Text(String),
    /// Texts or lists.
    List(Vec<Meta>),
    Numbers(Numbers),
}

/// A list of numbers or flags, as it lies in the file: a byte each must not become a [`Meta`] each.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Numbers {
    kind: u32,
    bytes: Vec<u8>,
}

impl Numbers {
    pub(super) fn iter(&self) -> impl Iterator<Item = Meta> {
        let each = self.bytes.chunks_exact(width(self.kind).unwrap_or(1));
        each.filter_map(|bytes| number(self.kind, bytes))
    }
}

/// Bytes of a number or a flag; other kinds have no fixed size.
fn width(kind: u32) -> Option<usize> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        _ => return None,
    })
}

/// A number or a flag of so many bytes.
fn number(kind: u32, bytes: &[u8]) -> Option<Meta> {
    Some(match (kind, bytes) {
        (0, &[b]) => Meta::Whole(b.into()),
        (1, &[b]) => Meta::Whole(b.cast_signed().into()),
        (7, &[b]) => Meta::Flag(b != 0),
        (2, b) => Meta::Whole(u16::from_le_bytes(b.try_into().ok()?).into()),
        (3, b) => Meta::Whole(i16::from_le_bytes(b.try_into().ok()?).into()),
        (4, b) => Meta::Whole(u32::from_le_bytes(b.try_into().ok()?).into()),
        (5, b) => Meta::Whole(i32::from_le_bytes(b.try_into().ok()?).into()),
        (6, b) => Meta::Real(f32::from_le_bytes(b.try_into().ok()?).into()),
        (10, b) => Meta::Whole(u64::from_le_bytes(b.try_into().ok()?).into()),
        (11, b) => Meta::Whole(i64::from_le_bytes(b.try_into().ok()?).into()),
        (12, b) => Meta::Real(f64::from_le_bytes(b.try_into().ok()?)),
        _ => return None,
    })
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
            return Err(GgufError::unsupported("it is not a GGUF file"));
        }
        let version = reader.u32()?;
        if !(2..=3).contains(&version) {
            return Err(GgufError::unsupported(format!(
                "it has version {version}, and versions 2 and 3 are read"
            )));
        }
        let (tensors, pairs) = (reader.count(24)?, reader.count(12)?);
        let mut meta = BTreeMap::new();
        for _ in 0..pairs {
            let (key, kind) = (reader.text()?, reader.u32()?);
            let value = reader.value(kind, 0)?;
            if meta.contains_key(&key) {
                return Err(GgufError::damaged(format!("its metadata has {key:?} twice")));
            }
            meta.insert(key, value);
        }
        let mut entries = (0..tensors).map(|_| reader.entry()).collect::<Result<Vec<_>, _>>()?;
        let alignment = match meta.get("general.alignment") {
            Some(Meta::Whole(n)) => usize::try_from(*n).ok().filter(|n| n.is_power_of_two()),
            _ => Some(32),
        };
        let alignment =
            alignment.ok_or_else(|| GgufError::damaged("its alignment is no power of two"))?;
        let data = reader.at.checked_next_multiple_of(alignment);
        for entry in &mut entries {
            let start = data.and_then(|data| data.checked_add(entry.start));
            entry.start = start.ok_or_else(|| GgufError::outside(&entry.name))?;
        }
        Ok(Self { meta, tensors: entries })
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], GgufError> {
        let taken = self.bytes.get(self.at..).and_then(|rest| rest.get(..n));
        let taken =
            taken.ok_or_else(|| GgufError::damaged("it ends in its header; copy it again"))?;
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
            return Err(GgufError::damaged("it promises more than it holds; copy it again"));
        }
        Ok(n)
    }

    fn text(&mut self) -> Result<String, GgufError> {
        let n = self.count(1)?;
        let text = std::str::from_utf8(self.take(n)?);
        Ok(text.map_err(|_| GgufError::damaged("a text in its header is not UTF-8"))?.to_owned())
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<Meta, GgufError> {
        let unknown = || GgufError::damaged(format!("a value in its header has type {kind}"));
        match (width(kind), kind) {
            (Some(width), _) => number(kind, self.take(width)?).ok_or_else(unknown),
            (None, TEXT) => Ok(Meta::Text(self.text()?)),
            (None, LIST) if depth < DEEPEST => self.list(depth),
            _ => Err(unknown()),
        }
    }

    fn list(&mut self, depth: usize) -> Result<Meta, GgufError> {
        let kind = self.u32()?;
        if let Some(width) = width(kind) {
            let n = self.count(width)?;
            return Ok(Meta::Numbers(Numbers { kind, bytes: self.take(n * width)?.to_owned() }));
        }
        let n = self.count(if kind == TEXT { 8 } else { 12 })?;
        let list = (0..n).map(|_| self.value(kind, depth + 1));
        Ok(Meta::List(list.collect::<Result<_, _>>()?))
    }

    fn entry(&mut self) -> Result<Entry, GgufError> {
        let (name, dimensions) = (self.text()?, self.u32()? as usize);
        if dimensions > MOST_DIMENSIONS {
            return Err(GgufError::damaged(format!("tensor {name:?} has {dimensions} dimensions")));
        }
        let mut shape = Vec::with_capacity(dimensions);
        for _ in 0..dimensions {
            shape.push(usize::try_from(self.u64()?).map_err(|_| GgufError::outside(&name))?);
        }
        shape.reverse();
        let (kind, start) = (self.u32()?, self.u64()?);
        let start = usize::try_from(start).map_err(|_| GgufError::outside(&name))?;
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
        let missing = || GgufError::metadata(format!("{}.{key}", self.architecture));
        self.whole(key).ok_or_else(missing)
    }

    /// A whole number; a list, as of one for each layer, must agree with itself.
    pub(super) fn whole(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Meta::Whole(n) => u64::try_from(*n).ok(),
            Meta::Numbers(list) => {
                let first = list.iter().next()?;
                let Meta::Whole(n) = first else { return None };
                list.iter().all(|m| m == first).then(|| u64::try_from(n).ok()).flatten()
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

    pub(super) fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Meta::Flag(flag) => Some(*flag),
            _ => None,
        }
    }

    /// A whole number for each layer.
    pub(super) fn list(&self, key: &str) -> Option<Vec<u64>> {
        let Meta::Numbers(list) = self.get(key)? else { return None };
        let whole = |m| match m {
            Meta::Whole(n) => u64::try_from(n).ok(),
            _ => None,
        };
        list.iter().map(whole).collect()
    }

    /// A flag for each layer.
    pub(super) fn flags(&self, key: &str) -> Option<Vec<bool>> {
        let Meta::Numbers(list) = self.get(key)? else { return None };
        let flag = |m| match m {
            Meta::Flag(flag) => Some(flag),
            _ => None,
        };
        list.iter().map(flag).collect()
    }

    pub(super) fn text(&self, key: &str) -> Option<&'a str> {
        match self.get(key)? {
            Meta::Text(text) => Some(text),
            _ => None,
        }
    }
}
