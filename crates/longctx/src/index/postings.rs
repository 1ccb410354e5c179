//! Which chunks have a term, and how often in which field.
//!
//! A posting is the distance to the posting before as a varint, a byte with a bit for each field
//! that has the term, and a byte for the count in each of them, unless all counts are 1.

use serde::{Deserialize, Serialize};

/// Fields of a chunk that are weighed differently.
pub(crate) const FIELD_COUNT: usize = 5;

/// What a field is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    Name,
    /// The path of the file and the names around the definition.
    Place,
    Signature,
    Doc,
    Body,
}

/// Occurrences in each field, of which more than 255 are 255.
pub(crate) type Counts = [u8; FIELD_COUNT];

/// Every count is 1.
const ALL_ONE: u8 = 1 << 7;

/// The postings of one term, by rising number of the chunk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct List {
    bytes: Vec<u8>,
    /// One more than the last chunk, so that the first distance is never 0.
    next: u32,
    count: u32,
}

impl List {
    /// Adds the posting of a chunk that comes after all that are there.
    pub(crate) fn push(&mut self, chunk: u32, counts: &Counts) {
        let mut distance = chunk + 1 - self.next;
        self.next = chunk + 1;
        self.count += 1;
        while distance >= 0x80 {
            self.bytes.push(distance as u8 | 0x80);
            distance >>= 7;
        }
        self.bytes.push(distance as u8);
        let some = counts.iter().enumerate().filter(|(_, n)| **n > 0);
        let mask = some.clone().fold(0, |mask, (field, _)| mask | 1 << field);
        if some.clone().all(|(_, n)| *n == 1) {
            self.bytes.push(mask | ALL_ONE);
        } else {
            self.bytes.push(mask);
            self.bytes.extend(some.map(|(_, n)| *n));
        }
    }

    pub(crate) fn iter(&self) -> Iter<'_> {
        Iter { bytes: &self.bytes, next: 0 }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.count as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }
}

/// Postings in order. Damaged bytes end it early.
#[derive(Debug, Clone)]
pub(crate) struct Iter<'a> {
    bytes: &'a [u8],
    next: u32,
}

impl Iterator for Iter<'_> {
    type Item = (u32, Counts);

    #[inline]
    fn next(&mut self) -> Option<(u32, Counts)> {
        let (mut distance, mut shift) = (0_u32, 0);
        loop {
            let (byte, rest) = self.bytes.split_first()?;
            self.bytes = rest;
            distance |= u32::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
        }
        self.next = self.next.checked_add(distance)?;
        let (mask, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        let mut counts = [0; FIELD_COUNT];
        for (field, count) in counts.iter_mut().enumerate() {
            if mask & 1 << field == 0 {
                continue;
            }
            *count = if mask & ALL_ONE != 0 {
                1
            } else {
                let (n, rest) = self.bytes.split_first()?;
                self.bytes = rest;
                *n
            };
        }
        Some((self.next.checked_sub(1)?, counts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_pushed_is_read(
            postings in prop::collection::btree_map(0..u32::MAX - 1, prop::array::uniform5(0_u8..4), 0..50)
        ) {
            let mut list = List::default();
            postings.iter().for_each(|(chunk, counts)| list.push(*chunk, counts));
            let read: Vec<_> = list.iter().collect();
            prop_assert_eq!(read, postings.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn damaged_lists_end(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let list = List { bytes, ..List::default() };
            prop_assert!(list.iter().count() <= 100);
        }
    }
}
