//! Memory for weights, cut one after the other from maps of many megabytes.
//!
//! The system can back such maps by huge pages: hundreds of faults a gigabyte instead of hundreds of
//! thousands, and a kernel that streams weights crosses few page borders. A matrix with a map of
//! its own would waste most of its last huge page.

use memmap2::{MmapOptions, MmapRaw};
use std::{
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError, Weak},
};

/// Pages of this size are asked for; it is x86-64's and that of aarch64 with small pages of 4 KiB.
const HUGE: usize = 2 << 20;
/// Bytes of a map. What nothing is written to takes no memory.
const SLAB: usize = 256 << 20;

/// A map that lives as long as somebody holds a part of it.
pub(super) struct Slab(MmapRaw);

/// The map that parts are cut from.
struct Current {
    slab: Weak<Slab>,
    /// Offset of what is not given away.
    free: usize,
}

static CURRENT: Mutex<Current> = Mutex::new(Current { slab: Weak::new(), free: 0 });

/// `len` zero bytes at a multiple of `align`, a power of two below a page; none without memory.
pub(super) fn cut(len: usize, align: usize) -> Option<(Arc<Slab>, NonNull<u8>)> {
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let (slab, at) = match current.slab.upgrade() {
        Some(slab) if len <= slab.0.len() - current.free => (slab, current.free),
        _ => Slab::new(len.max(SLAB))?,
    };
    let ptr = NonNull::new(slab.0.as_mut_ptr().wrapping_add(at))?;
    current.free = (at + len).next_multiple_of(align).min(slab.0.len());
    current.slab = Arc::downgrade(&slab);
    Some((slab, ptr))
}

impl Slab {
    /// A map of `len` bytes and more, and where its first huge page begins.
    fn new(len: usize) -> Option<(Arc<Self>, usize)> {
        let len = len.checked_add(HUGE)?;
        let map = MmapRaw::from(MmapOptions::new().len(len).no_reserve_swap().map_anon().ok()?);
        #[cfg(target_os = "linux")]
        // A system without huge pages is slower, nothing else.
        let _ = map.advise(memmap2::Advice::HugePage);
        let first = map.as_mut_ptr().align_offset(HUGE);
        Some((Arc::new(Self(map)), first))
    }
}
