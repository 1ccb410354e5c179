//! Standard output and standard error, either of which may be closed or full.
//!
//! `println!` panics where it cannot write; clippy refuses it in this crate.

use std::{
    fmt,
    io::{self, Write},
};

/// Standard output cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to standard output: {0}")]
pub(crate) struct OutputError(#[from] io::Error);

impl OutputError {
    /// The reader has gone, as `head` does when it has enough. That is no mistake of anybody's.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// Standard output. `write!` and `writeln!` take it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Out;

impl Out {
    /// What `write!` calls. All of it is written before this returns.
    ///
    /// # Errors
    /// The pipe is closed or the disk is full.
    #[expect(clippy::unused_self, reason = "write! needs a receiver")]
    pub(crate) fn write_fmt(self, text: fmt::Arguments<'_>) -> Result<(), OutputError> {
        let mut out = io::stdout().lock();
        out.write_fmt(text)?;
        Ok(out.flush()?)
    }
}

/// A line on standard error. If even that cannot be written, there is nobody to tell.
pub(crate) fn note_line(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Like `eprintln!`, but never panics.
macro_rules! note {
    ($($text:tt)*) => { $crate::output::note_line(format_args!($($text)*)) };
}
pub(crate) use note;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_told_from_a_full_disk() {
        let of = |kind: io::ErrorKind| OutputError::from(io::Error::from(kind));
        assert!(of(io::ErrorKind::BrokenPipe).is_closed());
        let full = of(io::ErrorKind::StorageFull);
        assert!(!full.is_closed());
        assert!(full.to_string().starts_with("cannot write to standard output: "), "{full}");
    }
}
