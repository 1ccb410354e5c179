//! Which of a step's rows are finite, for [`KvCache::publish`].

use crate::{KvCache, RowRange, cache::Table};
use std::collections::HashMap;
use taper_base::SeqId;
use taper_tensor::FiniteRows;

/// Rows of some tokens, which may still be on their way.
#[derive(Debug)]
pub(crate) struct Watched {
    rows: FiniteRows,
    ranges: Vec<RowRange>,
}

impl Watched {
    pub(crate) fn new(rows: FiniteRows, ranges: &[RowRange]) -> Self {
        Self { rows, ranges: ranges.to_vec() }
    }

    /// Whether any of its sequences is still there.
    pub(crate) fn is_of(&self, tables: &HashMap<SeqId, Table>) -> bool {
        self.ranges.iter().any(|range| tables.contains_key(&range.seq))
    }
}

impl KvCache {
    /// Notes for each sequence where its rows stop being finite. Rows that a GPU tells nothing of count as
    /// not finite.
    pub(crate) fn take_watched(&mut self) {
        for Watched { rows, ranges } in self.watched.drain(..) {
            let finite = rows.read().unwrap_or_default();
            let mut first = 0;
            for RowRange { seq, start, len } in ranges {
                let own = finite.get(first..first + len).unwrap_or_default();
                let broken = match own.iter().position(|finite| !finite) {
                    Some(at) => Some(start + at),
                    None if own.len() < len => Some(start),
                    None => None,
                };
                if let (Some(table), Some(at)) = (self.tables.get_mut(&seq), broken) {
                    table.broken = Some(table.broken.map_or(at, |before| before.min(at)));
                }
                first += len;
            }
        }
    }
}
