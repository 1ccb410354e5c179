//! The committed PTX: compressed files, and a manifest of what is in them that `sha256sum` understands.

use anyhow::{Context, Result, ensure};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use sha2::{Digest, Sha256};
use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
};

const FOLDER: &str = "kernels/ptx";
const MANIFEST: &str = "kernels/ptx/SHA256SUMS";

/// Writes a file's PTX. Equal texts give equal files: the header has no time and no name.
pub(super) fn write(root: &Path, name: &str, text: &str) -> Result<()> {
    let path = root.join(FOLDER).join(format!("{name}.ptx.gz"));
    let writing = || format!("writing {}", path.display());
    let mut file = GzEncoder::new(File::create(&path).with_context(writing)?, Compression::best());
    file.write_all(text.as_bytes()).with_context(writing)?;
    file.finish().with_context(writing)?;
    println!("{} is written", path.display());
    Ok(())
}

/// Writes the hash of every committed text.
pub(super) fn write_manifest(root: &Path) -> Result<()> {
    let path = root.join(MANIFEST);
    fs::write(&path, manifest(root)?).with_context(|| format!("writing {}", path.display()))
}

/// Checks that the committed hashes are those of the committed texts.
pub(super) fn compare_manifest(root: &Path) -> Result<()> {
    let path = root.join(MANIFEST);
    let said = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let stale = "run `cargo xtask kernels --write`";
    ensure!(said == manifest(root)?, "{} is not of the files beside it: {stale}", path.display());
    Ok(())
}

fn manifest(root: &Path) -> Result<String> {
    let folder = root.join(FOLDER);
    let entries = fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    let mut paths = paths.collect::<Result<Vec<PathBuf>>>()?;
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "gz"));
    paths.sort();
    let mut lines = String::new();
    for path in paths {
        let reading = || format!("reading {}", path.display());
        let mut text = Vec::new();
        let file = File::open(&path).with_context(reading)?;
        GzDecoder::new(file).read_to_end(&mut text).with_context(reading)?;
        let name = path.file_stem().unwrap_or_default().display();
        writeln!(lines, "{:x}  {name}", Sha256::digest(&text))?;
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_is_of_the_committed_files() {
        compare_manifest(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))).unwrap();
    }

    #[test]
    fn a_changed_file_shows() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join(FOLDER)).unwrap();
        write(dir.path(), "a", "one").unwrap();
        write_manifest(dir.path()).unwrap();
        compare_manifest(dir.path()).unwrap();
        write(dir.path(), "a", "another").unwrap();
        assert!(compare_manifest(dir.path()).unwrap_err().to_string().contains("--write"));
    }
}
