//! Who may call the server: keys, origins and host names from flags and files.

use crate::longctx_args::CallerArgs;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::{
    fs,
    path::{Path, PathBuf},
};
use taper_openai_server::{AllowedHosts, AllowedOrigins, ApiKey, ApiKeys, Scope};

/// What the flags say, checked before a model is loaded.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) keys: ApiKeys,
    pub(crate) origins: AllowedOrigins,
    pub(crate) hosts: AllowedHosts,
}

impl Access {
    /// `loopback` says that the server listens for this machine alone.
    pub(crate) fn of(args: &CallerArgs, loopback: bool) -> Result<Self> {
        let keys = ApiKeys::of(keys_of(args)?);
        let origins = AllowedOrigins::new(&args.allowed_origins).context("--allowed-origins")?;
        // A web page can have its own name point to this machine. It cannot have a key.
        let hosts = if args.allowed_hosts.is_empty() && !(loopback && keys.is_empty()) {
            AllowedHosts::default()
        } else {
            AllowedHosts::local_and(&args.allowed_hosts).context("--allowed-hosts")?
        };
        Ok(Self { keys, origins, hosts })
    }
}

/// The keys of flags and file.
pub(crate) fn keys_of(args: &CallerArgs) -> Result<Vec<ApiKey>> {
    ApiKeys::new(&args.api_key).context(
        "--api-key or TAPER_API_KEY has no valid key; leave both out to serve without keys",
    )?;
    let mut keys: Vec<_> = args.api_key.iter().map(|key| ApiKey::of(key)).collect();
    if let Some(file) = &args.api_key_file {
        keys.extend(keys_in(file).with_context(|| format!("--api-key-file {}", file.display()))?);
    }
    Ok(keys)
}

fn keys_in(file: &Path) -> Result<Vec<ApiKey>> {
    let text = fs::read_to_string(file).context("it cannot be read")?;
    // Editors of one maker write this mark in front of UTF-8.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let keys = match file.extension().is_some_and(|extension| extension == "toml") {
        true => named_keys(text)?,
        false => plain_keys(text)?,
    };
    ensure!(!keys.is_empty(), "it has no key");
    Ok(keys)
}

/// One key a line.
fn plain_keys(text: &str) -> Result<Vec<ApiKey>> {
    let lines = text.lines().map(str::trim);
    let keys: Vec<_> = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    ApiKeys::new(keys.iter().copied())?;
    Ok(keys.into_iter().map(ApiKey::of).collect())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    #[serde(default)]
    key: Vec<KeyEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyEntry {
    name: String,
    sha256: String,
    scopes: Option<Vec<String>>,
    requests_per_minute: Option<u32>,
    tokens_per_day: Option<u64>,
}

/// Tables `[[key]]` of TOML, with the hash of each key.
fn named_keys(text: &str) -> Result<Vec<ApiKey>> {
    let file: KeyFile = toml::from_str(text).map_err(|error| {
        // The error itself quotes the line, and with it perhaps a key.
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        anyhow::anyhow!("line {line}: {}", error.message())
    })?;
    let keys: Vec<ApiKey> = file.key.into_iter().map(named_key).collect::<Result<_>>()?;
    for (i, key) in keys.iter().enumerate() {
        ensure!(!key.name.trim().is_empty(), "key {} has no name", i + 1);
        let first = keys.iter().position(|other| other.name == key.name);
        ensure!(first == Some(i), "two keys have the name {:?}", key.name);
    }
    Ok(keys)
}

fn named_key(entry: KeyEntry) -> Result<ApiKey> {
    let KeyEntry { name, sha256, scopes, requests_per_minute, tokens_per_day } = entry;
    let hash = hash_of(&sha256).with_context(|| {
        format!("sha256 of key {name:?} is not 64 hexadecimal digits; printf %s KEY | sha256sum")
    })?;
    let scopes = match scopes {
        None => vec![Scope::Inference],
        Some(names) => {
            let scopes = names.iter().map(|name| name.parse::<Scope>());
            let scopes = scopes.collect::<Result<Vec<_>, _>>();
            scopes.with_context(|| format!("key {name:?}"))?
        }
    };
    ensure!(requests_per_minute != Some(0), "requests_per_minute of key {name:?} is 0");
    Ok(ApiKey { name, sha256: hash, scopes, requests_per_minute, tokens_per_day })
}

fn hash_of(hex: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> =
        hex.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> =
        digits.chunks(2).map(|pair| pair.iter().fold(0, |n, d| n * 16 + d)).collect();
    bytes.try_into().ok().filter(|_| digits.len() == 64)
}

/// Files that say who may call.
pub(crate) fn files(args: &CallerArgs) -> Vec<PathBuf> {
    args.api_key_file.iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

    #[test]
    fn named_keys_have_scopes_and_limits() {
        let text = format!(
            "[[key]]\nname = \"alice\"\nsha256 = \"{HASH}\"\nrequests_per_minute = 60\n\
             [[key]]\nname = \"prometheus\"\nsha256 = \"{}\"\nscopes = [\"metrics\"]\ntokens_per_day = 5\n",
            "0f".repeat(32)
        );
        let keys = named_keys(&text).unwrap();
        assert_eq!((keys[0].name.as_str(), keys[0].requests_per_minute), ("alice", Some(60)));
        assert_eq!((&keys[0].scopes, keys[0].tokens_per_day), (&vec![Scope::Inference], None));
        assert_eq!((&keys[1].scopes, keys[1].tokens_per_day), (&vec![Scope::Metrics], Some(5)));
        assert_eq!(keys[1].sha256, [15; 32]);
        assert!(ApiKeys::of(keys).accept("secret"));
    }

    #[test]
    fn bad_files_say_where_and_no_key() {
        let entry = |more: &str| format!("[[key]]\nname = \"a\"\nsha256 = \"{HASH}\"\n{more}");
        for (text, expected) in [
            (entry("scopes = [\"all\"]"), "'all' is not a scope"),
            (entry("rpm = 5"), "line 4"),
            (entry("requests_per_minute = 0"), "is 0"),
            (entry("") + &entry(""), "two keys"),
            ("[[key]]\nname = \"a\"\nsha256 = \"secret\"\n".into(), "64 hexadecimal"),
            ("[[key]]\nname = \"a\"\nkey = \"secret\"\n".into(), "line 3"),
            (entry("").replace("\"a\"", "\"\""), "no name"),
        ] {
            let error = format!("{:#}", named_keys(&text).unwrap_err());
            assert!(error.contains(expected) && !error.contains("secret"), "{error}");
        }
    }
}
