//! What is asked of the hub.

use crate::{HubConfig, HubError, ModelId, files, id::is_commit};
use serde::Deserialize;
use std::time::Duration;
use ureq::{
    Agent, Body, RequestBuilder,
    config::RedirectAuthHeaders,
    http::{HeaderMap, Response, StatusCode},
};

/// No response, or no further bytes, for so long: the connection is dead.
const STALLED: Duration = Duration::from_secs(60);

const MAX_REDIRECTS: usize = 10;

/// Digits of a SHA-256.
const SHA256_HEX: usize = 64;

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoteFile {
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    /// Name of its blob in the cache.
    pub(crate) etag: String,
    /// Git LFS objects have one; small files have Git's hash instead, which covers a header too.
    pub(crate) sha256: Option<String>,
}

/// A repository at a commit.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) commit: String,
    pub(crate) files: Vec<RemoteFile>,
}

#[derive(Deserialize)]
struct Info {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    #[serde(alias = "oid")]
    sha256: String,
}

/// What speaks with the hub.
pub(crate) fn agent() -> Agent {
    Agent::config_builder()
        .http_status_as_error(false)
        // The hub redirects to storage of other owners: the token is not theirs to see.
        .redirect_auth_headers(RedirectAuthHeaders::SameHost)
        .user_agent(concat!("taper/", env!("CARGO_PKG_VERSION")))
        .timeout_connect(Some(Duration::from_secs(20)))
        .timeout_recv_response(Some(STALLED))
        .timeout_per_read(Some(STALLED))
        .build()
        .into()
}

pub(crate) struct Client<'a> {
    config: &'a HubConfig,
    id: &'a ModelId,
    agent: Agent,
}

impl<'a> Client<'a> {
    pub(crate) fn new(config: &'a HubConfig, id: &'a ModelId) -> Self {
        Self { config, id, agent: agent() }
    }

    /// The repository's commit, and the files of it that a model needs.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, HubError> {
        let url = format!("{}/api/{}?blobs=true", self.config.endpoint, self.id.repo().api_url());
        let mut response = self.get(&url, 0)?;
        self.check(&url, &response)?;
        let bad = |reason: String| HubError::BadReply { url: url.clone(), reason };
        let text = response.body_mut().read_to_string().map_err(network(&url))?;
        let info: Info = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
        if !is_commit(&info.sha) {
            return Err(bad(format!("{:?} is not a commit", info.sha)));
        }
        let needed = info.siblings.into_iter().filter(|s| files::is_needed(&s.rfilename));
        let files = needed
            .map(|sibling| match sibling {
                Sibling { rfilename, size: Some(size_bytes), blob_id: Some(blob), lfs } => {
                    let sha256 = lfs.map(|l| l.sha256.to_ascii_lowercase());
                    let etag = sha256.clone().unwrap_or(blob);
                    checked(RemoteFile { name: rfilename, size_bytes, etag, sha256 }, &url)
                }
                // Some mirrors list names only.
                Sibling { rfilename, .. } => self.head(&info.sha, rfilename),
            })
            .collect::<Result<_, _>>()?;
        Ok(Snapshot { commit: info.sha, files })
    }

    /// A file by the headers of its own URL.
    fn head(&self, commit: &str, name: String) -> Result<RemoteFile, HubError> {
        let mut url = self.file_url(commit, &name);
        for _ in 0..MAX_REDIRECTS {
            let request = self.agent.head(&url).header("Accept-Encoding", "identity");
            // Redirects to storage are not followed: the hub's own headers name the object.
            let request = self.authorized(request).config().max_redirects(0).build();
            let response = request.call().map_err(network(&url))?;
            let said = |name| header(response.headers(), name);
            let moved = response.status().is_redirection();
            if !moved {
                self.check(&url, &response)?;
            }
            let linked = said("x-linked-etag");
            let next = said("location").filter(|to| to.starts_with('/') && !to.starts_with("//"));
            if let (true, None, Some(path)) = (moved, linked, next) {
                url = format!("{}{path}", origin(&url));
                continue;
            }
            let bad = |reason: &str| HubError::BadReply { url: url.clone(), reason: reason.into() };
            let etag = linked.or_else(|| said("etag")).ok_or_else(|| bad("no ETag header"))?;
            let etag = etag.trim_start_matches("W/").trim_matches('"').to_ascii_lowercase();
            let size = said("x-linked-size").or_else(|| said("content-length").filter(|_| !moved));
            let size_bytes = size.and_then(|s| s.parse().ok()).ok_or_else(|| bad("no size"))?;
            let sha256 = (etag.len() == SHA256_HEX).then(|| etag.clone());
            return checked(RemoteFile { name, size_bytes, etag, sha256 }, &url);
        }
        Err(HubError::BadReply { url, reason: "too many redirects".into() })
    }

    fn authorized<T>(&self, request: RequestBuilder<T>) -> RequestBuilder<T> {
        match &self.config.token {
            Some(token) => request.header("Authorization", token.bearer()),
            None => request,
        }
    }

    pub(crate) fn file_url(&self, commit: &str, name: &str) -> String {
        format!("{}/{}/resolve/{commit}/{name}", self.config.endpoint, self.id.name())
    }

    /// The bytes of a URL from `start` on.
    pub(crate) fn get(&self, url: &str, start: u64) -> Result<Response<Body>, HubError> {
        // A compressed body has other offsets than the file.
        let mut request = self.agent.get(url).header("Accept-Encoding", "identity");
        if start > 0 {
            request = request.header("Range", format!("bytes={start}-"));
        }
        self.authorized(request).call().map_err(network(url))
    }

    /// Turns a refusal into the error that says what to do.
    pub(crate) fn check(&self, url: &str, response: &Response<Body>) -> Result<(), HubError> {
        let status = response.status();
        if status.is_success() {
            return Ok(());
        }
        let (id, endpoint) = (self.id.clone(), self.config.endpoint.clone());
        let said = |name| header(response.headers(), name).unwrap_or_default();
        let refused = said("x-error-message").to_ascii_lowercase().contains("invalid");
        Err(match (said("x-error-code"), status) {
            ("GatedRepo", _) => HubError::Gated { id, endpoint },
            ("RevisionNotFound", _) => HubError::NoRevision { id, endpoint },
            ("RepoNotFound", _) | (_, StatusCode::NOT_FOUND) => HubError::NotFound { id, endpoint },
            (_, StatusCode::UNAUTHORIZED) if refused => HubError::TokenRefused { endpoint },
            // The hub does not tell strangers whether a private model exists.
            (_, StatusCode::UNAUTHORIZED) => HubError::NotFound { id, endpoint },
            (_, StatusCode::FORBIDDEN) => HubError::Gated { id, endpoint },
            _ => HubError::Status { url: url.to_owned(), status: status.as_u16() },
        })
    }
}

/// `https://host:port` of a URL.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |i| i + 3);
    url[host..].find('/').map_or(url, |end| &url[..host + end])
}

/// What names a blob becomes a path: it must be a plain hash.
fn checked(file: RemoteFile, url: &str) -> Result<RemoteFile, HubError> {
    if (32..=128).contains(&file.etag.len()) && file.etag.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(file);
    }
    let reason = format!("{:?} of {} is not a hash", file.etag, file.name);
    Err(HubError::BadReply { url: url.to_owned(), reason })
}

pub(crate) fn header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

pub(crate) fn network(url: &str) -> impl FnOnce(ureq::Error) -> HubError {
    let url = url.to_owned();
    move |source| HubError::Network { url, source: Box::new(source) }
}
