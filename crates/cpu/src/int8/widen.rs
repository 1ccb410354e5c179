//! Quantized weights as `bf16`, for the kernels of [`crate::dense`]: a tile here is one there, four are a
//! panel.
//!
//! A weight is `fma(q, s, b)` in `f32`, rounded to the nearest `bf16`, ties to even.

use super::{PackedWeight, pack::TILE};
use crate::dense::Chunk;
use half::bf16;
#[cfg(target_arch = "x86_64")]
use {
    super::vnni::{Bf16, F16, F32, Scales},
    crate::{
        DType,
        ahead::{Ahead, Near},
        features::Avx512Bf16,
    },
    std::arch::x86_64::*,
};

/// Outputs of a panel.
const PANEL: usize = 64;
/// Tiles of a panel.
const TILES: usize = PANEL / TILE;
/// Inputs of a tile of `bf16`.
const INPUTS: usize = 32;
/// Elements of such a tile.
const WIDE: usize = INPUTS * TILE;

/// Where the line of a pair of inputs stands, counted from the panel's first that has the same outputs.
const fn place(pair: usize) -> usize {
    pair / (INPUTS / 2) * INPUTS * PANEL + pair % (INPUTS / 2) * 2 * TILE
}

impl PackedWeight {
    /// The weights of a panel; outputs that the matrix lacks are zeros.
    ///
    /// # Panics
    /// When `out` is not a panel long.
    pub(crate) fn widen(&self, panel: usize, out: &mut [Chunk]) {
        let out = Chunk::weights_mut(out);
        assert_eq!(out.len(), self.cols * PANEL, "a panel");
        let tiles = panel * TILES..self.tiles().min((panel + 1) * TILES);
        if tiles.len() < TILES {
            out.fill(bf16::ZERO);
        }
        for (part, tile) in tiles.enumerate() {
            #[cfg(target_arch = "x86_64")]
            if Avx512Bf16::detect().is_some() {
                // SAFETY: the machine has the instructions, and the length was checked.
                unsafe { tile_avx512(self, tile, out.as_mut_ptr().add(part * WIDE)) };
                continue;
            }
            self.widen_tile(tile, &mut out[part * WIDE..]);
        }
    }

    /// The definition of [`Self::widen`], for one tile.
    fn widen_tile(&self, tile: usize, out: &mut [bf16]) {
        let records = self.tile(tile).chunks_exact(self.record_bytes());
        for (g, record) in records.enumerate() {
            for r in 0..TILE {
                let (s, b) = (self.float(record, r), self.float(record, TILE + r));
                for k in 0..self.group {
                    let at = place((g * self.group + k) / 2) + r * 2 + k % 2;
                    out[at] = bf16::from_f32(f32::from(self.code(record, r, k)).mul_add(s, b));
                }
            }
        }
    }
}

/// # Safety
/// AVX-512 with what is enabled here; `out` is the first of the tile's outputs in a panel.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn tile_avx512(w: &PackedWeight, tile: usize, out: *mut bf16) {
    // SAFETY: the caller promises AVX-512 with what is enabled here; `out` is the first of the
    // tile's outputs in a panel.
    unsafe {
        match (w.scale_type, w.nibbles) {
            (DType::BF16, true) => tile_of::<Bf16, true>(w, tile, out),
            (DType::BF16, false) => tile_of::<Bf16, false>(w, tile, out),
            (DType::F16, true) => tile_of::<F16, true>(w, tile, out),
            (DType::F16, false) => tile_of::<F16, false>(w, tile, out),
            (_, true) => tile_of::<F32, true>(w, tile, out),
            (_, false) => tile_of::<F32, false>(w, tile, out),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn tile_of<S: Scales, const NIBBLES: bool>(w: &PackedWeight, tile: usize, out: *mut bf16) {
    let records = w.tile(tile);
    let (code_bytes, step) = (w.code_bytes(), w.record_bytes());
    // SAFETY: a record has its codes and sixteen scales and biases; a line of codes is four or eight
    // inputs, as many lines of `out`.
    unsafe {
        let mut pair = 0;
        for record in records.chunks_exact(step) {
            let record = record.as_ptr();
            let sides =
                (S::load(record.add(code_bytes)), S::load(record.add(code_bytes + S::BYTES)));
            for line in (0..step).step_by(64) {
                Near::ask(record.wrapping_add(line));
            }
            for line in (0..code_bytes).step_by(64) {
                let codes = _mm512_loadu_si512(record.add(line).cast());
                macro_rules! pair {
                    ($even:literal, $odd:literal) => {
                        let even = weights::<NIBBLES>(_mm512_srli_epi32::<$even>(codes), sides);
                        let odd = weights::<NIBBLES>(_mm512_srli_epi32::<$odd>(codes), sides);
                        _mm512_storeu_si512(out.add(place(pair)).cast(), interleaved(even, odd));
                        pair += 1;
                    };
                }
                pair!(0, 8);
                pair!(16, 24);
                if NIBBLES {
                    pair!(4, 12);
                    pair!(20, 28);
                }
            }
        }
    }
}

/// Codes of four bits as floats.
#[cfg(target_arch = "x86_64")]
const NUMBERS: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// The weights of the codes in the lowest bits of each lane.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn weights<const NIBBLES: bool>(codes: __m512i, (s, b): (__m512, __m512)) -> __m512 {
    // SAFETY: the caller has AVX-512 F.
    unsafe {
        let codes = if NIBBLES {
            // The lowest four bits choose a lane.
            _mm512_permutexvar_ps(codes, _mm512_loadu_ps(NUMBERS.as_ptr()))
        } else {
            _mm512_cvtepi32_ps(_mm512_and_si512(codes, _mm512_set1_epi32(255)))
        };
        _mm512_fmadd_ps(codes, s, b)
    }
}

/// Pairs of an even and an odd input, rounded.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn interleaved(even: __m512, odd: __m512) -> __m512i {
    const ORDER: [u16; 32] = {
        let mut order = [0; 32];
        let mut i = 0;
        while i < 32 {
            order[i] = (i / 2 + i % 2 * 16) as u16;
            i += 1;
        }
        order
    };
    // SAFETY: the caller has AVX-512 BW and BF16; the halves of a register are any bits.
    unsafe {
        let halves: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(odd, even));
        _mm512_permutexvar_epi16(_mm512_loadu_si512(ORDER.as_ptr().cast()), halves)
    }
}
