//! Who may call from a browser: origins of web pages, and names by which this server is reached.
//!
//! A server on somebody's own machine is reachable from every page that this person opens. The
//! page cannot read a response without CORS, but it can make the model work; and a page whose name
//! is rebound to 127.0.0.1 can read responses too, as its own server's. Origins stop the first,
//! hosts the second.

use crate::config::ConfigError;
use axum::http::{HeaderMap, HeaderValue, Method, Uri, header, uri::Authority};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// Origins of web pages that may call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedOrigins {
    any: bool,
    list: Vec<HeaderValue>,
}

impl AllowedOrigins {
    /// These origins, as `https://example.com:8443`; `*` stands for any.
    ///
    /// # Errors
    /// One of them is not a scheme and a host.
    pub fn new<S: AsRef<str>>(origins: impl IntoIterator<Item = S>) -> Result<Self, ConfigError> {
        let mut allowed = Self::default();
        for origin in origins {
            let origin = origin.as_ref();
            if origin == "*" {
                allowed.any = true;
                continue;
            }
            let bad = || ConfigError::Origin { origin: origin.to_owned() };
            let host = origin.split_once("://").map(|(_, host)| host);
            if origin != "null" && !host.is_some_and(|h| !h.is_empty() && !h.contains('/')) {
                return Err(bad());
            }
            // Browsers send origins in lower case.
            let lower = origin.to_ascii_lowercase();
            allowed.list.push(HeaderValue::from_str(&lower).map_err(|_| bad())?);
        }
        Ok(allowed)
    }

    /// Handles preflights and lets allowed pages read responses; `None` where no page may.
    pub(crate) fn cors(&self) -> Option<CorsLayer> {
        let origin = match self {
            Self { any: true, .. } => AllowOrigin::any(),
            Self { list, .. } if list.is_empty() => return None,
            Self { list, .. } => AllowOrigin::list(list.iter().cloned()),
        };
        let layer = CorsLayer::new()
            .allow_origin(origin)
            .allow_methods([Method::GET, Method::POST, Method::DELETE, Method::OPTIONS])
            // Clients in browsers add headers of their own, as x-stainless-*.
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers([crate::record::REQUEST_ID]);
        Some(layer)
    }

    /// Whether a request may have come from where its headers say. Programs other than browsers
    /// send neither header.
    pub(crate) fn allow(&self, headers: &HeaderMap) -> bool {
        if self.any {
            return true;
        }
        match headers.get(header::ORIGIN) {
            Some(origin) => self.list.contains(origin) || own_origin(origin, headers),
            // Images and links come without an origin.
            None => headers.get("sec-fetch-site").is_none_or(|site| site != "cross-site"),
        }
    }
}

/// A page that this server itself delivered.
fn own_origin(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let own = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let page = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    matches!((own, page), (Some(own), Some((_, page))) if own.eq_ignore_ascii_case(page))
}

/// A browser sent this: programs other than browsers send neither header, or not both.
pub(crate) fn from_browser(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN)
        || headers.keys().any(|name| name.as_str().starts_with("sec-fetch-"))
}

/// Names that `Host` may have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedHosts(Option<Vec<String>>);

impl AllowedHosts {
    /// Names of a machine for itself.
    const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

    /// `localhost`, `127.0.0.1`, `[::1]` and these names, each with any port; `*` stands for any
    /// name. [`AllowedHosts::default`] lets every name in.
    ///
    /// # Errors
    /// One of them is not a host name.
    pub fn local_and<S: AsRef<str>>(
        names: impl IntoIterator<Item = S>,
    ) -> Result<Self, ConfigError> {
        let mut allowed: Vec<String> = Self::LOCAL.map(str::to_owned).to_vec();
        for name in names {
            let name = name.as_ref();
            if name == "*" {
                return Ok(Self(None));
            }
            let host = host_of(name).ok_or(ConfigError::Host { host: name.to_owned() })?;
            allowed.push(host);
        }
        Ok(Self(Some(allowed)))
    }

    /// Whether a request came by one of the names. HTTP/1.0 knows no `Host`, and browsers always
    /// send one.
    pub(crate) fn allow(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let Some(names) = &self.0 else { return true };
        let mut given = headers.get_all(header::HOST).iter().map(|h| h.to_str().unwrap_or(""));
        let known = |host: &str| host_of(host).is_some_and(|host| names.contains(&host));
        given.all(known) && uri.authority().is_none_or(|a| known(a.as_str()))
    }
}

/// The name without its port, as names are compared.
fn host_of(text: &str) -> Option<String> {
    let authority: Authority = text.parse().ok()?;
    // The parser takes "[::1]evil" and "localhost:abc".
    let port = text.strip_prefix(authority.host())?;
    let digits = if port.is_empty() { "" } else { port.strip_prefix(':')? };
    if !digits.is_empty() && digits.parse::<u16>().is_err() {
        return None;
    }
    let host = authority.host().trim_end_matches('.').to_ascii_lowercase();
    (!host.is_empty()).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        all.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect()
    }

    #[test]
    fn origins_are_checked_and_compared() {
        let own = AllowedOrigins::new(["https://A.example", "http://b.example:81"]).unwrap();
        let from = |origin| headers(&[("host", "127.0.0.1:8000"), ("origin", origin)]);
        assert!(own.allow(&from("https://a.example")) && own.allow(&from("http://b.example:81")));
        assert!(own.allow(&from("http://127.0.0.1:8000")), "a page of this server");
        for foreign in ["http://a.example", "https://a.example.evil", "null", "http://b.example"] {
            assert!(!own.allow(&from(foreign)), "{foreign}");
        }
        assert!(own.allow(&headers(&[])), "no browser");
        let site = |site| headers(&[("sec-fetch-site", site)]);
        assert!(own.allow(&site("same-origin")) && own.allow(&site("none")));
        assert!(!own.allow(&site("cross-site")));
        let any = AllowedOrigins::new(["*"]).unwrap();
        assert!(any.allow(&from("https://else.example")) && any.allow(&site("cross-site")));
        for bad in ["example.com", "https://", "https://a.example/", "https://a\n"] {
            assert!(AllowedOrigins::new([bad]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn hosts_are_compared_without_their_port() {
        let own = AllowedHosts::local_and(["Box.lan", "10.0.0.7:9000"]).unwrap();
        let ask = |host| own.allow(&"/".parse().unwrap(), &headers(&[("host", host)]));
        for host in
            ["localhost", "LOCALHOST:1", "127.0.0.1:8000", "[::1]:8000", "box.lan.", "10.0.0.7:1"]
        {
            assert!(ask(host), "{host}");
        }
        let foreign = ["evil.example", "localhost.evil.example", "127.0.0.1.evil"];
        let odd = ["x@localhost", "", "[::1]evil", "localhost:abc", "localhost:70000", ":80"];
        for host in foreign.into_iter().chain(odd) {
            assert!(!ask(host), "{host}");
        }
        assert!(own.allow(&"/".parse().unwrap(), &headers(&[])), "HTTP/1.0");
        let uri = "http://evil.example/v1/models".parse().unwrap();
        assert!(!own.allow(&uri, &headers(&[("host", "localhost")])));
        let anyone = AllowedHosts::local_and(["*"]).unwrap();
        assert!(anyone.allow(&uri, &headers(&[("host", "evil.example")])));
        assert!(AllowedHosts::local_and(["not a host"]).is_err());
    }
}
