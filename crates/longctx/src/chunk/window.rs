//! Windows of lines.

use super::{Chunk, WINDOW, line_range};

/// Bytes after which a window ends early.
const WINDOW_BYTES: usize = 4 << 10;

/// Adds lines `start..=end` as windows like `like`. Lines that say nothing at either end are left out,
/// and so are windows of nothing else.
pub(super) fn windows(lines: &[&str], start: u32, end: u32, like: &Chunk, out: &mut Vec<Chunk>) {
    let mut at = start;
    while at <= end {
        let last = window_end(lines, at, end);
        let said = |line: u32| line_range(lines, line, line).iter().any(|l| says_something(l));
        let first = (at..=last).find(|line| said(*line));
        if let (Some(first), Some(last)) = (first, (at..=last).rev().find(|line| said(*line))) {
            out.push(Chunk { start: first, end: last, ..like.clone() });
        }
        at = last + 1;
    }
}

/// Where a window from `at` ends: after some lines or bytes, better at an empty line.
fn window_end(lines: &[&str], at: u32, end: u32) -> u32 {
    let most = end.min(at.saturating_add(WINDOW - 1));
    let (mut bytes, mut last) = (0, at);
    for line in at..=most {
        bytes += line_range(lines, line, line).iter().map(|l| l.len()).sum::<usize>();
        if bytes > WINDOW_BYTES && line > at {
            break;
        }
        last = line;
    }
    if last == end {
        return last;
    }
    let blank = |line: &u32| line_range(lines, *line, *line).iter().all(|l| l.trim().is_empty());
    let half = at + (last - at) / 2;
    (half..=last).rev().find(blank).filter(|line| *line > at).unwrap_or(last)
}

/// Lines that only close something say nothing.
pub(super) fn says_something(line: &str) -> bool {
    !matches!(line.trim(), "end" | "fi" | "done" | "esac")
        && line.chars().any(char::is_alphanumeric)
}
