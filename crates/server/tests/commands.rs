//! Commands beside a server: flags from a file, and models that are searched, shown, unloaded and deleted.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;
#[path = "../../hub/tests/stand_in/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
mod stand_in;

use common::{BINARY, NO_CONFIG, Server, chat, fails, model_dir::ModelDir, taper, text};
use serde_json::{Value, json};
use stand_in::StandIn;
use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

/// Where no server is: port 1 is reserved.
const NOBODY: &str = "http://127.0.0.1:1";

fn works(args: &[&str]) -> String {
    let output = taper(args, "");
    assert_eq!(output.status.code(), Some(0), "{args:?}\n{}", text(&output.stderr));
    text(&output.stdout)
}

/// A command with variables of the environment.
fn taper_in(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(BINARY);
    command.args(args).envs([NO_CONFIG]).envs(variables.iter().copied()).stdin(Stdio::null());
    command.output().unwrap()
}

#[test]
fn a_file_gives_flags_and_the_command_line_wins() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("taper/config.toml");
    let home = [("XDG_CONFIG_HOME", dir.path().to_str().unwrap())];
    let said = |args: &[&str]| {
        let output = taper_in(args, &home);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, err) = said(&["config"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("taper/config.toml is not there") && err.contains("config init"), "{out}");
    assert_eq!(said(&["config", "init"]).1.trim(), path.to_str().unwrap());
    assert!(fs::read_to_string(&path).unwrap().contains("\n#port = 8000\n"));
    assert_eq!(said(&["config", "init"]).0, Some(1), "a file that is there is kept");
    fs::write(
        &path,
        "max-model-len = 128\nserved-model-name = [\"a\", \"b\"]\napi-key = \"geheim\"",
    )
    .unwrap();
    let (_, out, _) = said(&["config"]);
    assert!(out.contains("max-model-len = 128\n") && !out.contains("geheim"), "{out}");
    let run = said(&["run", "Hello!"]);
    assert_eq!(run.1, "Hello! How can I help you today?\n", "{}", run.2);
    let server = Server::start_in(&["--served-model-name", "c"], &home);
    assert_eq!(server.get("/v1/models").status, 401, "the file's key is wanted");
    let url = format!("http://{}", server.address);
    let ps = taper_in(&["ps", "--url", &url], &[("TAPER_API_KEY", "geheim")]);
    let models = text(&ps.stdout);
    assert!(models.contains("\nc ") && !models.contains("\na "), "{models}{}", text(&ps.stderr));
    // Mistakes name the file and the key.
    fs::write(&path, "max-modellen = 128").unwrap();
    let (code, _, err) = said(&["serve"]);
    assert!(code == Some(1) && err.contains("config.toml: \"max-modellen\""), "{err}");
    assert!(err.contains("did you mean max-model-len"), "{err}");
    fs::write(&path, "models-memory = \"1GiB\"").unwrap();
    let (code, _, err) = said(&["serve"]);
    assert!(code == Some(2) && err.contains("--models-dir"), "{err}");
    assert!(err.contains("config.toml are in force too"), "{err}");
    let none = dir.path().join("none.toml");
    assert!(fails(&["run", "x", "--config", none.to_str().unwrap()]).contains("none.toml"));
}

#[test]
fn show_says_what_a_model_is() {
    let out = works(&["show"]);
    for word in ["taper-demo", "qwen3", "262144", "-bit, group", "completion", "thinking"] {
        assert!(out.contains(word), "{word:?} is not in\n{out}");
    }
    let all: Value = serde_json::from_str(&works(&["show", "--json"])).unwrap();
    assert_eq!((&all["architecture"], &all["context_length"]), (&json!("qwen3"), &json!(262_144)));
    assert!(all["parameters"].as_u64() > Some(0) && all["weight_bytes"].as_u64() > Some(0));
    let template = works(&["show", "--template"]);
    assert_eq!(template.trim_end(), all["template"].as_str().unwrap().trim_end());
    let dir = ModelDir::new("qwen3-bf16");
    assert!(works(&["show", dir.path()]).contains("BF16"));
    assert!(fails(&["show", "./nope"]).contains("there is no directory ./nope"));
}

/// A copy of the demo model, as a server of several finds it.
fn copy(dir: &Path, name: &str) {
    let to = dir.join(name);
    fs::create_dir_all(&to).unwrap();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("models/demo")).unwrap() {
        let from = entry.unwrap().path();
        fs::copy(&from, to.join(from.file_name().unwrap())).unwrap();
    }
}

#[test]
fn a_model_is_unloaded_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    copy(dir.path(), "one");
    copy(dir.path(), "two");
    let at = dir.path().to_str().unwrap();
    let server = Server::start(&["--models-dir", at, "--kv-cache-memory-bytes", "2MiB"]);
    let url = format!("http://{}", server.address);
    let stop = |name: &str| ["stop", name, "--url", &url].map(str::to_owned);
    let stop = |name: &str| {
        let args = stop(name);
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        taper(&args, "")
    };
    let remove = |name: &str, more: &[&str]| {
        let args = [&["rm", name, "--models-dir", at, "--url", &url], more].concat();
        let output = taper(&args, "");
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    assert!(text(&stop("one").stdout).contains("one is not loaded"));
    server.ask("/v1/chat/completions", &chat("Hello", json!({ "model": "one", "max_tokens": 1 })));
    let (code, _, err) = remove("one", &["--yes"]);
    assert!(code == Some(1) && err.contains("run `taper stop one` first"), "{err}");
    let unknown = text(&stop("three").stderr);
    assert!(unknown.contains("has no model three; it has loaded one"), "{unknown}");
    assert_eq!(text(&stop("one").stdout), "one is unloaded\n");
    assert_eq!(server.get("/v1/models").json()["data"][0]["status"]["value"], "unloaded");
    let (code, _, err) = remove("one", &[]);
    assert!(code == Some(1) && err.contains("pass --yes"), "{err}");
    assert!(dir.path().join("one").exists());
    let (code, _, err) = remove("onne", &["--yes"]);
    assert!(code == Some(1) && err.contains("did you mean one?"), "{err}");
    let (code, out, err) = remove("one", &["--yes"]);
    assert!(code == Some(0) && out.starts_with("one is deleted"), "{out}{err}");
    assert!(!dir.path().join("one").exists() && dir.path().join("two").exists());
}

#[test]
fn a_server_of_one_model_keeps_it() {
    let server = Server::shared();
    let url = format!("http://{}", server.address);
    let error = fails(&["stop", "taper-demo", "--url", &url]);
    assert!(error.contains("alone"), "{error}");
    assert!(fails(&["stop", "taper-demo", "--url", NOBODY]).contains("no server answers"));
}

#[test]
fn what_was_downloaded_is_deleted() {
    let weights = vec![7; 4096];
    let hub = StandIn::new(&[("config.json", b"{}"), ("model.safetensors", &weights)]);
    let (cache, endpoint) = (hub.cache.path().to_str().unwrap(), hub.config().endpoint);
    let variables = [
        ("HF_HUB_CACHE", cache),
        ("HF_ENDPOINT", endpoint.as_str()),
        ("HF_HUB_OFFLINE", ""),
        ("HF_TOKEN", ""),
    ];
    let said = |args: &[&str]| {
        let output = taper_in(args, &variables);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, _, err) = said(&["download", "org/name"]);
    assert_eq!(code, Some(0), "{err}");
    let (code, _, err) = said(&["rm", "org/nam", "--yes", "--url", NOBODY]);
    assert!(code == Some(1) && err.contains("did you mean org/name?"), "{err}");
    assert!(err.contains("`taper list`"), "{err}");
    let (code, _, err) = said(&["rm", "org/name@main", "--yes", "--url", NOBODY]);
    assert!(code == Some(1) && err.contains("all revisions"), "{err}");
    let (code, out, err) = said(&["rm", "org/name", "--yes", "--url", NOBODY]);
    assert!(code == Some(0) && out.contains("org/name is deleted"), "{out}{err}");
    assert!(!hub.cache.path().join("models--org--name").exists());
}

#[test]
fn the_hub_is_searched_for_what_is_served() {
    let hub = StandIn::new(&[]);
    hub.finds(&[
        r#"[{"id": "a/picture", "config": {"model_type": "stable_diffusion"}},
            {"id": "org/name", "config": {"model_type": "qwen3"}, "downloads": 7, "likes": 1,
             "gated": "auto", "safetensors": {"total": 596049920}}]"#,
        r#"[{"id": "a/no-config"}, {"id": "b/last", "config": {"model_type": "llama"}}]"#,
    ]);
    let endpoint = hub.config().endpoint;
    let variables = [
        ("HF_HUB_CACHE", hub.cache.path().to_str().unwrap()),
        ("HF_ENDPOINT", endpoint.as_str()),
        ("HF_HUB_OFFLINE", ""),
        ("HF_TOKEN", ""),
    ];
    let search =
        |more: &[&str]| taper_in(&[&["search", "small", "model"], more].concat(), &variables);
    let out = text(&search(&[]).stdout);
    let names: Vec<_> = out.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(names, ["model", "org/name", "b/last"], "{out}");
    assert!(out.contains("596.0M") && out.contains("gated") && out.contains("qwen3"), "{out}");
    let asked = &hub.seen()[0].path;
    assert!(
        asked.contains("search=small%20model") || asked.contains("search=small+model"),
        "{asked}"
    );
    assert!(asked.contains("filter=safetensors"), "{asked}");
    let json: Value = serde_json::from_slice(&search(&["--json", "--limit", "1"]).stdout).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 1);
    assert_eq!((&json[0]["name"], &json[0]["gated"]), (&json!("org/name"), &json!(true)));
    assert_eq!(hub.seen().len(), 1, "one page is enough");
    let offline = taper_in(&["search", "x"], &[("HF_HUB_OFFLINE", "1")]);
    assert!(text(&offline.stderr).contains("HF_HUB_OFFLINE"));
}
