//! AVX2, with VNNI where the processor has it: a tile's sixteen rows are two registers.
#![allow(clippy::needless_range_loop, reason = "registers are named by row and half")]

use super::blocks::{Dots, tile_at};
use crate::x86::Avx2;
use std::{arch::x86_64::*, array::from_fn, marker::PhantomData};

tile_at!(
    /// As [`super::portable::tile`].
    ///
    /// # Safety
    /// The machine has AVX2, FMA and F16C. Shapes are those of `w` and `x`.
    tile, Plain, 2, "avx2,fma,f16c"
);

tile_at!(
    /// As [`super::portable::tile`].
    ///
    /// # Safety
    /// The machine has AVX-VNNI, AVX2, FMA and F16C. Shapes are those of `w` and `x`.
    tile_vnni, Vnni<Vex>, 2, "avxvnni,avx2,fma,f16c"
);

/// How far ahead of its use a line of weights is prefetched, in bytes.
pub(super) const AHEAD: usize = 2048;

/// The two registers of one row of activations.
type Pair = [__m256i; 2];

#[inline(always)]
unsafe fn zeros<const M: usize>() -> [Pair; M] {
    // SAFETY: inside a function of the level.
    [[unsafe { _mm256_setzero_si256() }; 2]; M]
}

#[inline(always)]
unsafe fn to_floats<const M: usize>(sums: [Pair; M]) -> [[Avx2; 2]; M] {
    // SAFETY: inside a function of the level.
    unsafe {
        let mut floats = [[Avx2(_mm256_setzero_ps()); 2]; M];
        for m in 0..M {
            for half in 0..2 {
                floats[m][half] = Avx2(_mm256_cvtepi32_ps(sums[m][half]));
            }
        }
        floats
    }
}

/// Four bytes of a row of activations in every lane.
#[inline(always)]
unsafe fn broadcast<T>(x: *const T) -> __m256i {
    // SAFETY: four readable bytes.
    unsafe { _mm256_set1_epi32(x.cast::<i32>().read_unaligned()) }
}

/// Half a line of codes of two inputs a byte: the low ones and the high ones.
#[inline(always)]
pub(super) unsafe fn nibbles(line: *const u8) -> (__m256i, __m256i) {
    // SAFETY: 32 readable bytes.
    unsafe {
        let both = _mm256_loadu_si256(line.cast());
        let mask = _mm256_set1_epi8(15);
        (_mm256_and_si256(both, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(both), mask))
    }
}

struct Plain;

impl Dots<2> for Plain {
    type Lanes = Avx2;
    const AHEAD: Option<usize> = Some(AHEAD);

    #[inline(always)]
    unsafe fn dots<const NIBBLES: bool, const M: usize>(
        codes: *const u8,
        x: [*const i8; M],
        group: usize,
    ) -> [[Avx2; 2]; M] {
        // SAFETY: the caller keeps the contract of `Dots::dots`; groups are multiples of 32 inputs.
        unsafe {
            let mut sums = zeros::<M>();
            for part in (0..group).step_by(32) {
                let x = from_fn(|m| x[m].wrapping_add(part));
                if NIBBLES {
                    nibble_part(codes.add(part * 8), x, &mut sums);
                } else {
                    byte_part(codes.add(part * 16), x, &mut sums);
                }
            }
            to_floats(sums)
        }
    }
}

/// Adds the products of 32 inputs.
#[inline(always)]
unsafe fn nibble_part<const M: usize>(codes: *const u8, x: [*const i8; M], sums: &mut [Pair; M]) {
    // SAFETY: 32 inputs of each row and their codes are readable.
    unsafe {
        // A 16-bit lane takes sixteen products of at most 15 * 127: 30,480.
        let mut words = zeros::<M>();
        for chunk in 0..4 {
            for half in 0..2 {
                let (low, high) = nibbles(codes.add(chunk * 64 + half * 32));
                for m in 0..M {
                    let x = x[m].add(chunk * 8);
                    let low = _mm256_maddubs_epi16(low, broadcast(x));
                    let high = _mm256_maddubs_epi16(high, broadcast(x.add(4)));
                    words[m][half] = _mm256_add_epi16(words[m][half], _mm256_add_epi16(low, high));
                }
            }
        }
        let ones = _mm256_set1_epi16(1);
        for m in 0..M {
            for half in 0..2 {
                let pairs = _mm256_madd_epi16(words[m][half], ones);
                sums[m][half] = _mm256_add_epi32(sums[m][half], pairs);
            }
        }
    }
}

/// Adds the products of 32 inputs. Two products of a byte overflow 16 bits, so both sides are
/// widened first: of four inputs, the first and third make one register, the others another.
#[inline(always)]
unsafe fn byte_part<const M: usize>(codes: *const u8, x: [*const i8; M], sums: &mut [Pair; M]) {
    // SAFETY: 32 inputs of each row and their codes are readable.
    unsafe {
        let mut wide = zeros::<M>();
        for (m, wide) in wide.iter_mut().enumerate() {
            let x = _mm256_loadu_si256(x[m].cast());
            *wide = [_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)), _mm256_srai_epi16::<8>(x)];
        }
        let mask = _mm256_set1_epi16(255);
        for four in 0..8 {
            for half in 0..2 {
                let w = _mm256_loadu_si256(codes.add(four * 64 + half * 32).cast());
                let even = _mm256_and_si256(w, mask);
                let odd = _mm256_srli_epi16::<8>(w);
                for m in 0..M {
                    let [x0, x1] = &wide[m];
                    let x0 = broadcast((&raw const *x0).cast::<i32>().add(four));
                    let x1 = broadcast((&raw const *x1).cast::<i32>().add(four));
                    let both =
                        _mm256_add_epi32(_mm256_madd_epi16(even, x0), _mm256_madd_epi16(odd, x1));
                    sums[m][half] = _mm256_add_epi32(sums[m][half], both);
                }
            }
        }
    }
}

/// The instruction that adds four products to each 32-bit lane.
trait Dpbusd {
    /// # Safety
    /// The machine has it, and so has the function this is compiled into.
    unsafe fn dpbusd(sum: __m256i, w: __m256i, x: __m256i) -> __m256i;
}

/// AVX-VNNI's.
struct Vex;

impl Dpbusd for Vex {
    #[inline(always)]
    unsafe fn dpbusd(sum: __m256i, w: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the caller keeps the contract of `Dpbusd::dpbusd`.
        unsafe { _mm256_dpbusd_avx_epi32(sum, w, x) }
    }
}

struct Vnni<I>(PhantomData<I>);

impl<I: Dpbusd> Dots<2> for Vnni<I> {
    type Lanes = Avx2;

    #[inline(always)]
    unsafe fn dots<const NIBBLES: bool, const M: usize>(
        codes: *const u8,
        x: [*const i8; M],
        group: usize,
    ) -> [[Avx2; 2]; M] {
        // SAFETY: the caller keeps the contract of `Dots::dots`.
        unsafe {
            // Two chains a register, so that one row alone does not wait for its own last sum.
            let mut even = zeros::<M>();
            let mut odd = zeros::<M>();
            for chunk in 0..group / 8 {
                for half in 0..2 {
                    let (w0, w1) = if NIBBLES {
                        nibbles(codes.add(chunk * 64 + half * 32))
                    } else {
                        let line = codes.add(chunk * 128 + half * 32);
                        let next = _mm256_loadu_si256(line.add(64).cast());
                        (_mm256_loadu_si256(line.cast()), next)
                    };
                    for m in 0..M {
                        let x = x[m].add(chunk * 8);
                        even[m][half] = I::dpbusd(even[m][half], w0, broadcast(x));
                        if M == 1 {
                            odd[m][half] = I::dpbusd(odd[m][half], w1, broadcast(x.add(4)));
                        } else {
                            even[m][half] = I::dpbusd(even[m][half], w1, broadcast(x.add(4)));
                        }
                    }
                }
            }
            for m in 0..M {
                for half in 0..2 {
                    even[m][half] = _mm256_add_epi32(even[m][half], odd[m][half]);
                }
            }
            to_floats(even)
        }
    }
}

/// AVX-512's twin of [`Vex`]: reaches [`Vnni`] on more machines.
#[cfg(test)]
struct Evex;

#[cfg(test)]
impl Dpbusd for Evex {
    #[inline(always)]
    unsafe fn dpbusd(sum: __m256i, w: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the caller keeps the contract of `Dpbusd::dpbusd`.
        unsafe { _mm256_dpbusd_epi32(sum, w, x) }
    }
}

#[cfg(test)]
tile_at!(
    /// As [`tile_vnni`].
    ///
    /// # Safety
    /// The machine has AVX-512 VL and VNNI. Shapes are those of `w` and `x`.
    tile_evex, Vnni<Evex>, 2, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"
);
