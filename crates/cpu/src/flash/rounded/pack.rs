//! Rows of floats to operands of [`super::unit`], rounded to the nearest `bf16`, ties to even.

use super::unit::{BLOCK, CHUNK, Chunk, SIDE, Tile};
use crate::{Floats, lanes::Lanes, x86::Avx512};
use half::{bf16, f16};
use std::arch::x86_64::*;

/// A stored float.
trait Element: Copy {
    /// A chunk of them, rounded.
    ///
    /// # Safety
    /// `from` has as many.
    unsafe fn rounded(from: *const Self) -> __m512i;
}

impl Element for f32 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    unsafe fn rounded(from: *const Self) -> __m512i {
        // SAFETY: the caller keeps the contract of `Element::rounded`.
        unsafe { joined(_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(SIDE))) }
    }
}

impl Element for f16 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    unsafe fn rounded(from: *const Self) -> __m512i {
        // SAFETY: the caller keeps the contract of `Element::rounded`.
        unsafe {
            let low = _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()));
            joined(low, _mm512_cvtph_ps(_mm256_loadu_si256(from.add(SIDE).cast())))
        }
    }
}

impl Element for bf16 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    unsafe fn rounded(from: *const Self) -> __m512i {
        // SAFETY: the caller keeps the contract of `Element::rounded`.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
}

/// Both vectors rounded, one after the other.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) fn joined(low: __m512, high: __m512) -> __m512i {
    // SAFETY: both are 64 bytes of plain bits.
    unsafe { std::mem::transmute(_mm512_cvtne2ps_pbh(high, low)) }
}

/// Chunks of so many rows of `width` elements.
pub(super) fn chunks(rows: usize, width: usize) -> usize {
    rows.div_ceil(BLOCK) * (width / CHUNK)
}

/// Where row `row` begins in memory of chunks, in bytes, and how far its chunks are apart: as lines of a
/// left operand, or one row after the other.
#[inline]
fn place<const LINES: bool>(row: usize, width: usize) -> (usize, usize) {
    if LINES {
        let block = row / BLOCK * (width / CHUNK) * size_of::<Chunk>();
        (block + row % BLOCK * (4 * SIDE), size_of::<Chunk>())
    } else {
        (row * width * 2, 4 * SIDE)
    }
}

/// Rounds rows of `width` elements and writes them from row `first` on; returns the row after
/// the last.
///
/// # Panics
/// When `out` has no room for them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
fn put<E: Element, const LINES: bool>(
    rows: &[E],
    first: usize,
    width: usize,
    out: &mut [Chunk],
) -> usize {
    let last = first + rows.len() / width;
    assert!(out.len() >= chunks(last, width), "room for the rows");
    let to = out.as_mut_ptr().cast::<u8>();
    for (i, row) in rows.chunks_exact(width).enumerate() {
        let (at, step) = place::<LINES>(first + i, width);
        for chunk in 0..width / CHUNK {
            // SAFETY: the assertion.
            unsafe {
                let x = E::rounded(row.as_ptr().add(chunk * CHUNK));
                _mm512_storeu_si512(to.add(at + chunk * step).cast(), x);
            }
        }
    }
    last
}

/// Puts rows of any float type; see [`put`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
fn put_floats<const LINES: bool>(
    rows: Floats<'_>,
    first: usize,
    width: usize,
    out: &mut [Chunk],
) -> usize {
    match rows {
        Floats::F32(rows) => put::<_, LINES>(rows, first, width, out),
        Floats::F16(rows) => put::<_, LINES>(rows, first, width, out),
        Floats::Bf16(rows) => put::<_, LINES>(rows, first, width, out),
    }
}

/// Zeros from row `row` on to the end of its block.
fn fill<const LINES: bool>(row: usize, width: usize, out: &mut [Chunk]) {
    let bytes = out.as_mut_ptr().cast::<u8>();
    for row in row..row.next_multiple_of(BLOCK) {
        assert!(out.len() >= chunks(row + 1, width), "room for the row");
        let (at, step) = place::<LINES>(row, width);
        for chunk in 0..width / CHUNK {
            // SAFETY: the assertion.
            unsafe { bytes.add(at + chunk * step).write_bytes(0, 4 * SIDE) };
        }
    }
}

/// Keys as a left operand, `[32 keys][chunk of width]`, padded with zeros.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) fn keys<'a>(pages: impl Iterator<Item = Floats<'a>>, width: usize, out: &mut [Chunk]) {
    let mut row = 0;
    for page in pages {
        row = put_floats::<true>(page, row, width, out);
    }
    fill::<true>(row, width, out);
}

/// Values as a left operand whose lines are elements, `[32 elements][chunk of keys]`, padded with zeros.
/// `rows` is room for as many chunks.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) fn values<'a>(
    pages: impl Iterator<Item = Floats<'a>>,
    width: usize,
    rows: &mut [Chunk],
    out: &mut [Chunk],
) {
    let mut row = 0;
    for page in pages {
        row = put_floats::<false>(page, row, width, rows);
    }
    fill::<false>(row, width, rows);
    let of_keys = row.div_ceil(CHUNK);
    assert!(rows.len().min(out.len()) >= chunks(row, width), "room for the values");
    for chunk in 0..of_keys {
        for block in 0..width / BLOCK {
            let from = rows.as_ptr().cast::<bf16>().wrapping_add(chunk * CHUNK * width);
            // SAFETY: there are whole chunks of rows.
            unsafe {
                turn_pairs(from.add(block * BLOCK), width, &mut out[block * of_keys + chunk]);
            }
        }
    }
}

/// 32 rows of 32 elements to lines of elements, each of sixteen pairs of rows.
///
/// # Safety
/// `from` has 32 rows, `width` elements apart.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn turn_pairs(from: *const bf16, width: usize, out: &mut Chunk) {
    let (low, high) = (interleaved(0), interleaved(SIDE as i16));
    let mut pairs = [Tile::default(); 2];
    // SAFETY: `from` has 32 rows, `width` elements apart, of which one vector each is read; a tile
    // is sixteen vectors.
    unsafe {
        for pair in 0..SIDE {
            let first = _mm512_loadu_si512(from.add(2 * pair * width).cast());
            let second = _mm512_loadu_si512(from.add((2 * pair + 1) * width).cast());
            let a = _mm512_permutex2var_epi16(first, low, second);
            let b = _mm512_permutex2var_epi16(first, high, second);
            _mm512_store_si512(pairs[0].0[pair].as_mut_ptr().cast(), a);
            _mm512_store_si512(pairs[1].0[pair].as_mut_ptr().cast(), b);
        }
        for (pairs, out) in pairs.iter().zip(out) {
            turn(pairs.0.as_ptr().cast(), SIDE, out);
        }
    }
}

/// Which words of two vectors make pairs: those from `first` on, alternating.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
fn interleaved(first: i16) -> __m512i {
    let mut words = [0i16; 2 * SIDE];
    for (i, pair) in words.chunks_exact_mut(2).enumerate() {
        pair[0] = first + i as i16;
        pair[1] = pair[0] + 2 * SIDE as i16;
    }
    // SAFETY: 64 bytes.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

/// A tile of pairs, lines to columns.
///
/// # Safety
/// `from` has sixteen lines of sixteen pairs, `line` pairs apart.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn turn(from: *const u32, line: usize, out: &mut Tile) {
    // SAFETY: `from` has sixteen lines, `line` apart, and `out` is as large. Vectors are moved as
    // they are, whatever they hold.
    unsafe { Avx512::turn(from.cast(), line, out.0.as_mut_ptr().cast(), SIDE) };
}

/// Queries as a right operand, `[32 rows][chunk of width]`, padded with zeros. `rows` is room for
/// as many chunks.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) fn queries(q: &[f32], width: usize, rows: &mut [Chunk], out: &mut [Chunk]) {
    let last = put::<_, false>(q, 0, width, rows);
    fill::<false>(last, width, rows);
    let from = rows.as_ptr().cast::<u32>();
    for (i, out) in out[..chunks(last, width)].iter_mut().enumerate() {
        let (block, chunk) = (i / (width / CHUNK), i % (width / CHUNK));
        for (half, out) in out.iter_mut().enumerate() {
            let row = block * BLOCK + half * SIDE;
            // SAFETY: `put` has checked that `rows` has whole blocks of them.
            unsafe { turn(from.add((row * width + chunk * CHUNK) / 2), width / 2, out) };
        }
    }
}

/// Sums whose lines are elements, as rows: `out[row][element]`, rows `stride` apart.
///
/// # Safety
/// `sums` has sixteen lines of 32 columns; `out` has `rows <= 16` rows of sixteen elements.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn turn_sums(sums: *const f32, rows: usize, out: *mut f32, stride: usize) {
    // SAFETY: the caller promises that `sums` has sixteen lines of 32 columns; `out` has `rows <=
    // 16` rows of sixteen elements.
    unsafe {
        if rows == SIDE {
            Avx512::turn(sums, BLOCK, out, stride);
            return;
        }
        let mut all = [0.0f32; SIDE * SIDE];
        Avx512::turn(sums, BLOCK, all.as_mut_ptr(), SIDE);
        for (row, values) in all.chunks_exact(SIDE).take(rows).enumerate() {
            out.add(row * stride).copy_from_nonoverlapping(values.as_ptr(), SIDE);
        }
    }
}
