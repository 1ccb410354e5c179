//! Commands of a step: what stands for what, and how many checks passed in what they print.

use anyhow::{Context, Result, anyhow};
use std::{
    fmt,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Checks that passed and failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Counts {
    /// What a line says: "test result: ok. 3 passed; 0 failed" or "3 passed, 0 failed".
    fn of_line(line: &str) -> Option<Self> {
        let before = |word: &str| -> Option<u64> {
            let (text, _) = line.split_once(word)?;
            text.rsplit([' ', ',', ';']).next()?.parse().ok()
        };
        Some(Self { passed: before(" passed")?, failed: before(" failed")? })
    }

    /// A step that counts nothing is itself the one thing that passed.
    pub(crate) fn at_least_one(self) -> Self {
        if self == Self::default() { Self { passed: 1, failed: 0 } } else { self }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// What was counted, and the failure of the command if it failed.
pub(crate) type Done = Result<(Counts, Option<anyhow::Error>)>;

/// Runs commands of one workspace.
#[derive(Debug)]
pub(crate) struct Runner {
    root: PathBuf,
    python: String,
    xtask: PathBuf,
}

impl Runner {
    pub(crate) fn new(root: &Path, python: &Path) -> Result<Self> {
        let xtask = std::env::current_exe().context("where this program is")?;
        // Steps run in directories of their own.
        let python = if python.components().count() > 1 {
            std::path::absolute(python)?
        } else {
            python.to_owned()
        };
        Ok(Self { root: root.to_owned(), python: python.display().to_string(), xtask })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where cargo puts what it builds; this program lies in its directory of debug builds.
    fn target(&self) -> &Path {
        self.xtask.parent().and_then(Path::parent).unwrap_or(&self.root)
    }

    /// The release server.
    pub(crate) fn server(&self) -> PathBuf {
        self.target().join("release").join(format!("taper{}", std::env::consts::EXE_SUFFIX))
    }

    /// Runs a command in a directory, shows what it prints, and counts.
    pub(crate) fn run(&self, dir: &Path, words: &[&str], values: &[(&str, &str)]) -> Done {
        let debug = self.target().join("debug").display().to_string();
        let xtask = self.xtask.display().to_string();
        let own = [("{python}", &*self.python), ("{xtask}", &xtask), ("{debug}", &debug)];
        let all: Vec<_> = own.iter().chain(values).collect();
        let fill = |word: &&str| {
            all.iter().fold((*word).to_owned(), |word, (name, value)| word.replace(name, value))
        };
        let words: Vec<_> = words.iter().map(fill).collect();
        let (program, args) = words.split_first().context("a command has a program")?;
        println!("$ {}", words.join(" "));
        let mut child = Command::new(program)
            .args(args)
            .current_dir(dir)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {program}"))?;
        let mut counts = Counts::default();
        if let Some(stdout) = child.stdout.take() {
            for line in BufReader::new(stdout).split(b'\n') {
                let line = line?;
                let line = String::from_utf8_lossy(&line);
                println!("{line}");
                if let Some(more) = Counts::of_line(&line) {
                    counts.passed += more.passed;
                    counts.failed += more.failed;
                }
            }
        }
        let status = child.wait()?;
        let error = (!status.success()).then(|| anyhow!("{program} ended with {status}"));
        Ok((counts, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_count_are_counted() {
        let counts = |line| Counts::of_line(line).map(|c| (c.passed, c.failed));
        assert_eq!(counts("test result: ok. 12 passed; 3 failed; 0 ignored"), Some((12, 3)));
        assert_eq!(counts("30 passed, 0 failed"), Some((30, 0)));
        assert_eq!(counts("test a_passed_b ... ok"), None);
        assert_eq!(counts("all passed"), None);
    }
}
