//! Names of models on the hub.

use crate::HubError;
use std::{fmt, str::FromStr};

/// `org/name`, perhaps `@revision`: a branch, a tag or a commit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId {
    name: String,
    revision: Option<String>,
}

impl ModelId {
    /// `org/name`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What was asked for, `main` by default.
    #[must_use]
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }

    pub(crate) fn has_revision(&self) -> bool {
        self.revision.is_some()
    }

    /// This model at another revision.
    ///
    /// # Errors
    /// [`HubError::BadName`].
    pub fn with_revision(&self, revision: &str) -> Result<Self, HubError> {
        format!("{}@{revision}", self.name).parse()
    }

    pub(crate) fn repo(&self) -> hf_hub::Repo {
        let revision = self.revision().to_owned();
        hf_hub::Repo::with_revision(self.name.clone(), hf_hub::RepoType::Model, revision)
    }

    /// The id of a cache folder such as `models--org--name`.
    pub(crate) fn from_folder(folder: &str) -> Option<Self> {
        folder.strip_prefix("models--")?.replacen("--", "/", 1).parse().ok()
    }
}

impl FromStr for ModelId {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let bad = |reason| Err(HubError::BadName { name: text.to_owned(), reason });
        let (name, revision) = match text.split_once('@') {
            Some((name, revision)) => (name, Some(revision)),
            None => (text, None),
        };
        let Some((org, model)) = name.split_once('/') else {
            return bad("the organisation is missing");
        };
        // These become paths and URLs, so that nothing else is let through.
        let plain = |s: &str, extra: &str| {
            !s.is_empty()
                && s.chars().all(|c| c.is_ascii_alphanumeric() || extra.contains(c))
                && !s.contains("..")
                && !s.starts_with(['.', '-', '/'])
                && !s.ends_with(['.', '/'])
        };
        if ![org, model].iter().all(|s| plain(s, "-_.") && !s.contains("--")) {
            return bad("organisation and name consist of letters, digits, '-', '_' and '.'");
        }
        if revision.is_some_and(|r| !plain(r, "-_./")) {
            return bad("the revision is not a branch, a tag or a commit");
        }
        Ok(Self { name: name.to_owned(), revision: revision.map(str::to_owned) })
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.revision.as_ref().map_or(Ok(()), |r| write!(f, "@{r}"))
    }
}

/// Whether a string is a Git commit, in full.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_print() {
        for text in ["Qwen/Qwen3-0.6B", "mlx-community/Qwen3-4B-4bit@main", "a/b_c.d@refs/pr/1"] {
            assert_eq!(text.parse::<ModelId>().unwrap().to_string(), text);
        }
        let id: ModelId = "a/b@v1".parse().unwrap();
        assert_eq!((id.name(), id.revision()), ("a/b", "v1"));
        assert_eq!(id.with_revision("main").unwrap().to_string(), "a/b@main");
        assert_eq!(ModelId::from_folder("models--a--b-c").unwrap().name(), "a/b-c");
        assert_eq!(ModelId::from_folder("datasets--a--b"), None);
    }

    #[test]
    fn what_could_leave_the_cache_or_the_url_is_refused() {
        let bad = "gpt2|../x|a/..|/a|a/|a/b/c|a/b?x|a/b c|a/b@|a/b@../c|a/b@/c|a--b/c|./x|a/.b";
        for text in bad.split('|').chain([""]) {
            assert!(text.parse::<ModelId>().is_err(), "{text}");
        }
    }
}
