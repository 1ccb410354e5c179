//! Reading a file below a root, and nothing else: no link, no pipe, no secret.

use crate::{deny::is_denied, redact::redact};
use std::{
    fs::{File, Metadata},
    io::{self, Read},
    path::Path,
    time::UNIX_EPOCH,
};
use xxhash_rust::xxh3::xxh3_128;

/// Larger files are skipped.
pub const MAX_FILE_BYTES: u64 = 1 << 20;

/// How much of a file is searched for bytes that no text has.
const SNIFFED: usize = 8 << 10;

/// Mean bytes of a line above which a file of some size was made by a program.
const GENERATED_LINE: usize = 300;

/// What a file looked like when it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Nanoseconds since 1970.
    pub(crate) modified: i64,
    pub(crate) bytes: u64,
}

impl Stamp {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        let since = metadata.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
        let modified = since.and_then(|d| i64::try_from(d.as_nanos()).ok()).unwrap_or(0);
        Self { modified, bytes: metadata.len() }
    }
}

/// A redacted text file.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) text: String,
    pub(crate) stamp: Stamp,
    /// Hash of the bytes on disk.
    pub(crate) hash: u128,
    pub(crate) redacted: usize,
}

/// Why a file is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Skip {
    #[error("it may hold secrets")]
    Denied,
    #[error("it is larger than {MAX_FILE_BYTES} bytes")]
    TooLarge,
    #[error("it is not a text")]
    Binary,
    #[error("it is generated")]
    Generated,
    #[error("it is a link, a device or a pipe")]
    Special,
    #[error("it cannot be read")]
    Unreadable,
    #[error("it does not exist")]
    Missing,
}

/// Reads and redacts `relative` below `root`, which is a canonical path.
pub(crate) fn read(root: &Path, relative: &Path) -> Result<Source, Skip> {
    if is_denied(relative) {
        return Err(Skip::Denied);
    }
    let unreadable = |error: io::Error| skip_of(&error);
    let mut file = open(root, relative)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(Skip::Special);
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(Skip::TooLarge);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0) + 1);
    // It may grow while it is read.
    let read = Read::by_ref(&mut file).take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(Skip::TooLarge);
    }
    let (hash, stamp) = (xxh3_128(&bytes), Stamp::of(&metadata));
    let text = text(bytes)?;
    let (clean, redacted) = redact(&text);
    let text = clean.into_owned();
    Ok(Source { text, stamp, hash, redacted })
}

fn skip_of(error: &io::Error) -> Skip {
    match error.kind() {
        io::ErrorKind::NotFound => Skip::Missing,
        _ => Skip::Unreadable,
    }
}

/// Opens a file without following a link anywhere below `root`, and without waiting for the writer of a pipe.
///
/// Each directory is opened in the one before: a path that is checked first could lead elsewhere once it is opened.
#[cfg(unix)]
fn open(root: &Path, relative: &Path) -> Result<File, Skip> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    use rustix::io::Errno;
    use std::path::Component;
    let own = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let skip = |error: Errno| match error {
        // What the systems say of links, of devices without a driver, and of sockets.
        Errno::LOOP | Errno::MLINK | Errno::NOTDIR | Errno::NXIO => Skip::Special,
        error => skip_of(&error.into()),
    };
    let mut at = openat(CWD, root, own | OFlags::DIRECTORY, Mode::empty()).map_err(skip)?;
    let mut parts = relative.components().peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(name) = part else { return Err(Skip::Special) };
        let flags = match parts.peek() {
            Some(_) => own | OFlags::DIRECTORY,
            None => own | OFlags::NONBLOCK,
        };
        at = openat(&at, name, flags, Mode::empty()).map_err(skip)?;
    }
    Ok(File::from(at))
}

/// Opens a file whose path has no link in it.
#[cfg(not(unix))]
fn open(root: &Path, relative: &Path) -> Result<File, Skip> {
    let path = root.join(relative);
    match path.canonicalize() {
        Ok(real) if real == path => File::open(&path).map_err(|error| skip_of(&error)),
        Ok(_) => Err(Skip::Special),
        Err(error) => Err(skip_of(&error)),
    }
}

fn text(bytes: Vec<u8>) -> Result<String, Skip> {
    if bytes.iter().take(SNIFFED).any(|byte| *byte == 0) {
        return Err(Skip::Binary);
    }
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let lossy = String::from_utf8_lossy(error.as_bytes()).into_owned();
            let wrong = lossy.chars().filter(|c| *c == char::REPLACEMENT_CHARACTER).count();
            // Old texts have a few bytes of another encoding.
            if wrong * 20 > lossy.chars().count() {
                return Err(Skip::Binary);
            }
            lossy
        }
    };
    let lines = text.lines().count().max(1);
    if text.len() > 50_000 && text.len() / lines > GENERATED_LINE {
        return Err(Skip::Generated);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn root() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        (dir, path)
    }

    #[test]
    fn only_plain_small_texts_are_read() {
        let (_dir, root) = root();
        let read = |name: &str| read(&root, Path::new(name)).map(|s| s.text);
        fs::write(root.join("a.rs"), "fn a() {}\n").unwrap();
        assert_eq!(read("a.rs").unwrap(), "fn a() {}\n");
        fs::write(root.join("zero"), b"a\0b").unwrap();
        assert_eq!(read("zero"), Err(Skip::Binary));
        fs::write(root.join("noise"), [0xff, 0xfe, 0x80, 0x81, 0x90]).unwrap();
        assert_eq!(read("noise"), Err(Skip::Binary));
        fs::write(root.join("latin"), b"a plain text with one umlaut, \xfc, in it; long enough")
            .unwrap();
        assert!(read("latin").unwrap().contains('\u{fffd}'));
        fs::write(root.join("min.js"), "x".repeat(60_000)).unwrap();
        assert_eq!(read("min.js"), Err(Skip::Generated));
        fs::File::create(root.join("huge")).unwrap().set_len(2 << 30).unwrap();
        assert_eq!(read("huge"), Err(Skip::TooLarge));
        assert_eq!(read("none"), Err(Skip::Missing));
        assert_eq!(read(".env"), Err(Skip::Denied));
        fs::create_dir(root.join("dir")).unwrap();
        assert_eq!(read("dir"), Err(Skip::Special));
    }

    #[cfg(unix)]
    #[test]
    fn links_and_pipes_are_not_followed() {
        use std::os::unix::fs::symlink;
        let (_dir, root) = root();
        let (_other, outside) = self::root();
        fs::write(outside.join("x.txt"), "outside").unwrap();
        symlink(outside.join("x.txt"), root.join("file")).unwrap();
        symlink(&outside, root.join("dir")).unwrap();
        symlink(&root, root.join("loop")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, root.join("pipe"), rustix::fs::Mode::RUSR).unwrap();
        for name in ["file", "dir/x.txt", "loop/loop/file", "../x", "pipe"] {
            let skip = read(&root, Path::new(name)).unwrap_err();
            assert!(matches!(skip, Skip::Special | Skip::Missing), "{name}: {skip:?}");
        }
    }

    /// Somebody who may write below the root swaps a directory with a link while it is read.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_directory_that_becomes_a_link_is_never_followed() {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use std::sync::atomic::{AtomicBool, Ordering};
        let ((_dir, root), (_other, outside)) = (self::root(), self::root());
        fs::create_dir(root.join("d")).unwrap();
        fs::write(root.join("d/notes.txt"), "inside").unwrap();
        fs::write(outside.join("notes.txt"), "outside").unwrap();
        std::os::unix::fs::symlink(&outside, root.join("l")).unwrap();
        let (done, [d, l]) = (AtomicBool::new(false), ["d", "l"].map(|name| root.join(name)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    renameat_with(CWD, &d, CWD, &l, RenameFlags::EXCHANGE).unwrap();
                }
            });
            let read = |_| read(&root, Path::new("d/notes.txt"));
            let found: Vec<_> = (0..5_000).map(read).collect();
            done.store(true, Ordering::Relaxed);
            for found in found {
                assert!(found.as_ref().map_or(true, |s| s.text == "inside"), "{found:?}");
            }
        });
    }
}
