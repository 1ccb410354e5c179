//! The tile registers of AMX. Stable Rust has no intrinsics for them, so the few instructions are
//! written as assembly.

use super::unit::{Chunk, Sums, Unit};
use crate::tiles::{Config, Configured, ahead, apart};
use std::arch::asm;

/// The registers of this machine: 0 to 3 sum, 4 and 5 hold the left operand, 6 and 7 the right.
pub(super) struct Registers;

/// The loop over chunks, between what the sums begin with and where they go.
macro_rules! product {
    ([$($begin:expr),*], $left:ident, $right:ident, $chunks:ident, $sums:ident) => {
        asm!(
            $($begin,)*
            "2:",
            "tileloadd tmm4, [{left} + {line}*1]",
            ahead!("{left} + {chunk}"),
            "tileloadd tmm6, [{right} + {line}*1]",
            ahead!("{right} + {chunk}"),
            "tdpbf16ps tmm0, tmm4, tmm6",
            apart!(),
            "tileloadd tmm7, [{right} + {line}*1 + 1024]",
            ahead!("{right} + {chunk} + 1024"),
            "tdpbf16ps tmm1, tmm4, tmm7",
            apart!(),
            "tileloadd tmm5, [{left} + {line}*1 + 1024]",
            ahead!("{left} + {chunk} + 1024"),
            "tdpbf16ps tmm2, tmm5, tmm6",
            apart!(),
            "tdpbf16ps tmm3, tmm5, tmm7",
            apart!(),
            "add {left}, {chunk}",
            "add {right}, {chunk}",
            "dec {chunks}",
            "jnz 2b",
            "tilestored [{sums} + {row}*1], tmm0",
            apart!(),
            "tilestored [{sums} + {row}*1 + 64], tmm1",
            apart!(),
            "tilestored [{sums} + {row}*1 + 2048], tmm2",
            apart!(),
            "tilestored [{sums} + {row}*1 + 2112], tmm3",
            left = inout(reg) $left => _,
            right = inout(reg) $right => _,
            chunks = inout(reg) $chunks => _,
            sums = in(reg) $sums,
            line = in(reg) 64usize,
            row = in(reg) 128usize,
            chunk = const size_of::<Chunk>(),
            options(nostack)
        )
    };
}

impl Unit for Registers {
    type Ready = Configured;

    unsafe fn ready() -> Configured {
        let layout =
            (0..8).fold(Config::default(), |config, register| config.with(register, 16, 64));
        // SAFETY: the caller keeps the contract of `Unit::ready`.
        unsafe { Configured::new(&layout) }
    }

    #[inline]
    unsafe fn multiply<const ADD: bool>(
        left: *const Chunk,
        right: *const Chunk,
        chunks: usize,
        sums: *mut Sums,
    ) {
        // SAFETY: registers are laid out, and each address covers its tiles.
        unsafe {
            if ADD {
                product!(
                    [
                        "tileloadd tmm0, [{sums} + {row}*1]",
                        apart!(),
                        "tileloadd tmm1, [{sums} + {row}*1 + 64]",
                        apart!(),
                        "tileloadd tmm2, [{sums} + {row}*1 + 2048]",
                        apart!(),
                        "tileloadd tmm3, [{sums} + {row}*1 + 2112]",
                        apart!()
                    ],
                    left,
                    right,
                    chunks,
                    sums
                );
            } else {
                product!(
                    ["tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3"],
                    left,
                    right,
                    chunks,
                    sums
                );
            }
        }
    }
}
