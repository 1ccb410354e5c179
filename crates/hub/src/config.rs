//! Where the hub and the cache are: the one place that reads the environment.
//!
//! Only variables of Hugging Face's own tools are read, with their meaning, so that a model which
//! Python downloaded is found and a login made there counts here.

use crate::{CacheDir, HubError};
use std::{fmt, fs, io, path::PathBuf, time::Duration};

/// Where the hub is unless HF_ENDPOINT says otherwise.
const ENDPOINT: &str = "https://huggingface.co";

/// A secret; it shows in no log.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Takes a token; `None` for one that is blank.
    #[must_use]
    pub fn new(token: &str) -> Option<Self> {
        let token = token.trim();
        (!token.is_empty()).then(|| Self(token.to_owned()))
    }

    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// How to reach the hub, and where models are kept.
#[derive(Debug, Clone)]
pub struct HubConfig {
    /// Where models are kept.
    pub cache: CacheDir,
    /// The hub, without a slash at the end.
    pub endpoint: String,
    /// For private and gated models.
    pub token: Option<Token>,
    /// Use downloaded models only, without network access.
    pub offline: bool,
    /// Attempts after a failed one, counted anew whenever bytes have arrived.
    pub retries: u32,
    /// Pause before the first retry; it doubles up to 30 s.
    pub retry_wait: Duration,
}

impl HubConfig {
    /// The public hub without a token.
    #[must_use]
    pub fn new(cache: CacheDir) -> Self {
        let (endpoint, retry_wait) = (ENDPOINT.to_owned(), Duration::from_millis(500));
        Self { cache, endpoint, token: None, offline: false, retries: 5, retry_wait }
    }

    /// As the environment says: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, HF_ENDPOINT, HF_TOKEN,
    /// HF_TOKEN_PATH, HF_HUB_OFFLINE, and the token file of `hf auth login`.
    ///
    /// # Errors
    /// There is no home directory, or a token file cannot be read.
    pub fn from_env() -> Result<Self, HubError> {
        #[expect(clippy::disallowed_methods, reason = "Hugging Face's own variables")]
        Self::from_lookup(|name| std::env::var(name).ok(), std::env::home_dir())
    }

    fn from_lookup(
        lookup: impl Fn(&str) -> Option<String>,
        user: Option<PathBuf>,
    ) -> Result<Self, HubError> {
        let var = |name: &str| lookup(name).filter(|v| !v.trim().is_empty());
        let home = var("HF_HOME")
            .map(PathBuf::from)
            .or_else(|| var("XDG_CACHE_HOME").map(|c| PathBuf::from(c).join("huggingface")))
            .or_else(|| user.map(|u| u.join(".cache/huggingface")));
        let home = home.ok_or_else(|| {
            let none = io::Error::new(io::ErrorKind::NotFound, "no home directory; set HF_HOME");
            HubError::io("~")(none)
        })?;
        let cache = var("HF_HUB_CACHE").map_or_else(|| home.join("hub"), PathBuf::from);
        let token_path = var("HF_TOKEN_PATH").map_or_else(|| home.join("token"), PathBuf::from);
        let mut config = Self::new(CacheDir::new(cache));
        if let Some(endpoint) = var("HF_ENDPOINT") {
            endpoint.trim_end_matches('/').clone_into(&mut config.endpoint);
        }
        config.token = match var("HF_TOKEN") {
            Some(token) => Token::new(&token),
            None => match fs::read_to_string(&token_path) {
                Ok(token) => Token::new(&token),
                Err(e) if e.kind() == io::ErrorKind::NotFound => None,
                Err(e) => return Err(HubError::io(token_path)(e)),
            },
        };
        let yes = |v: String| ["1", "on", "yes", "true"].contains(&v.to_lowercase().as_str());
        config.offline = var("HF_HUB_OFFLINE").is_some_and(yes);
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn with(vars: &[(&str, &str)], user: Option<&Path>) -> Result<HubConfig, HubError> {
        let find = |name: &str| vars.iter().find(|v| v.0 == name).map(|v| v.1.to_owned());
        HubConfig::from_lookup(find, user.map(Path::to_owned))
    }

    #[test]
    fn places_are_those_of_the_python_tools() {
        let user = Some(Path::new("u"));
        let cache = |vars: &[_]| with(vars, user).unwrap().cache.path().to_owned();
        assert_eq!(cache(&[]), Path::new("u/.cache/huggingface/hub"));
        assert_eq!(cache(&[("XDG_CACHE_HOME", "x")]), Path::new("x/huggingface/hub"));
        assert_eq!(cache(&[("HF_HOME", "h"), ("XDG_CACHE_HOME", "x")]), Path::new("h/hub"));
        assert_eq!(cache(&[("HF_HOME", "h"), ("HF_HUB_CACHE", "c")]), Path::new("c"));
        assert_eq!(cache(&[("HF_HOME", "")]), Path::new("u/.cache/huggingface/hub"));
        assert!(with(&[], None).is_err());
    }

    #[test]
    fn endpoint_token_and_offline() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().to_str().unwrap();
        let none = with(&[("HF_HOME", home)], None).unwrap();
        assert_eq!((none.endpoint.as_str(), none.token, none.offline), (ENDPOINT, None, false));
        fs::write(dir.path().join("token"), "hf_file\n").unwrap();
        let file = with(&[("HF_HOME", home), ("HF_ENDPOINT", "http://m/")], None).unwrap();
        assert_eq!((file.endpoint.as_str(), file.token), ("http://m", Token::new("hf_file")));
        let vars = [("HF_HOME", home), ("HF_TOKEN", "hf_var"), ("HF_HUB_OFFLINE", "1")];
        let var = with(&vars, None).unwrap();
        assert_eq!((var.token.clone(), var.offline), (Token::new("hf_var"), true));
        assert!(!format!("{var:?}").contains("hf_var"), "a token is never printed");
    }
}
