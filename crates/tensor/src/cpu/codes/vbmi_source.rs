//! Where the AVX-512 products get expanded tiles from.

use super::{Codes, TILE, windows::Plan};
use std::arch::x86_64::*;

/// Tiles one after the other, and what is read next likewise.
pub(super) trait Source: Copy {
    /// Whether a tile has the first eight elements of its four rows first, then the others.
    const TURNED: bool = false;

    /// The first tile, that of those read next, and the bytes of one.
    fn place(&self) -> (*const u8, *const u8, usize);

    /// # Safety
    /// There is such a tile, and the caller is compiled for AVX-512 VBMI.
    unsafe fn tile(&self, at: *const u8) -> __m512i;
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

impl Source for Expanded {
    #[inline(always)]
    fn place(&self) -> (*const u8, *const u8, usize) {
        (self.0, self.0, TILE)
    }

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

impl Source for Nibbles {
    #[inline(always)]
    fn place(&self) -> (*const u8, *const u8, usize) {
        (self.codes, self.next, TILE / 2)
    }

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

/// Packed windows of rings of eight bytes, whose elements need not be gathered: the first half of a
/// tile's bytes are the first eight elements of its rows.
#[derive(Clone, Copy)]
pub(super) struct Words {
    codes: *const u8,
    next: *const u8,
    shift: __m512i,
    table: __m512i,
}

impl Words {
    #[inline(always)]
    pub(super) unsafe fn new(plan: &Plan, codes: Codes<'_>) -> Self {
        // SAFETY: the caller is compiled for the level; the plan's arrays have 64 bytes.
        unsafe {
            let load = |x: &[u8; 64]| _mm512_loadu_si512(x.as_ptr().cast());
            let (shift, table) = (load(&plan.word_shift), load(&plan.table));
            Self { codes: codes.here.as_ptr(), next: codes.next(), shift, table }
        }
    }
}

impl Source for Words {
    const TURNED: bool = true;

    #[inline(always)]
    fn place(&self) -> (*const u8, *const u8, usize) {
        (self.codes, self.next, TILE / 2)
    }

    #[inline(always)]
    unsafe fn tile(&self, at: *const u8) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            let words = _mm512_broadcast_i64x4(_mm256_loadu_si256(at.cast()));
            // A window that reaches over a word's end goes on at its beginning, as a ring's do.
            let windows = _mm512_multishift_epi64_epi8(self.shift, words);
            _mm512_permutexvar_epi8(windows, self.table)
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

impl<const BYTES: usize> Source for Packed<BYTES> {
    #[inline(always)]
    fn place(&self) -> (*const u8, *const u8, usize) {
        (self.codes, self.next, BYTES)
    }

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
