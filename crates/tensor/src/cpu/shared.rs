//! One output, written by many tasks in disjoint pieces.

/// A slice whose parts are handed out by the caller's own reckoning.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedOut {
    ptr: *mut f32,
    len: usize,
}

// SAFETY: `write` and `at` leave it to the caller that pieces do not overlap.
unsafe impl Send for SharedOut {}
// SAFETY: as above.
unsafe impl Sync for SharedOut {}

impl SharedOut {
    pub(super) fn new(out: &mut [f32]) -> Self {
        Self { ptr: out.as_mut_ptr(), len: out.len() }
    }

    /// The address of an element.
    pub(super) fn at(self, index: usize) -> *mut f32 {
        debug_assert!(index <= self.len);
        self.ptr.wrapping_add(index)
    }

    /// Copies values to `index..`.
    ///
    /// # Safety
    /// No other task writes there, and the slice outlives the call.
    pub(super) unsafe fn write(self, index: usize, values: &[f32]) {
        assert!(index + values.len() <= self.len, "inside the output");
        // SAFETY: the assertion, and the caller's promise.
        unsafe { self.ptr.add(index).copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    }
}
