//! `taper config`: where flags are read from, and which are in force.

use crate::{
    config_file::{ConfigArg, ConfigFile, default_path, flags_of, is_switch, keys, variable},
    output::{Out, note},
};
use anyhow::{Context, Result};
use clap::{Arg, Args, ValueEnum};
use std::{fs, io::Write, path::PathBuf};

#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// What to do [default: print the file's place and its flags].
    action: Option<Action>,
    #[command(flatten)]
    at: ConfigArg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Write a file with every flag, each as a comment. A file that is there is kept.
    Init,
}

pub(crate) fn run(args: &ConfigArgs) -> Result<()> {
    match args.action {
        None => show(args),
        Some(Action::Init) => init(&place(args)?),
    }
}

fn place(args: &ConfigArgs) -> Result<PathBuf> {
    let path = args.at.config.clone().or_else(default_path);
    path.context("there is no home directory; name a file with --config")
}

fn show(args: &ConfigArgs) -> Result<()> {
    let Some(file) = ConfigFile::find(args.at.config.as_deref())? else {
        let path = place(args)?;
        writeln!(Out, "{} is not there; all flags have their defaults", path.display())?;
        note!("write one with: taper config init");
        return Ok(());
    };
    writeln!(Out, "# {}", file.path.display())?;
    let serve = flags_of("serve");
    for entry in &file.entries {
        let flag = keys(&serve).find(|flag| flag.get_long() == Some(&entry.key));
        let instead = flag.and_then(variable).map(|name| format!("  # {name} wins"));
        writeln!(Out, "{} = {}{}", entry.key, entry.shown(), instead.unwrap_or_default())?;
    }
    Ok(())
}

fn init(path: &PathBuf) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(failed)?;
    }
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    // It may come to hold keys of the API.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path).with_context(failed)?;
    file.write_all(example().as_bytes()).with_context(failed)?;
    writeln!(Out, "{}", path.display())?;
    note!("every flag is there as a comment; take the # away before those that you want");
    Ok(())
}

/// A file that changes nothing: every flag of `taper serve` as a comment.
fn example() -> String {
    let mut page = String::from(
        "# Flags of `taper serve`, one a line. Take the # away before those that you want.\n\
         # `taper run` and `taper chat` use those that they have too. Flags of the command line win.\n\
         # `taper config` shows what is in force; docs/cli.md says what each flag does.\n",
    );
    for flag in keys(&flags_of("serve")) {
        let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
        let name = flag.get_long().unwrap_or_default();
        page += &format!("\n# {}\n#{name} = {}\n", help.replace('\n', " "), default_of(flag));
    }
    page
}

/// A flag's default as a value of TOML, or what is to be put there.
fn default_of(flag: &Arg) -> String {
    if is_switch(flag) {
        return "true".to_owned();
    }
    let text = match flag.get_default_values() {
        [value] => value.to_string_lossy().into_owned(),
        _ => flag
            .get_value_names()
            .and_then(|names| names.first())
            .map_or_else(String::new, |name| name.to_string()),
    };
    let is_plain = text.parse::<i64>().is_ok() || text.parse::<bool>().is_ok();
    let is_real = text.contains('.') && text.parse::<f64>().is_ok_and(f64::is_finite);
    if is_plain || is_real { text } else { serde_json::Value::String(text).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_changes_nothing_and_its_defaults_are_right() {
        let page = example();
        let empty = ConfigFile::parse("example".into(), &page).unwrap();
        assert!(empty.entries.is_empty());
        for flag in keys(&flags_of("serve")) {
            let line = format!("{} = {}", flag.get_long().unwrap(), default_of(flag));
            assert!(page.contains(&format!("\n#{line}\n")), "{line}");
            let is_default = !flag.get_default_values().is_empty();
            if is_default || is_switch(flag) {
                ConfigFile::parse("example".into(), &line).unwrap();
            }
        }
    }

    #[test]
    fn a_file_that_is_there_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("taper/config.toml");
        init(&path).unwrap();
        fs::write(&path, "port = 1").unwrap();
        assert!(init(&path).unwrap_err().to_string().contains("config.toml"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "port = 1");
    }
}
