//! Where the AVX-512 products get expanded tiles from.

use super::{Codes, TILE, windows::Plan};
use std::{arch::x86_64::*, hint::black_box};

/// How two tiles, `a` and `b`, stand in the two vectors that products take them from. Tiles for scores
/// have rows of elements, those for values elements of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pair {
    /// One after the other.
    Whole,
    /// The first halves of both, then the second halves.
    Halves,
    /// Even elements of both, then odd ones: those of `a` and then of `b`, rows of elements; or those of
    /// both interleaved by two, elements of rows.
    Parity,
}

/// Pairs of consecutive tiles, both of what is read and of what is read next.
pub(super) trait Pairs: Copy {
    /// How [`Self::two`] arranges tiles.
    const PAIR: Pair;

    /// The first tile, that of those read next, and the bytes of one.
    fn place(&self) -> (*const u8, *const u8, usize);

    /// # Safety
    /// There are such tiles, `b` behind `a`, and the caller is compiled for AVX-512 VBMI.
    unsafe fn two(&self, a: *const u8, b: *const u8) -> [__m512i; 2];

    /// Expands a single tile. The elements of the second tile hold anything.
    ///
    /// # Safety
    /// There is such a tile, and the caller is compiled for AVX-512 VBMI.
    #[inline(always)]
    unsafe fn alone(&self, a: *const u8) -> [__m512i; 2] {
        // SAFETY: read twice, a tile is as good as two.
        unsafe { self.two(a, a) }
    }
}

/// Tiles expanded one at a time.
pub(super) trait Source: Pairs {
    /// # Safety
    /// There is such a tile, and the caller is compiled for AVX-512 VBMI.
    unsafe fn tile(&self, at: *const u8) -> __m512i;
}

/// Two tiles of 32 bytes in one vector.
#[inline(always)]
pub(super) unsafe fn both(a: *const u8, b: *const u8) -> __m512i {
    // SAFETY: there are such tiles, and the caller is compiled for AVX-512.
    unsafe {
        let a = _mm512_castsi256_si512(_mm256_loadu_si256(a.cast()));
        _mm512_inserti64x4::<1>(a, _mm256_loadu_si256(b.cast()))
    }
}

/// Prefetches the lines that stand at `at` among those read next: into the second-level cache, as
/// the misses of the first are few at a time.
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
        // SAFETY: the caller keeps the contract of `Pairs::two`.
        unsafe { [self.tile(a), self.tile(b)] }
    }
}

impl Source for Expanded {
    #[inline(always)]
    unsafe fn tile(&self, at: *const u8) -> __m512i {
        // SAFETY: the caller keeps the contract of `Source::tile`.
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
        // SAFETY: the caller keeps the contract of `Pairs::two`.
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
        // SAFETY: the caller keeps the contract of `Source::tile`.
        unsafe {
            let x = _mm512_broadcast_i64x4(_mm256_loadu_si256(at.cast()));
            let x = _mm512_srlv_epi16(x, self.shift);
            // vpermb reads six bits of each index; the table repeats every four.
            _mm512_permutexvar_epi8(x, self.table)
        }
    }
}

/// Windows of codes of four bits that begin two bits early. A byte holds that of its second code; that of its
/// first begins in the byte before. Rotations of words would compete with products for their two units, and
/// shifts of 16 bits do not.
#[derive(Clone, Copy)]
struct ByteWindows {
    /// Table for a byte's first code, indexed by its own bits and above them the bits before.
    even: __m512i,
    odd: __m512i,
}

impl ByteWindows {
    #[inline(always)]
    unsafe fn new(plan: &Plan) -> Self {
        // SAFETY: the caller is compiled for the level; the plan's tables have 64 bytes.
        unsafe {
            let even = _mm512_loadu_si512(plan.turned.as_ptr().cast());
            Self { even, odd: _mm512_loadu_si512(plan.table.as_ptr().cast()) }
        }
    }

    /// The windows of second codes, in the lowest six bits.
    #[inline(always)]
    unsafe fn second(codes: __m512i) -> __m512i {
        // SAFETY: the caller is compiled for the level.
        unsafe { _mm512_srli_epi16::<2>(codes) }
    }

    /// The entries of first and of second codes. `before` is `second` of the bytes before.
    #[inline(always)]
    unsafe fn entries(self, codes: __m512i, second: __m512i, before: __m512i) -> [__m512i; 2] {
        // SAFETY: the caller is compiled for the level.
        unsafe {
            // The low nibble of one, and what is above it of the other.
            let first = _mm512_ternarylogic_epi64::<0xca>(_mm512_set1_epi8(15), codes, before);
            // vpermb reads six bits of each index.
            [_mm512_permutexvar_epi8(first, self.even), _mm512_permutexvar_epi8(second, self.odd)]
        }
    }
}

/// Codes of [`ByteWindows`] for scores, in place.
#[derive(Clone, Copy)]
pub(super) struct ByteRows {
    codes: *const u8,
    next: *const u8,
    windows: ByteWindows,
    /// Index of the byte before each byte in its ring.
    before: __m512i,
}

impl ByteRows {
    #[inline(always)]
    pub(super) unsafe fn new(plan: &Plan, codes: Codes<'_>) -> Self {
        // SAFETY: the caller is compiled for the level.
        unsafe {
            let before = _mm_setr_epi8(7, 0, 1, 2, 3, 4, 5, 6, 15, 8, 9, 10, 11, 12, 13, 14);
            // Known to the compiler, it would become the rotation of words that it replaces.
            let before = black_box(_mm512_broadcast_i32x4(before));
            let windows = ByteWindows::new(plan);
            Self { codes: codes.here.as_ptr(), next: codes.next(), windows, before }
        }
    }
}

impl Pairs for ByteRows {
    const PAIR: Pair = Pair::Parity;

    #[inline(always)]
    fn place(&self) -> (*const u8, *const u8, usize) {
        (self.codes, self.next, TILE / 2)
    }

    #[inline(always)]
    unsafe fn two(&self, a: *const u8, b: *const u8) -> [__m512i; 2] {
        // SAFETY: the caller keeps the contract of `Pairs::two`.
        unsafe {
            let codes = both(a, b);
            let second = ByteWindows::second(codes);
            self.windows.entries(codes, second, _mm512_shuffle_epi8(second, self.before))
        }
    }
}

/// Codes of [`ByteWindows`] for values: bytes of four rows side by side, two of `a` and two of `b`
/// interleaved.
#[derive(Clone, Copy)]
pub(super) struct ByteElements {
    one: Packed<32>,
    windows: ByteWindows,
    gather: __m512i,
    /// Indices of the bytes before each four bytes in their rings.
    before: __m512i,
}

impl ByteElements {
    /// Where the bytes of two tiles come from.
    const GATHER: [u8; TILE] = {
        let (mut gather, mut i) = ([0; TILE], 0);
        while i < TILE {
            let (row, four) = (i % 4, i / 4);
            gather[i] = (four / 2 % 2 * 32 + row * 8 + four / 4 * 2 + four % 2) as u8;
            i += 1;
        }
        gather
    };

    #[inline(always)]
    pub(super) unsafe fn new(plan: &Plan, codes: Codes<'_>) -> Self {
        // SAFETY: the caller is compiled for the level; the array has 64 bytes.
        unsafe {
            let gather = _mm512_loadu_si512(Self::GATHER.as_ptr().cast());
            let before = _mm512_setr_epi32(13, 0, 15, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14);
            let windows = ByteWindows::new(plan);
            Self { one: Packed::new(plan, codes), windows, gather, before }
        }
    }
}

impl Pairs for ByteElements {
    const PAIR: Pair = Pair::Parity;

    #[inline(always)]
    fn place(&self) -> (*const u8, *const u8, usize) {
        self.one.place()
    }

    #[inline(always)]
    unsafe fn two(&self, a: *const u8, b: *const u8) -> [__m512i; 2] {
        // SAFETY: the caller keeps the contract of `Pairs::two`.
        unsafe {
            let codes = _mm512_permutexvar_epi8(self.gather, both(a, b));
            let second = ByteWindows::second(codes);
            self.windows.entries(codes, second, _mm512_permutexvar_epi32(self.before, second))
        }
    }
}

impl Source for ByteElements {
    #[inline(always)]
    unsafe fn tile(&self, at: *const u8) -> __m512i {
        // SAFETY: the caller keeps the contract of `Source::tile`.
        unsafe { self.one.tile(at) }
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

    /// The entries of a tile that begins `at` bytes into a vector.
    #[inline(always)]
    unsafe fn entries(&self, tile: __m512i, at: i8) -> __m512i {
        // SAFETY: the caller is compiled for the level.
        unsafe {
            let gather = _mm512_add_epi8(self.gather, _mm512_set1_epi8(at));
            let words = _mm512_permutexvar_epi8(gather, tile);
            let windows = _mm512_multishift_epi64_epi8(self.shift, words);
            // vpermb reads six bits of each index.
            _mm512_permutexvar_epi8(windows, self.table)
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
        // SAFETY: there are tiles at `a` and, behind it, at `b`, so that a load of 32 bytes may go
        // beyond the first and begin before the second; the caller is compiled for AVX-512 VBMI.
        unsafe {
            if BYTES != 24 {
                return [self.tile(a), self.tile(b)];
            }
            let load = |at: *const u8| _mm512_castsi256_si512(_mm256_loadu_si256(at.cast()));
            [self.entries(load(a), 0), self.entries(load(b.sub(8)), 8)]
        }
    }

    #[inline(always)]
    unsafe fn alone(&self, a: *const u8) -> [__m512i; 2] {
        // SAFETY: the caller keeps the contract of `Pairs::alone`.
        unsafe { [self.tile(a); 2] }
    }
}

impl<const BYTES: usize> Source for Packed<BYTES> {
    #[inline(always)]
    unsafe fn tile(&self, at: *const u8) -> __m512i {
        // SAFETY: there is a tile at `at`, and masks keep loads inside it; the caller is compiled
        // for AVX-512 VBMI.
        unsafe {
            let tile = match BYTES {
                16 => _mm512_castsi128_si512(_mm_loadu_si128(at.cast())),
                32 => _mm512_castsi256_si512(_mm256_loadu_si256(at.cast())),
                _ => _mm512_maskz_loadu_epi8((1 << BYTES) - 1, at.cast()),
            };
            self.entries(tile, 0)
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
            Layout::Windows { bytes: 32, lead: 2 } => {
                let $source = ByteElements::new($plan, $codes);
                $run
            }
            $(Layout::Windows { bytes: $bytes, .. } => {
                let $source = Packed::<$bytes>::new($plan, $codes);
                $run
            })*
            Layout::Windows { .. } => unreachable!("a window has at most five bits of its own"),
        }
    };
}
pub(super) use with_source;
