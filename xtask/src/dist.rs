//! `cargo xtask dist`: a release as people download it.

use crate::tidy;
use anyhow::{Context, Result, bail, ensure};
use flate2::{Compression, write::GzEncoder};
use sha2::{Digest, Sha256};
use std::{
    fs::{self, File},
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
    process::Command,
};

/// Choices of `cargo xtask dist`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// What it is built for, such as aarch64-unknown-linux-gnu [default: this machine].
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
    /// Features of the server, such as cuda.
    #[arg(long, value_name = "NAMES")]
    features: Option<String>,
    /// Where archives go.
    #[arg(long, default_value = "target/dist", value_name = "DIR")]
    out: PathBuf,
    /// A taper that was built already, instead of a release build.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Make a Debian package too; wants dpkg-deb.
    #[arg(long)]
    deb: bool,
    /// A taper that this machine can run, which writes completions and manual pages [default: the one in the archive].
    #[arg(long, value_name = "FILE")]
    runs: Option<PathBuf>,
}

/// Files that are in every archive, and where.
const FILES: [(&str, &str); 4] = [
    ("LICENSE", "LICENSE"),
    ("README.md", "README.md"),
    ("crates/server/packaging/taper.service", "service/taper.service"),
    ("crates/server/packaging/dev.taper.server.plist", "service/dev.taper.server.plist"),
];

/// Completions, and their names.
const SHELLS: [(&str, &str); 4] = [
    ("bash", "completions/taper.bash"),
    ("zsh", "completions/_taper"),
    ("fish", "completions/taper.fish"),
    ("powershell", "completions/taper.ps1"),
];

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let target = match &options.target {
        Some(target) => target.clone(),
        None => host()?,
    };
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => build(root, options)?,
    };
    let name = format!("taper-{}-{target}", env!("CARGO_PKG_VERSION"));
    let stage = tempfile::tempdir()?;
    let program = format!("taper{}", if target.contains("windows") { ".exe" } else { "" });
    copy(&binary, &stage.path().join(program))?;
    for (from, to) in FILES {
        copy(&root.join(from), &stage.path().join(to))?;
    }
    documents(options.runs.as_deref().unwrap_or(&binary), stage.path())?;
    let archive = options.out.join(format!("{name}.tar.gz"));
    fs::create_dir_all(&options.out)?;
    pack(stage.path(), &name, &archive)?;
    let sum = sum(&archive)?;
    fs::write(
        options.out.join(format!("{name}.tar.gz.sha256")),
        format!("{sum}  {name}.tar.gz\n"),
    )?;
    let megabytes = fs::metadata(&archive)?.len() as f64 / 1e6;
    println!("{}: {megabytes:.1} MB, SHA-256 {sum}", archive.display());
    match options.deb {
        true => debian(stage.path(), &target, &options.out),
        false => Ok(()),
    }
}

/// What this machine's compiler builds for.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("running rustc")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc does not say what it builds for")
}

/// Builds a release; its program.
fn build(root: &Path, options: &Options) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args(["build", "--locked", "--release", "--package", "server"]);
    cargo.args(options.target.iter().flat_map(|target| ["--target", target]));
    cargo.args(options.features.iter().flat_map(|features| ["--features", features]));
    ensure!(cargo.status().context("running cargo")?.success(), "the release cannot be built");
    let metadata = tidy::metadata(root)?;
    let dir = PathBuf::from(metadata["target_directory"].as_str().context("a target directory")?);
    let dir = options.target.iter().fold(dir, |dir, target| dir.join(target)).join("release");
    ["taper", "taper.exe"]
        .map(|name| dir.join(name))
        .into_iter()
        .find(|path| path.is_file())
        .with_context(|| format!("{} has no taper", dir.display()))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(dir) = to.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
    Ok(())
}

/// Completions and manual pages.
fn documents(taper: &Path, stage: &Path) -> Result<()> {
    let run = |args: &[&str]| {
        let done = Command::new(taper).args(args).output();
        let done = done.with_context(|| {
            format!("{} does not run here; name one that does with --runs", taper.display())
        })?;
        match done.status.success() {
            true => Ok(done.stdout),
            false => bail!("taper {}: {}", args.join(" "), String::from_utf8_lossy(&done.stderr)),
        }
    };
    fs::create_dir_all(stage.join("completions"))?;
    for (shell, file) in SHELLS {
        fs::write(stage.join(file), run(&["completions", shell])?)?;
    }
    let pages = stage.join("man/man1");
    run(&["man", &pages.display().to_string()]).map(drop)
}

/// Writes a directory into an archive, below one directory of this name.
fn pack(stage: &Path, name: &str, archive: &Path) -> Result<()> {
    let file = BufWriter::new(File::create(archive)?);
    let mut tar = tar::Builder::new(GzEncoder::new(file, Compression::best()));
    tar.mode(tar::HeaderMode::Deterministic);
    tar.append_dir_all(name, stage)?;
    tar.into_inner()?.finish()?.flush()?;
    Ok(())
}

/// Files of a Debian package, and where they are in an archive.
const INSTALLED: [(&str, &str); 7] = [
    ("taper", "usr/bin/taper"),
    ("LICENSE", "usr/share/doc/taper/copyright"),
    ("man/man1", "usr/share/man/man1"),
    ("completions/taper.bash", "usr/share/bash-completion/completions/taper"),
    ("completions/_taper", "usr/share/zsh/vendor-completions/_taper"),
    ("completions/taper.fish", "usr/share/fish/vendor_completions.d/taper.fish"),
    ("service/taper.service", "usr/lib/systemd/system/taper.service"),
];

/// Makes a Debian package of what is in an archive.
fn debian(stage: &Path, target: &str, out: &Path) -> Result<()> {
    let architecture = match target.split('-').next() {
        Some("x86_64") => "amd64",
        Some("aarch64") => "arm64",
        _ => bail!("no Debian package of {target} is made"),
    };
    let package = tempfile::tempdir()?;
    for (from, to) in INSTALLED {
        let (from, to) = (stage.join(from), package.path().join(to));
        if !from.is_dir() {
            copy(&from, &to)?;
            continue;
        }
        for page in fs::read_dir(from)? {
            let page = page?;
            copy(&page.path(), &to.join(page.file_name()))?;
        }
    }
    let version = env!("CARGO_PKG_VERSION");
    let control = format!(
        "Package: taper\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: The Taper developers\n\
         Section: net\nPriority: optional\nDepends: libc6 (>= 2.36), libgcc-s1, libstdc++6\n\
         Description: Serves language models over the OpenAI API\n One program, with a web app and a small model.\n"
    );
    fs::create_dir_all(package.path().join("DEBIAN"))?;
    fs::write(package.path().join("DEBIAN/control"), control)?;
    let file = out.join(format!("taper_{version}_{architecture}.deb"));
    let mut build = Command::new("dpkg-deb");
    build.args(["-Zxz", "-z1", "--root-owner-group", "--build"]).arg(package.path()).arg(&file);
    let done = build.output().context("running dpkg-deb")?;
    ensure!(done.status.success(), "dpkg-deb: {}", String::from_utf8_lossy(&done.stderr));
    println!("{}", file.display());
    Ok(())
}

fn sum(path: &Path) -> Result<String> {
    let mut hash = Sha256::new();
    std::io::copy(&mut File::open(path)?, &mut hash)?;
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
