//! Query tokens of a step as attention takes them: range by range, and cut where tokens do not see what their places
//! would let them see.

use crate::RowRange;
use taper_kv_codecs::{KvCodecError, Mutual, MutualSpan, Together};

/// Queries of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Queries {
    /// The range's number.
    pub(crate) range: usize,
    /// Index in the step of the first of them.
    pub(crate) first: usize,
    /// How many.
    pub(crate) len: usize,
    /// Tokens of the sequence up to the last of them.
    pub(crate) end: usize,
    /// Tokens of the sequence that none of them sees.
    pub(crate) unseen: usize,
    /// What all of them see, besides.
    pub(crate) together: Option<Together>,
}

impl Queries {
    /// The part of them at some places of the step, one after the other.
    fn part(&self, first: usize, end: usize) -> Self {
        let last = self.first + self.len;
        Self { first, len: end - first, end: self.end - (last - end), ..*self }
    }
}

/// The queries of all tokens of a step.
pub(crate) fn all_rows(ranges: &[RowRange]) -> Vec<Queries> {
    let mut first = 0;
    let of = |(i, range): (usize, &RowRange)| {
        let (len, end) = (range.len, range.start + range.len);
        let own = Queries { range: i, first, len, end, unseen: 0, together: None };
        first += len;
        own
    };
    ranges.iter().enumerate().map(of).collect()
}

/// The query of each of a step's tokens at `rows`, which ascend.
pub(crate) fn some_rows(ranges: &[RowRange], rows: &[u32]) -> Vec<Queries> {
    let mut queries = Vec::with_capacity(rows.len());
    let (mut first, mut rows) = (0, rows.iter().map(|&row| row as usize).peekable());
    for (range, own) in ranges.iter().enumerate() {
        while let Some(row) = rows.next_if(|&row| row < first + own.len) {
            let end = own.start + row.saturating_sub(first) + 1;
            queries.push(Queries { range, first: row, len: 1, end, unseen: 0, together: None });
        }
        first += own.len;
    }
    queries
}

/// Queries that see the tokens of their own chunk alone: those of several chunks are cut. To codecs each chunk is a
/// sequence.
///
/// # Errors
/// Chunks are not of whole `units`.
pub(crate) fn in_chunks(
    all: Vec<Queries>,
    chunk: usize,
    units: &[usize],
) -> Result<Vec<Queries>, KvCodecError> {
    if chunk == 0 || units.iter().any(|&unit| !chunk.is_multiple_of(unit.max(1))) {
        let expected = "chunks of whole blocks, and of as many tokens as are recent";
        return Err(KvCodecError::Shape { expected, got: vec![chunk] });
    }
    let mut cut = Vec::with_capacity(all.len());
    for queries in all {
        let begin = queries.end - queries.len;
        let mut from = begin;
        while from < queries.end {
            let unseen = from / chunk * chunk;
            let end = queries.end.min(unseen + chunk);
            let first = queries.first + from - begin;
            cut.push(Queries { first, len: end - from, end, unseen, ..queries });
            from = end;
        }
    }
    Ok(cut)
}

/// Queries of tokens that see each other, apart from others.
///
/// # Errors
/// Tokens see some that are not of their range.
pub(crate) fn apart(
    all: Vec<Queries>,
    ranges: &[RowRange],
    mutual: Mutual<'_>,
) -> Result<Vec<Queries>, KvCodecError> {
    if mutual.spans.is_empty() {
        return Ok(all);
    }
    let mut cut = Vec::with_capacity(all.len() + 2 * mutual.spans.len());
    for queries in all {
        let (mut from, last) = (queries.first, queries.first + queries.len);
        let behind = mutual.spans.partition_point(|span| span.end as usize <= from);
        let spans = mutual.spans[behind..].iter().take_while(|span| (span.start as usize) < last);
        for span in spans {
            let (start, end) = (from.max(span.start as usize), last.min(span.end as usize));
            if from < start {
                cut.push(queries.part(from, start));
            }
            let own = queries.part(start, end);
            let range = ranges.get(queries.range);
            let together = together(&own, *span, mutual.past_window);
            let held = |seen: &Together| range.is_some_and(|r| seen.end <= r.start + r.len);
            let Some(together) = together.filter(held) else {
                let expected = "tokens that see each other in one sequence";
                let got = vec![span.start as usize, span.end as usize];
                return Err(KvCodecError::Shape { expected, got });
            };
            cut.push(Queries { together: Some(together), ..own });
            from = end;
        }
        if from < last {
            cut.push(queries.part(from, last));
        }
    }
    Ok(cut)
}

/// What queries of a span see of it.
fn together(own: &Queries, span: MutualSpan, past_window: bool) -> Option<Together> {
    let place = own.end - own.len;
    let from = place.checked_sub(own.first - span.start as usize + span.before as usize)?;
    let end = place + (span.end as usize - own.first);
    Some(Together { from: past_window.then_some(from), end })
}

#[cfg(test)]
mod tests {
    use super::*;
    use taper_base::SeqId;

    fn queries(range: usize, first: usize, len: usize, end: usize, unseen: usize) -> Queries {
        Queries { range, first, len, end, unseen, together: None }
    }

    #[test]
    fn queries_of_several_chunks_are_cut() {
        let all = vec![queries(0, 0, 9, 20, 0), queries(1, 9, 1, 8, 0), queries(2, 10, 1, 17, 0)];
        let cut = in_chunks(all.clone(), 8, &[4, 8]);
        let want = [
            queries(0, 0, 5, 16, 8),
            queries(0, 5, 4, 20, 16),
            queries(1, 9, 1, 8, 0),
            queries(2, 10, 1, 17, 16),
        ];
        assert!(matches!(cut, Ok(cut) if cut == want));
        for chunk in [0, 6, 4] {
            let error = in_chunks(all.clone(), chunk, &[4, 8]);
            assert!(matches!(error, Err(KvCodecError::Shape { .. })), "{chunk}");
        }
    }

    #[test]
    fn tokens_that_see_each_other_are_apart_from_others() {
        let range = |start, len| RowRange { seq: SeqId(1), start, len };
        // Of the first sequence, tokens 20 to 30; of the second, its first four.
        let ranges = [range(20, 10), range(0, 4)];
        let span = |start, end, before| MutualSpan { start, end, before };
        // Three tokens of an image, of which two came before; then four of another; then a whole prompt.
        let spans = [span(0, 3, 2), span(5, 9, 0), span(10, 14, 0)];
        let mutual = |past_window| Mutual { spans: &spans, past_window };
        let seen = |own: Queries, from, end| Queries {
            together: Some(Together { from: Some(from), end }),
            ..own
        };
        let want = [
            seen(queries(0, 0, 3, 23, 0), 18, 23),
            queries(0, 3, 2, 25, 0),
            seen(queries(0, 5, 4, 29, 0), 25, 29),
            queries(0, 9, 1, 30, 0),
            seen(queries(1, 10, 4, 4, 0), 0, 4),
        ];
        assert_eq!(apart(all_rows(&ranges), &ranges, mutual(true)).unwrap(), want);
        let rows = apart(some_rows(&ranges, &[1, 4, 6, 13]), &ranges, mutual(true)).unwrap();
        let want = [
            seen(queries(0, 1, 1, 22, 0), 18, 23),
            queries(0, 4, 1, 25, 0),
            seen(queries(0, 6, 1, 27, 0), 25, 29),
            seen(queries(1, 13, 1, 4, 0), 0, 4),
        ];
        assert_eq!(rows, want);
        let inside = apart(all_rows(&ranges), &ranges, mutual(false)).unwrap();
        assert!(inside.iter().filter_map(|q| q.together).all(|seen| seen.from.is_none()));
        for bad in [span(8, 11, 0), span(10, 12, 1)] {
            let mutual = Mutual { spans: &[bad], past_window: true };
            let error = apart(all_rows(&ranges), &ranges, mutual);
            assert!(matches!(error, Err(KvCodecError::Shape { .. })), "{bad:?}");
        }
    }
}
