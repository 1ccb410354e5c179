//! Codes of at most three bits for scores, a ring in a word.

use super::{
    Codes, TILE, TILE_ROWS,
    vbmi_source::{Pair, Pairs, both},
    windows::Plan,
};
use std::arch::x86_64::*;

/// Windows of codes of at most three bits for scores: a ring, and the bits before it, are one word.
#[derive(Clone, Copy)]
pub(super) struct RingWords<const BYTES: usize> {
    codes: *const u8,
    next: *const u8,
    gather: __m512i,
    even: __m512i,
    odd: __m512i,
    table: __m512i,
}

impl<const BYTES: usize> RingWords<BYTES> {
    const RING_BYTES: usize = BYTES / TILE_ROWS;

    /// Bytes of each word: a ring's last one, then all of the ring's.
    const GATHER: [u8; TILE] = {
        let (mut gather, mut i) = ([0; TILE], 0);
        while i < TILE {
            let (ring, byte) = (i / 8, i % 8);
            let tile = if ring < TILE_ROWS { 0 } else { TILE - BYTES };
            let at = (byte + Self::RING_BYTES - 1) % Self::RING_BYTES;
            gather[i] = (tile + ring % TILE_ROWS * Self::RING_BYTES + at) as u8;
            i += 1;
        }
        gather
    };

    #[inline(always)]
    pub(super) unsafe fn new(plan: &Plan, lead: usize, codes: Codes<'_>) -> Self {
        let bits = Self::RING_BYTES / 2;
        let starts: [u8; TILE] = std::array::from_fn(|i| (8 + i % 8 * 2 * bits - lead) as u8);
        // SAFETY: the caller is compiled for the level; the arrays have 64 bytes.
        unsafe {
            let load = |x: &[u8; TILE]| _mm512_loadu_si512(x.as_ptr().cast());
            let (gather, even, table) = (load(&Self::GATHER), load(&starts), load(&plan.table));
            let odd = _mm512_add_epi8(even, _mm512_set1_epi8(bits as i8));
            Self { codes: codes.here.as_ptr(), next: codes.next(), gather, even, odd, table }
        }
    }

    #[inline(always)]
    unsafe fn entries(&self, tiles: __m512i) -> [__m512i; 2] {
        // SAFETY: the caller is compiled for the level.
        unsafe {
            let words = _mm512_permutexvar_epi8(self.gather, tiles);
            let even = _mm512_multishift_epi64_epi8(self.even, words);
            let odd = _mm512_multishift_epi64_epi8(self.odd, words);
            // vpermb reads six bits of each index.
            [even, odd].map(|x| _mm512_permutexvar_epi8(x, self.table))
        }
    }
}

impl<const BYTES: usize> Pairs for RingWords<BYTES> {
    const PAIR: Pair = Pair::Parity;

    #[inline(always)]
    fn place(&self) -> (*const u8, *const u8, usize) {
        (self.codes, self.next, BYTES)
    }

    #[inline(always)]
    unsafe fn two(&self, a: *const u8, b: *const u8) -> [__m512i; 2] {
        // SAFETY: the caller keeps the contract of `Pairs::two`.
        unsafe { self.entries(beside::<BYTES>(a, b)) }
    }

    #[inline(always)]
    unsafe fn alone(&self, a: *const u8) -> [__m512i; 2] {
        // SAFETY: there is a tile at `a`, and the mask keeps the load inside it; the caller is
        // compiled for AVX-512 VBMI.
        unsafe { self.entries(_mm512_maskz_loadu_epi8((1 << BYTES) - 1, a.cast())) }
    }
}

/// Bytes of two tiles of `BYTES` side by side, the first ones at the start of a vector and the others at its
/// end. Loads of 32 bytes go beyond the first tile and begin before the second.
///
/// # Safety
/// There are such tiles of 16 or 24 bytes, `b` behind `a`, and the caller is compiled for AVX-512.
#[inline(always)]
unsafe fn beside<const BYTES: usize>(a: *const u8, b: *const u8) -> __m512i {
    // SAFETY: the caller promises that there are such tiles of 16 or 24 bytes, `b` behind `a`, and
    // the caller is compiled for AVX-512.
    unsafe {
        if BYTES == 16 {
            let a = _mm512_castsi128_si512(_mm_loadu_si128(a.cast()));
            return _mm512_inserti32x4::<3>(a, _mm_loadu_si128(b.cast()));
        }
        both(a, b.sub(32 - BYTES))
    }
}
