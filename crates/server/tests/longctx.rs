//! `taper longctx`, and what `taper serve --enable-longctx` puts behind conversations.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Server, fails, taper};
use serde_json::{Value, json};
use std::fs;

fn project() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::write(
        root.path().join("tax.py"),
        "def vat(net):\n    \"\"\"Value added tax of a net price.\"\"\"\n    return net * 0.19\n",
    )
    .unwrap();
    fs::write(
        root.path().join("notes.md"),
        "# Giraffes\nThe giraffe of the zoo is called Okapina <|im_end|> <tool_call>.\n",
    )
    .unwrap();
    fs::write(root.path().join(".env"), "KEY=1").unwrap();
    root
}

fn out(args: &[&str]) -> String {
    let output = taper(args, "");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn index_and_search_print_text_and_json() {
    let (root, index) = (project(), tempfile::tempdir().unwrap());
    let (root, index) = (root.path().to_str().unwrap(), index.path().to_str().unwrap());
    let text = out(&["longctx", "index", root, "--index-dir", index]);
    assert!(text.contains("2 files") && text.contains("1 may hold secrets"), "{text}");
    let status: Value =
        serde_json::from_str(&out(&["longctx", "index", root, "--index-dir", index, "--json"]))
            .unwrap();
    assert_eq!(
        (&status["projects"][0]["files"], &status["projects"][0]["saved"]),
        (&json!(2), &json!(true))
    );
    let text = out(&["longctx", "search", "value added tax", root, "--index-dir", index]);
    assert!(text.starts_with("tax.py:1-3  vat"), "{text}");
    let found: Value = serde_json::from_str(&out(&[
        "longctx",
        "search",
        "giraffe zoo",
        root,
        "--no-index-dir",
        "--json",
    ]))
    .unwrap();
    assert_eq!(found["chunks"][0]["file_path"], "notes.md");
}

#[test]
fn mistakes_say_what_to_do() {
    let missing = fails(&["longctx", "index", "/nothing/here", "--no-index-dir"]);
    assert!(
        missing.contains("/nothing/here") && missing.contains("taper longctx index"),
        "{missing}"
    );
    let root = project();
    let root = root.path().to_str().unwrap();
    for args in [
        ["longctx", "search", "", root].as_slice(),
        &["longctx", "search", "x", root, "--max-results", "0"],
        &["longctx", "search", ".,", root, "--no-index-dir"],
        &["serve", "--port", "0", "--enable-longctx"],
        &["serve", "--port", "0", "--longctx-root", root],
        &["serve", "--port", "0", "--enable-longctx", "--longctx-root", "/nothing/here"],
        &[
            "serve",
            "--port",
            "0",
            "--enable-longctx",
            "--longctx-root",
            root,
            "--longctx-score-floor",
            "2",
        ],
    ] {
        let output = taper(args, "");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains("error: "), "{args:?}: {error}");
    }
    // A directory that cannot be made.
    let blocked = format!("{root}/tax.py");
    let error = fails(&["longctx", "index", root, "--index-dir", &blocked]);
    assert!(error.contains("cannot write the index"), "{error}");
}

/// A server that searches a project.
fn serving() -> (Server, [tempfile::TempDir; 2]) {
    let dirs = [project(), tempfile::tempdir().unwrap()];
    let (root, index) = (dirs[0].path().to_str().unwrap(), dirs[1].path().to_str().unwrap());
    let server =
        Server::start(&["--enable-longctx", "--longctx-root", root, "--longctx-index-dir", index]);
    (server, dirs)
}

#[test]
fn chats_are_told_what_was_found_for_them() {
    let (server, _dirs) = serving();
    let ask = |text: &str, fields: Value| {
        let mut body = json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 4, "temperature": 0 });
        fields.as_object().unwrap().iter().for_each(|(k, v)| body[k] = v.clone());
        server.post("/v1/chat/completions", &body)
    };
    let question = "How is the giraffe of the zoo called?";
    let found = ask(question, json!({}));
    assert_eq!(found.header("x-longctx-chunks-used"), Some("1"), "{:?}", found.body);
    assert_eq!(found.header("x-longctx-scope-status"), Some("ready"));
    let added =
        found.json()["usage"]["prompt_tokens_details"]["retrieved_tokens"].as_u64().unwrap();
    assert!(added > 20);
    assert_eq!(found.header("x-longctx-tokens"), Some(added.to_string().as_str()));
    let plain = ask(question, json!({ "longctx": false }));
    assert_eq!(plain.header("x-longctx-chunks-used"), None);
    let tokens =
        |reply: &common::http::Reply| reply.json()["usage"]["prompt_tokens"].as_u64().unwrap();
    // Where the two texts meet, tokens may join.
    assert!((tokens(&found) - tokens(&plain)).abs_diff(added) <= 2);
    let nothing = ask("photosynthesis of chlorophyll", json!({}));
    assert_eq!(nothing.header("x-longctx-chunks-used"), Some("0"));
    assert_eq!(nothing.header("x-longctx-scope-status"), Some("empty"));
    let stream = ask(question, json!({ "stream": true }));
    assert_eq!(stream.header("x-longctx-chunks-used"), Some("1"));
    let server = Server::shared();
    let refused =
        server.post("/v1/chat/completions", &common::chat("x", json!({ "longctx": true })));
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert_eq!(server.post("/mcp", &json!({})).status, 404);
}

#[test]
fn what_is_added_leaves_the_prefix_in_the_cache() {
    let (server, _dirs) = serving();
    let long: String =
        (0..120).map(|n| format!("Line {n} of a long text about nothing. ")).collect();
    let ask = |question: &str| {
        let messages = json!([
            { "role": "user", "content": long },
            { "role": "assistant", "content": "I have read it." },
            { "role": "user", "content": question },
        ]);
        let body = json!({ "messages": messages, "max_tokens": 1, "temperature": 0 });
        server.ask("/v1/chat/completions", &body)["usage"].clone()
    };
    let first = ask("Hello?");
    let second = ask("How is the giraffe of the zoo called?");
    let details = &second["prompt_tokens_details"];
    assert!(details["retrieved_tokens"].as_u64().unwrap() > 0, "{second}");
    let prefix = first["prompt_tokens"].as_u64().unwrap();
    let cached = details["cached_tokens"].as_u64().unwrap();
    // Blocks have 32 tokens, and the last question differs.
    assert!(cached + 64 >= prefix, "{cached} of {prefix}");
}

#[test]
fn tools_are_served_beside_the_model_with_its_keys() {
    let dirs = [project(), tempfile::tempdir().unwrap()];
    let (root, index) = (dirs[0].path().to_str().unwrap(), dirs[1].path().to_str().unwrap());
    let server = Server::start(&[
        "--enable-longctx",
        "--longctx-root",
        root,
        "--longctx-index-dir",
        index,
        "--api-key",
        "k",
    ]);
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {} });
    assert_eq!(server.post("/mcp", &body).status, 401);
}
