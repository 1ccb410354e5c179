//! One output, written by many tasks in disjoint parts.

use bytemuck::Pod;
use std::ops::Range;

/// A slice whose parts are handed out by the caller's own reckoning.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedOut<T = f32> {
    ptr: *mut T,
    len: usize,
}

// SAFETY: `write` and `at` leave it to the caller that parts do not overlap.
unsafe impl<T: Send> Send for SharedOut<T> {}
// SAFETY: `write` and `at` leave it to the caller that parts do not overlap.
unsafe impl<T: Send> Sync for SharedOut<T> {}

impl<T: Copy> SharedOut<T> {
    pub(crate) fn new(out: &mut [T]) -> Self {
        Self { ptr: out.as_mut_ptr(), len: out.len() }
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// The address of an element.
    pub(crate) fn at(self, index: usize) -> *mut T {
        debug_assert!(index <= self.len);
        self.ptr.wrapping_add(index)
    }

    /// This memory as elements of another plain type, whose size divides that of `T`.
    pub(crate) fn cast<U: Pod>(self) -> SharedOut<U> {
        const { assert!(align_of::<U>() <= align_of::<T>()) };
        const { assert!(size_of::<T>().is_multiple_of(size_of::<U>())) };
        SharedOut { ptr: self.ptr.cast(), len: self.len * (size_of::<T>() / size_of::<U>()) }
    }

    /// Copies values to `index..`.
    ///
    /// # Safety
    /// No other task writes there, and the memory outlives the call.
    pub(crate) unsafe fn write(self, index: usize, values: &[T]) {
        assert!(index + values.len() <= self.len, "inside the output");
        // SAFETY: the assertion keeps the range inside; no other task writes it, and the memory
        // lives.
        unsafe { self.ptr.add(index).copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    }

    /// As [`Self::write`], of a length known beforehand: a few instructions and no call.
    ///
    /// # Safety
    /// As [`Self::write`].
    #[inline]
    pub(crate) unsafe fn write_array<const N: usize>(self, index: usize, values: &[T; N]) {
        assert!(index + N <= self.len, "inside the output");
        // SAFETY: the assertion keeps the range inside; no other task writes it, and the memory
        // lives.
        unsafe { self.ptr.add(index).cast::<[T; N]>().write(*values) };
    }

    /// Elements `index..index + n`, to write.
    ///
    /// # Safety
    /// They are initialised, no other task uses them, and the memory outlives the slice.
    pub(crate) unsafe fn slice<'a>(self, index: usize, n: usize) -> &'a mut [T] {
        assert!(index + n <= self.len, "inside the output");
        // SAFETY: the assertion keeps the range inside; it is initialised, no other task uses it,
        // and the memory outlives the slice.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(index), n) }
    }
}

/// A buffer that a kernel is going to fill: filling it with zeros first would cost as much as many
/// a kernel.
pub(crate) struct Unwritten<T> {
    buffer: Vec<T>,
    len: usize,
}

impl<T: Copy> Unwritten<T> {
    pub(crate) fn new(len: usize) -> Self {
        Self { buffer: Vec::with_capacity(len), len }
    }

    /// The memory, to write to. Nothing may be read before it was written.
    pub(crate) fn shared(&mut self) -> SharedOut<T> {
        SharedOut { ptr: self.buffer.as_mut_ptr(), len: self.len }
    }

    /// The buffer.
    ///
    /// # Safety
    /// Every element was written.
    pub(crate) unsafe fn written(mut self) -> Vec<T> {
        // SAFETY: the capacity is at least `len`, and every element was written, by this function's
        // contract.
        unsafe { self.buffer.set_len(self.len) };
        self.buffer
    }
}

/// Where a range falls in sections of these lengths, which follow each other: in which, and where in it.
pub(crate) fn sections(
    lens: impl Iterator<Item = usize>,
    range: Range<usize>,
) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut first = 0;
    let own = move |(i, len): (usize, usize)| {
        let end = first + len;
        let own = range.start.clamp(first, end) - first..range.end.clamp(first, end) - first;
        first = end;
        (i, own)
    };
    lens.enumerate().map(own).filter(|(_, own)| !own.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_falls_in_the_sections_that_it_touches() {
        let fall = |range| Vec::from_iter(sections([3, 0, 2, 4].into_iter(), range));
        assert_eq!(fall(0..9), [(0, 0..3), (2, 0..2), (3, 0..4)]);
        assert_eq!(fall(2..4), [(0, 2..3), (2, 0..1)]);
        assert_eq!(fall(5..6), [(3, 0..1)]);
        assert_eq!(fall(3..3), []);
    }
}
