//! The file with flags of `taper serve`: its entries become arguments that stand before the user's own.

use crate::{cli::Cli, hints};
use clap::{
    Arg, ArgAction, ArgMatches, Args, Command, CommandFactory,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};
use std::{
    env,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};
use toml::Value;

/// Commands that take their flags from the file too.
const READERS: [&str; 3] = ["serve", "run", "chat"];
/// The command whose flags the file's keys are.
const KEYS_OF: &str = "serve";
/// Flags that no file can give.
const NO_KEYS: [&str; 3] = ["config", "help", "version"];
const CONFIG: &str = "config";

/// Where the file is.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConfigArg {
    /// File with flags of `taper serve`, one a line, such as: port = 9000 [default:
    /// ~/.config/taper/config.toml, if it is there].
    ///
    /// Flags of the command line win over it. `taper config` shows what is in force.
    #[arg(long, value_name = "FILE", env = "TAPER_CONFIG")]
    pub(crate) config: Option<PathBuf>,
}

/// Why a file of flags cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("{}: {source}; --config and TAPER_CONFIG name a file of flags, and `taper config init` writes one", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{}: line {line}: {reason}", path.display())]
    NotToml { path: PathBuf, line: usize, reason: String },
    #[error("{}: {key:?} is no flag of `taper serve`{near}", path.display())]
    UnknownKey { path: PathBuf, key: String, near: String },
    #[error("{}: {key} = {value}: {reason}", path.display())]
    BadValue { path: PathBuf, key: String, value: String, reason: String },
}

/// An entry of the file, and the arguments that say the same.
#[derive(Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    value: Value,
    arguments: Vec<OsString>,
    secret: bool,
}

impl Entry {
    /// The value as it may be shown: as JSON, of which most is TOML too.
    pub(crate) fn shown(&self) -> String {
        match serde_json::to_string(&self.value) {
            Ok(text) if !self.secret => text,
            _ => "(not shown)".to_owned(),
        }
    }
}

/// A file of flags that was read and is right.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    pub(crate) path: PathBuf,
    pub(crate) entries: Vec<Entry>,
}

/// The arguments of a command with those of the file, and where these came from.
#[derive(Debug)]
pub(crate) struct Merged {
    pub(crate) arguments: Vec<OsString>,
    /// The file, if it gave any.
    pub(crate) from: Option<PathBuf>,
}

/// Puts the file's flags before those of the command line, which win.
///
/// # Errors
/// The file cannot be read, or has a key or a value that is wrong.
pub(crate) fn merged(arguments: Vec<OsString>) -> Result<Merged, ConfigError> {
    // Help, the version and mistakes are the business of the parser that follows.
    let parsed = Cli::command().ignore_errors(true).try_get_matches_from(&arguments);
    let unchanged = |arguments| Merged { arguments, from: None };
    let Ok(matches) = parsed else { return Ok(unchanged(arguments)) };
    let (name, given) = match matches.subcommand() {
        None => (KEYS_OF, &matches),
        Some((name, given)) if READERS.contains(&name) => (name, given),
        Some(_) => return Ok(unchanged(arguments)),
    };
    let named = given.get_one::<PathBuf>(CONFIG).map(PathBuf::as_path);
    let Some(file) = ConfigFile::find(named)? else { return Ok(unchanged(arguments)) };
    let command = flags_of(name);
    let own = file.entries.iter().filter(|entry| applies(&command, given, &entry.key));
    let own: Vec<_> = own.flat_map(|entry| entry.arguments.iter().cloned()).collect();
    let from = (!own.is_empty()).then_some(file.path);
    // The program's name, and that of the command if there is one.
    let start = 1 + usize::from(matches.subcommand().is_some());
    let mut all = arguments;
    all.splice(start..start, own);
    Ok(Merged { arguments: all, from })
}

/// Whether a command has a flag, and the command line and its variables say nothing that excludes it.
fn applies(command: &Command, given: &ArgMatches, key: &str) -> bool {
    let Some(flag) = flag(command, key) else { return false };
    let is_given = |arg: &Arg| {
        let source = given.value_source(arg.get_id().as_str());
        matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
    };
    let excludes = |other: &Arg| {
        let excluded = command.get_arg_conflicts_with(other);
        excluded.iter().any(|arg| arg.get_id() == flag.get_id())
    };
    let rivals = command.get_arg_conflicts_with(flag);
    !is_given(flag)
        && !rivals.into_iter().any(is_given)
        && !command.get_arguments().any(|other| is_given(other) && excludes(other))
}

/// A command with all its flags. Its name is in the program's own words for errors.
pub(crate) fn flags_of(name: &str) -> Command {
    let mut cli = Cli::command();
    cli.build();
    let found = cli.get_subcommands().find(|command| command.get_name() == name);
    found.cloned().unwrap_or_default()
}

fn flag<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    keys(command).find(|arg| arg.get_long() == Some(key))
}

/// The flags that a file may give.
pub(crate) fn keys(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| arg.get_long().is_some_and(|key| !NO_KEYS.contains(&key)))
}

/// Whether a flag takes no value.
pub(crate) fn is_switch(flag: &Arg) -> bool {
    flag.get_num_args().is_some_and(|values| !values.takes_values())
}

/// The variable that gives a flag, if it is set.
pub(crate) fn variable(flag: &Arg) -> Option<String> {
    let name = flag.get_env().filter(|name| env::var_os(name).is_some())?;
    Some(name.to_string_lossy().into_owned())
}

/// Where a file lies that nobody named.
pub(crate) fn default_path() -> Option<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "the place of all programs' files of this kind")]
    let base = env::var("XDG_CONFIG_HOME").ok().map(PathBuf::from);
    // A path that is not absolute is to be ignored, says the XDG specification.
    let base = base.filter(|base| base.is_absolute());
    let base = base.or_else(|| Some(env::home_dir()?.join(".config")))?;
    Some(base.join("taper").join("config.toml"))
}

impl ConfigFile {
    /// The file that was named, which must be there, or the one at the usual place.
    ///
    /// # Errors
    /// It cannot be read, or has a key or a value that is wrong.
    pub(crate) fn find(named: Option<&Path>) -> Result<Option<Self>, ConfigError> {
        let Some(path) = named.map(Path::to_owned).or_else(default_path) else { return Ok(None) };
        match fs::read_to_string(&path) {
            Ok(text) => Self::parse(path, &text).map(Some),
            Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(ConfigError::Unreadable { path, source }),
        }
    }

    /// Reads and checks every entry.
    pub(crate) fn parse(path: PathBuf, text: &str) -> Result<Self, ConfigError> {
        // Editors of one maker write this mark in front of UTF-8.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let table: toml::Table = toml::from_str(text).map_err(|error| {
            // The error itself quotes the line, and with it perhaps a key of the API.
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let (line, reason) = (1 + before.matches('\n').count(), error.message().to_owned());
            ConfigError::NotToml { path: path.clone(), line, reason }
        })?;
        let command = flags_of(KEYS_OF);
        let entries = table.into_iter().map(|(key, value)| {
            let Some(flag) = flag(&command, &key) else {
                let all = keys(&command).filter_map(Arg::get_long).map(str::to_owned);
                let near = hints::nearest(&key, all.map(|name| (name.clone(), name)));
                let near = hints::question(&near);
                return Err(ConfigError::UnknownKey { path: path.clone(), key, near });
            };
            let secret = flag.is_hide_env_values_set();
            let checked = arguments(&command, flag, &value).and_then(|arguments| {
                check(&arguments)?;
                Ok(arguments)
            });
            match checked {
                Ok(arguments) => Ok(Entry { key, value, arguments, secret }),
                Err(reason) => {
                    let entry = Entry { key, value, arguments: Vec::new(), secret };
                    let (path, value) = (path.clone(), entry.shown());
                    Err(ConfigError::BadValue { path, key: entry.key, value, reason })
                }
            }
        });
        let entries = entries.collect::<Result<_, _>>()?;
        Ok(Self { path, entries })
    }
}

/// What an entry is on the command line, or why it is nothing.
fn arguments(command: &Command, flag: &Arg, value: &Value) -> Result<Vec<OsString>, String> {
    let key = flag.get_long().unwrap_or_default();
    if is_switch(flag) {
        return match value {
            Value::Boolean(true) => Ok(vec![format!("--{key}").into()]),
            // What is off by default has no flag that turns it off.
            Value::Boolean(false) => {
                let opposite = match key.strip_prefix("no-") {
                    Some(on) => on.to_owned(),
                    None => format!("no-{key}"),
                };
                let off = self::flag(command, &opposite);
                Ok(off.map(|_| format!("--{opposite}").into()).into_iter().collect())
            }
            _ => Err("must be true or false".to_owned()),
        };
    }
    let values = match value {
        Value::Array(values) if matches!(flag.get_action(), ArgAction::Append) => values.as_slice(),
        Value::Array(_) => return Err("takes one value, not a list".to_owned()),
        one => std::slice::from_ref(one),
    };
    values.iter().map(|value| Ok(format!("--{key}={}", text(value)?).into())).collect()
}

/// A value as the command line has it. Tables are JSON there.
fn text(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Boolean(value) => Ok(value.to_string()),
        Value::Table(table) => serde_json::to_string(table).map_err(|error| error.to_string()),
        Value::Array(_) | Value::Datetime(_) => {
            Err("must be text, a number, true, false or a table".to_owned())
        }
    }
}

/// Whether a flag takes its value. What else it needs is seen when all flags are together.
fn check(arguments: &[OsString]) -> Result<(), String> {
    let start = ["taper", KEYS_OF].map(OsString::from);
    let all = start.iter().chain(arguments);
    let Err(error) = Cli::command().try_get_matches_from(all) else { return Ok(()) };
    if matches!(error.kind(), ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict) {
        return Ok(());
    }
    Err(reason(&error))
}

/// What clap found, without its words around it, in which a secret value may be.
fn reason(error: &clap::Error) -> String {
    if let Some(source) = std::error::Error::source(error) {
        return source.to_string();
    }
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(valid)) if !valid.is_empty() => {
            format!("must be one of {}", valid.join(", "))
        }
        _ => error.kind().to_string(),
    }
}

#[cfg(test)]
mod tests;
