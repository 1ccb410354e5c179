//! How far ahead of products their weights are prefetched. The hardware does not look beyond a
//! page, and a line that comes from memory takes as long as the products of dozens.

use std::{arch::x86_64::*, sync::OnceLock};

/// Whether Intel made the processor: what its cores wait for, and so what helps, differs from AMD's.
pub(super) fn intel() -> bool {
    static INTEL: OnceLock<bool> = OnceLock::new();
    *INTEL.get_or_init(|| made_by([b"Genu", b"ineI", b"ntel"]))
}

/// Whether the processor is AMD's Zen 5 or a later one.
pub(super) fn zen5() -> bool {
    static ZEN5: OnceLock<bool> = OnceLock::new();
    *ZEN5.get_or_init(|| {
        // The family's base, and what is added to it.
        let version = __cpuid(1).eax;
        made_by([b"Auth", b"enti", b"cAMD"]) && (version >> 8 & 15) + (version >> 20 & 255) >= 0x1a
    })
}

fn made_by(name: [&[u8; 4]; 3]) -> bool {
    let vendor = __cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx] == name.map(|part| u32::from_le_bytes(*part))
}

/// A way to prefetch lines of weights that come later. They may lie past the last.
pub(super) trait Ahead {
    /// Whether that helps one row, which waits for memory; several gain by it anyway.
    const ALWAYS: bool;
    /// Lines of what attention reads next that sixteen rows prefetch at each group, beside the nine
    /// of their weights. Intel's and Zen 5 are faster without.
    const SOON: usize = 0;
    /// Prefetches the line that is to come after the one at `line`: a hint, nothing is read.
    fn ask(line: *const u8);
}

/// Not at all.
pub(super) struct Never;
/// Into the first-level cache, a page ahead: AMD's, and Intel's where several runs of weights are read at a
/// time.
pub(super) struct Near;
/// Like [`Near`], and for a single row too: Zen 5, which reads a tenth faster so.
pub(super) struct NearAlways;
/// Into the second-level cache, two pages ahead: Intel's, whose first-level cache waits for no more than
/// sixteen lines at a time.
pub(super) struct Far;

impl Ahead for Never {
    const ALWAYS: bool = false;

    #[inline(always)]
    fn ask(_: *const u8) {}
}

impl Ahead for Near {
    const ALWAYS: bool = false;
    const SOON: usize = 7;

    #[inline(always)]
    fn ask(line: *const u8) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(4096).cast()) }
    }
}

impl Ahead for NearAlways {
    const ALWAYS: bool = true;

    #[inline(always)]
    fn ask(line: *const u8) {
        Near::ask(line);
    }
}

impl Ahead for Far {
    const ALWAYS: bool = true;

    #[inline(always)]
    fn ask(line: *const u8) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.wrapping_add(8192).cast()) }
    }
}
