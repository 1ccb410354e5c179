//! AMX: sixteen rows of activations against sixteen of weights, 64 inputs an instruction.
//!
//! The packed layout is a tile register's: four inputs of sixteen rows a line. Stable Rust has no AMX
//! intrinsics, so the few instructions are written as assembly.

use super::{Int8Rows, PackedWeight, pack::TILE, vnni::Scales};
use std::{
    arch::{asm, x86_64::*},
    cell::RefCell,
    ops::Range,
};

/// Whether the processor has AMX with integers and the system lets this process use it.
pub(super) fn available() -> bool {
    // Leaf 7: bit 24 is AMX-TILE, bit 25 AMX-INT8.
    let has = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx >> 24 & 3 == 3;
    has && permitted()
}

/// Linux hands out the eight kilobytes of tile state on request only.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILEDATA: i64 = 18;
    let result: i64;
    // SAFETY: a system call that changes no memory; it clobbers rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// Palette 1: rows and bytes a row of each tile register.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Config {
    /// Registers 0 and 1 sum, 2 holds activations, 3 weights; a line of weights is four inputs.
    fn new(inputs: usize) -> Self {
        let mut config =
            Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (tile, bytes, rows) in [(0, 64, 16), (1, 64, 16), (2, inputs, 16), (3, 64, inputs / 4)]
        {
            config.row_bytes[tile] = bytes as u16;
            config.rows[tile] = rows as u8;
        }
        config
    }
}

thread_local! {
    /// A tile's codes, a byte each.
    static CODES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// As [`super::portable::tile`], for a multiple of sixteen rows.
///
/// # Safety
/// [`available`], and the machine has AVX-512 F and BW. Shapes are those of `w` and `x`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,fma")]
pub(super) unsafe fn tile<S: Scales>(
    w: &PackedWeight,
    tile: usize,
    x: &Int8Rows,
    rows: Range<usize>,
    out: &mut [f32],
) {
    assert!(rows.len().is_multiple_of(16) && rows.end <= x.rows && x.cols == w.cols);
    assert!(out.len() >= rows.len() * TILE);
    // A register holds 64 inputs; longer groups take several.
    let inputs = w.group.min(64);
    let config = Config::new(inputs);
    CODES.with_borrow_mut(|scratch| {
        // SAFETY: the caller's promise; `codes` covers the tile, and the shapes were checked.
        unsafe {
            let codes = unpacked(w, tile, scratch);
            asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack));
            for (block, first) in rows.step_by(16).enumerate() {
                let out = out.as_mut_ptr().add(block * 16 * TILE);
                sixteen_rows::<S>(w, tile, codes, x, first, inputs, out);
            }
            asm!("tilerelease", options(nostack));
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
    scratch.resize(w.groups() * group_bytes, 0);
    let mask = _mm512_set1_epi8(15);
    for (g, record) in records.chunks_exact(w.record_bytes()).enumerate() {
        for chunk in 0..w.group / 8 {
            // SAFETY: a chunk is 64 bytes of the record, and becomes 128 of the scratch.
            unsafe {
                let both = _mm512_loadu_si512(record.as_ptr().add(chunk * 64).cast());
                let to = scratch.as_mut_ptr().add(g * group_bytes + chunk * 128);
                _mm512_storeu_si512(to.cast(), _mm512_and_si512(both, mask));
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(both), mask);
                _mm512_storeu_si512(to.add(64).cast(), high);
            }
        }
    }
    (scratch.as_ptr(), group_bytes)
}

/// Sixteen rows of activations, from `first` on, against the tile.
#[target_feature(enable = "avx512f,avx512bw,fma")]
unsafe fn sixteen_rows<S: Scales>(
    w: &PackedWeight,
    tile: usize,
    (codes, stride): (*const u8, usize),
    x: &Int8Rows,
    first: usize,
    inputs: usize,
    out: *mut f32,
) {
    #[repr(C, align(64))]
    struct Sums([i32; 16 * TILE]);
    let mut sums = Sums([0; 16 * TILE]);
    let (groups, group, cols) = (w.groups(), w.group, w.cols);
    let records = w.tile(tile).as_ptr();
    let mut acc = [_mm512_setzero_ps(); 16];
    for g in 0..groups {
        // SAFETY: registers 0, 2 and 3 are configured; each address covers its tile.
        unsafe {
            asm!("tilezero tmm0", options(nostack, nomem));
            for part in (0..group).step_by(inputs) {
                let a = x.codes.as_ptr().add(first * cols + g * group + part);
                let b = codes.add(g * stride + part * TILE);
                asm!(
                    "tileloadd tmm2, [{a} + {cols}*1]",
                    "tileloadd tmm3, [{b} + {line}*1]",
                    "tdpbsud tmm0, tmm2, tmm3",
                    a = in(reg) a,
                    cols = in(reg) cols,
                    b = in(reg) b,
                    line = in(reg) 64usize,
                    options(nostack)
                );
            }
            let to = sums.0.as_mut_ptr();
            asm!(
                "tilestored [{to} + {line}*1], tmm0",
                to = in(reg) to,
                line = in(reg) 64usize,
                options(nostack)
            );
            let record = records.add(g * w.record_bytes() + w.code_bytes());
            let (s, b) = (S::load(record), S::load(record.add(S::BYTES)));
            for (i, acc) in acc.iter_mut().enumerate() {
                let at = (first + i) * groups + g;
                let t = _mm512_set1_ps(*x.scales.as_ptr().add(at));
                let sum = _mm512_set1_ps(*x.sums.as_ptr().add(at));
                let dot = _mm512_cvtepi32_ps(_mm512_load_si512(to.add(i * TILE).cast()));
                *acc = _mm512_fmadd_ps(dot, _mm512_mul_ps(s, t), *acc);
                *acc = _mm512_fmadd_ps(b, sum, *acc);
            }
        }
    }
    for (i, acc) in acc.iter().enumerate() {
        // SAFETY: `out` has room for sixteen rows of the tile.
        unsafe { _mm512_storeu_ps(out.add(i * TILE), *acc) };
    }
}
