//! Who may call the server: keys, origins and host names from flags and files.

use crate::longctx_args::CallerArgs;
use anyhow::{Context, Result, ensure};
use std::{fs, path::Path};
use taper_openai_server::{AllowedHosts, AllowedOrigins, ApiKeys};

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
        let mut keys = args.api_key.clone();
        if let Some(file) = &args.api_key_file {
            keys.extend(keys_of(file)?);
        }
        let keys = ApiKeys::new(keys).context(
            "--api-key or TAPER_API_KEY has no valid key; leave both out to serve without keys",
        )?;
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

fn keys_of(file: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(file)
        .with_context(|| format!("cannot read --api-key-file {}", file.display()))?;
    // Editors of one maker write this mark in front of UTF-8.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let lines = text.lines().map(str::trim);
    let keys: Vec<String> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect();
    ensure!(!keys.is_empty(), "--api-key-file {} has no key", file.display());
    ApiKeys::new(&keys).with_context(|| format!("--api-key-file {}", file.display()))?;
    Ok(keys)
}
