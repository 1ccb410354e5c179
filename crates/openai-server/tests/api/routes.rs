//! Who may call which route.

use crate::support::{App, Reply, config};
use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Request, StatusCode},
    routing::get,
};
use taper_openai_server::{ApiKeys, ServerConfig, route_table};

/// Routes that need no key. A new one is a decision, and so stands here.
const OPEN: [&str; 8] =
    ["/health", "/ready", "/livez", "/readyz", "/version", "/metrics", "/openapi.json", "/docs"];
const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"];

fn app() -> App {
    let api_keys = ApiKeys::new(["k1"]).unwrap();
    App::with(
        ServerConfig { api_keys, allow_adapter_updates: true, ..config() },
        Reply::Text("x".into()),
    )
}

/// Status, headers without the request's id, and body.
async fn ask(app: &App, method: &str, path: &str, key: bool) -> (StatusCode, HeaderMap, String) {
    let mut request = Request::builder().method(method).uri(path);
    if key {
        request = request.header("authorization", "Bearer k1");
    }
    let (status, mut headers, body) = app.send(request.body(Body::empty()).unwrap()).await;
    headers.remove("x-request-id");
    (status, headers, body)
}

/// A path that a route with a parameter takes.
fn example(path: &str) -> String {
    path.replace("{*id}", "mock")
}

#[tokio::test]
async fn every_route_but_the_open_ones_needs_a_key() {
    let app = app();
    let open: Vec<&str> = route_table().into_iter().filter(|r| r.1).map(|r| r.0).collect();
    assert_eq!(open, OPEN);
    assert!(route_table().len() > OPEN.len());
    for (path, open) in route_table() {
        let path = example(path);
        for method in METHODS {
            let (status, _, body) = ask(&app, method, &path, false).await;
            assert_eq!(status != StatusCode::UNAUTHORIZED, open, "{method} {path}: {body}");
            let (status, _, body) = ask(&app, method, &path, true).await;
            assert_ne!(status, StatusCode::UNAUTHORIZED, "{method} {path}: {body}");
            // There may be nothing of that name, but there is a route.
            assert!(!body.contains("\"code\":\"unknown_url\""), "{method} {path}: {body}");
        }
        if open {
            assert_eq!(ask(&app, "GET", &path, false).await.0, StatusCode::OK, "{path}");
        }
    }
    assert_eq!(app.engine.count(), 0);
}

#[tokio::test]
async fn without_a_key_a_path_that_is_not_there_looks_like_one_that_is() {
    let app = app();
    for method in METHODS {
        let known = ask(&app, method, "/v1/models", false).await;
        assert_eq!(known.0, StatusCode::UNAUTHORIZED);
        // Names that only resemble open routes are not open.
        for path in ["/", "/what", "/v1/what", "/health/", "/%68ealth", "//health", "/metrics/x"] {
            let unknown = ask(&app, method, path, false).await;
            assert_eq!(unknown, known, "{method} {path}");
            assert_eq!(ask(&app, method, path, true).await.0, StatusCode::NOT_FOUND);
        }
    }
}

#[tokio::test]
async fn pages_are_open_to_every_link_and_open_nothing_else() {
    let api_keys = ApiKeys::new(["k1"]).unwrap();
    let pages = Router::new().route("/", get(|| async { "page" }));
    let app = App::with(ServerConfig { api_keys, pages, ..config() }, Reply::Text("x".into()));
    let link = |path: &str| {
        let request = Request::get(path).header("sec-fetch-site", "cross-site");
        request.body(Body::empty()).unwrap()
    };
    let (status, headers, body) = app.send(link("/")).await;
    assert_eq!((status, &*body), (StatusCode::OK, "page"));
    assert!(headers.contains_key("x-request-id"));
    assert_eq!(app.send(link("/health")).await.0, StatusCode::FORBIDDEN);
    assert_eq!(ask(&app, "POST", "/", false).await.0, StatusCode::METHOD_NOT_ALLOWED);
    for path in ["/what", "/v1/models", "//"] {
        assert_eq!(ask(&app, "GET", path, false).await.0, StatusCode::UNAUTHORIZED, "{path}");
    }
}
