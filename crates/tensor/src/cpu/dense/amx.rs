//! The tile registers of AMX. Stable Rust has no intrinsics for them, so the few instructions are
//! written as assembly.

use super::{
    pack::PANEL,
    tiles::{STEP, Sums, TILE, Unit},
};
use half::bf16;
use std::{
    arch::{asm, x86_64::*},
    sync::OnceLock,
};

/// The registers of this machine: 0 to 3 sum, 4 and 5 hold activations, 6 and 7 weights.
pub(super) struct Tiles;

impl Unit for Tiles {
    unsafe fn prepare() {
        /// Palette 1: eight registers of 16 lines of 64 bytes.
        #[repr(C, align(64))]
        struct Config {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            row_bytes: [u16; 16],
            rows: [u8; 16],
        }
        let mut config = Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        config.row_bytes[..8].fill(64);
        config.rows[..8].fill(16);
        // SAFETY: the machine has AMX, and this process the permission.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack)) };
    }

    unsafe fn release() {
        // SAFETY: as above.
        unsafe { asm!("tilerelease", options(nostack)) };
    }

    unsafe fn sums(x: &[*const bf16], w: *const bf16, chunks: usize, out: &mut [Sums; 4]) {
        let to = out.as_mut_ptr();
        // SAFETY: registers are configured; each address covers its tiles, and `to` four.
        unsafe {
            match *x {
                [first, second, ..] => asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "2:",
                    "tileloadd tmm6, [{w} + {panel}*1]",
                    "tileloadd tmm4, [{x0} + {line}*1]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{w} + {panel}*1 + 64]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tileloadd tmm5, [{x1} + {line}*1]",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    "add {x0}, {tile}",
                    "add {x1}, {tile}",
                    "add {w}, {step}",
                    "dec {chunks}",
                    "jnz 2b",
                    "tilestored [{to} + {line}*1], tmm0",
                    "tilestored [{to} + {line}*1 + 1024], tmm1",
                    "tilestored [{to} + {line}*1 + 2048], tmm2",
                    "tilestored [{to} + {line}*1 + 3072], tmm3",
                    w = inout(reg) w => _,
                    x0 = inout(reg) first => _,
                    x1 = inout(reg) second => _,
                    chunks = inout(reg) chunks => _,
                    to = in(reg) to,
                    line = in(reg) 64usize,
                    panel = in(reg) 4 * PANEL,
                    tile = const 2 * TILE,
                    step = const 2 * STEP,
                    options(nostack)
                ),
                [first] => asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "2:",
                    "tileloadd tmm4, [{x0} + {line}*1]",
                    "tileloadd tmm6, [{w} + {panel}*1]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm7, [{w} + {panel}*1 + 64]",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "add {x0}, {tile}",
                    "add {w}, {step}",
                    "dec {chunks}",
                    "jnz 2b",
                    "tilestored [{to} + {line}*1], tmm0",
                    "tilestored [{to} + {line}*1 + 1024], tmm1",
                    w = inout(reg) w => _,
                    x0 = inout(reg) first => _,
                    chunks = inout(reg) chunks => _,
                    to = in(reg) to,
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

/// Whether the processor has AMX with bfloats and the system lets this process use it.
pub(super) fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        // Leaf 7: bit 22 is AMX-BF16, bit 24 AMX-TILE.
        const BF16_AND_TILE: u32 = 1 << 22 | 1 << 24;
        let leaf = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).edx } else { 0 };
        leaf & BF16_AND_TILE == BF16_AND_TILE && permitted()
    })
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
