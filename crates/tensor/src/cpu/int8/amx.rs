//! AMX: sixteen rows of activations against sixteen of weights, 64 inputs an instruction.
//!
//! The packed layout is a tile register's: four inputs of sixteen rows a line. A group's integer sums
//! leave their register through memory, where AVX-512 scales and adds them; that takes twice as long
//! as the product, so the product of a later group is started before a group's sums are read.

use super::{Int8Rows, PackedWeight, activations::PAD as STEP, pack::TILE, vnni::Scales};
use crate::cpu::tiles::{Config, Configured};
use std::{
    arch::{asm, x86_64::*},
    cell::RefCell,
    ops::Range,
};

/// From so many rows on, tiles are faster than AVX-512 VNNI: what they leave to AVX-512, scaling and
/// adding, runs at half its speed beside them.
pub(super) const FROM: usize = 32;
/// Groups whose products are under way before the first is scaled.
const DELAY: usize = 2;
/// Groups whose sums memory holds.
const RING: usize = 4;

thread_local! {
    /// A tile's codes, a byte each.
    static CODES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Lays out this thread's tile registers for [`tile`] with `x`, until the result is dropped.
///
/// Registers 0 and 1 are sums and activations of sixteen rows, 2 and 3 those of the last, fewer
/// rows; 4 is weights, four inputs a line.
///
/// # Safety
/// [`tiles::int8`](crate::cpu::tiles::int8) holds.
pub(super) unsafe fn configure(x: &Int8Rows) -> Configured {
    let inputs = x.group.min(64);
    let rest = match x.rows % 16 {
        0 => 16,
        rest => rest.next_multiple_of(STEP),
    };
    let config = Config::default()
        .with(0, 16, 64)
        .with(1, 16, inputs)
        .with(2, rest, 64)
        .with(3, rest, inputs)
        .with(4, inputs / 4, 64);
    // SAFETY: the caller's promise.
    unsafe { Configured::new(&config) }
}

/// As [`super::portable::tile`], for at least [`FROM`] rows in all, the first a multiple of 16.
///
/// # Safety
/// [`configure`] with `x` is in force on this thread, and the machine has AVX-512 F, BW and VL.
/// Shapes are those of `w` and `x`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
pub(super) unsafe fn tile<S: Scales>(
    w: &PackedWeight,
    tile: usize,
    x: &Int8Rows,
    rows: Range<usize>,
    out: &mut [f32],
) {
    assert!(rows.start.is_multiple_of(16) && rows.end <= x.rows && x.cols == w.cols);
    assert!(rows.end == x.rows || rows.len().is_multiple_of(16));
    assert!(out.len() >= rows.len().next_multiple_of(STEP) * TILE);
    CODES.with_borrow_mut(|scratch| {
        // SAFETY: the caller's promise; `codes` covers the tile, and the shapes were checked. What
        // lies behind the tile is only prefetched.
        unsafe {
            let (codes, stride) = unpacked(w, tile, scratch);
            let mut job = Job {
                records: w.tile(tile).as_ptr(),
                record_bytes: w.record_bytes(),
                code_bytes: w.code_bytes(),
                codes,
                stride,
                rows: x.codes().as_ptr(),
                scales: x.scales.as_ptr(),
                sums: x.sums.as_ptr(),
                cols: w.cols,
                group: w.group,
                groups: w.groups(),
                ahead: true,
            };
            for (block, first) in rows.clone().step_by(16).enumerate() {
                let out = out.as_mut_ptr().add(block * 16 * TILE);
                match (rows.end - first).next_multiple_of(STEP) {
                    4 => job.block::<S, 4>(first, out),
                    8 => job.block::<S, 8>(first, out),
                    12 => job.block::<S, 12>(first, out),
                    _ if x.rows - first < 16 => job.block::<S, 16>(first, out),
                    _ => job.block::<S, 0>(first, out),
                }
                job.ahead = false;
            }
        }
    });
}

/// The tile's codes with a byte each, and the distance between its groups.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn unpacked(w: &PackedWeight, tile: usize, scratch: &mut Vec<u8>) -> (*const u8, usize) {
    let records = w.tile(tile);
    if !w.nibbles {
        return (records.as_ptr(), w.record_bytes());
    }
    let group_bytes = w.group * TILE;
    scratch.resize(w.groups() * group_bytes + 63, 0);
    let codes = scratch.as_mut_ptr();
    // A line that crosses two lines of the cache loads half as fast.
    let codes = codes.wrapping_add(codes.align_offset(64));
    let mask = _mm512_set1_epi8(15);
    for (g, record) in records.chunks_exact(w.record_bytes()).enumerate() {
        for chunk in 0..w.group / 8 {
            // SAFETY: a chunk is 64 bytes of the record, and becomes 128 of the scratch.
            unsafe {
                let both = _mm512_loadu_si512(record.as_ptr().add(chunk * 64).cast());
                let to = codes.add(g * group_bytes + chunk * 128);
                _mm512_storeu_si512(to.cast(), _mm512_and_si512(both, mask));
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(both), mask);
                _mm512_storeu_si512(to.add(64).cast(), high);
            }
        }
    }
    (codes, group_bytes)
}

/// A tile of weights, and all activations.
struct Job {
    records: *const u8,
    record_bytes: usize,
    code_bytes: usize,
    codes: *const u8,
    /// Bytes between the codes of groups.
    stride: usize,
    rows: *const i8,
    scales: *const f32,
    sums: *const f32,
    cols: usize,
    group: usize,
    groups: usize,
    /// Whether to prefetch the next tile on the way.
    ahead: bool,
}

/// Sums of sixteen rows.
#[repr(C, align(64))]
struct Sums([[i32; 16 * TILE]; RING]);

impl Job {
    /// Rows of activations from `first` on: sixteen (`R` = 0), or the last `R`.
    #[inline(always)]
    unsafe fn block<S: Scales, const R: usize>(&self, first: usize, out: *mut f32) {
        let mut sums = Sums([[0; 16 * TILE]; RING]);
        let groups = self.groups;
        // SAFETY: the caller's promise.
        unsafe {
            let mut acc = [_mm512_setzero_ps(); 16];
            for g in 0..DELAY.min(groups) {
                self.product::<R>(first, g, &mut sums.0[g % RING]);
            }
            for g in 0..groups {
                if g + DELAY < groups {
                    self.product::<R>(first, g + DELAY, &mut sums.0[(g + DELAY) % RING]);
                }
                if self.ahead {
                    self.prefetch(g);
                }
                self.scaled::<S, R>(first, g, &sums.0[g % RING], &mut acc);
            }
            for (i, acc) in acc.iter().enumerate().take(count::<R>()) {
                _mm512_storeu_ps(out.add(i * TILE), *acc);
            }
        }
    }

    /// The integer sums of a group.
    #[inline(always)]
    unsafe fn product<const R: usize>(&self, first: usize, g: usize, sums: &mut [i32; 256]) {
        let (group, cols) = (self.group, self.cols);
        macro_rules! run {
            ($sums:literal, $rows:literal) => {
                asm!(concat!("tilezero ", $sums), options(nostack, nomem));
                for part in (0..group).step_by(64) {
                    asm!(
                        concat!("tileloadd ", $rows, ", [{a} + {cols}*1]"),
                        "tileloadd tmm4, [{b} + {line}*1]",
                        concat!("tdpbsud ", $sums, ", ", $rows, ", tmm4"),
                        a = in(reg) self.rows.add(first * cols + g * group + part),
                        cols = in(reg) cols,
                        b = in(reg) self.codes.add(g * self.stride + part * TILE),
                        line = in(reg) 64usize,
                        options(nostack, readonly)
                    );
                }
                asm!(
                    concat!("tilestored [{to} + {line}*1], ", $sums),
                    to = in(reg) sums.as_mut_ptr(),
                    line = in(reg) 64usize,
                    options(nostack)
                );
            };
        }
        // SAFETY: the registers are configured; each address covers its tile.
        unsafe {
            if R == 0 {
                run!("tmm0", "tmm1");
            } else {
                run!("tmm2", "tmm3");
            }
        }
    }

    /// Adds a group's sums, scaled, as the definition has it.
    #[inline(always)]
    unsafe fn scaled<S: Scales, const R: usize>(
        &self,
        first: usize,
        g: usize,
        sums: &[i32; 256],
        acc: &mut [__m512; 16],
    ) {
        let groups = self.groups;
        // SAFETY: the group's record and the rows' scales, which are padded, lie inside.
        unsafe {
            let record = self.records.add(g * self.record_bytes + self.code_bytes);
            let (s, b) = (S::load(record), S::load(record.add(S::BYTES)));
            let scales = self.scales.add(first * groups + g);
            let totals = self.sums.add(first * groups + g);
            for (i, acc) in acc.iter_mut().enumerate().take(count::<R>()) {
                let t = _mm512_set1_ps(*scales.add(i * groups));
                let total = _mm512_set1_ps(*totals.add(i * groups));
                let dot = _mm512_load_si512(sums.as_ptr().add(i * TILE).cast());
                *acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(s, t), *acc);
                *acc = _mm512_fmadd_ps(b, total, *acc);
            }
        }
    }

    /// Asks for a group of the next tile.
    #[inline(always)]
    unsafe fn prefetch(&self, g: usize) {
        let record = self.records.wrapping_add((self.groups + g) * self.record_bytes);
        for line in (0..self.record_bytes).step_by(64) {
            // SAFETY: a prefetch of any address is harmless.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(record.wrapping_add(line).cast()) };
        }
    }
}

/// Rows of a block: its last ones, or sixteen.
const fn count<const R: usize>() -> usize {
    if R == 0 { 16 } else { R }
}
