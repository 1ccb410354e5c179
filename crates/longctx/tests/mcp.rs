//! Both revisions of the protocol over HTTP, without a client's help.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(feature = "server")]

use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode},
};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::{fs, sync::Arc};
use taper_longctx::{Library, Settings, mcp};
use tower::ServiceExt;

const TOOLS: [&str; 5] = ["projects", "read", "related", "search", "status"];

struct Server {
    router: Router,
    root: tempfile::TempDir,
}

impl Server {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::write(
            root.path().join("tax.py"),
            "def vat(net):\n    return net * 0.19\n\ndef gross(net):\n    return net + vat(net)\n",
        )
        .unwrap();
        fs::write(root.path().join(".env"), "TOKEN=okapi").unwrap();
        let library =
            Library::open(&[root.path()], &Settings { watch: true, ..Settings::default() })
                .unwrap();
        let tools = mcp::Tools::new(Arc::new(library));
        Self { router: Router::new().nest_service("/mcp", mcp::service::<()>(&tools)), root }
    }

    /// A request of a revision, as its clients send it.
    async fn call(&self, revision: &str, method: &str, mut params: Value) -> Value {
        let mut request = Request::post("/mcp")
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header("host", "localhost")
            .header("mcp-protocol-version", revision);
        if revision == "2026-07-28" {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": revision,
                "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
                "io.modelcontextprotocol/clientCapabilities": {},
            });
            request = request.header("mcp-method", method);
            if let Some(name) = params["name"].as_str() {
                request = request.header("mcp-name", name);
            }
        }
        let body = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
        let request = request.body(Body::from(body.to_string())).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (status, bytes) =
            (response.status(), response.into_body().collect().await.unwrap().to_bytes());
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        assert_eq!(status, StatusCode::OK, "{text}");
        // One event, where it is a stream.
        let data = text.lines().rev().find_map(|line| line.strip_prefix("data: ")).unwrap_or(&text);
        serde_json::from_str(data).unwrap_or_else(|_| panic!("{text}"))
    }

    async fn tool(&self, revision: &str, name: &str, arguments: Value) -> Value {
        let answer = self
            .call(revision, "tools/call", json!({ "name": name, "arguments": arguments }))
            .await;
        answer["result"].clone()
    }
}

#[tokio::test]
async fn five_tools_answer_as_their_schemas_say_in_both_revisions() {
    let server = Server::new();
    for revision in ["2025-11-25", "2026-07-28"] {
        let listed = server.call(revision, "tools/list", json!({})).await["result"].clone();
        let tools = listed["tools"].as_array().unwrap().clone();
        let mut names: Vec<_> = tools.iter().map(|t| t["name"].as_str().unwrap()).collect();
        names.sort_unstable();
        assert_eq!(names, TOOLS);
        if revision == "2026-07-28" {
            assert!(listed["ttlMs"].is_number() && listed["cacheScope"].is_string(), "{listed}");
            assert_eq!(listed["resultType"], "complete", "{listed}");
        }
        for tool in &tools {
            assert_eq!(tool["annotations"]["readOnlyHint"], true);
            let arguments = match tool["name"].as_str().unwrap() {
                "search" => json!({ "query": "vat" }),
                "read" | "related" => json!({ "file_path": "tax.py" }),
                _ => json!({}),
            };
            let result = server.tool(revision, tool["name"].as_str().unwrap(), arguments).await;
            assert_ne!(result["isError"], true, "{result}");
            let schema = jsonschema::validator_for(&tool["outputSchema"]).unwrap();
            let wrong: Vec<_> =
                schema.iter_errors(&result["structuredContent"]).map(|e| e.to_string()).collect();
            assert!(wrong.is_empty(), "{}: {wrong:?} {result}", tool["name"]);
        }
    }
}

#[tokio::test]
async fn discovery_and_the_old_handshake_name_the_revisions() {
    let server = Server::new();
    let found = server.call("2026-07-28", "server/discover", json!({})).await;
    let versions = found["result"]["supportedVersions"].to_string();
    assert!(versions.contains("2026-07-28") && versions.contains("2025-11-25"), "{found}");
    let hello = json!({
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" }
    });
    let hello = server.call("2025-11-25", "initialize", hello).await;
    assert_eq!(hello["result"]["protocolVersion"], "2025-11-25", "{hello}");
    assert_eq!(hello["result"]["serverInfo"]["name"], "taper-longctx");
}

#[tokio::test]
async fn only_posts_are_taken() {
    let server = Server::new();
    for method in ["GET", "DELETE"] {
        let request = Request::builder()
            .method(method)
            .uri("/mcp")
            .header("host", "localhost")
            .header("accept", "text/event-stream");
        let response =
            server.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED, "{method}");
    }
}

#[tokio::test]
async fn a_file_is_found_by_the_search_after_it_was_written_and_secrets_never() {
    let server = Server::new();
    let revision = "2026-07-28";
    fs::write(server.root.path().join("new.py"), "def okapi():\n    return 1\n").unwrap();
    let found = server.tool(revision, "search", json!({ "query": "okapi" })).await;
    let found = &found["structuredContent"];
    assert_eq!(
        (found["chunks"].as_array().unwrap().len(), &found["is_fully_fresh"]),
        (1, &json!(true)),
        "{found}"
    );
    assert_eq!(found["chunks"][0]["file_path"], "new.py");
    for path in [".env", "../x", "/etc/passwd"] {
        let read = server.tool(revision, "read", json!({ "file_path": path })).await;
        assert_eq!(read["isError"], true, "{read}");
        assert!(!read.to_string().contains("okapi"));
    }
    let off =
        server.tool(revision, "search", json!({ "query": "photosynthesis chlorophyll" })).await;
    assert_eq!(off["structuredContent"]["no_relevant_results"], true);
    let related =
        server.tool(revision, "related", json!({ "file_path": "tax.py", "line": 1 })).await;
    assert_eq!(related["structuredContent"]["chunks"][0]["symbol"], "gross", "{related}");
    for bad in [
        json!({}),
        json!({ "query": "x", "max_results": 0 }),
        json!({ "query": "x", "project": "none" }),
    ] {
        let answer = server
            .call(revision, "tools/call", json!({ "name": "search", "arguments": bad }))
            .await;
        let refused = answer["error"].is_object() || answer["result"]["isError"] == true;
        assert!(refused, "{answer}");
    }
}
