//! The endpoints of longctx-svc, as its own black-box cases ask them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(feature = "server")]

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Request, StatusCode},
};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};
use taper_longctx::{Library, Settings, http};
use tower::ServiceExt;

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// The fixture of longctx-svc's tests.
fn app(root: &Path) {
    write(root, "package.json", "{\"name\": \"myapp\"}\n");
    write(
        root,
        "src/auth.ts",
        "export function verifyToken(token: string): boolean {\n  return token.length > 10;\n}\n",
    );
    write(
        root,
        "src/billing.ts",
        "export function chargeCard(amount: number) {\n  return amount * 1.2;\n}\n",
    );
    write(root, "README.md", "# My app\nAuthentication and billing.\n");
    write(root, ".gitignore", "dist/\n");
    write(root, "dist/ignored.js", "function ignored() {}\n");
}

struct Sidecar {
    router: Router,
    root: PathBuf,
    _dirs: [tempfile::TempDir; 2],
}

impl Sidecar {
    /// Serves a directory that `fill` fills.
    fn new(fill: impl FnOnce(&Path)) -> Self {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let root = dirs[0].path().canonicalize().unwrap();
        fill(&root);
        let settings = Settings { watch: true, ..Settings::default() };
        let library = Arc::new(Library::open(&[&root], &settings).unwrap());
        let service = http::Service::new(library, Some(dirs[1].path().to_owned()));
        let router = http::router(service).merge(http::health());
        Self { router, root, _dirs: dirs }
    }

    async fn send(&self, request: Request<Body>) -> (StatusCode, HeaderMap, String) {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, headers, String::from_utf8(bytes.to_vec()).unwrap())
    }

    async fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: Value,
    ) -> (StatusCode, HeaderMap, Value) {
        let mut request = Request::post(path).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let sent = self.send(request.body(Body::from(body.to_string())).unwrap()).await;
        (sent.0, sent.1, serde_json::from_str(&sent.2).unwrap_or(Value::Null))
    }

    async fn get(&self, path: &str) -> Value {
        let (status, _, body) = self.send(Request::get(path).body(Body::empty()).unwrap()).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    async fn retrieve(&self, session: Option<&str>, body: Value) -> Value {
        let headers: Vec<_> = session.iter().map(|s| ("x-session-affinity", *s)).collect();
        let (status, _, answer) = self.post("/retrieve", &headers, body).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        answer
    }

    fn path(&self, name: &str) -> String {
        self.root.join(name).to_string_lossy().into_owned()
    }
}

#[tokio::test]
async fn a_prompt_with_a_path_has_a_scope_and_chunks() {
    let sidecar = Sidecar::new(app);
    let prefill = format!(
        "# Workspace: {}\n# Current file: {}\nHow do I verify a token?",
        sidecar.path(""),
        sidecar.path("src/auth.ts")
    );
    let body = json!({ "prefill_text": prefill, "query": "verify token", "top_k": 4 });
    let (status, headers, answer) =
        sidecar.post("/retrieve", &[("x-session-affinity", "opencode:abc123")], body.clone()).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(answer["scope_path"], sidecar.root.to_str().unwrap());
    assert_eq!(answer["scope_sentinel"], "package.json");
    assert_eq!(answer["session_id"], "opencode:abc123");
    assert_eq!(answer["scope_status"], "ready");
    assert_eq!(answer["scope_hash"].as_str().unwrap().len(), 16);
    for name in [
        "x-longctx-session",
        "x-longctx-scope",
        "x-longctx-chunks-used",
        "x-longctx-scope-status",
        "x-longctx-confidence",
    ] {
        assert!(headers.contains_key(name), "{name}");
    }
    for chunk in answer["chunks"].as_array().unwrap() {
        assert!(Path::new(chunk["file_path"].as_str().unwrap()).is_file());
        let (start, end) =
            (chunk["start_line"].as_u64().unwrap(), chunk["end_line"].as_u64().unwrap());
        assert!(1 <= start && start <= end);
    }
    assert!(answer["chunks"][0]["file_path"].as_str().unwrap().ends_with("auth.ts"));
    // Without a session.
    let (_, headers, answer) = sidecar.post("/retrieve", &[], body.clone()).await;
    assert!(answer["session_id"].is_null());
    assert_eq!(headers["x-longctx-session"], "ephemeral");
    // At once, and again.
    let (status, _, early) =
        sidecar.post("/retrieve", &[("x-longctx-async", "1")], body.clone()).await;
    assert_eq!(status, StatusCode::OK);
    assert!(["indexing", "ready", "empty"].contains(&early["scope_status"].as_str().unwrap()));
    assert_eq!(sidecar.retrieve(None, body).await["scope_status"], "ready");
    // The second header, and the body.
    let (_, headers, _) = sidecar.post("/retrieve", &[("x-session-id", "b")], json!({})).await;
    assert_eq!(headers["x-longctx-session"], "b");
    let told = sidecar.retrieve(None, json!({ "metadata": { "session_id": "c" } })).await;
    assert_eq!(told["session_id"], "c");
}

#[tokio::test]
async fn ignored_files_are_in_no_answer() {
    let sidecar = Sidecar::new(app);
    let body =
        json!({ "prefill_text": sidecar.path("src/auth.ts"), "query": "ignored", "top_k": 64 });
    let answer = sidecar.retrieve(None, body).await;
    assert!(!answer.to_string().contains("dist/"), "{answer}");
    let mentioned = json!({ "prefill_text": sidecar.path("dist/ignored.js"), "query": "function ignored", "top_k": 64 });
    assert!(!sidecar.retrieve(None, mentioned).await["chunks"].to_string().contains("ignored()"));
}

#[tokio::test]
async fn scopes_come_from_paths_and_only_from_roots() {
    let sidecar = Sidecar::new(|root| {
        app(&root.join("one"));
        app(&root.join("two"));
    });
    let at = |name: &str| json!({ "prefill_text": format!("see {} please", sidecar.path(name)), "query": "token" });
    let one = sidecar.retrieve(Some("a"), at("one/src/auth.ts")).await;
    let two = sidecar.retrieve(Some("b"), at("two/src/auth.ts")).await;
    let again = sidecar.retrieve(Some("c"), at("one/src/billing.ts")).await;
    assert_ne!(one["scope_hash"], two["scope_hash"]);
    assert_eq!(one["scope_hash"], again["scope_hash"]);
    assert!(
        one["chunks"]
            .as_array()
            .unwrap()
            .iter()
            .all(|c| c["file_path"].as_str().unwrap().contains("/one/"))
    );
    // No path: no scope, whatever the default is.
    for default in [Value::Null, json!(sidecar.path("one")), json!("/does/not/exist")] {
        let none = sidecar
            .retrieve(
                None,
                json!({ "prefill_text": "hello", "query": "token", "default_scope": default }),
            )
            .await;
        assert_eq!(none["scope_status"], "no-scope");
        assert!(none["scope_path"].is_null() && none["chunks"].as_array().unwrap().is_empty());
    }
    // A default makes relative paths whole, and a path outweighs it.
    let relative = json!({ "prefill_text": "see src/auth.ts", "query": "token", "default_scope": sidecar.path("two") });
    assert_eq!(sidecar.retrieve(None, relative).await["scope_hash"], two["scope_hash"]);
    let both = json!({ "prefill_text": sidecar.path("one/src/auth.ts"), "query": "token", "default_scope": sidecar.path("two") });
    assert_eq!(sidecar.retrieve(None, both).await["scope_hash"], one["scope_hash"]);
    let explicit = sidecar
        .retrieve(None, json!({ "query": "token", "explicit_scope": sidecar.path("two") }))
        .await;
    assert_eq!(
        (&explicit["scope_sentinel"], &explicit["scope_hash"]),
        (&json!("explicit"), &two["scope_hash"])
    );
    // Nothing outside of the root is a scope.
    let outside = tempfile::tempdir().unwrap();
    app(outside.path());
    let file = outside.path().join("src/auth.ts");
    for body in [
        json!({ "prefill_text": file.to_str().unwrap(), "query": "token" }),
        json!({ "query": "token", "explicit_scope": outside.path().to_str().unwrap() }),
        json!({ "query": "token", "explicit_scope": "/etc" }),
        json!({ "prefill_text": format!("{}/../../etc/passwd", sidecar.path("one")), "query": "root" }),
    ] {
        let answer = sidecar.retrieve(None, body.clone()).await;
        assert_eq!(answer["scope_status"], "no-scope", "{body}");
    }
}

#[tokio::test]
async fn sessions_remember_their_scopes() {
    let sidecar = Sidecar::new(|root| {
        app(&root.join("one"));
        app(&root.join("two"));
    });
    let ask = |text: String| json!({ "prefill_text": text, "query": "token" });
    let files = ["src/auth.ts", "src/billing.ts", "README.md", "package.json"];
    let named = files.map(|f| sidecar.path(&format!("one/{f}"))).join(" and ");
    let first = sidecar.retrieve(Some("s"), ask(named)).await;
    let later = sidecar.retrieve(Some("s"), ask("now fix the bug".into())).await;
    assert_eq!(first["scope_hash"], later["scope_hash"]);
    // All scopes of a session.
    let all = |session| {
        sidecar.retrieve(Some(session), json!({ "query": "verify token", "explicit_scope": "ws:" }))
    };
    let none = all("new").await;
    assert_eq!((&none["scope_status"], &none["scope_path"]), (&json!("no-scope"), &json!("ws:")));
    sidecar.retrieve(Some("s"), ask(sidecar.path("two/src/auth.ts"))).await;
    let both = all("s").await;
    assert_eq!(
        (&both["scope_status"], &both["scope_sentinel"]),
        (&json!("ready"), &json!("workspace"))
    );
    let text = both["chunks"].to_string();
    assert!(text.contains("/one/") && text.contains("/two/"), "{text}");
}

#[tokio::test]
async fn files_without_a_project_become_a_cluster() {
    let sidecar = Sidecar::new(|root| {
        for n in 0..6 {
            write(root, &format!("notes/n{n}.py"), &format!("def note_{n}():\n    return {n}\n"));
        }
    });
    let ask = |names: &[usize]| {
        let text: Vec<_> = names.iter().map(|n| sidecar.path(&format!("notes/n{n}.py"))).collect();
        json!({ "prefill_text": text.join("\n"), "query": "note" })
    };
    assert_eq!(sidecar.retrieve(Some("a"), ask(&[0])).await["scope_status"], "no-scope");
    assert_eq!(sidecar.retrieve(Some("b"), ask(&[0, 1, 2])).await["scope_status"], "no-scope");
    let found = sidecar.retrieve(Some("b"), ask(&[3])).await;
    assert_eq!(found["scope_sentinel"], "cluster");
    assert_eq!(found["scope_path"], sidecar.path("notes"));
    assert_eq!(
        sidecar.retrieve(Some("a"), ask(&[0])).await["scope_status"],
        "no-scope",
        "isolated"
    );
    let at_once = sidecar.retrieve(Some("c"), ask(&[0, 1, 2, 3, 4])).await;
    assert_eq!(at_once["scope_sentinel"], "cluster");
}

#[tokio::test]
async fn packages_of_a_monorepo_are_scopes() {
    let sidecar = Sidecar::new(|root| {
        write(root, "pnpm-workspace.yaml", "packages:\n  - apps/*\n");
        write(
            root,
            "apps/billing/Charge.tsx",
            "export const Charge = () => {\n  return null;\n};\n",
        );
        write(
            root,
            "apps/billing/Invoice.tsx",
            "export const Invoice = () => {\n  return null;\n};\n",
        );
        write(root, "apps/admin/Users.tsx", "export const Users = () => {\n  return null;\n};\n");
    });
    let text = format!(
        "{} {}",
        sidecar.path("apps/billing/Charge.tsx"),
        sidecar.path("apps/billing/Invoice.tsx")
    );
    let answer = sidecar.retrieve(None, json!({ "prefill_text": text, "query": "export" })).await;
    assert_eq!(answer["scope_path"], sidecar.path("apps/billing"));
    assert!(!answer["chunks"].to_string().contains("Users"));
}

#[tokio::test]
async fn status_health_and_the_proxy_answer() {
    let sidecar = Sidecar::new(app);
    sidecar
        .retrieve(Some("s"), json!({ "prefill_text": sidecar.path("src/auth.ts"), "query": "x1" }))
        .await;
    let status = sidecar.get("/longctx/status").await;
    assert_eq!(status["mode"], "local-only");
    assert!(status["sessions_active"].as_u64().unwrap() >= 1);
    assert_eq!(
        (&status["scopes_loaded"], &status["scopes"][0]["state"]),
        (&json!(1), &json!("ready"))
    );
    let text =
        Request::get("/longctx/status").header("accept", "text/plain").body(Body::empty()).unwrap();
    let (_, _, text) = sidecar.send(text).await;
    for line in ["mode: local-only", "session:", "scope:", "indexed:", "memory:"] {
        assert!(text.contains(&format!("[longctx] {line}")), "{text}");
    }
    assert_eq!(sidecar.get("/healthz").await["status"], "ok");
    for (method, path) in
        [("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("POST", "/v1/completions")]
    {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let (status, _, body) = sidecar.send(request).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(body.contains("proxy disabled"), "{body}");
    }
}

fn chunk(text: &str, at: u64) -> Value {
    json!({ "text": text, "token_range": [at, at + 57], "layer": 13, "score": 0.77 })
}

#[tokio::test]
async fn evicted_texts_are_kept_by_session() {
    let sidecar = Sidecar::new(app);
    let write = |id: &str, chunks: Vec<Value>| {
        let body = json!({ "session_id": id, "chunks": chunks });
        async { sidecar.post("/evict/write", &[], body).await.2 }
    };
    assert_eq!(
        write("a", vec![chunk("the secret code is PURPLE ELEPHANT", 42), chunk("filler", 100)])
            .await,
        json!({ "accepted": 2, "session_total": 2 })
    );
    assert_eq!(
        write("a", vec![chunk("more filler", 200)]).await,
        json!({ "accepted": 1, "session_total": 3 })
    );
    assert_eq!(
        write("b", vec![chunk("other", 1)]).await,
        json!({ "accepted": 1, "session_total": 1 })
    );
    assert_eq!(write("c", vec![]).await, json!({ "accepted": 0, "session_total": 0 }));
    let find = |body: Value| async { sidecar.post("/evict/retrieve", &[], body).await };
    let (_, _, found) =
        find(json!({ "session_id": "a", "query": "secret code", "top_k": 1 })).await;
    assert_eq!(found["session_total"], 3);
    assert_eq!(found["chunks"][0]["token_range"], json!([42, 99]));
    assert_eq!(found["chunks"][0]["layer"], 13);
    assert!(found["chunks"][0]["text"].as_str().unwrap().contains("PURPLE"));
    let (_, _, foreign) = find(json!({ "session_id": "b", "query": "secret code" })).await;
    assert!(foreign["chunks"].as_array().unwrap().is_empty());
    let dump = sidecar.get("/evict/dump?session_id=a").await;
    assert_eq!(dump["token_ranges"], json!([[42, 99], [100, 157], [200, 257]]));
    assert_eq!((&dump["scores"][0], &dump["layers"][0]), (&json!(0.77), &json!(13)));
    for bad in [
        json!({ "query": "x" }),
        json!({ "session_id": "a", "query": "x", "top_k": 0 }),
        json!({ "session_id": "a", "query": "x", "top_k": 1000 }),
        json!({ "session_id": "a", "query": "x", "score_floor": 1.5 }),
        json!({ "session_id": "a", "query": "x", "prefilter": 0 }),
        json!({ "session_id": "", "query": "x" }),
        json!({ "session_id": "a", "query": "x", "unheard_of": 1 }),
    ] {
        assert_eq!(find(bad.clone()).await.0, StatusCode::UNPROCESSABLE_ENTITY, "{bad}");
    }
    let (status, ..) = sidecar.post("/evict/write", &[], json!({ "chunks": [] })).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn sessions_hibernate_and_come_back() {
    let sidecar = Sidecar::new(app);
    let chunks = vec![chunk("the secret word is okapi", 0), chunk("b", 60), chunk("c", 120)];
    sidecar.post("/evict/write", &[], json!({ "session_id": "a/../b", "chunks": chunks })).await;
    let at = |what: &str| format!("/sessions/a%2F..%2Fb/{what}");
    let post = |path: String| async move { path };
    let hibernate = post(at("hibernate")).await;
    let (_, _, gone) = sidecar.post(&hibernate, &[], Value::Null).await;
    assert_eq!((&gone["hibernated"], &gone["n_chunks"]), (&json!(true), &json!(3)), "{gone}");
    let where_is = sidecar.get(&at("hibernation-status")).await;
    assert_eq!(
        (&where_is["in_ram"], &where_is["on_disk"], &where_is["n_chunks_on_disk"]),
        (&json!(false), &json!(true), &json!(3))
    );
    assert!(where_is["hibernated_at"].as_u64().is_some());
    // It comes back by being asked.
    let query = json!({ "session_id": "a/../b", "query": "secret", "top_k": 1 });
    let (_, _, found) = sidecar.post("/evict/retrieve", &[], query).await;
    assert_eq!(found["session_total"], 3);
    assert!(found["chunks"][0]["text"].as_str().unwrap().contains("secret"));
    sidecar.post(&hibernate, &[], Value::Null).await;
    let (_, _, back) = sidecar.post(&at("resume"), &[], Value::Null).await;
    assert_eq!(
        back,
        json!({ "session_id": "a/../b", "resumed": true, "n_chunks": 3, "error": null })
    );
    for what in ["hibernate", "resume"] {
        let (status, _, none) =
            sidecar.post(&format!("/sessions/unknown/{what}"), &[], Value::Null).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(none["n_chunks"], 0, "{none}");
        assert_ne!(none["hibernated"], true);
        assert_ne!(none["resumed"], true);
    }
}
