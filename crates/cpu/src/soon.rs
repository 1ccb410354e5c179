//! Memory that is read after the next products, fetched while they compute.
//!
//! Sixteen rows of activations take twice as long to multiply as their weights take to arrive, while
//! attention of as many sequences waits for memory. So who knows what attention will read says so, and
//! products prefetch a few lines of it now and then. A hint: nothing is read, and no result depends on
//! it.

#[cfg(target_arch = "x86_64")]
use super::{
    ahead::{intel, zen5},
    int8::Int8Level,
};
use std::{
    cell::Cell,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Lines of memory, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Lines {
    /// The first one's address.
    at: usize,
    lines: usize,
}

/// What was announced and not prefetched yet; the last is next.
static LATER: Mutex<Vec<Lines>> = Mutex::new(Vec::new());
/// Whether that is anything.
static ANY: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// What this thread has taken from there and not prefetched yet.
    static OWN: Cell<Lines> = const { Cell::new(Lines::NONE) };
}

/// Whether this machine prefetches what is announced. That is a gain on AMD's processors before Zen
/// 5.
#[must_use]
pub fn reads_soon() -> bool {
    #[cfg(target_arch = "x86_64")]
    return matches!(Int8Level::detect(), Int8Level::Vnni(_)) && !intel() && !zen5();
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Announces memory that will be read, in this order, after the next products. What was announced
/// before is forgotten.
pub fn read_soon(memory: &[&[u8]]) {
    let mut later = LATER.lock().unwrap_or_else(PoisonError::into_inner);
    later.clear();
    later.extend(memory.iter().rev().map(|m| Lines::of(m)));
    ANY.store(!later.is_empty(), Relaxed);
}

impl Lines {
    const NONE: Self = Self { at: 0, lines: 0 };

    pub(super) fn of(memory: &[u8]) -> Self {
        Self { at: memory.as_ptr() as usize, lines: memory.len().div_ceil(LINE) }
    }

    /// At most `most` lines of what was announced.
    pub(super) fn take(most: usize) -> Self {
        let mut own = OWN.get();
        if own.lines == 0 && ANY.load(Relaxed) {
            let mut later = LATER.lock().unwrap_or_else(PoisonError::into_inner);
            own = later.pop().unwrap_or(Self::NONE);
            ANY.store(!later.is_empty(), Relaxed);
        }
        let taken = own.split(most);
        OWN.set(own);
        taken
    }

    /// The first lines, at most so many, which are then no longer in `self`.
    #[inline(always)]
    fn split(&mut self, most: usize) -> Self {
        let first = Self { at: self.at, lines: self.lines.min(most) };
        self.at += first.lines * LINE;
        self.lines -= first.lines;
        first
    }

    /// Prefetches the first lines, at most so many, which are then no longer in `self`.
    #[inline(always)]
    pub(super) fn ask(&mut self, most: usize) {
        let first = self.split(most);
        for line in 0..first.lines {
            prefetch((first.at + line * LINE) as *const i8);
        }
    }
}

/// Prefetches a line into the second-level cache.
#[inline(always)]
fn prefetch(line: *const i8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; the address is not read.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(line);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Prefetches a line that is read or written in a moment into the first-level cache.
#[inline(always)]
pub(crate) fn near<T>(line: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; the address is not read.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_asked_for_once() {
        let mut all = Lines { at: 640, lines: 7 };
        let parts = [all.split(3), all.split(3), all.split(3), all.split(3)];
        assert_eq!(parts.map(|p| p.lines), [3, 3, 1, 0]);
        assert_eq!(parts.map(|p| p.at), [640, 640 + 192, 640 + 384, 640 + 448]);
    }
}
