//! Registers in which rings are walked side by side, and what the search does with them.
#![allow(clippy::undocumented_unsafe_blocks, reason = "each forwards the trait's own contract")]

use super::{
    RING,
    trellis::{LANES, Trellis},
    trellis_search::Search,
};
use crate::{
    lanes::Lanes,
    x86::{Avx2, Avx512},
};
use std::arch::x86_64::*;

/// Lanes of the widest.
pub(super) const MOST: usize = 16;

/// A few floats, or their bits.
///
/// # Safety
/// Every method may use the instructions of its level, so it must run inside a function compiled for that,
/// and pointers must be valid for [`Self::LANES`] elements.
pub(super) trait Walkers: Copy {
    const LANES: usize;

    unsafe fn of(x: f32) -> Self;
    unsafe fn of_bits(x: i32) -> Self;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn store(self, p: *mut f32);
    unsafe fn sub(self, o: Self) -> Self;
    unsafe fn mul(self, o: Self) -> Self;
    unsafe fn max(self, o: Self) -> Self;
    /// `self + x x`.
    unsafe fn add_square(self, x: Self) -> Self;
    unsafe fn and(self, o: Self) -> Self;
    unsafe fn or(self, o: Self) -> Self;
    unsafe fn xor(self, o: Self) -> Self;
    /// The bits of `o` where `bits` has ones.
    unsafe fn with(self, o: Self, bits: Self) -> Self;
    /// The product of integers.
    unsafe fn times(self, o: Self) -> Self;
    /// The less of integers.
    unsafe fn less_bits(self, o: Self) -> Self;
    /// Bits moved up, and down.
    unsafe fn up(self, by: Self) -> Self;
    unsafe fn down(self, by: Self) -> Self;
    /// `a < b` as floats, a bit a lane.
    unsafe fn less(self, o: Self) -> u32;
    unsafe fn if_less(a: Self, b: Self, yes: Self, no: Self) -> Self;
    /// Where no bit is set.
    unsafe fn if_zero(bits: Self, yes: Self, no: Self) -> Self;
    /// Entries by number.
    unsafe fn pick(table: &[f32; 16], at: Self) -> Self;
    /// Vector `i` has element `i` of every ring.
    unsafe fn turn(rings: *const [f32; RING], out: &mut [Self; RING]);
}

/// Methods that are one instruction.
macro_rules! floats {
    ($($name:ident = $instruction:ident),*) => {
        $(#[inline(always)]
        unsafe fn $name(self, o: Self) -> Self {
            unsafe { $instruction(self, o) }
        })*
    };
}

/// Methods that are one instruction for integers.
macro_rules! integers {
    ($bits:ident, $floats:ident; $($name:ident = $instruction:ident),*) => {
        $(#[inline(always)]
        unsafe fn $name(self, o: Self) -> Self {
            unsafe { $floats($instruction($bits(self), $bits(o))) }
        })*
    };
}

impl Walkers for __m512 {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn of(x: f32) -> Self {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn of_bits(x: i32) -> Self {
        unsafe { _mm512_castsi512_ps(_mm512_set1_epi32(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { _mm512_storeu_ps(p, self) }
    }
    floats!(
        sub = _mm512_sub_ps,
        mul = _mm512_mul_ps,
        max = _mm512_max_ps,
        and = _mm512_and_ps,
        or = _mm512_or_ps,
        xor = _mm512_xor_ps
    );
    integers!(
        _mm512_castps_si512, _mm512_castsi512_ps;
        times = _mm512_mullo_epi32, less_bits = _mm512_min_epi32,
        up = _mm512_sllv_epi32, down = _mm512_srlv_epi32
    );
    #[inline(always)]
    unsafe fn add_square(self, x: Self) -> Self {
        unsafe { _mm512_fmadd_ps(x, x, self) }
    }
    #[inline(always)]
    unsafe fn with(self, o: Self, bits: Self) -> Self {
        unsafe {
            let (own, o) = (_mm512_castps_si512(self), _mm512_castps_si512(o));
            let bits = _mm512_castps_si512(bits);
            _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0b1101_1000>(own, o, bits))
        }
    }
    #[inline(always)]
    unsafe fn less(self, o: Self) -> u32 {
        unsafe { u32::from(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(self, o)) }
    }
    #[inline(always)]
    unsafe fn if_less(a: Self, b: Self, yes: Self, no: Self) -> Self {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes) }
    }
    #[inline(always)]
    unsafe fn if_zero(bits: Self, yes: Self, no: Self) -> Self {
        unsafe {
            let bits = _mm512_castps_si512(bits);
            _mm512_mask_blend_ps(_mm512_testn_epi32_mask(bits, bits), no, yes)
        }
    }
    #[inline(always)]
    unsafe fn pick(table: &[f32; 16], at: Self) -> Self {
        unsafe { _mm512_permutexvar_ps(_mm512_castps_si512(at), _mm512_loadu_ps(table.as_ptr())) }
    }
    #[inline(always)]
    unsafe fn turn(rings: *const [f32; RING], out: &mut [Self; RING]) {
        unsafe {
            Avx512::turn(rings.cast(), RING, out.as_mut_ptr().cast(), 16);
        }
    }
}

impl Walkers for __m256 {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn of(x: f32) -> Self {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn of_bits(x: i32) -> Self {
        unsafe { _mm256_castsi256_ps(_mm256_set1_epi32(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { _mm256_storeu_ps(p, self) }
    }
    floats!(
        sub = _mm256_sub_ps,
        mul = _mm256_mul_ps,
        max = _mm256_max_ps,
        and = _mm256_and_ps,
        or = _mm256_or_ps,
        xor = _mm256_xor_ps
    );
    integers!(
        _mm256_castps_si256, _mm256_castsi256_ps;
        times = _mm256_mullo_epi32, less_bits = _mm256_min_epi32,
        up = _mm256_sllv_epi32, down = _mm256_srlv_epi32
    );
    #[inline(always)]
    unsafe fn add_square(self, x: Self) -> Self {
        unsafe { _mm256_add_ps(self, _mm256_mul_ps(x, x)) }
    }
    #[inline(always)]
    unsafe fn with(self, o: Self, bits: Self) -> Self {
        unsafe { _mm256_or_ps(_mm256_andnot_ps(bits, self), _mm256_and_ps(bits, o)) }
    }
    #[inline(always)]
    unsafe fn less(self, o: Self) -> u32 {
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(self, o)) as u32 }
    }
    #[inline(always)]
    unsafe fn if_less(a: Self, b: Self, yes: Self, no: Self) -> Self {
        unsafe { _mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) }
    }
    #[inline(always)]
    unsafe fn if_zero(bits: Self, yes: Self, no: Self) -> Self {
        unsafe {
            let zero = _mm256_cmpeq_epi32(_mm256_castps_si256(bits), _mm256_setzero_si256());
            _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(zero))
        }
    }
    #[inline(always)]
    unsafe fn pick(table: &[f32; 16], at: Self) -> Self {
        unsafe {
            let at = _mm256_castps_si256(at);
            let low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr()), at);
            let high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr().add(8)), at);
            // The fourth bit of a number chooses the half.
            _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(at)))
        }
    }
    #[inline(always)]
    unsafe fn turn(rings: *const [f32; RING], out: &mut [Self; RING]) {
        unsafe {
            let (rings, out) = (rings.cast::<f32>(), out.as_mut_ptr().cast::<f32>());
            for half in [0, 8] {
                Avx2::turn(rings.add(half), RING, out.add(half * 8), 8);
            }
        }
    }
}

/// As [`Trellis::encode`].
///
/// # Safety
/// The machine has the level.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn encode_avx512(trellis: &Trellis, x: &[f32], symbols: &mut [u8]) {
    // SAFETY: compiled for the level of the lanes.
    unsafe {
        match trellis.bits {
            2 => Search::<2, 16, 4>::new(trellis).encode::<__m512>(x, symbols),
            3 => Search::<3, 8, 8>::new(trellis).encode::<__m512>(x, symbols),
            _ => Search::<4, 4, 4>::new(trellis).encode::<__m512>(x, symbols),
        }
    }
}

/// As [`Trellis::encode`].
///
/// # Safety
/// The machine has the level.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn encode_avx2(trellis: &Trellis, x: &[f32], symbols: &mut [u8]) {
    // SAFETY: compiled for the level of the lanes.
    unsafe {
        match trellis.bits {
            2 => Search::<2, 16, 4>::new(trellis).encode::<__m256>(x, symbols),
            3 => Search::<3, 8, 8>::new(trellis).encode::<__m256>(x, symbols),
            _ => Search::<4, 4, 4>::new(trellis).encode::<__m256>(x, symbols),
        }
    }
}

/// See [`Trellis::fit`].
///
/// # Safety
/// The machine has the level.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c")]
pub(super) unsafe fn fit(
    trellis: &Trellis,
    symbols: &[u8],
    x: &[f32],
    along: &mut [f32; LANES],
    energy: &mut [f32; LANES],
) {
    // SAFETY: whole registers of arrays, and as many elements as masks let pass.
    unsafe {
        let table = trellis.levels.as_ptr();
        let table = [
            _mm512_loadu_ps(table),
            _mm512_loadu_ps(table.add(16)),
            _mm512_loadu_ps(table.add(32)),
            _mm512_loadu_ps(table.add(48)),
        ];
        let (mut sum, mut square) = (_mm512_setzero_ps(), _mm512_setzero_ps());
        for (symbols, x) in symbols.as_chunks::<RING>().0.iter().zip(x.chunks(RING)) {
            let own = (0xffff_u32 >> (LANES - x.len())) as __mmask16;
            let states = trellis.states(symbols);
            let states = _mm512_cvtepu8_epi32(_mm_loadu_si128(states.as_ptr().cast()));
            let low = _mm512_permutex2var_ps(table[0], states, table[1]);
            let high = _mm512_permutex2var_ps(table[2], states, table[3]);
            let upper = _mm512_test_epi32_mask(states, _mm512_set1_epi32(32));
            let level = _mm512_maskz_mov_ps(own, _mm512_mask_blend_ps(upper, low, high));
            let x = _mm512_maskz_loadu_ps(own, x.as_ptr());
            sum = _mm512_add_ps(sum, _mm512_mul_ps(level, x));
            square = _mm512_add_ps(square, _mm512_mul_ps(level, level));
        }
        _mm512_storeu_ps(along.as_mut_ptr(), sum);
        _mm512_storeu_ps(energy.as_mut_ptr(), square);
    }
}
