//! Bytes that kernels read: slices of a mapped file, or memory of our own with the alignment that
//! vector loads like.

mod slab;

use memmap2::{MmapMut, MmapOptions};
use std::{alloc, fmt, ops::Range, ptr::NonNull, sync::Arc};

/// Owner of memory that [`Bytes`] borrows from.
///
/// # Safety
/// GPUs read the memory by its address, without a borrow, for as long as anyone holds the owner. So
/// [`Self::bytes`] always gives the same bytes at the same address, nobody writes them, they live as long
/// as the owner wherever it is moved, and [`Self::release`] leaves them what they are. Where
/// [`Self::is_mapped`] is true, all that it says holds too.
pub unsafe trait ByteOwner: Send + Sync {
    /// The owned bytes.
    fn bytes(&self) -> &[u8];

    /// Whether they are whole pages of a file's map: what lies beside them in their pages is mapped
    /// too, up to the end of the last page, and nobody writes there.
    fn is_mapped(&self) -> bool {
        false
    }

    /// A hint that all of `range` will be read soon.
    fn want(&self, range: Range<usize>) {
        let _ = range;
    }

    /// A hint that `range` will not be read soon; its contents stay what they are.
    fn release(&self, range: Range<usize>) {
        let _ = range;
    }
}

// SAFETY: a shared vector neither moves its bytes nor changes them, and they are in no file's map.
unsafe impl ByteOwner for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: a static slice stays where it is for ever, and is taken for no file's map.
unsafe impl ByteOwner for &'static [u8] {
    fn bytes(&self) -> &[u8] {
        self
    }
}

// SAFETY: its memory stays where it is until it is dropped, and writing takes an exclusive borrow, which
// nobody has of a shared owner; it is no file's map.
unsafe impl ByteOwner for AlignedBytes {
    fn bytes(&self) -> &[u8] {
        self.as_slice()
    }
}

/// Shared, immutable bytes: a window into a file map or into an owned buffer. Cheap to clone.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn ByteOwner>,
    range: Range<usize>,
}

impl Bytes {
    /// The bytes `range` of `owner`, or `None` when it is not inside.
    #[must_use]
    pub fn new(owner: Arc<dyn ByteOwner>, range: Range<usize>) -> Option<Self> {
        let len = owner.bytes().len();
        (range.start <= range.end && range.end <= len).then_some(Self { owner, range })
    }

    /// Takes over a vector.
    #[must_use]
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { owner: Arc::new(bytes), range }
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.owner.bytes()[self.range.clone()]
    }

    /// A window, relative to this one; `None` when it is not inside.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let start = self.range.start.checked_add(range.start)?;
        let end = self.range.start.checked_add(range.end)?;
        (range.start <= range.end && end <= self.range.end)
            .then(|| Self { owner: Arc::clone(&self.owner), range: start..end })
    }

    /// The window over parts that lie one after the other; `None` when they do not.
    #[must_use]
    pub fn joined(parts: &[Self]) -> Option<Self> {
        let (first, last) = (parts.first()?, parts.last()?);
        let follows = |pair: &[Self]| {
            Arc::ptr_eq(&pair[0].owner, &pair[1].owner) && pair[0].range.end == pair[1].range.start
        };
        let range = first.range.start..last.range.end;
        parts.windows(2).all(follows).then(|| Self { owner: Arc::clone(&first.owner), range })
    }

    /// As [`ByteOwner::is_mapped`].
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        self.owner.is_mapped()
    }

    /// Rows of `size` bytes, copied in the order of their numbers; `None` when one is not there.
    #[must_use]
    pub fn take_rows(&self, size: usize, rows: &[usize]) -> Option<Self> {
        let mut copy = AlignedBytes::for_weights(size.checked_mul(rows.len())?);
        if size > 0 {
            for (to, &row) in copy.as_mut_slice().chunks_exact_mut(size).zip(rows) {
                let at = row.checked_mul(size)?;
                to.copy_from_slice(self.as_slice().get(at..at.checked_add(size)?)?);
            }
        }
        Some(copy.into())
    }

    /// Hints that they will all be read soon: the pages of a file map can be read at once.
    pub fn want(&self) {
        self.owner.want(self.range.clone());
    }

    /// Hints that they will not be read soon: the pages of a file map can go.
    pub fn release(&self) {
        self.owner.release(self.range.clone());
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The bytes at an address that is a multiple of `align`: `self` when it already is, else
    /// a copy. File formats align to 8 bytes at best, and some to nothing.
    #[must_use]
    pub fn aligned_to(self, align: usize) -> Self {
        if self.as_slice().as_ptr().align_offset(align) == 0 {
            return self;
        }
        let mut copy = AlignedBytes::zeroed(self.len());
        copy.as_mut_slice().copy_from_slice(self.as_slice());
        copy.into()
    }
}

impl From<AlignedBytes> for Bytes {
    fn from(bytes: AlignedBytes) -> Self {
        let range = 0..bytes.len();
        Self { owner: Arc::new(bytes), range }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bytes").field("len", &self.len()).finish()
    }
}

/// Zeroed memory aligned to a cache line. Untouched pages cost no memory: the system maps them on
/// first write.
pub struct AlignedBytes {
    memory: Memory,
    /// The first byte, at a multiple of [`Self::ALIGN`].
    ptr: NonNull<u8>,
    len: usize,
}

enum Memory {
    /// From the allocator, at this address.
    Heap(NonNull<u8>),
    /// From the system, for large buffers: allocators keep books of every page that they hand out,
    /// which for a cache of gigabytes that is hardly used costs more than the pages that are.
    Map(MmapMut),
    /// A part of a mapping that others have parts of.
    Piece { _slab: Arc<slab::Slab> },
}

impl AlignedBytes {
    const ALIGN: usize = 64;
    /// From this length on, memory comes from the system.
    const MAPPED_FROM: usize = 1 << 20;

    /// Allocates `len` zero bytes.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let Some(layout) = Self::layout(len) else { capacity_overflow(len) };
        if len >= Self::MAPPED_FROM {
            let mapped = MmapOptions::new().len(len).no_reserve_swap().map_anon();
            let Ok(mut map) = mapped else { alloc::handle_alloc_error(layout) };
            // A page is aligned to more than a cache line.
            let Some(ptr) = NonNull::new(map.as_mut_ptr()) else {
                alloc::handle_alloc_error(layout)
            };
            return Self { memory: Memory::Map(map), ptr, len };
        }
        // SAFETY: the layout has a size above zero.
        let raw = unsafe { alloc::alloc_zeroed(layout) };
        let Some(base) = NonNull::new(raw) else { alloc::handle_alloc_error(layout) };
        // SAFETY: the offset is below ALIGN, which the layout has room for.
        let ptr = unsafe { base.add(base.align_offset(Self::ALIGN)) };
        Self { memory: Memory::Heap(base), ptr, len }
    }

    /// Allocates `len` zero bytes of whole pages, which go back to the system when they are dropped, in huge pages
    /// where there are such.
    #[must_use]
    pub fn pages(len: usize) -> Self {
        let Some(layout) = Self::layout(len) else { capacity_overflow(len) };
        let mapped = MmapOptions::new().len(len.max(1)).no_reserve_swap().map_anon();
        let Ok(mut map) = mapped else { alloc::handle_alloc_error(layout) };
        let Some(ptr) = NonNull::new(map.as_mut_ptr()) else { alloc::handle_alloc_error(layout) };
        let pages = Self { memory: Memory::Map(map), ptr, len };
        pages.prefer_huge_pages();
        pages
    }

    /// `len` zero bytes that will all be written and then read many times, as weights are.
    #[must_use]
    pub fn for_weights(len: usize) -> Self {
        let Some(layout) = Self::layout(len) else { capacity_overflow(len) };
        let Some((slab, ptr)) = slab::cut(len, Self::ALIGN) else {
            alloc::handle_alloc_error(layout)
        };
        Self { memory: Memory::Piece { _slab: slab }, ptr, len }
    }

    /// Requests huge pages where nothing was written yet: what is read again and again is read
    /// faster from them, and up to 2 MiB may be taken in vain. Small buffers stay as they are, and
    /// so does everything on a system without huge pages.
    pub fn prefer_huge_pages(&self) {
        if let Memory::Map(map) = &self.memory {
            #[cfg(target_os = "linux")]
            let _ = map.advise(memmap2::Advice::HugePage);
            #[cfg(not(target_os = "linux"))]
            let _ = map;
        }
    }

    /// Gives the memory of these bytes back to the system, as far as they are whole pages of a large
    /// buffer. What they hold afterwards is not said: they are to be written before they are read.
    pub fn discard(&mut self, range: Range<usize>) {
        #[cfg(unix)]
        if let Memory::Map(map) = &self.memory {
            // The largest pages of systems that run here; the map itself begins with a page.
            const PAGE: usize = if cfg!(target_arch = "x86_64") { 4 << 10 } else { 64 << 10 };
            let (start, end) =
                (range.start.next_multiple_of(PAGE), range.end.min(self.len) / PAGE * PAGE);
            if start < end {
                let advice = memmap2::UncheckedAdvice::DontNeed;
                // SAFETY: pages of a private map without a file read as what was there or as zeros
                // afterwards, which are bytes too, and the exclusive borrow says that nobody looks.
                let _ = unsafe { map.unchecked_advise_range(advice, start, end - start) };
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Room for the bytes and for moving their start up to the alignment. Asking the allocator for
    /// the alignment itself would make it write the zeros, and so take the memory at once.
    fn layout(len: usize) -> Option<alloc::Layout> {
        alloc::Layout::from_size_align(len.checked_add(Self::ALIGN)?, 1).ok()
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `ptr` points to `len` initialised bytes that this value owns.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// The bytes, mutable.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `ptr` points to `len` initialised bytes that this value owns, and the borrow is
        // exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cold]
fn capacity_overflow(len: usize) -> ! {
    panic!("an allocation of {len} bytes is larger than the address space");
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // Maps unmap themselves.
        if let (Memory::Heap(base), Some(layout)) = (&self.memory, Self::layout(self.len)) {
            // SAFETY: allocated in `zeroed` with the same layout.
            unsafe { alloc::dealloc(base.as_ptr(), layout) };
        }
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBytes").field("len", &self.len).finish()
    }
}

// SAFETY: the memory is owned and plain; shared access is read-only.
unsafe impl Send for AlignedBytes {}
// SAFETY: the memory is owned and plain; shared access is read-only.
unsafe impl Sync for AlignedBytes {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_stay_inside() {
        let b = Bytes::from_vec((0..10).collect());
        let w = b.slice(2..6).unwrap();
        assert_eq!(w.as_slice(), [2, 3, 4, 5]);
        assert_eq!(w.slice(1..2).unwrap().as_slice(), [3]);
        assert!(w.slice(1..5).is_none());
        let turned = Range { start: 3, end: 2 };
        assert!(w.slice(turned).is_none());
        for wraps in [0..usize::MAX, usize::MAX - 1..usize::MAX, 1..usize::MAX] {
            assert!(w.slice(wraps.clone()).is_none(), "{wraps:?}");
        }
        assert!(Bytes::new(Arc::new(vec![0u8; 3]), 1..4).is_none());
    }

    #[test]
    fn windows_that_follow_each_other_are_joined() {
        let b = Bytes::from_vec((0..10).collect());
        let part = |range| b.slice(range).unwrap();
        let joined = Bytes::joined(&[part(1..3), part(3..4), part(4..9)]).unwrap();
        assert_eq!(joined.as_slice(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(Bytes::joined(&[part(1..3), part(4..5)]).is_none(), "a gap");
        assert!(Bytes::joined(&[part(3..4), part(1..3)]).is_none(), "another order");
        assert!(Bytes::joined(&[part(1..3), Bytes::from_vec(vec![0; 9])]).is_none());
        assert!(Bytes::joined(&[]).is_none());
    }

    #[test]
    fn memory_is_zeroed_aligned_and_writable_at_every_size() {
        for len in [0, 1, 64, 4097, (1 << 20) - 1, 1 << 20, (1 << 20) + 1] {
            let mut b = AlignedBytes::zeroed(len);
            assert_eq!((b.len(), b.as_slice().as_ptr().align_offset(64)), (len, 0));
            assert!(b.as_slice().iter().all(|&x| x == 0));
            b.as_mut_slice()[..len / 2].fill(9);
            b.prefer_huge_pages();
            b.as_mut_slice()[len / 2..].fill(9);
            assert!(b.as_slice().iter().all(|&x| x == 9));
            let pages = AlignedBytes::pages(len);
            assert_eq!((pages.len(), pages.as_slice().as_ptr().align_offset(4096)), (len, 0));
        }
        // Gigabytes of address space, of which one byte is used.
        let mut b = AlignedBytes::zeroed(1 << 34);
        b.as_mut_slice()[1 << 33] = 1;
        assert_eq!(b.as_slice()[1 << 33], 1);
    }

    #[test]
    fn pieces_for_weights_are_zeroed_aligned_and_apart() {
        let lens = [1, 63, 64, 4097, 3 << 20, 300 << 20, 5];
        let mut all = lens.map(AlignedBytes::for_weights);
        for (i, b) in all.iter_mut().enumerate() {
            assert_eq!((b.len(), b.as_slice().as_ptr().align_offset(64)), (lens[i], 0));
            for at in [0, lens[i] - 1] {
                assert!([0, 1 + i as u8].contains(&b.as_slice()[at]), "nobody else has written");
                b.as_mut_slice()[at] = 1 + i as u8;
            }
        }
        for (i, b) in all.iter().enumerate() {
            assert_eq!((b.as_slice()[0], b.as_slice()[lens[i] - 1]), (1 + i as u8, 1 + i as u8));
        }
    }

    #[test]
    fn alignment_copies_only_when_needed() {
        let b = Bytes::from_vec(vec![7; 64]);
        let odd = b.slice(1..33).unwrap();
        let aligned = odd.clone().aligned_to(64);
        assert_eq!(aligned.as_slice(), odd.as_slice());
        assert_eq!(aligned.as_slice().as_ptr().align_offset(64), 0);
        let again = aligned.clone().aligned_to(4);
        assert_eq!(again.as_slice().as_ptr(), aligned.as_slice().as_ptr());
    }
}
