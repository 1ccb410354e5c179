//! The rows that an eviction keeps, and where they are moved to.

use crate::TriAttentionError;

/// Rows of a cache that are kept, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    rows: Vec<usize>,
    before: usize,
}

impl Kept {
    /// Some of `before` rows.
    pub(crate) fn new(mut rows: Vec<usize>, before: usize) -> Self {
        rows.sort_unstable();
        Self { rows, before }
    }

    /// Indices of the kept rows, ascending.
    #[must_use]
    pub fn rows(&self) -> &[usize] {
        &self.rows
    }

    /// Number of tokens that are evicted.
    #[must_use]
    pub fn evicted(&self) -> usize {
        self.before - self.rows.len()
    }

    /// Keeps the order of the rows: all that follow a gap move up.
    #[must_use]
    pub fn in_order(&self) -> Moves {
        Moves { order: self.rows.clone(), before: self.before }
    }

    /// Fills each gap with one of the last rows, so that few rows move and each moves at most once.
    /// Their order is no longer that of the text, which attention does not mind: keys carry their
    /// positions.
    #[must_use]
    pub fn filling_gaps(&self) -> Moves {
        self.filling_gaps_before(0)
    }

    /// As [`Self::filling_gaps`], but the last `latest` of the kept rows keep their order, behind all others. Where
    /// a whole number of blocks goes, these lie in blocks as they did.
    #[must_use]
    pub fn filling_gaps_before(&self, latest: usize) -> Moves {
        let (rows, latest) = self.rows.split_at(self.rows.len().saturating_sub(latest));
        let n = rows.len();
        let (stay, go) = rows.split_at(rows.partition_point(|&row| row < n));
        let mut order = vec![None; n];
        for &row in stay {
            order[row] = Some(row);
        }
        let mut go = go.iter().copied();
        let filled = order.into_iter().filter_map(|row| row.or_else(|| go.next()));
        let order = filled.chain(latest.iter().copied()).collect();
        Moves { order, before: self.before }
    }
}

/// Where the kept rows are moved to: row `i` of the cache will be what row `rows()[i]` is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moves {
    order: Vec<usize>,
    before: usize,
}

impl Moves {
    /// For each row, which one it was.
    #[must_use]
    pub fn rows(&self) -> &[usize] {
        &self.order
    }

    /// What is told of each row, such as its position in the text, after the move.
    ///
    /// # Errors
    /// `of` has not one element for each row that there was.
    pub fn apply<T: Copy>(&self, of: &[T]) -> Result<Vec<T>, TriAttentionError> {
        if of.len() != self.before {
            let (expected, got) = (self.before, of.len());
            return Err(TriAttentionError::Length { what: "rows", expected, got });
        }
        Ok(self.order.iter().map(|&row| of[row]).collect())
    }

    /// The blocks of `block_tokens` tokens that are to be built anew: the index of each in the
    /// sequence's table, and the rows that it takes. Those that hold what they did are left out; so are
    /// those that are empty now, which may be freed.
    ///
    /// Put together, the rows are what `KvCodec::compact` takes only if all but the last block given are
    /// full: that is so, as only a sequence's last block is not.
    pub fn changed_blocks(&self, block_tokens: usize) -> impl Iterator<Item = (usize, &[usize])> {
        let size = block_tokens.max(1);
        let blocks = self.order.chunks(size).enumerate();
        blocks.filter(move |(index, rows)| {
            let first = index * size;
            let was = self.before.saturating_sub(first).min(size);
            rows.len() != was || !rows.iter().copied().eq(first..first + rows.len())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_filled_from_the_end() {
        let kept = Kept::new(vec![9, 0, 2, 3, 7], 10);
        assert_eq!((kept.rows(), kept.evicted()), (&[0, 2, 3, 7, 9][..], 5));
        assert_eq!(kept.in_order().rows(), [0, 2, 3, 7, 9]);
        let moves = kept.filling_gaps();
        assert_eq!(moves.rows(), [0, 7, 2, 3, 9]);
        let was: Vec<_> = (10..20).collect();
        assert_eq!(moves.apply(&was).unwrap(), [10, 17, 12, 13, 19]);
        assert!(moves.apply(&was[1..]).is_err());
    }

    #[test]
    fn the_latest_rows_keep_their_order() {
        let kept = Kept::new(vec![0, 2, 5, 7, 8, 9], 10);
        assert_eq!(kept.filling_gaps_before(3).rows(), [0, 5, 2, 7, 8, 9]);
        assert_eq!(kept.filling_gaps_before(9).rows(), kept.rows());
    }

    #[test]
    fn blocks_that_hold_what_they_did_are_left_out() {
        let moves = Kept::new(vec![0, 1, 2, 4, 5, 8], 9).filling_gaps();
        assert_eq!(moves.rows(), [0, 1, 2, 8, 4, 5]);
        let blocks: Vec<_> = moves.changed_blocks(2).collect();
        assert_eq!(blocks, [(1, &[2, 8][..])]);
        // A block that loses rows is built anew.
        let blocks: Vec<_> = moves.changed_blocks(4).collect();
        assert_eq!(blocks, [(0, &[0, 1, 2, 8][..]), (1, &[4, 5][..])]);
        let all = Kept::new((0..9).collect(), 9).filling_gaps();
        assert_eq!(all.changed_blocks(4).count(), 0);
    }
}
