//! The web app of a server: see the README below.
#![doc = include_str!("../README.md")]

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use flate2::read::GzDecoder;
use std::io::Read;

/// A file of the app.
#[derive(Debug)]
struct Asset {
    /// From the root of the server, as `/index.html`.
    path: &'static str,
    kind: &'static str,
    /// As it stands in `ETag`.
    tag: &'static str,
    gzip: &'static [u8],
}

const ASSETS: &[Asset] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

const INDEX: &str = "/index.html";

/// Files in here have a hash of their contents in their names.
const HASHED: &str = "/assets/";

/// Nothing but the files of this server runs or is loaded. Pictures may also be ones that the
/// reader has dropped in. Markup is only ever made through the two named policies.
const POLICY: &str = "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types dompurify taper";

/// Routes of the app: `/` and the path of each of its files. It has no fallback, so that it can be
/// merged into the router of an API.
pub fn router() -> Router {
    let page = ASSETS.iter().filter(|asset| asset.path == INDEX).map(|asset| ("/", asset));
    let files = ASSETS.iter().map(|asset| (asset.path, asset));
    page.chain(files).fold(Router::new(), |router, (path, asset)| {
        router.route(path, get(move |headers: HeaderMap| async move { serve(asset, &headers) }))
    })
}

fn serve(asset: &'static Asset, request: &HeaderMap) -> Response {
    let mut response = match holds(request, header::IF_NONE_MATCH, asset.tag) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => contents(asset, request),
    };
    let cache = match asset.path.starts_with(HASHED) {
        true => "public, max-age=31536000, immutable",
        false => "no-cache",
    };
    let fixed = [
        (header::ETAG, asset.tag),
        (header::CACHE_CONTROL, cache),
        (header::VARY, "accept-encoding"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    let headers = response.headers_mut();
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn contents(asset: &'static Asset, request: &HeaderMap) -> Response {
    let kind = (header::CONTENT_TYPE, asset.kind);
    if holds(request, header::ACCEPT_ENCODING, "gzip") {
        return ([kind, (header::CONTENT_ENCODING, "gzip")], Body::from(asset.gzip))
            .into_response();
    }
    let mut plain = Vec::new();
    match GzDecoder::new(asset.gzip).read_to_end(&mut plain) {
        Ok(_) => ([kind], plain).into_response(),
        // The build script compressed it, so it decompresses.
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Whether a list in a header has a value that is not ruled out by `q=0`. Weak tags count as
/// strong ones.
fn holds(headers: &HeaderMap, name: header::HeaderName, wanted: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|item| {
        let (value, weight) = item.split_once(';').unwrap_or((item, ""));
        let value = value.trim();
        let refused = weight.trim().strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0));
        value.strip_prefix("W/").unwrap_or(value).eq_ignore_ascii_case(wanted) && !refused
    })
}

#[cfg(test)]
mod tests;
