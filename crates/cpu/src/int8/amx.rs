//! AMX: sixteen rows of activations against sixteen of weights, 64 inputs an instruction.
//!
//! The packed layout is a tile register's, but for codes of four bits, which become bytes first. A group's
//! integer sums leave their register through memory, where AVX-512 scales and adds them. So groups are a
//! line of three stations: codes to bytes, the product, scaling, each two groups behind the one before, so
//! that no store is waited for. Their instructions alternate, because a processor that comes to the loads of a
//! tile only after hundreds of others does not work on both.

use super::{
    Int8Rows, PackedWeight,
    pack::TILE,
    tile_rows::{BLOCK, Side, part},
    vnni::Scales,
};
use crate::{
    ahead::{Ahead, Far},
    tiles::{Config, Configured},
};
use std::{
    arch::{asm, x86_64::*},
    mem::MaybeUninit,
    ops::Range,
};

/// From so many rows on, tiles are faster than AVX-512 VNNI, which takes a product a row where a tile takes
/// one in all.
pub(super) const FROM: usize = 8;
/// Groups between two stations.
const LAG: usize = 2;
/// Groups whose bytes and sums memory holds.
const RING: usize = 2 * LAG;
/// Inputs of a group at most.
const GROUP: usize = 128;

/// Lays out this thread's tile registers for [`tiles`] with `x`, until the result is dropped: 0 is sums, 1
/// activations, 2 weights, four inputs a line.
///
/// # Safety
/// [`tiles::int8`](crate::tiles::int8) holds.
pub(super) unsafe fn configure(x: &Int8Rows) -> Configured {
    let (rows, inputs) = (if x.rows <= 8 { 8 } else { BLOCK }, part(x.group));
    let config = Config::default().with(0, rows, 64).with(1, rows, inputs).with(2, inputs / 4, 64);
    // SAFETY: the caller promises that [`tiles::int8`](crate::tiles::int8) holds.
    unsafe { Configured::new(&config) }
}

/// As [`super::portable::tile`] for several tiles, of which each has `each` elements of `out`, and for at
/// least [`FROM`] rows in all, the first a multiple of 16.
///
/// # Safety
/// [`configure`] with `x` is in force on this thread, and the machine has AVX-512 F, BW and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn tiles<S: Scales>(
    w: &PackedWeight,
    tiles: Range<usize>,
    x: &Int8Rows,
    rows: Range<usize>,
    (out, each): (&mut [f32], usize),
) {
    assert!(rows.start.is_multiple_of(BLOCK) && rows.end <= x.rows && tiles.end <= w.tiles());
    assert!(x.cols == w.cols && x.group == w.group && w.group <= GROUP);
    assert!(each >= rows.len() * TILE && out.len() >= tiles.len() * each);
    if tiles.is_empty() {
        return;
    }
    for first in rows.clone().step_by(BLOCK) {
        let (codes, sides) = x.block(first / BLOCK);
        let job = Job {
            records: w.tile(tiles.start).as_ptr(),
            record_bytes: w.record_bytes(),
            code_bytes: w.code_bytes(),
            steps: tiles.len() * w.groups(),
            codes: codes.as_ptr(),
            sides,
            group: w.group,
            asks: first == rows.start,
            rows: BLOCK.min(rows.end - first),
            each,
        };
        let out = out[(first - rows.start) * TILE..].as_mut_ptr();
        // SAFETY: the layout of `x` is in force on this thread and the machine has AVX-512; slices
        // fit the tiles and rows by the assertions above.
        unsafe {
            match (job.rows <= 8, if w.nibbles { w.group } else { 0 }) {
                (true, 0) => job.run::<S, 8, 0>(out),
                (true, 32) => job.run::<S, 8, 1>(out),
                (true, 64) => job.run::<S, 8, 2>(out),
                (true, _) => job.run::<S, 8, 4>(out),
                (false, 0) => job.run::<S, 16, 0>(out),
                (false, 32) => job.run::<S, 16, 1>(out),
                (false, 64) => job.run::<S, 16, 2>(out),
                (false, _) => job.run::<S, 16, 4>(out),
            }
        }
    }
}

/// Tiles of weights, one after the other, and a block of activations.
struct Job<'a> {
    records: *const u8,
    record_bytes: usize,
    code_bytes: usize,
    /// Groups of all tiles.
    steps: usize,
    codes: *const i8,
    /// Scales and sums of each group of activations.
    sides: &'a [Side],
    group: usize,
    /// Whether weights are prefetched, which the first rows do.
    asks: bool,
    /// Rows of the block.
    rows: usize,
    /// Elements of the output from tile to tile.
    each: usize,
}

/// Between the stations.
#[repr(C, align(64))]
struct Ring {
    /// A byte a code.
    codes: [[u8; GROUP * TILE]; RING],
    sums: [[i32; BLOCK * TILE]; RING],
}

/// Where the stations are.
struct Places {
    /// The group of a tile that is multiplied, and the one that is scaled.
    product: usize,
    scaled: usize,
    /// Outputs of the tile that is scaled.
    out: *mut f32,
}

impl Job<'_> {
    /// Everything, for `R` rows, of which the last may be missing; a quarter of a group's codes are
    /// `LINES` lines of two codes a byte, or none of them is.
    #[inline(always)]
    unsafe fn run<S: Scales, const R: usize, const LINES: usize>(&self, out: *mut f32) {
        let mut ring = MaybeUninit::<Ring>::uninit();
        let ring = ring.as_mut_ptr();
        let mut places = Places { product: 0, scaled: 0, out };
        // SAFETY: the job's pointers cover its steps, and the tile registers are laid out. What a
        // station finds before the one before it has begun is never scaled, and past the last group
        // the first two stations work on it again.
        unsafe {
            let mut acc = [_mm512_setzero_ps(); R];
            for step in 0..2 * LAG {
                self.step::<S, R, LINES, false>(step, ring, &mut places, &mut acc);
            }
            for step in 2 * LAG..self.steps + 2 * LAG {
                self.step::<S, R, LINES, true>(step, ring, &mut places, &mut acc);
                if places.scaled == 0 {
                    for (i, acc) in acc.iter_mut().enumerate() {
                        if i < self.rows {
                            _mm512_storeu_ps(places.out.add(i * TILE), *acc);
                        }
                        *acc = _mm512_setzero_ps();
                    }
                    places.out = places.out.wrapping_add(self.each);
                }
            }
        }
    }

    /// A group at each station, the last only where `SCALED`.
    #[inline(always)]
    unsafe fn step<S: Scales, const R: usize, const LINES: usize, const SCALED: bool>(
        &self,
        step: usize,
        ring: *mut Ring,
        places: &mut Places,
        acc: &mut [__m512; R],
    ) {
        let group = if LINES > 0 { LINES * 32 } else { self.group };
        let last = self.steps - 1;
        let multiplied = step.saturating_sub(LAG);
        let record = self.records.wrapping_add(step.min(last) * self.record_bytes);
        // SAFETY: each address is inside what it points to: groups are at most the last, and a slot
        // of the ring holds the largest.
        unsafe {
            let mut unpack =
                Unpack { from: record, to: (&raw mut (*ring).codes[step % RING]).cast() };
            let weights = match LINES > 0 {
                true => (&raw const (*ring).codes[multiplied % RING]).cast(),
                false => self.records.add(multiplied.min(last) * self.record_bytes),
            };
            let x = self.codes.add(places.product * BLOCK * group);
            let sums = &raw mut (*ring).sums[multiplied % RING];
            let scaled = step.saturating_sub(2 * LAG);
            let floats = self.records.add(scaled * self.record_bytes + self.code_bytes);
            let scale = Scale {
                sums: (&raw const (*ring).sums[scaled % RING]).cast(),
                side: self.sides.as_ptr().add(places.scaled),
                weights: (S::load(floats), S::load(floats.add(S::BYTES))),
            };
            macro_rules! quarter {
                ($i:literal) => {
                    if SCALED {
                        scale.add::<R, $i>(acc);
                    }
                    self.ask::<$i>(record);
                    unpack.lines::<LINES>();
                };
            }
            asm!("tilezero tmm0", options(nostack));
            quarter!(0);
            load_rows(x, group);
            quarter!(1);
            load_weights(weights);
            quarter!(2);
            asm!("tdpbsud tmm0, tmm1, tmm2", options(nostack));
            for at in (part(group)..group).step_by(64) {
                load_rows(x.add(at * BLOCK), group);
                load_weights(weights.add(at * TILE));
                asm!("tdpbsud tmm0, tmm1, tmm2", options(nostack));
            }
            quarter!(3);
            asm!("tilestored [{} + {}*1], tmm0", in(reg) sums, in(reg) 64usize, options(nostack));
        }
        let next = |group: usize| if group + 1 == self.sides.len() { 0 } else { group + 1 };
        if step >= LAG {
            places.product = next(places.product);
        }
        if SCALED {
            places.scaled = next(places.scaled);
        }
    }

    /// Prefetches a quarter of what comes later: for every second line, as the processor adds its
    /// neighbour.
    #[inline(always)]
    fn ask<const QUARTER: usize>(&self, record: *const u8) {
        if !self.asks {
            return;
        }
        for line in (128 * QUARTER..self.record_bytes).step_by(4 * 128) {
            Far::ask(record.wrapping_add(line));
        }
    }
}

/// Rows of activations into their register.
#[inline(always)]
unsafe fn load_rows(from: *const i8, group: usize) {
    // SAFETY: sixteen rows of `group` codes are readable, and the registers are laid out.
    unsafe {
        asm!("tileloadd tmm1, [{} + {}*1]", in(reg) from, in(reg) part(group), options(nostack));
    }
}

/// Weights into theirs.
#[inline(always)]
unsafe fn load_weights(from: *const u8) {
    // SAFETY: a tile of weights is readable, and the registers are laid out.
    unsafe { asm!("tileloadd tmm2, [{} + {}*1]", in(reg) from, in(reg) 64usize, options(nostack)) };
}

/// Codes on their way to bytes.
struct Unpack {
    from: *const u8,
    to: *mut u8,
}

impl Unpack {
    /// The next lines.
    #[inline(always)]
    unsafe fn lines<const LINES: usize>(&mut self) {
        for _ in 0..LINES {
            // SAFETY: `from` has 64 bytes to read, and `to` 128 to write, aligned to 64.
            unsafe {
                let mask = _mm512_set1_epi8(15);
                let both = _mm512_loadu_si512(self.from.cast());
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(both), mask);
                _mm512_store_si512(self.to.cast(), _mm512_and_si512(both, mask));
                _mm512_store_si512(self.to.add(64).cast(), high);
                (self.from, self.to) = (self.from.add(64), self.to.add(128));
            }
        }
    }
}

/// A group's sums on their way to the outputs.
struct Scale {
    sums: *const i32,
    side: *const Side,
    /// Scales and biases of the weights.
    weights: (__m512, __m512),
}

impl Scale {
    /// Adds a quarter of the rows, as the definition has it.
    #[inline(always)]
    unsafe fn add<const R: usize, const QUARTER: usize>(&self, acc: &mut [__m512; R]) {
        let (s, b) = self.weights;
        let rows = QUARTER * R / 4..(QUARTER + 1) * R / 4;
        for (i, acc) in rows.clone().zip(&mut acc[rows]) {
            // SAFETY: the sums' scratch holds this quarter of `R` rows, and the caller is compiled for AVX-512.
            unsafe {
                let dot = _mm512_cvtepi32_ps(_mm512_load_si512(self.sums.add(i * TILE).cast()));
                let scale = _mm512_mul_ps(s, _mm512_set1_ps((*self.side).scales[i]));
                *acc = _mm512_fmadd_ps(dot, scale, *acc);
                *acc = _mm512_fmadd_ps(b, _mm512_set1_ps((*self.side).sums[i]), *acc);
            }
        }
    }
}
