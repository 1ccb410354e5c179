//! `cargo xtask metallib`: the kernels compiled ahead of time by Apple's compiler, on a Mac.

use clap::Args;
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};
use taper_kernels::{SOURCES, stamp};

/// The oldest macOS that may read a metallib; else it is the newest that the compiler knows.
const OLDEST: &str = "14.0";

/// Choices of `cargo xtask metallib`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The file to write.
    #[arg(long, default_value = "taper.metallib", value_name = "FILE")]
    out: PathBuf,
    /// Apple's launcher of compilers.
    #[arg(long, default_value = "xcrun", value_name = "PROGRAM")]
    xcrun: PathBuf,
}

/// Why there is no metallib.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MetallibError {
    /// Not a Mac, or one without Apple's tools.
    #[error(
        "{} cannot be run ({source}): metallibs are made on a Mac with Xcode (and, from Xcode 26 on, `xcodebuild -downloadComponent MetalToolchain`); without one Metal compiles the kernels when they are first used",
        program.display()
    )]
    NoXcrun { program: PathBuf, source: io::Error },
    /// A compiler refused, or is missing.
    #[error("{what}: {message}")]
    Compiler { what: String, message: String },
    /// A file cannot be written.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
}

pub(crate) fn run(options: &Options) -> Result<(), MetallibError> {
    let work = tempfile::tempdir()
        .map_err(|source| MetallibError::File { path: std::env::temp_dir(), source })?;
    let stamp =
        ("stamp".to_owned(), format!("#include <metal_stdlib>\nkernel void {}() {{}}\n", stamp()));
    let sources = SOURCES.iter().filter(|s| s.is_for_metal());
    let sources = sources.map(|s| (s.name.to_owned(), s.metal())).chain([stamp]);
    let mut objects = Vec::new();
    for (name, text) in sources {
        let source = work.path().join(format!("{name}.metal"));
        let object = work.path().join(format!("{name}.air"));
        fs::write(&source, text)
            .map_err(|error| MetallibError::File { path: source.clone(), source: error })?;
        // As the backend has Metal compile them.
        let args = ["-sdk", "macosx", "metal", "-std=metal3.1", "-fno-fast-math", "-c"];
        let mut command = Command::new(&options.xcrun);
        command.args(args).arg(&source).arg("-o").arg(&object);
        command.arg(format!("-mmacosx-version-min={OLDEST}"));
        finish(command, &options.xcrun, &name)?;
        objects.push(object);
    }
    let mut command = Command::new(&options.xcrun);
    // It is not known whether the linker takes the compiler's flag.
    command.env("MACOSX_DEPLOYMENT_TARGET", OLDEST);
    command.args(["-sdk", "macosx", "metallib"]).args(&objects).arg("-o").arg(&options.out);
    finish(command, &options.xcrun, "linking")?;
    fs::metadata(&options.out)
        .map_err(|source| MetallibError::File { path: options.out.clone(), source })?;
    println!("{} is written; use it with --metallib", options.out.display());
    Ok(())
}

fn finish(mut command: Command, program: &Path, what: &str) -> Result<(), MetallibError> {
    let output = command
        .output()
        .map_err(|source| MetallibError::NoXcrun { program: program.to_owned(), source })?;
    if output.status.success() {
        return Ok(());
    }
    let mut message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if message.is_empty() {
        message = output.status.to_string();
    }
    Err(MetallibError::Compiler { what: what.to_owned(), message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_apples_tools_it_says_what_is_missing() {
        let options = Options { out: "x.metallib".into(), xcrun: "no-such-xcrun".into() };
        let error = run(&options).unwrap_err();
        assert!(matches!(error, MetallibError::NoXcrun { .. }));
        assert!(error.to_string().contains("on a Mac with Xcode"), "{error}");
    }

    /// A stand-in for xcrun writes down how it was called.
    #[cfg(unix)]
    #[test]
    fn every_family_is_compiled_and_all_are_linked() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let (xcrun, out) = (dir.path().join("xcrun"), dir.path().join("all.metallib"));
        let script = "#!/bin/sh\necho \"$@\" >> \"$(dirname \"$0\")/calls\"\n\
            case \"$*\" in *-fno-fast-math*) grep -q 'kernel void' \"$7\" || exit 1;; esac\n\
            for last; do :; done; case \"$*\" in *\" metallib \"*) touch \"$last\";; esac\n";
        fs::write(&xcrun, script).unwrap();
        fs::set_permissions(&xcrun, fs::Permissions::from_mode(0o755)).unwrap();
        run(&Options { out: out.clone(), xcrun: xcrun.clone() }).unwrap();
        let calls = fs::read_to_string(dir.path().join("calls")).unwrap();
        let calls: Vec<_> = calls.lines().collect();
        let families = SOURCES.iter().filter(|s| s.is_for_metal()).count();
        assert_eq!(calls.len(), families + 2, "{calls:#?}");
        assert!(calls[0].ends_with("-mmacosx-version-min=14.0"), "{}", calls[0]);
        let last = calls[calls.len() - 1];
        assert!(last.starts_with("-sdk macosx metallib") && last.contains("stamp.air"), "{last}");
        assert!(last.ends_with(&format!("-o {}", out.display())), "{last}");
        fs::write(&xcrun, "#!/bin/sh\necho no metal >&2\nexit 72\n").unwrap();
        let error = run(&Options { out, xcrun }).unwrap_err();
        let first = SOURCES.iter().find(|s| s.is_for_metal()).map_or("", |s| s.name);
        assert_eq!(error.to_string(), format!("{first}: no metal"));
    }
}
