//! Fetches images from the web, and from nowhere else: not from this machine, nor from the networks that it is in
//! (server-side request forgery, OWASP).
//!
//! The server looks names up itself and connects to the addresses that it has checked, so that no second answer of a
//! name server counts. Redirects are followed by hand, each checked like the first URL.

use super::{
    ImageLimits,
    address::may_fetch_from,
    source::{check_web, invalid},
};
use crate::errors::ApiError;
use std::{
    fmt,
    io::{self, Read as _},
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::Arc,
    time::{Duration, Instant},
};
use ureq::{
    Agent, Body,
    config::Config,
    http::{Response, Uri, header},
    unversioned::{
        resolver::{ResolvedSocketAddrs, Resolver},
        transport::{DefaultConnector, NextTimeout},
    },
};
use url::{Host, Url};

/// Redirects that are followed.
const MAX_REDIRECTS: usize = 3;
/// Addresses of a name that are tried.
const MAX_ADDRESSES: usize = 8;

type Lookup = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Fetches images.
#[derive(Clone)]
pub(super) struct Fetcher {
    domains: Vec<String>,
    timeout: Duration,
    max_bytes: usize,
    lookup: Arc<Lookup>,
    allows: fn(IpAddr) -> bool,
}

impl fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetcher").field("domains", &self.domains).finish_non_exhaustive()
    }
}

impl Fetcher {
    /// Fetches images of at most so many bytes.
    pub(super) fn new(limits: &ImageLimits, max_bytes: usize) -> Self {
        Self {
            domains: limits.allowed_media_domains.clone(),
            timeout: limits.media_fetch_timeout,
            max_bytes,
            lookup: Arc::new(|host, port| Ok((host, port).to_socket_addrs()?.collect())),
            allows: may_fetch_from,
        }
    }

    /// The most bytes of an image.
    pub(super) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// How long a fetch may take.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Refuses a URL of a host that nobody has allowed.
    pub(super) fn check(&self, url: &Url) -> Result<(), ApiError> {
        check_web(url)?;
        if self.domains.is_empty() {
            return Err(invalid(
                "this server fetches no images; send a data URL (data:image/png;base64,...)",
            ));
        }
        let host = url.host_str().unwrap_or_default().trim_end_matches('.');
        let allowed = |domain: &String| domain == "*" || domain.eq_ignore_ascii_case(host);
        match self.domains.iter().any(allowed) {
            true => Ok(()),
            false => Err(invalid(format!("this server fetches no images from '{host}'"))),
        }
    }

    /// The bytes at a URL, at most `most`. It blocks.
    pub(super) fn fetch(&self, mut url: Url, most: usize) -> Result<Vec<u8>, ApiError> {
        let deadline = Instant::now() + self.timeout;
        for _ in 0..=MAX_REDIRECTS {
            self.check(&url)?;
            let response = self.get(&url, deadline)?;
            let status = response.status();
            if status.is_success() {
                return body(response, most.min(self.max_bytes) as u64);
            }
            if !status.is_redirection() {
                return Err(invalid(format!("the image's URL answers with status {status}")));
            }
            let to = response.headers().get(header::LOCATION).and_then(|to| to.to_str().ok());
            let to = to.and_then(|to| url.join(to).ok());
            url = to.ok_or_else(|| invalid("the image's URL redirects to nowhere"))?;
        }
        Err(invalid(format!("the image's URL redirects more than {MAX_REDIRECTS} times")))
    }

    fn get(&self, url: &Url, deadline: Instant) -> Result<Response<Body>, ApiError> {
        let addresses = self.addresses(url)?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(invalid("the image did not come in time"));
        }
        let config = Config::builder()
            .proxy(None)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .timeout_global(Some(left))
            .accept("image/*")
            .accept_encoding("identity")
            .user_agent(concat!("taper/", env!("CARGO_PKG_VERSION")))
            .max_idle_connections(0)
            .build();
        let agent = Agent::with_parts(config, DefaultConnector::default(), Known(addresses));
        agent.get(url.as_str()).call().map_err(|error| failed(&error))
    }

    /// The addresses of a URL's host, all of which may be fetched from.
    fn addresses(&self, url: &Url) -> Result<Vec<SocketAddr>, ApiError> {
        let port = url.port_or_known_default().unwrap_or(443);
        let addresses = match url.host() {
            Some(Host::Ipv4(address)) => vec![SocketAddr::new(address.into(), port)],
            Some(Host::Ipv6(address)) => vec![SocketAddr::new(address.into(), port)],
            Some(Host::Domain(name)) => (self.lookup)(name, port)
                .map_err(|_| invalid(format!("there is no host '{name}'")))?,
            None => Vec::new(),
        };
        let host = url.host_str().unwrap_or_default();
        if addresses.is_empty() {
            return Err(invalid(format!("there is no host '{host}'")));
        }
        // One that is not public beside others is an attempt.
        if addresses.iter().any(|address| !(self.allows)(address.ip())) {
            return Err(invalid(format!("'{host}' is not in the public Internet")));
        }
        Ok(addresses)
    }
}

/// The bytes that come, at most `limit`.
fn body(response: Response<Body>, limit: u64) -> Result<Vec<u8>, ApiError> {
    let encoding = response.headers().get(header::CONTENT_ENCODING);
    if encoding.is_some_and(|encoding| encoding != "identity") {
        return Err(invalid("the image comes compressed"));
    }
    if response.body().content_length().is_some_and(|length| length > limit) {
        return Err(too_long(limit));
    }
    // The library's own limit is one of bytes before they are inflated, which it does unasked where it can.
    let (mut file, most) = (Vec::new(), limit.saturating_add(1));
    let read = response.into_body().into_reader().take(most).read_to_end(&mut file);
    read.map_err(|error| failed(&ureq::Error::from(error)))?;
    match file.len() as u64 > limit {
        true => Err(too_long(limit)),
        false => Ok(file),
    }
}

fn too_long(limit: u64) -> ApiError {
    invalid(format!("the image is longer than {limit} bytes"))
}

/// What the client hears: nothing of addresses.
fn failed(error: &ureq::Error) -> ApiError {
    tracing::debug!(%error, "an image could not be fetched");
    invalid(match error {
        ureq::Error::Timeout(_) => "the image did not come in time",
        _ => "the image could not be fetched",
    })
}

/// Addresses that were looked up and checked.
#[derive(Debug)]
struct Known(Vec<SocketAddr>);

impl Resolver for Known {
    fn resolve(
        &self,
        _: &Uri,
        _: &Config,
        _: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut addresses = self.empty();
        self.0.iter().take(MAX_ADDRESSES).for_each(|&address| addresses.push(address));
        Ok(addresses)
    }
}

#[cfg(test)]
mod tests;
