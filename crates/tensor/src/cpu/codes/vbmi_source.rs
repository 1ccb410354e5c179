//! Where the AVX-512 products get expanded tiles from.

use super::{Codes, TILE, windows::Plan};
use std::arch::x86_64::*;

/// How two tiles, `a` and `b`, stand in the two vectors that products take them from. Tiles for scores
/// have rows of elements, those for values elements of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pair {
    /// One after the other.
    Whole,
    /// The first halves of both, then the second halves.
    Halves,
    /// Elements 0 to 7 of the rows of both, then elements 8 to 15.
    Words,
}

/// Tiles one after the other, and what is read next likewise, two at a time.
pub(super) trait Pairs: Copy {
    /// How [`Self::two`] arranges tiles.
    const PAIR: Pair;

    /// The first tile, that of those read next, and the bytes of one.
    fn place(&self) -> (*const u8, *const u8, usize);

    /// # Safety
    /// There are such tiles, and the caller is compiled for AVX-512 VBMI.
    unsafe fn two(&self, a: *const u8, b: *const u8) -> [__m512i; 2];
}

/// The same one at a time.
pub(super) trait Source: Pairs {
    /// # Safety
    /// There is such a tile, and the caller is compiled for AVX-512 VBMI.
    unsafe fn tile(&self, at: *const u8) -> __m512i;
}

/// Two tiles of 32 bytes in one vector.
#[inline(always)]
unsafe fn both(a: *const u8, b: *const u8) -> __m512i {
    // SAFETY: there are such tiles, and the caller is compiled for AVX-512.
    unsafe {
        let a = _mm512_castsi256_si512(_mm256_loadu_si256(a.cast()));
        _mm512_inserti64x4::<1>(a, _mm256_loadu_si256(b.cast()))
    }
}

/// Brings the lines nearer that stand at `at` among those read next: into the second-level cache, as the
/// misses of the first are few at a time.
///
/// # Safety
/// The caller is compiled for AVX-512.
#[inline(always)]
pub(super) unsafe fn prefetch(next: *const u8, at: usize, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        // SAFETY: a prefetch reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add(at + line).cast()) };
    }
}

/// Tiles that are expanded already.
#[derive(Clone, Copy)]
pub(super) struct Expanded(pub(super) *const u8);

impl Pairs for Expanded {
    const PAIR: Pair = Pair::Whole;

    #[inline(always)]
    fn place(&self) -> (*const u8, *const u8, usize) {
        (self.0, self.0, TILE)
    }

    #[inline(always)]
    unsafe fn two(&self, a: *const u8, b: *const u8) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { [self.tile(a), self.tile(b)] }
    }
}

impl Source for Expanded {
    #[inline(always)]
    unsafe fn tile(&self, at: *const u8) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_si512(at.cast()) }
    }
}

/// Packed nibbles: [`super::Windows::nibbles`].
#[derive(Clone, Copy)]
pub(super) struct Nibbles {
    codes: *const u8,
    next: *const u8,
    table: __m512i,
    shift: __m512i,
}

impl Nibbles {
    #[inline(always)]
    pub(super) unsafe fn new(plan: &Plan, codes: Codes<'_>) -> Self {
        // SAFETY: the caller is compiled for the level; the plan's table has 64 bytes.
        unsafe {
            let table = _mm512_loadu_si512(plan.table.as_ptr().cast());
            let shift = _mm512_inserti64x4::<1>(_mm512_setzero_si512(), _mm256_set1_epi16(4));
            Self { codes: codes.here.as_ptr(), next: codes.next(), table, shift }
        }
    }
}

impl Pairs for Nibbles {
    const PAIR: Pair = Pair::Halves;

    #[inline(always)]
    fn place(&self) -> (*const u8, *const u8, usize) {
        (self.codes, self.next, TILE / 2)
    }

    #[inline(always)]
    unsafe fn two(&self, a: *const u8, b: *const u8) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let x = both(a, b);
            let high = _mm512_srli_epi16::<4>(x);
            [_mm512_permutexvar_epi8(x, self.table), _mm512_permutexvar_epi8(high, self.table)]
        }
    }
}

impl Source for Nibbles {
    #[inline(always)]
    unsafe fn tile(&self, at: *const u8) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            let x = _mm512_broadcast_i64x4(_mm256_loadu_si256(at.cast()));
            let x = _mm512_srlv_epi16(x, self.shift);
            // vpermb reads six bits of each index; the table repeats every four.
            _mm512_permutexvar_epi8(x, self.table)
        }
    }
}

/// Packed windows of rings of eight bytes, for scores: what is to be gathered are words of 64 bits, where
/// they lie.
#[derive(Clone, Copy)]
pub(super) struct Words {
    codes: *const u8,
    next: *const u8,
    /// Of elements 0 to 7, and of the others.
    shifts: [__m512i; 2],
    table: __m512i,
}

impl Words {
    #[inline(always)]
    pub(super) unsafe fn new(plan: &Plan, codes: Codes<'_>) -> Self {
        // SAFETY: the caller is compiled for the level; the plan's table has 64 bytes.
        unsafe {
            let [low, high] = plan.word_shifts.map(i64::from_le_bytes);
            let shifts = [_mm512_set1_epi64(low), _mm512_set1_epi64(high)];
            let table = _mm512_loadu_si512(plan.table.as_ptr().cast());
            Self { codes: codes.here.as_ptr(), next: codes.next(), shifts, table }
        }
    }

    /// The windows at these shifts.
    #[inline(always)]
    unsafe fn entries(&self, words: __m512i, shift: __m512i) -> __m512i {
        // SAFETY: the caller is compiled for the level.
        unsafe {
            // A window that reaches over a word's end goes on at its beginning, as a ring's do.
            _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(shift, words), self.table)
        }
    }
}

impl Pairs for Words {
    const PAIR: Pair = Pair::Words;

    #[inline(always)]
    fn place(&self) -> (*const u8, *const u8, usize) {
        (self.codes, self.next, TILE / 2)
    }

    #[inline(always)]
    unsafe fn two(&self, a: *const u8, b: *const u8) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let words = both(a, b);
            [self.entries(words, self.shifts[0]), self.entries(words, self.shifts[1])]
        }
    }
}

/// Packed windows of `BYTES` bytes a tile.
#[derive(Clone, Copy)]
pub(super) struct Packed<const BYTES: usize> {
    codes: *const u8,
    next: *const u8,
    gather: __m512i,
    shift: __m512i,
    table: __m512i,
}

impl<const BYTES: usize> Packed<BYTES> {
    #[inline(always)]
    pub(super) unsafe fn new(plan: &Plan, codes: Codes<'_>) -> Self {
        // SAFETY: the caller is compiled for the level; the plan's arrays have 64 bytes.
        unsafe {
            let load = |x: &[u8; 64]| _mm512_loadu_si512(x.as_ptr().cast());
            let (gather, shift, table) = (load(&plan.gather), load(&plan.shift), load(&plan.table));
            Self { codes: codes.here.as_ptr(), next: codes.next(), gather, shift, table }
        }
    }
}

impl<const BYTES: usize> Pairs for Packed<BYTES> {
    const PAIR: Pair = Pair::Whole;

    #[inline(always)]
    fn place(&self) -> (*const u8, *const u8, usize) {
        (self.codes, self.next, BYTES)
    }

    #[inline(always)]
    unsafe fn two(&self, a: *const u8, b: *const u8) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { [self.tile(a), self.tile(b)] }
    }
}

impl<const BYTES: usize> Source for Packed<BYTES> {
    #[inline(always)]
    unsafe fn tile(&self, at: *const u8) -> __m512i {
        // SAFETY: the caller's promise; masks keep loads inside the tile.
        unsafe {
            let x = match BYTES {
                16 => _mm512_castsi128_si512(_mm_loadu_si128(at.cast())),
                32 => _mm512_castsi256_si512(_mm256_loadu_si256(at.cast())),
                _ => _mm512_maskz_loadu_epi8((1 << BYTES) - 1, at.cast()),
            };
            let words = _mm512_permutexvar_epi8(self.gather, x);
            let windows = _mm512_multishift_epi64_epi8(self.shift, words);
            // vpermb reads six bits of each index.
            _mm512_permutexvar_epi8(windows, self.table)
        }
    }
}

/// Calls `$run` with the source of a layout.
macro_rules! with_source {
    ($plan:expr, $layout:expr, $codes:expr, |$source:ident| $run:expr) => {
        with_source!($plan, $layout, $codes, |$source| $run, 8 16 24 32 40)
    };
    ($plan:expr, $layout:expr, $codes:expr, |$source:ident| $run:expr, $($bytes:literal)*) => {
        match $layout {
            Layout::Nibbles => {
                let $source = Nibbles::new($plan, $codes);
                $run
            }
            $(Layout::Windows { bytes: $bytes } => {
                let $source = Packed::<$bytes>::new($plan, $codes);
                $run
            })*
            Layout::Windows { .. } => unreachable!("a window has at most five bits of its own"),
        }
    };
}
pub(super) use with_source;
