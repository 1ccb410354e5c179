//! AVX-512 VNNI: four products of four inputs for sixteen rows an instruction.

use super::{Int8Rows, PackedWeight, pack::TILE, tiles::Tiles};
use crate::{
    DType,
    {
        ahead::{Ahead, Near, Never},
        soon::Lines,
    },
};
use std::{arch::x86_64::*, ops::Range};

/// How a record's scales and biases are stored.
pub(super) trait Scales {
    /// Bytes of sixteen.
    const BYTES: usize;
    /// # Safety
    /// AVX-512 F, and `BYTES` readable bytes.
    unsafe fn load(p: *const u8) -> __m512;
}

/// As `bf16`.
pub(super) struct Bf16;
/// As `f16`.
pub(super) struct F16;
/// As `f32`.
pub(super) struct F32;

impl Scales for Bf16 {
    const BYTES: usize = 32;
    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512 {
        // SAFETY: the caller keeps the contract of `Scales::load`.
        unsafe {
            let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
        }
    }
}

impl Scales for F16 {
    const BYTES: usize = 32;
    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512 {
        // SAFETY: the caller keeps the contract of `Scales::load`.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
}

impl Scales for F32 {
    const BYTES: usize = 64;
    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512 {
        // SAFETY: the caller keeps the contract of `Scales::load`.
        unsafe { _mm512_loadu_ps(p.cast()) }
    }
}

/// Calls `$run::<scales, nibbles, ...>` as a weight is stored.
macro_rules! as_stored {
    ($w:expr, $run:ident::<$($more:tt),*>($($arg:expr),*)) => {
        match ($w.scale_type, $w.nibbles) {
            (DType::BF16, true) => $run::<Bf16, true, $($more),*>($($arg),*),
            (DType::BF16, false) => $run::<Bf16, false, $($more),*>($($arg),*),
            (DType::F16, true) => $run::<F16, true, $($more),*>($($arg),*),
            (DType::F16, false) => $run::<F16, false, $($more),*>($($arg),*),
            (_, true) => $run::<F32, true, $($more),*>($($arg),*),
            (_, false) => $run::<F32, false, $($more),*>($($arg),*),
        }
    };
}

/// Runs of tiles that so many rows read interleaved, a group of each: memory gives a fifth more to
/// several streams than to one.
pub(super) fn streams(rows: usize) -> usize {
    match rows {
        1..=4 => 4,
        8 => 2,
        _ => 1,
    }
}

/// As [`super::portable::tile`] for `R` runs of tiles, all at once; `out` has `each` elements a tile.
///
/// # Safety
/// As [`tile`]; `R` are the [`streams`] of `rows`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn abreast<const R: usize>(
    w: &PackedWeight,
    tiles: Tiles,
    x: &Int8Rows,
    rows: Range<usize>,
    (out, each): (&mut [f32], usize),
) {
    let Tiles { first, run, step, runs } = tiles;
    assert!(runs == R && out.len() >= runs * run * each && each >= rows.len() * TILE);
    assert!(rows.end <= x.rows && x.cols == w.cols);
    for i in first..first + run {
        let records: [_; R] = std::array::from_fn(|r| w.tile(i + r * step).as_ptr());
        let out = std::array::from_fn(|r| out[(r * run + i - first) * each..].as_mut_ptr());
        // SAFETY: the machine has AVX-512 VNNI, `R` are the `streams` of these rows, and the
        // assertions give the shapes.
        unsafe {
            match (R, rows.len()) {
                (4, 1) => as_stored!(w, in_turn::<1, R>(w, records, x, rows.start, out)),
                (4, 2) => as_stored!(w, in_turn::<2, R>(w, records, x, rows.start, out)),
                (4, 3) => as_stored!(w, in_turn::<3, R>(w, records, x, rows.start, out)),
                (4, _) => as_stored!(w, in_turn::<4, R>(w, records, x, rows.start, out)),
                _ => as_stored!(w, in_turn::<8, R>(w, records, x, rows.start, out)),
            }
        }
    }
}

/// `M` rows of activations against `R` tiles, interleaved by group.
#[inline(always)]
unsafe fn in_turn<S: Scales, const NIBBLES: bool, const M: usize, const R: usize>(
    w: &PackedWeight,
    records: [*const u8; R],
    x: &Int8Rows,
    first: usize,
    out: [*mut f32; R],
) {
    let (groups, cols, group) = (w.groups(), w.cols, w.group);
    let (record_bytes, code_bytes) = (w.record_bytes(), w.code_bytes());
    // SAFETY: `abreast` has checked the shapes.
    unsafe {
        let codes = x.codes().as_ptr().add(first * cols);
        let scales = x.scales.as_ptr().add(first * groups);
        let sums = x.sums.as_ptr().add(first * groups);
        let mut acc = [[_mm512_setzero_ps(); M]; R];
        for g in 0..groups {
            for (records, acc) in records.iter().zip(&mut acc) {
                let record = records.add(g * record_bytes);
                let dots = dots::<Near, NIBBLES, M>(record, codes.add(g * group), cols, group);
                Near::ask(record.add(code_bytes));
                let s = S::load(record.add(code_bytes));
                let b = S::load(record.add(code_bytes + S::BYTES));
                for (m, acc) in acc.iter_mut().enumerate() {
                    let at = m * groups + g;
                    *acc = scaled(dots[m], (s, b), (*scales.add(at), *sums.add(at)), *acc);
                }
            }
        }
        for (out, acc) in out.into_iter().zip(&acc) {
            for (m, acc) in acc.iter().enumerate() {
                _mm512_storeu_ps(out.add(m * TILE), *acc);
            }
        }
    }
}

/// As [`super::portable::tile`].
///
/// # Safety
/// The machine has AVX-512 F, BW, VL and VNNI. Shapes are those of `w` and `x`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn tile<A: Ahead>(
    w: &PackedWeight,
    tile: usize,
    x: &Int8Rows,
    rows: Range<usize>,
    out: &mut [f32],
) {
    // SAFETY: the caller promises that the machine has AVX-512 F, BW, VL and VNNI. Shapes are those
    // of `w` and `x`.
    unsafe {
        as_stored!(w, blocks::<A>(w, tile, x, rows, out));
    }
}

#[inline(always)]
unsafe fn blocks<S: Scales, const NIBBLES: bool, A: Ahead>(
    w: &PackedWeight,
    tile: usize,
    x: &Int8Rows,
    rows: Range<usize>,
    out: &mut [f32],
) {
    assert!(out.len() >= rows.len() * TILE && rows.end <= x.rows && x.cols == w.cols);
    let records = w.tile(tile).as_ptr();
    let mut i = rows.start;
    let mut out = out.as_mut_ptr();
    // SAFETY: the assertion, and `out` moves by the rows that were written.
    unsafe {
        macro_rules! step {
            ($m:literal) => {
                while rows.end - i >= $m {
                    if A::ALWAYS || $m >= 4 {
                        block::<S, A, NIBBLES, $m>(w, records, x, i, out);
                    } else {
                        block::<S, Never, NIBBLES, $m>(w, records, x, i, out);
                    }
                    i += $m;
                    out = out.add($m * TILE);
                }
            };
        }
        step!(16);
        step!(8);
        step!(4);
        step!(2);
        step!(1);
    }
}

/// `M` rows of activations against one tile.
#[inline(always)]
unsafe fn block<S: Scales, A: Ahead, const NIBBLES: bool, const M: usize>(
    w: &PackedWeight,
    records: *const u8,
    x: &Int8Rows,
    first: usize,
    out: *mut f32,
) {
    let (groups, cols, group) = (w.groups(), w.cols, w.group);
    let (record_bytes, code_bytes) = (w.record_bytes(), w.code_bytes());
    // SAFETY: `blocks` has checked the shapes.
    unsafe {
        let codes = x.codes().as_ptr().add(first * cols);
        let scales = x.scales.as_ptr().add(first * groups);
        let sums = x.sums.as_ptr().add(first * groups);
        let mut acc = [_mm512_setzero_ps(); M];
        let mut soon = (M == 16 && A::SOON > 0).then(|| Lines::take(A::SOON * groups));
        for g in 0..groups {
            let record = records.add(g * record_bytes);
            if let Some(soon) = &mut soon {
                soon.ask(A::SOON);
            }
            let dots = dots::<A, NIBBLES, M>(record, codes.add(g * group), cols, group);
            A::ask(record.add(code_bytes));
            let s = S::load(record.add(code_bytes));
            let b = S::load(record.add(code_bytes + S::BYTES));
            for (m, acc) in acc.iter_mut().enumerate() {
                let at = m * groups + g;
                *acc = scaled(dots[m], (s, b), (*scales.add(at), *sums.add(at)), *acc);
            }
        }
        for (m, acc) in acc.iter().enumerate() {
            _mm512_storeu_ps(out.add(m * TILE), *acc);
        }
    }
}

/// `acc` and a group's part of sixteen outputs: its integer sums, the scales and biases of the weights, and
/// the scale and the sum of the activations.
#[inline(always)]
unsafe fn scaled(
    dots: __m512i,
    (s, b): (__m512, __m512),
    (scale, sum): (f32, f32),
    acc: __m512,
) -> __m512 {
    // SAFETY: the caller is compiled for AVX-512.
    unsafe {
        let s = _mm512_mul_ps(s, _mm512_set1_ps(scale));
        let acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), s, acc);
        _mm512_fmadd_ps(b, _mm512_set1_ps(sum), acc)
    }
}

/// The integer sums of a group for `M` rows.
#[inline(always)]
unsafe fn dots<A: Ahead, const NIBBLES: bool, const M: usize>(
    record: *const u8,
    x: *const i8,
    cols: usize,
    group: usize,
) -> [__m512i; M] {
    // SAFETY: `codes` has the group for the whole tile, and each of `x` points to `group` more.
    unsafe {
        match NIBBLES {
            true => nibble_dots::<A, M>(record, x, cols, group),
            false => byte_dots::<A, M>(record, x, cols, group),
        }
    }
}

/// Four codes of a row of activations in every lane.
#[inline(always)]
unsafe fn broadcast(x: *const i8) -> __m512i {
    // SAFETY: four readable bytes.
    unsafe { _mm512_set1_epi32(x.cast::<i32>().read_unaligned()) }
}

#[inline(always)]
unsafe fn nibble_dots<A: Ahead, const M: usize>(
    record: *const u8,
    x: *const i8,
    cols: usize,
    group: usize,
) -> [__m512i; M] {
    // SAFETY: `group` codes of each row and their weights are readable.
    unsafe {
        // Two chains a row, so that one row alone does not wait for its own last sum.
        let mut low = [_mm512_setzero_si512(); M];
        let mut high = [_mm512_setzero_si512(); M];
        let mask = _mm512_set1_epi8(15);
        for chunk in 0..group / 8 {
            let at = record.add(chunk * 64);
            A::ask(at);
            let both = _mm512_loadu_si512(at.cast());
            let w0 = _mm512_and_si512(both, mask);
            let w1 = _mm512_and_si512(_mm512_srli_epi16::<4>(both), mask);
            for m in 0..M {
                let x = x.add(m * cols + chunk * 8);
                low[m] = _mm512_dpbusd_epi32(low[m], w0, broadcast(x));
                if M <= 8 {
                    high[m] = _mm512_dpbusd_epi32(high[m], w1, broadcast(x.add(4)));
                } else {
                    low[m] = _mm512_dpbusd_epi32(low[m], w1, broadcast(x.add(4)));
                }
            }
        }
        for m in 0..M {
            low[m] = _mm512_add_epi32(low[m], high[m]);
        }
        low
    }
}

#[inline(always)]
unsafe fn byte_dots<A: Ahead, const M: usize>(
    record: *const u8,
    x: *const i8,
    cols: usize,
    group: usize,
) -> [__m512i; M] {
    // SAFETY: `group` codes of each row and their weights are readable.
    unsafe {
        let mut even = [_mm512_setzero_si512(); M];
        let mut odd = [_mm512_setzero_si512(); M];
        for chunk in 0..group / 8 {
            let at = record.add(chunk * 128);
            A::ask(at);
            A::ask(at.add(64));
            let w0 = _mm512_loadu_si512(at.cast());
            let w1 = _mm512_loadu_si512(at.add(64).cast());
            for m in 0..M {
                let x = x.add(m * cols + chunk * 8);
                even[m] = _mm512_dpbusd_epi32(even[m], w0, broadcast(x));
                if M <= 8 {
                    odd[m] = _mm512_dpbusd_epi32(odd[m], w1, broadcast(x.add(4)));
                } else {
                    even[m] = _mm512_dpbusd_epi32(even[m], w1, broadcast(x.add(4)));
                }
            }
        }
        for m in 0..M {
            even[m] = _mm512_add_epi32(even[m], odd[m]);
        }
        even
    }
}
