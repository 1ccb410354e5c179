//! Pages of the host's memory, which some GPUs read where it lies.

/// Whole pages around some bytes.
#[derive(Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each backend is a feature")]
pub(crate) struct Pages {
    /// Where they begin.
    pub(crate) start: usize,
    pub(crate) len: usize,
    /// Where in them the bytes begin.
    pub(crate) offset: usize,
}

impl Pages {
    #[allow(dead_code, reason = "each backend is a feature")]
    pub(crate) fn around(bytes: &[u8], page: usize) -> Self {
        let at = bytes.as_ptr() as usize;
        let start = at / page * page;
        let len = (at + bytes.len()).next_multiple_of(page) - start;
        Self { start, len, offset: at - start }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_hold_the_bytes_and_little_else() {
        let memory = vec![0u8; 4 * 4096];
        let first = memory.as_ptr().align_offset(4096);
        let at = |from: usize, n: usize| Pages::around(&memory[first + from..][..n], 4096);
        let start = memory.as_ptr() as usize + first;
        assert_eq!(at(0, 4096), Pages { start, len: 4096, offset: 0 });
        assert_eq!(at(16, 4080), Pages { start, len: 4096, offset: 16 });
        assert_eq!(at(16, 4081), Pages { start, len: 8192, offset: 16 });
        assert_eq!(at(4100, 1), Pages { start: start + 4096, len: 4096, offset: 4 });
    }
}
