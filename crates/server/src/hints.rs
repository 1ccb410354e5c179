//! What a user probably meant.

use crate::{advice, cli::Cli};
use clap::{CommandFactory, error::ErrorKind};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};
use taper_hub::{CacheDir, HubError, catalogue};

/// Names less alike than this are not proposed.
const ALIKE: f64 = 0.8;
/// Most proposals.
const PROPOSALS: usize = 3;

/// A first word that can be neither a command nor a model.
pub(crate) fn unknown_command(args: &[OsString]) -> Option<clap::Error> {
    let word = args.get(1)?.to_str()?;
    // Names on the hub have a slash, and anything that is there is for the model's loader to judge.
    if word.is_empty() || word.starts_with('-') || word.contains(['/', '\\']) {
        return None;
    }
    let mut cli = Cli::command();
    cli.build();
    let names: Vec<String> = cli
        .get_subcommands()
        .flat_map(|c| c.get_name_and_visible_aliases().into_iter().map(str::to_owned))
        .collect();
    if names.iter().any(|n| n == word) || Path::new(word).exists() {
        return None;
    }
    let near = nearest(word, names.into_iter().map(|n| (n.clone(), format!("taper {n}"))));
    let text = format!("{word:?} is neither a command nor a model directory{}", question(&near));
    Some(cli.error(ErrorKind::InvalidSubcommand, text))
}

/// The error of a model that was not found, with names like it.
pub(crate) fn missing_model(error: HubError, name: &str, cache: &CacheDir) -> anyhow::Error {
    use HubError::{BadName, NoDirectory, NotCached};
    if !matches!(error, BadName { .. } | NoDirectory { .. } | NotCached { .. }) {
        return error.into();
    }
    let mut near = nearest(last(name), directories(name));
    near.extend(nearest(name, downloaded(cache).into_iter().map(|n| (n.clone(), n))));
    near.extend(nearest(name, downloaded(cache).into_iter().map(|n| (last(&n).to_owned(), n))));
    near.dedup();
    near.truncate(PROPOSALS);
    if near.is_empty() {
        return error.into();
    }
    let advice = advice::of_hub(&error).map_or_else(String::new, |advice| format!("; {advice}"));
    anyhow::anyhow!("{error}{advice}{}", question(&near))
}

/// Model directories beside the one that was named: their own names, and how to write them.
fn directories(name: &str) -> Vec<(String, String)> {
    let beside = Path::new(name).parent().filter(|p| !p.as_os_str().is_empty());
    let Ok(entries) = fs::read_dir(beside.unwrap_or(Path::new("."))) else { return Vec::new() };
    let models = entries.filter_map(Result::ok).filter(|e| e.path().join("config.json").is_file());
    models
        .filter_map(|entry| {
            let own = entry.file_name().into_string().ok()?;
            let path = beside.map_or_else(|| PathBuf::from(&own), |dir| dir.join(&own));
            Some((own, path.to_str()?.to_owned()))
        })
        .collect()
}

fn downloaded(cache: &CacheDir) -> Vec<String> {
    // A proposal is a courtesy: a cache that cannot be read has its own error elsewhere.
    let models = catalogue(cache).unwrap_or_default();
    models.into_iter().filter(|m| m.complete).map(|m| m.name).collect()
}

fn last(name: &str) -> &str {
    name.trim_end_matches('/').rsplit('/').next().unwrap_or(name)
}

/// Proposals whose keys are like a word, the best first.
pub(crate) fn nearest(word: &str, all: impl IntoIterator<Item = (String, String)>) -> Vec<String> {
    let lower = word.to_lowercase();
    let like = |(key, shown): (String, String)| {
        let score = strsim::jaro(&lower, &key.to_lowercase());
        (score >= ALIKE).then_some((score, shown))
    };
    let mut found: Vec<_> = all.into_iter().filter_map(like).collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    found.into_iter().take(PROPOSALS).map(|(_, shown)| shown).collect()
}

/// "; did you mean a or b?"
pub(crate) fn question(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(" or ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn unknown(words: &[&str]) -> Option<String> {
        let args: Vec<_> = ["taper"].iter().chain(words).map(OsString::from).collect();
        unknown_command(&args).map(|e| e.to_string())
    }

    #[test]
    fn misspelled_commands_are_told_the_right_ones() {
        for (word, right) in
            [("srve", "taper serve"), ("caht", "taper chat"), ("pulll", "taper pull")]
        {
            let error = unknown(&[word, "x", "--port", "1"]).unwrap();
            assert!(error.contains(&format!("did you mean {right}")), "{error}");
        }
        assert!(!unknown(&["xylophone"]).unwrap().contains("did you mean"));
        for good in ["serve", "pull", "help", "org/name", "./x", "--port", "."] {
            assert_eq!(unknown(&[good]), None, "{good}");
        }
        assert_eq!(unknown(&[]), None);
        assert!(Cli::try_parse_from(["taper", "org/name"]).is_ok());
    }

    #[test]
    fn misspelled_models_are_told_those_that_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = |p: &str| dir.path().join(p).to_str().unwrap().to_owned();
        let snapshot = path(&format!("models--org--Small-4bit/snapshots/{}", "a".repeat(40)));
        for model in [path("Large-8bit"), snapshot] {
            fs::create_dir_all(&model).unwrap();
            fs::write(format!("{model}/config.json"), "{}").unwrap();
            fs::write(format!("{model}/model.safetensors"), "").unwrap();
        }
        let cache = CacheDir::new(dir.path());
        let error = |name: &str| {
            let missing = taper_hub::resolve(name, &cache).unwrap_err();
            missing_model(missing, name, &cache).to_string()
        };
        let near = error(&path("large-8bits"));
        assert!(near.contains("there is no directory"), "{near}");
        assert!(near.contains(&format!("did you mean {}?", path("Large-8bit"))), "{near}");
        for name in ["Small-4bit", "org/Smal-4bit"] {
            let near = error(name);
            assert!(near.ends_with("did you mean org/Small-4bit?"), "{near}");
        }
        assert!(!error("zzz/qqq").contains("did you mean"));
    }
}
