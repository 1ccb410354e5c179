//! AMX tile registers: whether there are any, and how they are laid out.
//!
//! Stable Rust has no AMX intrinsics, so the few instructions are written as assembly.

use std::{
    arch::{
        asm,
        x86_64::{__cpuid, __cpuid_count},
    },
    marker::PhantomData,
    sync::OnceLock,
};

/// Prefetches a tile of the next step, of sixteen lines. Loads of tiles wait for the
/// second-level cache one after the other where another thread has half of the core.
macro_rules! ahead {
    ($from:literal) => {
        concat!(
            ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n",
            "prefetcht0 [",
            $from,
            " + \\i*64]\n",
            ".endr"
        )
    };
}
pub(crate) use ahead;

/// Room between two instructions for tiles. Where another thread has half of the core, one that comes right
/// after another takes twice as long; eight other instructions between them are enough, and these are free.
macro_rules! apart {
    () => {
        ".rept 8\nnop\n.endr"
    };
}
pub(crate) use apart;

/// Whether the processor has products of 8-bit integers and the system lets this process use them.
pub(crate) fn int8() -> bool {
    // Leaf 7: bit 24 is AMX-TILE, bit 25 AMX-INT8.
    has(0b11 << 24)
}

/// Whether the processor has products of `bf16` and the system lets this process use them.
pub(crate) fn bf16() -> bool {
    // Bit 22 is AMX-BF16.
    has(1 << 22 | 1 << 24)
}

/// Whether the processor has the features `bits` of leaf 7, and the registers are ours.
fn has(bits: u32) -> bool {
    static FEATURES: OnceLock<u32> = OnceLock::new();
    let features = *FEATURES.get_or_init(|| {
        let known = __cpuid(0).eax >= 7;
        let features = if known { __cpuid_count(7, 0).edx } else { 0 };
        // AMX-TILE, and the system's permission, are what all others need.
        if features >> 24 & 1 == 1 && permitted() { features } else { 0 }
    });
    features & bits == bits
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

/// Palette 1: rows, and bytes a row, of each of the eight registers.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Default for Config {
    fn default() -> Self {
        Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] }
    }
}

impl Config {
    /// Gives a register `rows` rows of `bytes` bytes, at most 16 and 64.
    pub(crate) fn with(mut self, register: usize, rows: usize, bytes: usize) -> Self {
        assert!(register < 8 && (1..=16).contains(&rows) && (1..=64).contains(&bytes), "a tile");
        (self.rows[register], self.row_bytes[register]) = (rows as u8, bytes as u16);
        self
    }
}

/// This thread's tile registers are laid out until this is dropped.
#[derive(Debug)]
pub(crate) struct Configured(PhantomData<*const ()>);

impl Configured {
    /// Lays out the registers of this thread.
    ///
    /// # Safety
    /// A feature test of this module held.
    pub(crate) unsafe fn new(config: &Config) -> Self {
        // SAFETY: a feature test held, so the processor has tile registers and the system lets it
        // use them; the layout is of palette 1.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const *config, options(nostack, readonly)) };
        Self(PhantomData)
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: the instruction that laid them out was there.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
