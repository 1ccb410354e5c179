//! `cargo xtask package`: every library as it would be published, and a program that uses it so.

use crate::tidy;
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What the registry takes at most.
const MOST_BYTES: u64 = 10 << 20;

/// A library that can be published.
struct Library {
    name: String,
    version: String,
}

impl Library {
    fn file(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }
}

pub(crate) fn run(root: &Path) -> Result<()> {
    let metadata = tidy::metadata(root)?;
    let target = metadata["target_directory"].as_str().context("a target directory")?;
    let target = Path::new(target);
    let libraries = libraries(&metadata)?;
    ensure!(!libraries.is_empty(), "no library can be published");
    let mut package = cargo(root);
    package.args(["package", "--no-verify", "--allow-dirty", "--locked"]);
    libraries.iter().for_each(|library| {
        package.args(["-p", &library.name]);
    });
    succeed(&mut package)?;
    let unpacked = target.join("outside");
    if unpacked.exists() {
        fs::remove_dir_all(&unpacked)
            .with_context(|| format!("removing {}", unpacked.display()))?;
    }
    fs::create_dir_all(&unpacked).with_context(|| format!("making {}", unpacked.display()))?;
    for library in &libraries {
        unpack(target, &unpacked, library)?;
    }
    let program = outside(root, &unpacked, &libraries, "outside", &[])?;
    succeed(cargo(&program).args(["run", "--quiet"]).env("CARGO_TARGET_DIR", target))?;
    let all: Vec<_> = libraries.iter().collect();
    let program = outside(root, &unpacked, &libraries, "all", &all)?;
    succeed(cargo(&program).args(["check", "--quiet"]).env("CARGO_TARGET_DIR", target))?;
    println!("{} libraries can be packaged, and compile as packaged", libraries.len());
    Ok(())
}

fn cargo(dir: &Path) -> Command {
    // Not `env!("CARGO")`: without rustup's proxy, a dependency's rust-toolchain file would count.
    let mut command = Command::new("cargo");
    command.current_dir(dir);
    command
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("running {command:?}"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}

/// Members that may be published: `publish` is missing.
fn libraries(metadata: &Value) -> Result<Vec<Library>> {
    let packages = metadata["packages"].as_array().context("cargo metadata lists packages")?;
    let public = packages.iter().filter(|package| package["publish"].is_null());
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let library = |package: &Value| {
        Some(Library { name: text(&package["name"])?, version: text(&package["version"])? })
    };
    public.map(|package| library(package).context("a package's name and version")).collect()
}

/// Unpacks a library's file, which must not be too large for the registry.
fn unpack(target: &Path, to: &Path, library: &Library) -> Result<()> {
    let file = target.join("package").join(format!("{}.crate", library.file()));
    let bytes = fs::metadata(&file).with_context(|| format!("reading {}", file.display()))?.len();
    if bytes > MOST_BYTES {
        bail!("{} has {bytes} bytes, and the registry takes {MOST_BYTES}", library.file());
    }
    println!("{:<28} {:>6} KiB", library.file(), bytes.div_ceil(1024));
    // Files are new as of now: cargo would take those of an earlier package for the same by their times.
    succeed(Command::new("tar").arg("xzmf").arg(&file).arg("-C").arg(to))
}

/// The program of tests/outside beside the unpacked libraries, which it takes instead of the
/// registry's. With
/// `uses` it depends on these instead, and does nothing.
fn outside(
    root: &Path,
    unpacked: &Path,
    libraries: &[Library],
    name: &str,
    uses: &[&Library],
) -> Result<PathBuf> {
    let (from, program) = (root.join("tests/outside"), unpacked.join(format!("program-{name}")));
    fs::create_dir_all(program.join("src"))?;
    let mut manifest = fs::read_to_string(from.join("Cargo.toml"))?;
    if uses.is_empty() {
        fs::copy(from.join("src/main.rs"), program.join("src/main.rs"))?;
    } else {
        fs::write(program.join("src/lib.rs"), "")?;
        for library in uses.iter().filter(|l| l.name != "taper-kv-codecs") {
            writeln!(manifest, "{} = \"{}\"", library.name, library.version)?;
        }
    }
    manifest.push_str("\n[patch.crates-io]\n");
    for library in libraries {
        let path = unpacked.join(library.file());
        writeln!(manifest, "{} = {{ path = {:?} }}", library.name, path.display().to_string())?;
    }
    fs::write(program.join("Cargo.toml"), manifest)?;
    // The versions of the workspace, so that nothing is compiled twice.
    fs::copy(root.join("Cargo.lock"), program.join("Cargo.lock"))?;
    Ok(program)
}
