//! The app as a browser gets it.

use super::*;
use axum::{body::to_bytes, http::Request};
use tower::ServiceExt;

async fn ask(path: &str, headers: &[(&str, &str)]) -> Response {
    let request = headers
        .iter()
        .fold(Request::get(path), |request, (name, value)| request.header(*name, *value));
    router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

async fn body(response: Response) -> Vec<u8> {
    to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec()
}

fn asset(part: &str) -> &'static Asset {
    ASSETS.iter().find(|asset| asset.path.contains(part)).unwrap()
}

#[tokio::test]
async fn every_file_is_served_with_its_headers() {
    for path in ["/"].into_iter().chain(ASSETS.iter().map(|asset| asset.path)) {
        let response = ask(path, &[]).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        let headers = response.headers();
        assert_eq!(headers["content-security-policy"], POLICY, "{path}");
        assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
        assert_eq!(headers["referrer-policy"], "no-referrer", "{path}");
        let lasting = headers["cache-control"].to_str().unwrap().contains("immutable");
        assert_eq!(lasting, path.starts_with(HASHED), "{path}");
        assert!(!headers.contains_key("content-encoding"), "{path}");
    }
    assert_eq!(ask("/what", &[]).await.status(), StatusCode::NOT_FOUND);
    assert_eq!(ask("/assets/../index.html", &[]).await.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn what_is_compressed_is_what_is_not() {
    for asset in ASSETS {
        let packed = ask(asset.path, &[("accept-encoding", "br, gzip;q=0.8")]).await;
        assert_eq!(packed.headers()["content-encoding"], "gzip");
        assert_eq!(packed.headers()["content-type"], asset.kind);
        let mut unpacked = Vec::new();
        let packed = body(packed).await;
        GzDecoder::new(&*packed).read_to_end(&mut unpacked).unwrap();
        let plain = ask(asset.path, &[("accept-encoding", "gzip;q=0")]).await;
        assert!(!plain.headers().contains_key("content-encoding"));
        assert_eq!(unpacked, body(plain).await, "{}", asset.path);
    }
}

#[tokio::test]
async fn a_known_file_is_not_sent_again() {
    let index = asset(INDEX);
    for known in [index.tag.to_owned(), format!("\"other\", W/{}", index.tag)] {
        let response = ask("/", &[("if-none-match", &known)]).await;
        assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(response.headers()["etag"], index.tag);
        assert!(body(response).await.is_empty());
    }
    assert_eq!(ask("/", &[("if-none-match", "\"other\"")]).await.status(), StatusCode::OK);
}

/// All files together, compressed.
const MOST_BYTES: usize = 400 << 10;

#[test]
fn the_app_is_small_and_names_no_other_host() {
    let bytes: usize = ASSETS.iter().map(|asset| asset.gzip.len()).sum();
    assert!(bytes <= MOST_BYTES, "{bytes}");
    let mut page = String::new();
    GzDecoder::new(asset(INDEX).gzip).read_to_string(&mut page).unwrap();
    assert!(!page.contains("://"), "{page}");
}
