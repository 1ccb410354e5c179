//! From a window's tokens to segments, and to where the next window begins.

use super::tokens::Specials;
use std::ops::Range;
use taper_base::TokenId;

/// Frames of a step of time.
const FRAMES_A_STEP: usize = 2;

/// Tokens of one segment, and its times in frames from its window's start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) tokens: Range<usize>,
    pub(super) frames: Range<usize>,
}

/// Cuts a window of so many frames at its pairs of times. The second number is how far the next window is: to the last
/// pair, or a whole window where nothing was cut short.
pub(super) fn cut(tokens: &[TokenId], frames: usize, specials: &Specials) -> (Vec<Cut>, usize) {
    let is_time = |at: usize| tokens.get(at).is_some_and(|t| specials.is_time(*t));
    let frame = |at: usize| {
        let time = tokens.get(at).and_then(|t| specials.time(*t));
        time.unwrap_or(0) * FRAMES_A_STEP
    };
    let n = tokens.len();
    let ends_with_one = n >= 2 && is_time(n - 1) && !is_time(n - 2);
    let mut ends: Vec<_> = (1..n).filter(|&at| is_time(at - 1) && is_time(at)).collect();
    if ends.is_empty() {
        let last = (0..n).rev().find(|&at| is_time(at)).map(frame).filter(|&frame| frame > 0);
        let whole = Cut { tokens: 0..n, frames: 0..last.unwrap_or(frames) };
        return (vec![whole], frames);
    }
    if ends_with_one {
        ends.push(n);
    }
    let mut start = 0;
    let mut cuts = Vec::with_capacity(ends.len());
    for end in ends {
        cuts.push(Cut { tokens: start..end, frames: frame(start)..frame(end - 1) });
        start = end;
    }
    // A window that does not go on would come again for ever.
    let next = if ends_with_one { frames } else { frame(start - 1) };
    (cuts, if next == 0 { frames } else { next })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specials() -> Specials {
        let times = 100;
        Specials {
            end: 90,
            start: 91,
            translate: 92,
            transcribe: 93,
            previous: 94,
            no_speech: None,
            no_times: 99,
            times,
            languages: Vec::new(),
        }
    }

    /// Tokens and frames.
    type Segment = (Range<usize>, Range<usize>);

    fn cuts(tokens: &[TokenId]) -> (Vec<Segment>, usize) {
        let (cuts, next) = cut(tokens, 3000, &specials());
        (cuts.into_iter().map(|c| (c.tokens, c.frames)).collect(), next)
    }

    #[test]
    fn windows_are_cut_at_pairs_of_times() {
        // One segment that ends, one that begins and is heard again.
        assert_eq!(cuts(&[100, 1, 2, 150, 150, 3]), (vec![(0..4, 0..100)], 100));
        // Two that end: the window is done.
        let two = vec![(0..3, 0..100), (3..6, 120..400)];
        assert_eq!(cuts(&[100, 1, 150, 160, 3, 300]), (two, 3000));
        // The last pair says where to go on.
        let two = vec![(0..3, 0..100), (3..6, 120..400)];
        assert_eq!(cuts(&[100, 1, 150, 160, 3, 300, 310]), (two, 400));
    }

    #[test]
    fn windows_without_pairs_are_one_segment() {
        assert_eq!(cuts(&[1, 2]), (vec![(0..2, 0..3000)], 3000));
        assert_eq!(cuts(&[100, 1, 2, 150]), (vec![(0..4, 0..100)], 3000));
        assert_eq!(cuts(&[100, 1]), (vec![(0..2, 0..3000)], 3000));
        assert_eq!(cuts(&[]), (vec![(0..0, 0..3000)], 3000));
        // Nothing goes on for ever.
        assert_eq!(cuts(&[100, 100]).1, 3000);
    }
}
