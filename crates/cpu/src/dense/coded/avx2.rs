//! Coded weights in AVX2: coded, unpacked, or multiplied as they are unpacked where rows are few.

use super::{
    super::pack::{BLOCK, PANEL, tile_line},
    CODED, Chunk, CodedPanel, Exception, NONE,
};
use crate::kernels::{Rows, RowsMut};
use half::bf16;
use std::arch::x86_64::*;

/// The weights of 32 outputs and two inputs, eight outputs a register.
type Half = [__m256i; 4];

/// How far ahead of the products the weights are fetched, in bytes.
const AHEAD: usize = 2048;

/// As [`super::encode_portable`].
///
/// # Safety
/// The machine has AVX2.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn encode(
    block: &[bf16; BLOCK],
    indices: &[u8; 128],
    to: &mut [u8; CODED],
) -> bool {
    let (block, to) = (block.as_ptr().cast::<__m256i>(), to.as_mut_ptr().cast::<__m256i>());
    let (byte, mut seen) = (_mm256_set1_epi16(0xff), _mm256_setzero_si256());
    for part in 0..2 {
        let mut coded = [_mm256_setzero_si256(); 2];
        for (half, coded) in coded.iter_mut().enumerate() {
            // SAFETY: two of eight registers of weights, and room for six.
            let high = unsafe {
                let a = block.add(4 * half + part).read_unaligned();
                let b = block.add(4 * half + 2 + part).read_unaligned();
                let low = _mm256_packus_epi16(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte));
                to.add(2 * half + part).write_unaligned(low);
                _mm256_packus_epi16(_mm256_srli_epi16::<8>(a), _mm256_srli_epi16::<8>(b))
            };
            let sign = _mm256_and_si256(_mm256_srli_epi16::<4>(high), _mm256_set1_epi8(8));
            *coded = _mm256_or_si256(looked_up(indices, high), sign);
            seen = _mm256_or_si256(seen, *coded);
        }
        let [low, high] = [_mm256_set1_epi8(15), _mm256_set1_epi8(0xf0_u8 as i8)];
        let first = _mm256_and_si256(coded[0], low);
        let second = _mm256_and_si256(_mm256_slli_epi16::<4>(coded[1]), high);
        // SAFETY: two of eight registers of weights, and room for six.
        unsafe { to.add(4 + part).write_unaligned(_mm256_or_si256(first, second)) };
    }
    const { assert!(NONE == 0x80) };
    _mm256_movemask_epi8(seen) != 0
}

/// The indices of upper bytes, whatever their signs.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn looked_up(indices: &[u8; 128], high: __m256i) -> __m256i {
    let magnitude = _mm256_and_si256(high, _mm256_set1_epi8(127));
    let mut out = _mm256_setzero_si256();
    for (i, sixteen) in indices.as_chunks::<16>().0.iter().enumerate() {
        // SAFETY: sixteen bytes.
        let sixteen = unsafe { _mm_loadu_si128(sixteen.as_ptr().cast()) };
        // Those of other sixteens get their highest bit, for which the shuffle gives zero.
        let own = _mm256_xor_si256(magnitude, _mm256_set1_epi8(16 * i as i8));
        let own = _mm256_adds_epu8(own, _mm256_set1_epi8(0x70));
        let found = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(sixteen), own);
        out = _mm256_or_si256(out, found);
    }
    out
}

/// The plain layout of a panel, but for its exceptions.
///
/// # Safety
/// The machine has AVX2, and `out` is as many chunks as the panel.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn panel(from: CodedPanel<'_>, out: &mut [Chunk]) {
    let (table, out) = (table(from), out.as_mut_ptr().cast::<bf16>());
    for (pair, block) in from.blocks().as_chunks::<CODED>().0.iter().enumerate() {
        for i in 0..2 {
            // SAFETY: `out` is as many chunks as the panel, and a line of its layout has sixteen
            // outputs.
            unsafe {
                for (v, words) in half(block, i, table).iter().enumerate() {
                    let at = tile_line(pair, 32 * i + 8 * v);
                    _mm256_storeu_si256(out.add(at).cast(), *words);
                }
            }
        }
    }
}

/// `out[i][j] = x[i] . w[j]` for the outputs of a panel: each is one chain over its inputs, as in
/// [`super::super::fma`].
///
/// # Safety
/// The machine has AVX2 and FMA, rows of `x` have the panel's inputs, and `out` room for a panel a row.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in super::super) unsafe fn products(x: Rows, w: CodedPanel<'_>, out: RowsMut) {
    let mut row = 0;
    // SAFETY: the caller promises that the machine has AVX2 and FMA, rows of `x` have the panel's
    // inputs, and `out` room for a panel a row.
    unsafe {
        while row < x.rows {
            let (from, to) = (x.ptr.add(row * x.stride), out.ptr.add(row * out.stride));
            if x.rows - row == 1 {
                outputs::<1, 2>([from], w, 0, [to]);
                return;
            }
            let (from, to) = ([from, from.add(x.stride)], [to, to.add(out.stride)]);
            outputs::<2, 1>(from, w, 0, to);
            outputs::<2, 1>(from, w, 1, to);
            row += 2;
        }
    }
}

/// The outputs of `H` halves of a panel from one on, of `M` rows.
///
/// # Safety
/// As [`products`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn outputs<const M: usize, const H: usize>(
    x: [*const f32; M],
    w: CodedPanel<'_>,
    first: usize,
    out: [*mut f32; M],
) {
    let mut sums = [[[_mm256_setzero_ps(); 4]; H]; M];
    let (table, blocks) = (table(w), w.blocks().as_chunks::<CODED>().0);
    let (mut pair, mut exceptions) = (0, w.exceptions());
    // SAFETY: the machine has AVX2 and FMA, rows of `x` have the panel's inputs and `out` has a
    // panel a row; a prefetch may have any address.
    unsafe {
        loop {
            let next = exceptions.first().map_or(blocks.len(), |e| e.place() / BLOCK);
            for (pair, block) in (pair..next).zip(&blocks[pair..next]) {
                for line in 0..3 {
                    let ahead = block.as_ptr().wrapping_add(AHEAD + 64 * line);
                    _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                }
                for h in 0..H {
                    add(&mut sums, h, x, pair, half(block, first + h, table));
                }
            }
            if next == blocks.len() {
                break;
            }
            let here = exceptions.iter().take_while(|e| e.place() / BLOCK == next).count();
            let (here, after) = exceptions.split_at(here);
            let words = corrected(&blocks[next], table, here);
            for h in 0..H {
                let at = words.as_ptr().add((first + h) * PANEL).cast::<__m256i>();
                let words = std::array::from_fn(|v| at.add(v).read_unaligned());
                add(&mut sums, h, x, next, words);
            }
            (pair, exceptions) = (next + 1, after);
        }
        for (sums, out) in sums.iter().zip(out) {
            for (i, sum) in sums.as_flattened().iter().enumerate() {
                _mm256_storeu_ps(out.add(first * PANEL / 2 + 8 * i), *sum);
            }
        }
    }
}

/// Adds the products of a pair of inputs with one half of the outputs.
///
/// # Safety
/// The rows have the pair.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add<const M: usize, const H: usize>(
    sums: &mut [[[__m256; 4]; H]; M],
    half: usize,
    x: [*const f32; M],
    pair: usize,
    words: Half,
) {
    let upper = _mm256_set1_epi32(0xffff_0000_u32 as i32);
    for (v, words) in words.into_iter().enumerate() {
        // A bfloat is the upper half of a float.
        let even = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words));
        let odd = _mm256_castsi256_ps(_mm256_and_si256(words, upper));
        for (sums, x) in sums.iter_mut().zip(x) {
            let sum = &mut sums[half][v];
            // SAFETY: the caller promises that the rows have the pair.
            let [a, b] = unsafe { [*x.add(2 * pair), *x.add(2 * pair + 1)] };
            *sum = _mm256_fmadd_ps(_mm256_set1_ps(a), even, *sum);
            *sum = _mm256_fmadd_ps(_mm256_set1_ps(b), odd, *sum);
        }
    }
}

/// The upper bytes, in each lane of a register.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn table(panel: CodedPanel<'_>) -> __m256i {
    // SAFETY: sixteen bytes.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(panel.table().as_ptr().cast()) })
}

/// Half a block without exceptions.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn half(from: &[u8; CODED], half: usize, table: __m256i) -> Half {
    let mut out = [_mm256_setzero_si256(); 4];
    for part in 0..2 {
        // SAFETY: 32 of the half's 64 lower bytes, and of the block's 64 indices.
        let (low, indices) = unsafe {
            let at = from.as_ptr().add(32 * part);
            let low = _mm256_loadu_si256(at.add(BLOCK / 2 * half).cast());
            (low, _mm256_loadu_si256(at.add(BLOCK).cast()))
        };
        let own = if half == 0 { indices } else { _mm256_srli_epi16::<4>(indices) };
        let high = _mm256_shuffle_epi8(table, _mm256_and_si256(own, _mm256_set1_epi8(15)));
        out[part] = _mm256_unpacklo_epi8(low, high);
        out[2 + part] = _mm256_unpackhi_epi8(low, high);
    }
    out
}

/// A block with its exceptions, `[outputs][2 inputs]`.
#[cold]
#[target_feature(enable = "avx2,fma,f16c")]
fn corrected(from: &[u8; CODED], table: __m256i, exceptions: &[Exception]) -> [[u8; 2]; BLOCK] {
    let mut words = [[0; 2]; BLOCK];
    for i in 0..2 {
        for (v, own) in half(from, i, table).into_iter().enumerate() {
            let to = &mut words[BLOCK / 2 * i + 16 * v..][..16];
            // SAFETY: 32 bytes.
            unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), own) };
        }
    }
    for e in exceptions {
        words[e.place() % BLOCK][1] = e.high();
    }
    words
}
