//! What a web page can and cannot do.

use crate::support::{App, Reply, chat, config, post};
use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use serde_json::{Value, json};
use taper_openai_server::{AllowedHosts, AllowedOrigins, ApiKeys, ServerConfig};

const PATHS: [&str; 4] = ["/v1/chat/completions", "/v1/models", "/health", "/tokenize"];

fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost:8000");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::from(chat(json!({})).to_string())).unwrap()
}

fn code(text: &str) -> String {
    let error: Value = serde_json::from_str(text).unwrap();
    error["error"]["code"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn pages_of_other_origins_are_refused() {
    let app = App::text("x");
    for headers in [
        &[("origin", "https://evil.example")][..],
        &[("origin", "https://evil.example"), ("content-type", "application/json")],
        &[("origin", "null")],
        &[("origin", "http://localhost:3000"), ("sec-fetch-site", "same-site")],
        &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")],
    ] {
        for path in PATHS {
            for method in ["POST", "GET", "OPTIONS"] {
                let (status, _, text) = app.send(request(method, path, headers)).await;
                assert_eq!(status, StatusCode::FORBIDDEN, "{method} {path} {headers:?}");
                assert_eq!(code(&text), "origin_not_allowed");
            }
        }
    }
    assert_eq!(app.engine.count(), 0);
    // A page that this server delivered, and programs.
    let own = [("origin", "http://localhost:8000"), ("content-type", "application/json")];
    let path = "/v1/chat/completions";
    assert_eq!(app.send(request("POST", path, &own)).await.0, StatusCode::OK);
    assert_eq!(app.send(request("POST", path, &[])).await.0, StatusCode::OK);
}

#[tokio::test]
async fn what_a_page_may_send_without_a_preflight_is_not_read() {
    let allowed_origins = AllowedOrigins::new(["https://good.example"]).unwrap();
    let config = ServerConfig { allowed_origins, ..config() };
    let app = App::with(config, Reply::Text("x".into()));
    let form = "application/x-www-form-urlencoded";
    for kind in [None, Some(form), Some("text/plain"), Some("multipart/form-data")] {
        for browser in [("origin", "https://good.example"), ("sec-fetch-mode", "cors")] {
            let mut headers = vec![browser];
            headers.extend(kind.map(|kind| ("content-type", kind)));
            let (status, _, text) =
                app.send(request("POST", "/v1/chat/completions", &headers)).await;
            assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{headers:?}");
            assert_eq!(code(&text), "unsupported_media_type");
        }
    }
}

#[tokio::test]
async fn allowed_pages_may_send_what_they_ask_for() {
    let preflight = |origin| {
        let asked = "authorization,content-type,x-stainless-lang,x-stainless-retry-count";
        let headers = [
            ("origin", origin),
            ("sec-fetch-site", "cross-site"),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", asked),
        ];
        request("OPTIONS", "/v1/chat/completions", &headers)
    };
    for allowed in ["*", "http://example.com"] {
        // A preflight carries no key and must pass.
        let api_keys = ApiKeys::new(["k"]).unwrap();
        let allowed_origins = AllowedOrigins::new([allowed]).unwrap();
        let config = ServerConfig { allowed_origins, api_keys, ..config() };
        let app = App::with(config, Reply::Text("x".into()));
        let (status, headers, _) = app.send(preflight("http://example.com")).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(headers["access-control-allow-origin"], allowed);
        let may = headers["access-control-allow-headers"].to_str().unwrap();
        for name in ["authorization", "content-type", "x-stainless-retry-count"] {
            assert!(may.contains(name), "{may}");
        }
        let ask = [
            ("origin", "http://example.com"),
            ("sec-fetch-site", "cross-site"),
            ("content-type", "application/json"),
            ("authorization", "Bearer k"),
        ];
        let (status, headers, _) = app.send(request("POST", "/v1/chat/completions", &ask)).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(headers["access-control-allow-origin"], allowed);
        assert_eq!(headers["access-control-expose-headers"], "x-request-id");
    }
    let allowed_origins = AllowedOrigins::new(["http://other.example"]).unwrap();
    let config = ServerConfig { allowed_origins, ..config() };
    let app = App::with(config, Reply::Text("x".into()));
    let (_, headers, _) = app.send(preflight("http://example.com")).await;
    assert!(!headers.contains_key("access-control-allow-origin"));
    let (status, _, _) =
        app.send(request("GET", "/v1/models", &[("origin", "http://example.com")])).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn names_that_are_not_the_servers_are_refused() {
    let allowed_hosts = AllowedHosts::local_and(["box.lan"]).unwrap();
    let config = ServerConfig { allowed_hosts, ..config() };
    let app = App::with(config, Reply::Text("x".into()));
    let get = |path: &str, host: &str| {
        Request::get(path).header("host", host).body(Body::empty()).unwrap()
    };
    for path in PATHS {
        let (status, _, text) = app.send(get(path, "rebound.example:8000")).await;
        assert_eq!((status, code(&text).as_str()), (StatusCode::FORBIDDEN, "host_not_allowed"));
    }
    for host in ["localhost", "127.0.0.1:8000", "[::1]:8000", "box.lan:80"] {
        assert_eq!(app.send(get("/health", host)).await.0, StatusCode::OK, "{host}");
    }
    let open = App::text("x");
    assert_eq!(open.send(get("/health", "any.example")).await.0, StatusCode::OK);
    let mut body = post("/v1/chat/completions", &chat(json!({})).to_string());
    body.headers_mut().insert("host", "any.example".parse().unwrap());
    assert_eq!(open.send(body).await.0, StatusCode::OK);
}
