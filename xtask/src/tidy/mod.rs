//! `cargo xtask tidy`: the rules of `docs/architecture.md` that a machine can check.

mod comments;
mod layers;
pub(crate) mod models;
mod prose;
mod source;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A broken rule, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// From the workspace's root.
    path: String,
    /// Counted from 1.
    line: usize,
    message: String,
    /// Printed, but no reason to fail.
    warning: bool,
}

impl Finding {
    fn error(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into(), warning: false }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.warning { "warning: " } else { "" };
        write!(f, "{}:{}: {kind}{}", self.path, self.line, self.message)
    }
}

pub(crate) fn run(root: &Path) -> Result<()> {
    let files = files(root)?;
    let mut findings = Vec::new();
    for path in &files {
        // What is not text, such as weights, has no lines to check.
        if let Ok(text) = fs::read_to_string(root.join(path)) {
            findings.extend(source::check(path, &text));
            findings.extend(prose::check(path, &text));
        }
    }
    let page = fs::read_to_string(root.join("docs/models.md")).unwrap_or_default();
    findings.extend(models::check(&page));
    let packages = layers::packages(root, &metadata(root)?)?;
    findings.extend(layers::check(&packages));
    findings.extend(present(root, &packages)?);
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    findings.iter().for_each(|finding| println!("{finding}"));
    let errors = findings.iter().filter(|f| !f.warning).count();
    let (files, packages) = (files.len(), packages.len());
    println!(
        "{files} files, {packages} packages: {errors} errors, {} warnings",
        findings.len() - errors
    );
    if errors > 0 {
        bail!("{errors} rules are broken");
    }
    Ok(())
}

/// What Git tracks, or would if it were added.
fn files(root: &Path) -> Result<Vec<String>> {
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let text = output(Command::new("git").current_dir(root).args(list))?;
    let names = text.split('\0').filter(|name| !name.is_empty() && root.join(name).is_file());
    Ok(names.map(str::to_owned).collect())
}

/// What cargo says of the workspace's members.
pub(crate) fn metadata(root: &Path) -> Result<Value> {
    let args = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let text = output(Command::new(env!("CARGO")).current_dir(root).args(args))?;
    serde_json::from_str(&text).context("reading cargo metadata")
}

fn output(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| format!("running {command:?}"))?;
    ensure!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr).trim());
    String::from_utf8(out.stdout).context("its output is not UTF-8")
}

/// Files that must be there.
fn present(root: &Path, packages: &[layers::Package]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let licence = fs::read_to_string(root.join("LICENSE")).unwrap_or_default();
    if !licence.contains("Apache License") {
        findings.push(Finding::error("LICENSE", 1, "the text of the Apache licence is missing"));
    }
    for package in packages {
        let manifest = root.join(&package.manifest);
        let text = fs::read_to_string(&manifest)
            .with_context(|| format!("reading {}", manifest.display()))?;
        let readme = manifest.parent().map(|dir: &Path| -> PathBuf { dir.join("README.md") });
        let has_readme = readme.is_some_and(|path| path.is_file());
        findings.extend(layers::check_manifest(package, &text, has_readme));
    }
    Ok(findings)
}
