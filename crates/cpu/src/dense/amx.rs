//! The tile registers of AMX. Stable Rust has no intrinsics for them, so the few instructions are
//! written as assembly.

use super::{
    beside::Beside,
    coded::{BLOCKS, CODED, Chunk, CodedPanel, avx512},
    pack::{self, OUTPUTS, PANEL, tile_line},
    rounded::{ROWS, TILE},
    tiles::{STEP, TOGETHER, Unit},
};
use crate::tiles::{Config, apart};
use half::bf16;
use std::arch::asm;

/// Chunks between unpacking and the product, so that no store is waited for.
const LAG: usize = 2;
/// Chunks that memory holds.
const RING: usize = LAG + 1;

/// The registers of this machine: 0 to 5 sum, 6 holds weights, 7 activations.
pub(super) struct Registers;

/// How they are laid out.
pub(super) fn layout() -> Config {
    (0..8).fold(Config::default(), |config, register| config.with(register, 16, 64))
}

/// Loads a tile, with so many bytes from line to line.
macro_rules! load {
    ($register:literal, $from:expr, $line:expr) => {
        load!("tileloadd ", $register, $from, $line)
    };
    ($load:literal, $register:literal, $from:expr, $line:expr) => {
        asm!(
            concat!($load, $register, ", [{from} + {line}*1]"),
            from = in(reg) $from,
            line = in(reg) $line as usize,
            options(nostack, readonly)
        )
    };
}

/// Loads a tile of weights. They come by once, and leave the first-level cache to activations.
macro_rules! stream {
    ($register:literal, $from:expr) => {
        load!("tileloaddt1 ", $register, $from, 64)
    };
}

/// Adds the product of two tiles.
macro_rules! multiply {
    ($sums:literal, $x:literal, $w:literal) => {
        asm!(concat!("tdpbf16ps ", $sums, ", ", $x, ", ", $w), apart!(), options(nostack, nomem))
    };
}

/// Zeros sums, which go to rows of a panel.
macro_rules! clear {
    ($register:literal, $to:expr) => {
        asm!(concat!("tilezero ", $register), options(nostack, nomem))
    };
}

/// Loads sums from rows of a panel.
macro_rules! resume {
    ($register:literal, $from:expr) => {
        load!($register, $from, 4 * PANEL)
    };
}

/// Stores sums to rows of a panel.
macro_rules! store {
    ($register:literal, $to:expr) => {
        asm!(
            concat!("tilestored [{to} + {row}*1], ", $register),
            apart!(),
            to = in(reg) $to,
            row = in(reg) 4 * PANEL,
            options(nostack)
        )
    };
}

impl Unit for Registers {
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    unsafe fn sums(
        x: &[*const bf16],
        w: *const bf16,
        chunks: usize,
        (out, more): (*mut f32, bool),
        beside: &mut impl Beside,
    ) {
        // SAFETY: the caller keeps the contract of `Unit::sums`.
        unsafe {
            match *x {
                [a] => sums([a], w, chunks, (out, more), beside),
                [a, b] => sums([a, b], w, chunks, (out, more), beside),
                [a, b, c, ..] => sums([a, b, c], w, chunks, (out, more), beside),
                [] => {}
            }
        }
    }
}

/// [`Unit::sums`] of so many blocks. Tiles of weights are loaded once, and those of activations twice,
/// the second time from the first-level cache, so that there are registers for six sums.
#[inline(always)]
unsafe fn sums<const BLOCKS: usize>(
    x: [*const bf16; BLOCKS],
    w: *const bf16,
    chunks: usize,
    (out, more): (*mut f32, bool),
    beside: &mut impl Beside,
) {
    const { assert!(BLOCKS > 0 && BLOCKS <= TOGETHER) };
    macro_rules! all_sums {
        ($each:ident) => {
            $each!("tmm0", out);
            $each!("tmm1", out.add(OUTPUTS));
            if BLOCKS > 1 {
                $each!("tmm2", out.add(ROWS * PANEL));
                $each!("tmm3", out.add(ROWS * PANEL + OUTPUTS));
            }
            if BLOCKS > 2 {
                $each!("tmm4", out.add(2 * ROWS * PANEL));
                $each!("tmm5", out.add(2 * ROWS * PANEL + OUTPUTS));
            }
        };
    }
    // SAFETY: registers are configured, and each address covers its tiles.
    unsafe {
        if more {
            all_sums!(resume);
        } else {
            all_sums!(clear);
        }
        for chunk in 0..chunks {
            let (x, w) = (x.map(|x| x.add(chunk * TILE)), w.add(chunk * STEP));
            stream!("tmm6", w);
            load!("tmm7", x[0], 64);
            multiply!("tmm0", "tmm7", "tmm6");
            if BLOCKS > 1 {
                load!("tmm7", x[1], 64);
                multiply!("tmm2", "tmm7", "tmm6");
            }
            if BLOCKS > 2 {
                load!("tmm7", x[2], 64);
                multiply!("tmm4", "tmm7", "tmm6");
            }
            beside.next();
            stream!("tmm6", w.add(pack::TILE));
            if BLOCKS > 2 {
                multiply!("tmm5", "tmm7", "tmm6");
                load!("tmm7", x[1], 64);
            }
            if BLOCKS > 1 {
                multiply!("tmm3", "tmm7", "tmm6");
                load!("tmm7", x[0], 64);
            }
            multiply!("tmm1", "tmm7", "tmm6");
        }
        all_sums!(store);
    }
}

/// The products of a block of rows with a coded panel; rows of `out` are a panel long. Bits are those of
/// [`tiles::panel`](super::tiles::panel).
///
/// Weights come from memory as fast as it gives them: chunks are unpacked while tiles of the ones before
/// are multiplied, and never leave the first-level cache.
///
/// # Safety
/// Registers are laid out, and the machine has AVX-512 F and BW.
///
/// # Panics
/// When the panel has another number of inputs, or `out` is too short.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn coded(x: &[bf16], w: CodedPanel<'_>, out: &mut [f32]) {
    let chunks = w.chunks();
    assert!(x.len() == chunks * TILE && out.len() >= ROWS * PANEL, "a block of as many inputs");
    let mut ring = [Chunk::ZERO; RING];
    let (table, mut exceptions) = (avx512::table(w), w.exceptions());
    // SAFETY: tile registers are laid out and the machine has AVX-512 F and BW, by this function's
    // contract; the assertion gives the shapes.
    unsafe {
        asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack));
        for step in 0..chunks + LAG {
            let (blocks, to) = (step.min(chunks - 1), step % RING);
            let blocks = w.blocks().as_ptr().add(blocks * BLOCKS * CODED);
            let to = (&raw mut ring[to]).cast::<u16>();
            let multiplied = step.wrapping_sub(LAG);
            let weights = (&raw const ring[(step + RING - LAG) % RING]).cast::<bf16>();
            macro_rules! tile {
                ($i:literal, $sums:literal, $weights:literal) => {
                    if multiplied < chunks {
                        asm!(
                            concat!("tileloadd ", $weights, ", [{} + {}*1]"),
                            in(reg) weights.add($i * pack::TILE),
                            in(reg) 64usize,
                            options(nostack)
                        );
                    }
                    for pair in $i * BLOCKS / 4..($i + 1) * BLOCKS / 4 {
                        avx512::unpack(blocks.add(pair * CODED), table, to.add(tile_line(pair, 0)));
                    }
                    if multiplied < chunks {
                        asm!(concat!("tdpbf16ps ", $sums, ", tmm4, ", $weights), options(nostack));
                    }
                };
            }
            if multiplied < chunks {
                asm!(
                    "tileloadd tmm4, [{} + {}*1]",
                    in(reg) x.as_ptr().add(multiplied * TILE),
                    in(reg) 64usize,
                    options(nostack)
                );
            }
            tile!(0, "tmm0", "tmm5");
            tile!(1, "tmm1", "tmm6");
            tile!(2, "tmm2", "tmm5");
            tile!(3, "tmm3", "tmm6");
            while let [first, rest @ ..] = exceptions
                && first.chunk() == step
            {
                ring[step % RING].correct(*first);
                exceptions = rest;
            }
        }
        asm!(
            "tilestored [{to} + {panel}*1], tmm0",
            "tilestored [{to} + {panel}*1 + 64], tmm1",
            "tilestored [{to} + {panel}*1 + 128], tmm2",
            "tilestored [{to} + {panel}*1 + 192], tmm3",
            to = in(reg) out.as_mut_ptr(),
            panel = in(reg) 4 * PANEL,
            options(nostack)
        );
    }
}
