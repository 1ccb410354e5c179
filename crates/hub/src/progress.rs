//! Who watches a download.

/// Told of a download's course. Every method does nothing by default; `()` watches nothing.
pub trait Progress {
    /// Before the first file: how many there are and their size in all, parts that are there
    /// already included.
    fn planned(&mut self, files: usize, total_bytes: u64) {
        let _ = (files, total_bytes);
    }

    /// A file begins, of which `present_bytes` are there already: all of them if it is whole. After
    /// a broken connection this comes again for the same file.
    fn started(&mut self, file: &str, size_bytes: u64, present_bytes: u64) {
        let _ = (file, size_bytes, present_bytes);
    }

    /// Bytes of the current file have arrived.
    fn advanced(&mut self, bytes: u64) {
        let _ = bytes;
    }

    /// The current file is whole and in its place.
    fn finished(&mut self, file: &str) {
        let _ = file;
    }

    /// Nobody wants the download any more. It ends with [`HubError::Cancelled`](crate::HubError::Cancelled), and what
    /// has arrived is kept.
    fn is_cancelled(&self) -> bool {
        false
    }
}

impl Progress for () {}
