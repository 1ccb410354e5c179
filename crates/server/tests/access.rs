//! Who may call the server, and what it writes down of that.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Server, chat, fails};
use serde_json::json;
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// Sends a head and a body, and returns the status and everything.
fn raw(address: &str, head: &str, body: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(socket, "{head}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
        .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

#[test]
fn an_empty_key_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = |text: &str| {
        let path = dir.path().join("keys");
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    for key in ["", " ", "good,", "\t"] {
        let error = fails(&["serve", "--port", "0", "--api-key", key]);
        assert!(error.contains("is empty") && error.contains("--api-key"), "{error}");
    }
    assert!(fails(&["serve", "--port", "0", "--api-key", "two words"]).contains("ASCII"));
    for bad in ["good\ntwo words\n", "# comment\nk\u{e4}se\n"] {
        let bad = file(bad);
        let error = fails(&["serve", "--port", "0", "--api-key-file", &bad]);
        assert!(error.contains("--api-key-file") && error.contains("ASCII"), "{error}");
    }
    let blank = file("\u{feff}\n  \n# none yet\n");
    assert!(fails(&["serve", "--port", "0", "--api-key-file", &blank]).contains("has no key"));
    let missing = ["serve", "--port", "0", "--api-key-file", "/nothing/here"];
    assert!(fails(&missing).contains("/nothing/here"));
    let output = Command::new(env!("CARGO_BIN_EXE_taper"))
        .args(["serve", "--port", "0"])
        .env("TAPER_API_KEY", "")
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("is empty"), "{error}");
    for flag in ["--allowed-origins", "--allowed-hosts"] {
        assert!(fails(&["serve", "--port", "0", flag, "a b"]).contains(flag));
    }
}

#[test]
fn keys_come_from_flags_and_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys");
    fs::write(&path, "\u{feff}first\n# of Bob\n\n  second  \r\n").unwrap();
    let server =
        Server::start(&["--api-key", "third,fourth", "--api-key-file", path.to_str().unwrap()]);
    for key in ["first", "second", "third", "fourth"] {
        assert_eq!(models(&server, key), 200, "{key}");
    }
    for key in ["", "third,fourth", "fifth", "# of Bob"] {
        assert_eq!(models(&server, key), 401, "{key:?}");
    }
}

/// The status of a list of models for a key.
fn models(server: &Server, key: &str) -> u16 {
    let head = format!("GET /v1/models HTTP/1.1\r\nHost: any\r\nAuthorization: Bearer {key}");
    raw(&server.address, &head, "").0
}

fn wait_for(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn named_keys_are_read_again_when_their_file_changes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys.toml");
    // SHA-256 of "first" and of "second".
    let first = "a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e";
    let second = "16367aacb67a4a017c8da8ab95682ccb390863780f7114dda0a0e0c55644c7c4";
    let put = |hash: &str, more: &str| {
        let text = format!("[[key]]\nname = \"bob\"\nsha256 = \"{hash}\"\n{more}\n");
        fs::write(&path, text).unwrap();
    };
    put(first, "requests_per_minute = 1");
    let server = Server::start(&["--api-key-file", path.to_str().unwrap()]);
    assert_eq!((models(&server, "first"), models(&server, "second")), (200, 401));
    let body = chat("Hello!", json!({ "max_tokens": 2 })).to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: any\r\nAuthorization: Bearer first";
    let (status, _) = raw(&server.address, head, &body);
    let (limited, answer) = raw(&server.address, head, &body);
    assert_eq!((status, limited), (200, 429), "{answer}");
    assert!(answer.contains("retry-after: ") && answer.contains("rate_limit_exceeded"), "{answer}");
    put(second, "");
    wait_for("the new key counts", || models(&server, "second") == 200);
    assert_eq!(models(&server, "first"), 401);
    // What cannot be read leaves the keys that there are.
    fs::write(&path, "[[key]]\nname = 5").unwrap();
    server.signal("-HUP");
    thread::sleep(Duration::from_millis(300));
    assert_eq!(models(&server, "second"), 200);
    put(first, "");
    server.signal("-HUP");
    wait_for("the first key counts again", || models(&server, "first") == 200);
}

#[test]
fn connections_are_encrypted() {
    let file =
        |name: &str| format!("{}/../openai-server/tests/tls/{name}", env!("CARGO_MANIFEST_DIR"));
    let (cert, key) = (file("first.pem"), file("first.key"));
    let server = Server::start(&["--ssl-certfile", &cert, "--ssl-keyfile", &key]);
    let root = Certificate::from_pem(&fs::read(&cert).unwrap()).unwrap().to_owned();
    let roots = RootCerts::new_with_certs(&[root]);
    let tls = TlsConfig::builder().root_certs(roots).build();
    let agent: ureq::Agent = ureq::Agent::config_builder().tls_config(tls).build().into();
    let url = format!("https://{}/v1/chat/completions", server.address);
    let body = chat("Hello!", json!({ "max_tokens": 4 })).to_string();
    let mut answer = agent.post(&url).content_type("application/json").send(body).unwrap();
    assert!(answer.body_mut().read_to_string().unwrap().contains("finish_reason"));
    let plain = url.replace("https", "http");
    assert!(ureq::get(&plain).call().is_err());
    let missing = ["serve", "--port", "0", "--ssl-certfile", "/nothing", "--ssl-keyfile", &key];
    let error = fails(&missing);
    assert!(error.contains("--ssl-certfile") && error.contains("/nothing"), "{error}");
    let other =
        ["serve", "--port", "0", "--ssl-certfile", &cert, "--ssl-keyfile", &file("second.key")];
    assert!(fails(&other).contains("cannot be used"));
}

#[test]
fn pages_and_foreign_names_do_not_reach_a_local_server() {
    let server = Server::shared();
    let body = chat("Hello!", json!({ "max_tokens": 2 })).to_string();
    let ask = |headers: &str| {
        let head = format!("POST /v1/chat/completions HTTP/1.1\r\n{headers}");
        raw(&server.address, &head, &body)
    };
    let address = &server.address;
    let own = format!("Host: {address}");
    for (headers, status) in [
        (own.clone(), 200),
        (format!("{own}\r\nContent-Type: application/x-www-form-urlencoded"), 200),
        ("Host: localhost:1234".into(), 200),
        ("Host: rebound.example:8000".into(), 403),
        (format!("{own}\r\nOrigin: https://evil.example"), 403),
        (format!("{own}\r\nOrigin: https://evil.example\r\nContent-Type: application/json"), 403),
        (format!("{own}\r\nSec-Fetch-Site: cross-site"), 403),
        (format!("{own}\r\nOrigin: http://{address}\r\nContent-Type: application/json"), 200),
        (format!("{own}\r\nOrigin: http://{address}"), 415),
    ] {
        let (got, answer) = ask(&headers);
        assert_eq!(got, status, "{headers}\n{answer}");
    }
}

#[test]
fn each_request_is_a_line_of_the_log() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_taper"))
        .args(["serve", "--port", "0"])
        .env_remove("RUST_LOG")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let address = lines
        .filter_map(|l| Some(l.strip_prefix("serving on http://")?.split(',').next()?.to_owned()));
    let mut address = address;
    let address = address.next().unwrap();
    let body = chat("attack at dawn", json!({ "max_tokens": 2 })).to_string();
    let head =
        format!("POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nX-Request-Id: mine-7");
    let (status, answer) = raw(&address, &head, &body);
    assert!(status == 200 && answer.contains("x-request-id: mine-7"), "{answer}");
    let log = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut log = log.filter(|line| line.contains("/v1/chat/completions"));
    let line = log.next().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(
        line.contains("POST /v1/chat/completions 200 in ") && line.contains("mine-7"),
        "{line}"
    );
    assert!(line.contains("2 output tokens") && !line.contains("dawn"), "{line}");
}

#[test]
fn the_web_app_is_open_and_can_be_left_out() {
    let server = Server::start(&["--api-key", "k1"]);
    let page = server.get("/");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'self';"));
    let script = page.body.split("./assets/").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!(server.get(&format!("/assets/{script}")).status, 200);
    for path in ["/v1/models", "/assets/what.js", "/assets/"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    assert_eq!(Server::start(&["--no-ui"]).get("/").status, 404);
}
