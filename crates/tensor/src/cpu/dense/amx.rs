//! The tile registers of AMX. Stable Rust has no intrinsics for them, so the few instructions are
//! written as assembly.

use super::{
    pack::PANEL,
    rounded::{ROWS, TILE},
    tiles::{STEP, Unit},
};
use crate::cpu::tiles::{Config, ahead};
use half::bf16;
use std::arch::asm;

/// The registers of this machine: 0 to 3 sum, 4 and 5 hold activations, 6 and 7 weights.
pub(super) struct Registers;

/// How they are laid out.
pub(super) fn layout() -> Config {
    (0..8).fold(Config::default(), |config, register| config.with(register, 16, 64))
}

impl Unit for Registers {
    unsafe fn sums(x: &[*const bf16], w: *const bf16, chunks: usize, out: *mut f32) {
        // SAFETY: registers are configured, and each address covers its tiles.
        unsafe {
            match *x {
                [first, second, ..] => asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "2:",
                    "tileloadd tmm6, [{w} + {line}*1]",
                    "tileloadd tmm4, [{x0} + {line}*1]",
                    ahead!("{x0} + {tile}"),
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{w} + {line}*1 + {tile}]",
                    ahead!("{w} + {step}"),
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tileloadd tmm5, [{x1} + {line}*1]",
                    ahead!("{x1} + {tile}"),
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    ahead!("{w} + {step} + {tile}"),
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    "add {x0}, {tile}",
                    "add {x1}, {tile}",
                    "add {w}, {step}",
                    "dec {chunks}",
                    "jnz 2b",
                    "tilestored [{to} + {panel}*1], tmm0",
                    "tilestored [{to} + {panel}*1 + 64], tmm1",
                    "tilestored [{to} + {panel}*1 + {below}], tmm2",
                    "tilestored [{to} + {panel}*1 + {below} + 64], tmm3",
                    w = inout(reg) w => _,
                    x0 = inout(reg) first => _,
                    x1 = inout(reg) second => _,
                    chunks = inout(reg) chunks => _,
                    to = in(reg) out,
                    line = in(reg) 64usize,
                    panel = in(reg) 4 * PANEL,
                    tile = const 2 * TILE,
                    step = const 2 * STEP,
                    below = const 4 * ROWS * PANEL,
                    options(nostack)
                ),
                [first] => asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "2:",
                    "tileloadd tmm4, [{x0} + {line}*1]",
                    "tileloadd tmm6, [{w} + {line}*1]",
                    ahead!("{w} + {step}"),
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{w} + {line}*1 + {tile}]",
                    ahead!("{w} + {step} + {tile}"),
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "add {x0}, {tile}",
                    "add {w}, {step}",
                    "dec {chunks}",
                    "jnz 2b",
                    "tilestored [{to} + {panel}*1], tmm0",
                    "tilestored [{to} + {panel}*1 + 64], tmm1",
                    w = inout(reg) w => _,
                    x0 = inout(reg) first => _,
                    chunks = inout(reg) chunks => _,
                    to = in(reg) out,
                    line = in(reg) 64usize,
                    panel = in(reg) 4 * PANEL,
                    tile = const 2 * TILE,
                    step = const 2 * STEP,
                    options(nostack)
                ),
                [] => {}
            }
        }
    }
}
