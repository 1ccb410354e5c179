//! AVX-512 BF16: two products for sixteen outputs an instruction.

use super::{
    coded::{
        CODED, CodedPanel,
        avx512::{self, Registers},
    },
    pack::{self, BLOCK, CHUNK, PANEL, tile_line},
    rounded::{ROWS, TILE},
};
use crate::ahead::{Ahead, Far, Near, Never, intel, zen5};
use half::bf16;
use std::arch::x86_64::*;

/// Sums of a row: a panel's outputs.
type Sums = [__m512; PANEL / 16];

/// The weights of a panel.
pub(super) trait Weights: Copy {
    /// Tiles of inputs.
    fn tiles(self) -> usize;

    /// The products of `M` rows; prefetches weights that come later.
    ///
    /// # Safety
    /// Each of `x` is a line of the first of as many tiles, and the machine has AVX-512 F, BW and BF16.
    unsafe fn sums<A: Ahead, const M: usize>(self, x: [*const bf16; M]) -> [Sums; M];
}

/// The products of `rows` rows of activations with a panel; rows of `out` are a panel long.
///
/// An output is one chain over the pairs of inputs, whatever the rows beside it.
///
/// # Safety
/// The machine has AVX-512 F, BW and BF16.
///
/// # Panics
/// When the panel has another number of inputs, or `out` is too short.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn panel<W: Weights>(x: &[bf16], rows: usize, w: W, out: &mut [f32]) {
    let block = w.tiles() * TILE;
    assert!(x.len() == rows.div_ceil(ROWS) * block, "same inputs");
    assert!(out.len() >= rows * PANEL, "room for the outputs");
    let (x, out) = (x.as_ptr(), out.as_mut_ptr());
    let mut i = 0;
    // SAFETY: the assertions: row `i` begins a line of its block's first tile.
    unsafe {
        macro_rules! step {
            ($m:literal, $ahead:ty) => {
                while rows - i >= $m {
                    let mut from = [x; $m];
                    for (m, from) in from.iter_mut().enumerate() {
                        *from = x.add((i + m) / ROWS * block + (i + m) % ROWS * CHUNK);
                    }
                    store(w.sums::<$ahead, $m>(from), out.add(i * PANEL));
                    i += $m;
                }
            };
        }
        step!(6, Near);
        step!(5, Near);
        step!(4, Near);
        step!(3, Near);
        step!(2, Near);
        // One row's weights keep up with what AMD's processors before Zen 5 fetch by themselves, and are slower
        // with more.
        if intel() {
            step!(1, Far);
        }
        if zen5() {
            step!(1, Near);
        }
        step!(1, Never);
    }
}

impl Weights for &[bf16] {
    fn tiles(self) -> usize {
        self.len() / (CHUNK * PANEL)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    unsafe fn sums<A: Ahead, const M: usize>(self, x: [*const bf16; M]) -> [Sums; M] {
        let mut sums = [[_mm512_setzero_ps(); PANEL / 16]; M];
        for pair in 0..self.tiles() * CHUNK / 2 {
            let w = self.as_ptr().wrapping_add(tile_line(pair, 0));
            // SAFETY: reads one block of the slice; each of `x` has as many tiles; the machine has
            // AVX-512 F, BW and BF16.
            unsafe {
                let line = |tile: usize| w.wrapping_add(tile * pack::TILE).cast::<__m512i>();
                let ws = [
                    line(0).read_unaligned(),
                    line(1).read_unaligned(),
                    line(2).read_unaligned(),
                    line(3).read_unaligned(),
                ];
                if M < 6 {
                    ask::<A, 4>(self.as_ptr().wrapping_add(pair * BLOCK).cast());
                }
                add(&mut sums, x, pair, ws);
            }
        }
        sums
    }
}

impl Weights for CodedPanel<'_> {
    fn tiles(self) -> usize {
        self.chunks()
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    unsafe fn sums<A: Ahead, const M: usize>(self, x: [*const bf16; M]) -> [Sums; M] {
        let mut sums = [[_mm512_setzero_ps(); PANEL / 16]; M];
        let (table, blocks) = (avx512::table(self), self.blocks().as_ptr());
        let (mut pair, mut exceptions) = (0, self.exceptions());
        loop {
            let pairs = self.tiles() * CHUNK / 2;
            let next = exceptions.first().map_or(pairs, |e| e.place() / BLOCK);
            // SAFETY: reads blocks of the panel; each of `x` has as many tiles; the machine has
            // AVX-512 F, BW and BF16.
            unsafe {
                while pair < next {
                    let w = blocks.add(pair * CODED);
                    let ws = avx512::block(w, table);
                    ask::<A, 3>(w);
                    add(&mut sums, x, pair, ws);
                    pair += 1;
                }
                if pair == pairs {
                    return sums;
                }
                let here = exceptions.iter().take_while(|e| e.place() / BLOCK == pair).count();
                let (here, after) = exceptions.split_at(here);
                let ws = avx512::corrected(blocks.add(pair * CODED), table, here);
                add(&mut sums, x, pair, ws);
                (pair, exceptions) = (pair + 1, after);
            }
        }
    }
}

/// Adds the products of a pair of inputs of each row.
///
/// # Safety
/// As [`Weights::sums`]; the rows have the pair.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn add<const M: usize>(
    sums: &mut [Sums; M],
    x: [*const bf16; M],
    pair: usize,
    w: Registers,
) {
    let at = pair / (CHUNK / 2) * TILE + pair % (CHUNK / 2) * 2;
    for (m, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller keeps the contract of [`Weights::sums`]; the rows have the pair.
        let x = unsafe { _mm512_set1_epi32(x[m].add(at).cast::<i32>().read_unaligned()) };
        for (sum, w) in sums.iter_mut().zip(&w) {
            *sum = _mm512_dpbf16_ps(*sum, bf16s(x), bf16s(*w));
        }
    }
}

/// Prefetches `LINES` lines further on.
#[inline]
fn ask<A: Ahead, const LINES: usize>(w: *const u8) {
    (0..LINES).for_each(|line| A::ask(w.wrapping_add(64 * line)));
}

/// # Safety
/// `out` has room for `M` panels.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn store<const M: usize>(sums: [Sums; M], out: *mut f32) {
    for (m, sums) in sums.iter().enumerate() {
        for (v, sum) in sums.iter().enumerate() {
            // SAFETY: the caller promises that `out` has room for `M` panels.
            unsafe { _mm512_storeu_ps(out.add(m * PANEL + v * 16), *sum) };
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
fn bf16s(x: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes, and any bits are bfloats.
    unsafe { std::mem::transmute(x) }
}
