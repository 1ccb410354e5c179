//! What a URL of an image says: its bytes, or where they are.

use crate::errors::ApiError;
use base64::{
    Engine as _,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use std::sync::Arc;
use url::Url;

/// Base64 with or without its padding, as clients send it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Where an image is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// In the URL: base64, from this byte on.
    Data { at: usize },
    /// Elsewhere.
    Web(Url),
}

/// Reads the URL of an image.
pub(super) fn source(url: &str) -> Result<Source, ApiError> {
    let bad = |detail: &str| Err(invalid(detail));
    if let Some(rest) = strip_scheme(url, "data:") {
        let Some((kind, data)) = rest.split_once(',') else {
            return bad("a data URL needs a comma before its data");
        };
        if !kind.rsplit(';').next().is_some_and(|last| last.eq_ignore_ascii_case("base64")) {
            return bad("a data URL must be of base64, as in data:image/png;base64,...");
        }
        return Ok(Source::Data { at: url.len() - data.len() });
    }
    let Ok(parsed) = Url::parse(url) else {
        return bad("is no URL; a data URL is data:image/png;base64,...");
    };
    check_web(&parsed)?;
    Ok(Source::Web(parsed))
}

/// Refuses what is not fetched from anywhere.
pub(super) fn check_web(url: &Url) -> Result<(), ApiError> {
    if !matches!(url.scheme(), "http" | "https") {
        let detail = format!("URLs of '{}' are not fetched; use data, https or http", url.scheme());
        return Err(invalid(detail));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("a URL with a user name or a password is not fetched"));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(invalid("the URL has no host"));
    }
    Ok(())
}

/// The bytes that a data URL has from a place on.
pub(super) fn data(url: &str, at: usize) -> Result<Vec<u8>, ApiError> {
    data_of(url.get(at..).unwrap_or_default())
}

/// Bytes as base64.
pub(super) fn base64_of(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// The bytes of base64.
pub(super) fn data_of(data: &str) -> Result<Vec<u8>, ApiError> {
    BASE64
        .decode(data.trim())
        .map_err(|error| invalid(format!("the image is not valid base64: {error}")))
}

/// The URL of an image that came as base64, or as a data URL.
pub(crate) fn of_base64(data: &str) -> Arc<str> {
    match strip_scheme(data, "data:") {
        Some(_) => data.into(),
        None => format!("data:;base64,{data}").into(),
    }
}

pub(super) fn strip_scheme<'a>(url: &'a str, scheme: &str) -> Option<&'a str> {
    let (head, rest) = url.split_at_checked(scheme.len())?;
    head.eq_ignore_ascii_case(scheme).then_some(rest)
}

/// What is wrong with an image.
pub(super) fn invalid(detail: impl Into<String>) -> ApiError {
    ApiError::Image { param: None, detail: detail.into() }
}

/// Refuses sizes that images are not brought to.
pub(crate) fn checked_detail(detail: Option<&str>, at: &str) -> Result<(), ApiError> {
    match detail {
        None | Some("auto" | "high") => Ok(()),
        Some(detail @ ("low" | "original")) => {
            let detail = format!(
                "'{detail}' is not supported: images have the size that the model takes; use 'auto'"
            );
            Err(ApiError::unsupported(format!("{at}.detail"), detail))
        }
        Some(_) => Err(ApiError::value(format!("{at}.detail"), "must be 'auto', 'low' or 'high'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_urls_have_their_bytes_in_them() {
        for url in ["data:image/png;base64,AAEC", "DATA:;base64,AAEC\n", "data:x;y=z;BASE64,AAEC"] {
            let Source::Data { at } = source(url).unwrap() else { panic!("{url}") };
            assert_eq!(data(url, at).unwrap(), [0, 1, 2], "{url}");
        }
        assert_eq!(data(&of_base64("AAE="), 13).unwrap(), [0, 1]);
        assert_eq!(data(&of_base64("data:;base64,AAE"), 13).unwrap(), [0, 1]);
        assert!(data("data:;base64,A*", 13).is_err());
    }

    #[test]
    fn urls_that_are_never_fetched_are_refused() {
        for url in [
            "data:image/png,AAEC",
            "data:image/png;base64",
            "file:///etc/passwd",
            "ftp://example.com/a.png",
            "gopher://example.com/",
            "javascript:alert(1)",
            "/a.png",
            "a.png",
            "",
            "https://user@example.com/a.png",
            "https://user:secret@example.com/a.png",
            "http://",
        ] {
            let error = source(url).unwrap_err();
            assert!(matches!(error, ApiError::Image { .. }), "{url}: {error}");
        }
        assert!(matches!(source("https://example.com/a.png"), Ok(Source::Web(_))));
    }

    #[test]
    fn details_are_those_that_are_honoured() {
        for detail in [None, Some("auto"), Some("high")] {
            checked_detail(detail, "at").unwrap();
        }
        for detail in ["low", "original", "tiny"] {
            assert!(checked_detail(Some(detail), "at").is_err(), "{detail}");
        }
    }
}
