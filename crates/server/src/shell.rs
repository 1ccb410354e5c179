//! Completions for shells, and manual pages.

use crate::{cli::Cli, output::Out};
use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;
use std::path::Path;

/// Prints what a shell reads to complete commands and flags.
pub(crate) fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "taper", &mut script);
    Ok(write!(Out, "{}", String::from_utf8_lossy(&script))?)
}

/// Writes a page for the program and one for each command.
pub(crate) fn man(dir: &Path) -> Result<()> {
    let written =
        std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(Cli::command(), dir));
    written.with_context(|| format!("cannot write pages to {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let dir = tempfile::tempdir().unwrap();
        man(&dir.path().join("man1")).unwrap();
        for command in Cli::command().get_subcommands() {
            let page = dir.path().join(format!("man1/taper-{}.1", command.get_name()));
            assert!(page.is_file(), "{}", page.display());
        }
    }

    #[test]
    fn shells_complete_flags() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::PowerShell] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "taper", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("kv-cache-dtype"), "{shell}");
        }
    }
}
