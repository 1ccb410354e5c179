//! Compresses `dist`, and writes the table of its files.

use flate2::{Compression, write::GzEncoder};
use sha2::{Digest, Sha256};
use std::{
    env, fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

fn main() -> io::Result<()> {
    let out = PathBuf::from(setting("OUT_DIR")?);
    let dist = PathBuf::from(setting("CARGO_MANIFEST_DIR")?).join("dist");
    println!("cargo::rerun-if-changed=dist");
    let mut files = Vec::new();
    collect(&dist, "", &mut files)?;
    files.sort();
    let mut table = String::from("&[\n");
    for (number, path) in files.iter().enumerate() {
        let bytes = fs::read(dist.join(path))?;
        let name = format!("{number}.gz");
        fs::write(out.join(&name), compressed(&bytes)?)?;
        let tag: String =
            Sha256::digest(&bytes).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let kind = kind(path)?;
        table += &format!(
            "Asset {{ path: {:?}, kind: {kind:?}, tag: \"\\\"{tag}\\\"\", \
             gzip: include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{name}\")) }},\n",
            format!("/{path}"),
        );
    }
    fs::write(out.join("assets.rs"), table + "]\n")
}

/// What cargo tells a build script.
#[allow(clippy::disallowed_methods, reason = "that is how cargo speaks to build scripts")]
fn setting(name: &str) -> io::Result<String> {
    env::var(name).map_err(io::Error::other)
}

fn collect(dir: &Path, prefix: &str, files: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_str().ok_or_else(|| io::Error::other("a name is not UTF-8"))?;
        match entry.file_type()?.is_dir() {
            true => collect(&entry.path(), &format!("{prefix}{name}/"), files)?,
            false => files.push(format!("{prefix}{name}")),
        }
    }
    Ok(())
}

fn compressed(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}

fn kind(path: &str) -> io::Result<&'static str> {
    Ok(match path.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("webmanifest") => "application/manifest+json",
        _ => return Err(io::Error::other(format!("{path}: a file of an unknown kind"))),
    })
}
