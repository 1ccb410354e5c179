//! The tile registers of AMX. Stable Rust has no intrinsics for them, so the few instructions are
//! written as assembly.

use super::{
    beside::Beside,
    coded::{BLOCKS, CODED, Chunk, CodedPanel, avx512},
    pack::{self, OUTPUTS, PANEL, tile_line},
    rounded::{ROWS, TILE},
    tiles::{STEP, Unit},
};
use crate::cpu::tiles::{Config, ahead, apart};
use half::bf16;
use std::arch::asm;

/// Chunks between unpacking and the product, so that no store is waited for.
const LAG: usize = 2;
/// Chunks that memory holds.
const RING: usize = LAG + 1;

/// The registers of this machine: 0 to 3 sum, 4 and 5 hold activations, 6 and 7 weights.
pub(super) struct Registers;

/// How they are laid out.
pub(super) fn layout() -> Config {
    (0..8).fold(Config::default(), |config, register| config.with(register, 16, 64))
}

/// Loads a tile of lines one after the other, and asks for the one so many bytes later.
macro_rules! load {
    ($register:literal, $from:expr, $later:expr) => {
        asm!(
            concat!("tileloadd ", $register, ", [{from} + {line}*1]"),
            ahead!("{from} + {later}"),
            from = in(reg) $from,
            line = in(reg) 64usize,
            later = const $later,
            options(nostack, readonly)
        )
    };
}

/// Adds the product of two tiles.
macro_rules! multiply {
    ($sums:literal, $x:literal, $w:literal) => {
        asm!(concat!("tdpbf16ps ", $sums, ", ", $x, ", ", $w), apart!(), options(nostack, nomem))
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

/// Zeros all sums.
unsafe fn clear() {
    // SAFETY: the caller has laid out the registers.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            options(nostack, nomem)
        );
    }
}

impl Unit for Registers {
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn sums(
        x: &[*const bf16],
        w: *const bf16,
        chunks: usize,
        out: *mut f32,
        beside: &mut impl Beside,
    ) {
        let [first, rest @ ..] = x else { return };
        // SAFETY: registers are configured, and each address covers its tiles.
        unsafe {
            clear();
            for chunk in 0..chunks {
                let (x, w) = (chunk * TILE, w.add(chunk * STEP));
                load!("tmm4", first.add(x), 2 * TILE);
                load!("tmm6", w, 2 * STEP);
                multiply!("tmm0", "tmm4", "tmm6");
                load!("tmm7", w.add(pack::TILE), 2 * STEP);
                multiply!("tmm1", "tmm4", "tmm7");
                beside.next();
                if let [second, ..] = rest {
                    load!("tmm5", second.add(x), 2 * TILE);
                    multiply!("tmm2", "tmm5", "tmm6");
                    multiply!("tmm3", "tmm5", "tmm7");
                }
            }
            store!("tmm0", out);
            store!("tmm1", out.add(OUTPUTS));
            if !rest.is_empty() {
                store!("tmm2", out.add(ROWS * PANEL));
                store!("tmm3", out.add(ROWS * PANEL + OUTPUTS));
            }
        }
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
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn coded(x: &[bf16], w: CodedPanel<'_>, out: &mut [f32]) {
    let chunks = w.chunks();
    assert!(x.len() == chunks * TILE && out.len() >= ROWS * PANEL, "a block of as many inputs");
    let mut ring = [Chunk::ZERO; RING];
    let (table, mut exceptions) = (avx512::table(w), w.exceptions());
    // SAFETY: the caller's promise, and the shapes that were asserted.
    unsafe {
        clear();
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
