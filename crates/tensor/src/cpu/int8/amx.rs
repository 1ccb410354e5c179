//! AMX: sixteen rows of activations against sixteen of weights, 64 inputs an instruction.
//!
//! The packed layout is a tile register's, but for codes of four bits, which become bytes first. A group's
//! integer sums leave their register through memory, where AVX-512 scales and adds them. So groups are a
//! line of three stations, one group each: codes to bytes, the product, scaling. Either unit works on while
//! the other's results are on their way through the first-level cache.

use super::{
    Int8Rows, PackedWeight,
    activations::{BLOCK, PAD as STEP, Side},
    pack::TILE,
    vnni::{SOON, Scales},
};
use crate::cpu::{
    ahead::{Ahead, Far},
    soon::Lines,
    tiles::{Config, Configured},
};
use std::{
    arch::{asm, x86_64::*},
    cell::RefCell,
    mem::MaybeUninit,
    ops::Range,
};

/// From so many rows on, tiles are faster than AVX-512 VNNI, which takes a product a row where a tile takes
/// one in all.
pub(super) const FROM: usize = 8;
/// Groups whose bytes and sums memory holds.
const RING: usize = 4;

thread_local! {
    /// The codes of some groups, a byte each.
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
    let bytes = w.group * TILE;
    CODES.with_borrow_mut(|scratch| {
        scratch.resize(RING * bytes + 63, 0);
        // A line that crosses two lines of the cache loads half as fast.
        let at = scratch.as_ptr().align_offset(64);
        let mut job = Job {
            records: w.tile(tile).as_ptr(),
            record_bytes: w.record_bytes(),
            code_bytes: w.code_bytes(),
            nibbles: w.nibbles,
            codes: scratch[at..][..RING * bytes].as_mut_ptr(),
            bytes,
            rows: x.codes().as_ptr(),
            cols: w.cols,
            group: w.group,
            groups: w.groups(),
            soon: Some(Lines::take(SOON * w.groups())),
        };
        for (block, first) in rows.clone().step_by(BLOCK).enumerate() {
            let out = out[block * BLOCK * TILE..].as_mut_ptr();
            let sides = x.sides(first);
            // SAFETY: the caller's promise, and the shapes were checked.
            unsafe {
                match (rows.end - first).next_multiple_of(STEP) {
                    4 => job.block::<S, 4>(first, sides, out),
                    8 => job.block::<S, 8>(first, sides, out),
                    12 => job.block::<S, 12>(first, sides, out),
                    _ if x.rows - first < BLOCK => job.block::<S, 16>(first, sides, out),
                    _ => job.block::<S, 0>(first, sides, out),
                }
            }
            job.soon = None;
        }
    });
}

/// A tile of weights, and all activations.
struct Job {
    records: *const u8,
    record_bytes: usize,
    code_bytes: usize,
    nibbles: bool,
    /// Groups with a byte a code, as many as [`RING`].
    codes: *mut u8,
    /// Bytes of one.
    bytes: usize,
    rows: *const i8,
    cols: usize,
    group: usize,
    groups: usize,
    /// What is asked for beside the next weights, by the first rows.
    soon: Option<Lines>,
}

/// Sums of sixteen rows.
type Sums = [i32; BLOCK * TILE];

#[repr(C, align(64))]
struct Ring([Sums; RING]);

impl Job {
    /// Rows of activations from `first` on, sixteen (`R` = 0), or the last `R`, with their scales and sums.
    #[inline(always)]
    unsafe fn block<S: Scales, const R: usize>(&self, first: usize, sides: &[Side], out: *mut f32) {
        let mut ring = MaybeUninit::<Ring>::uninit();
        let ring = ring.as_mut_ptr().cast::<Sums>();
        assert_eq!(sides.len(), self.groups, "one for each group");
        // SAFETY: the caller's promise; a group's sums are written before they are read.
        unsafe {
            let mut acc = [_mm512_setzero_ps(); BLOCK];
            for step in 0..self.groups + 2 {
                if step < self.groups {
                    self.ask(step);
                    self.unpack(step);
                }
                if step > 0 && step <= self.groups {
                    self.product::<R>(first, step - 1, ring.add((step - 1) % RING));
                }
                if step > 1 {
                    let (g, sums) = (step - 2, ring.add((step - 2) % RING));
                    self.scaled::<S, R>(g, &sides[g], sums, &mut acc);
                }
            }
            for (i, acc) in acc.iter().enumerate().take(count::<R>()) {
                _mm512_storeu_ps(out.add(i * TILE), *acc);
            }
        }
    }

    /// Asks for what comes later.
    #[inline(always)]
    unsafe fn ask(&self, g: usize) {
        let Some(soon) = self.soon else { return };
        for line in (0..self.record_bytes).step_by(64) {
            Far::ask(self.records.wrapping_add(g * self.record_bytes + line));
        }
        soon.fetch(g, self.groups);
    }

    /// A group's codes, a byte each, if they are not.
    #[inline(always)]
    unsafe fn unpack(&self, g: usize) {
        if !self.nibbles {
            return;
        }
        // SAFETY: a chunk is 64 bytes of the record, and becomes 128 of the ring.
        unsafe {
            let mask = _mm512_set1_epi8(15);
            let (mut from, mut to) =
                (self.records.add(g * self.record_bytes), self.codes.add(g % RING * self.bytes));
            for _ in 0..self.group / 8 {
                let both = _mm512_loadu_si512(from.cast());
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(both), mask);
                _mm512_store_si512(to.cast(), _mm512_and_si512(both, mask));
                _mm512_store_si512(to.add(64).cast(), high);
                (from, to) = (from.add(64), to.add(128));
            }
        }
    }

    /// The integer sums of a group.
    #[inline(always)]
    unsafe fn product<const R: usize>(&self, first: usize, g: usize, sums: *mut Sums) {
        let codes = if self.nibbles {
            self.codes.wrapping_add(g % RING * self.bytes).cast_const()
        } else {
            self.records.wrapping_add(g * self.record_bytes)
        };
        macro_rules! run {
            ($sums:literal, $rows:literal) => {
                asm!(concat!("tilezero ", $sums), options(nostack, nomem));
                for part in (0..self.group).step_by(64) {
                    asm!(
                        concat!("tileloadd ", $rows, ", [{a} + {cols}*1]"),
                        "tileloadd tmm4, [{b} + {line}*1]",
                        concat!("tdpbsud ", $sums, ", ", $rows, ", tmm4"),
                        a = in(reg) self.rows.add(first * self.cols + g * self.group + part),
                        cols = in(reg) self.cols,
                        b = in(reg) codes.add(part * TILE),
                        line = in(reg) 64usize,
                        options(nostack, readonly)
                    );
                }
                asm!(
                    concat!("tilestored [{to} + {line}*1], ", $sums),
                    to = in(reg) sums,
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
        g: usize,
        side: &Side,
        sums: *const Sums,
        acc: &mut [__m512; BLOCK],
    ) {
        // SAFETY: the group's record, and sums that were written and are aligned.
        unsafe {
            let record = self.records.add(g * self.record_bytes + self.code_bytes);
            let (s, b) = (S::load(record), S::load(record.add(S::BYTES)));
            for (i, acc) in acc.iter_mut().enumerate().take(count::<R>()) {
                let dot = _mm512_load_si512(sums.cast::<i32>().add(i * TILE).cast());
                let scale = _mm512_mul_ps(s, _mm512_set1_ps(side.scales[i]));
                *acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, *acc);
                *acc = _mm512_fmadd_ps(b, _mm512_set1_ps(side.sums[i]), *acc);
            }
        }
    }
}

/// Rows of a block: its last ones, or sixteen.
const fn count<const R: usize>() -> usize {
    if R == 0 { BLOCK } else { R }
}
