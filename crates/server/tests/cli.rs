//! The command line: replies in the terminal, inspection, help and mistakes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Server, fails, model_dir::ModelDir, taper, text};

fn works(args: &[&str], stdin: &str) -> (String, String) {
    let output = taper(args, stdin);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{args:?}\n{out}\n{err}");
    (out, err)
}

#[test]
fn run_answers_once() {
    let (out, err) = works(&["run", "Hello!"], "");
    assert_eq!(out, "Hello! How can I help you today?\n");
    assert!(err.contains("prompt tokens") && err.contains("tokens/s"), "{err}");
    assert_eq!(works(&["run", "-"], "Hello!").0, out, "from standard input");
    let (out, err) = works(&["run", "Hello!", "--max-tokens", "2"], "");
    assert!(out.starts_with("Hello") && out.len() < 12, "{out}");
    assert!(err.contains("cut by the length limit"), "{err}");
    let one = works(&["run", "Hello!", "--max-tokens", "1"], "").1;
    assert!(one.contains(" prompt tokens, 1 token, "), "{one}");
    let thought = works(&["run", "What is 345 + 678?", "--think"], "").0;
    assert!(thought.contains("<think>") && thought.contains("</think>"), "{thought}");
    let raw = works(&["run", "--raw", "The borrow checker", "--max-tokens", "8"], "").0;
    assert!(!raw.contains("<|im_") && raw.len() > 8, "{raw}");
    let seeded = |seed| {
        let flags = ["run", "Tell me about rivers.", "--temperature", "1.5", "--seed", seed];
        works(&[&flags[..], &["--max-tokens", "12"]].concat(), "").0
    };
    assert_eq!(seeded("5"), seeded("5"));
}

#[test]
fn chat_remembers_until_it_is_reset() {
    let (out, err) = works(
        &["chat", "--system", "You are a helpful assistant."],
        "My name is Zane.\n\nWhat is my name?\n/help\n/reset\nHello!\n/quit\nnot read\n",
    );
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines.len(), 3, "{out}");
    assert!(lines[1].contains("Zane"), "{out}");
    assert_eq!(lines[2], "Hello! How can I help you today?");
    assert!(err.matches("/reset forgets").count() >= 2, "{err}");
    // The end of the input ends it too, and a reply that does not fit does not.
    let flags = ["chat", "--max-model-len", "96", "--max-tokens", "20"];
    let long = "word ".repeat(200);
    let (out, err) = works(&flags, &format!("{long}\nHello!"));
    assert!(err.contains("error: ") && err.contains("96"), "{err}");
    assert_eq!(out, "Hello! How can I help you today?\n");
}

#[test]
fn inspect_says_what_a_model_is() {
    let (out, _) = works(&["inspect"], "");
    for word in ["taper-demo", "qwen3", "262144 tokens", "KV cache", "fits", "-bit, group"] {
        assert!(out.contains(word), "{word:?} is not in\n{out}");
    }
    let dir = ModelDir::new("qwen3-bf16");
    let (out, _) = works(&["inspect", dir.path(), "--tensors", "--context", "64,512,9999"], "");
    for word in ["BF16", "model.embed_tokens.weight", "[320, 128]", "longer than the model's"] {
        assert!(out.contains(word), "{word:?} is not in\n{out}");
    }
    let scheme = r#"{"kv_scheme": {"default": "f16", "layers": {"1": "turbo4"}}}"#;
    let flags = ["inspect", dir.path(), "--context", "64", "--additional-config", scheme];
    let (out, _) = works(&flags, "");
    assert!(out.contains("a KV cache of f16 (1: turbo4)"), "{out}");
    dir.truncate("model.safetensors", |n| n / 2);
    assert!(fails(&["inspect", dir.path()]).contains("model.safetensors"));
}

#[test]
fn convert_makes_a_model_that_answers() {
    let dense = ModelDir::new("qwen3-bf16");
    let out = dense.file("converted");
    let out = out.to_str().unwrap();
    works(&["convert", dense.path(), out, "--bits", "4", "--group", "32"], "");
    let (what, _) = works(&["inspect", out], "");
    assert!(what.contains("4-bit, group 32"), "{what}");
    let (again, _) = works(&["inspect", out, "--tensors"], "");
    assert!(again.contains("model.embed_tokens.scales"), "{again}");
    let other = dense.file("other");
    let other = other.to_str().unwrap();
    assert!(fails(&["convert", out, other]).contains("already"), "what is quantized stays so");
    assert!(fails(&["convert", dense.path(), out]).contains(out), "nothing is overwritten");
    let error = fails(&["convert", dense.path(), other, "--bits", "7"]);
    assert!(error.contains('7'), "{error}");
    works(&["convert", dense.path(), other, "--to", "mlx", "--dtype", "float16"], "");
    assert!(works(&["inspect", other, "--tensors"], "").0.contains("F16"));
}

#[test]
fn every_command_has_help() {
    let (out, _) = works(&["--help"], "");
    let commands = ["serve", "run", "chat", "inspect", "download", "list", "ps", "convert", "pull"];
    for command in commands {
        assert!(out.contains(command));
        let (own, _) = works(&[command, "--help"], "");
        assert!(own.contains("Usage: taper") && own.contains("--"), "{own}");
    }
    assert!(works(&["--version"], "").0.starts_with("taper "));
}

#[test]
fn mistakes_are_named() {
    for args in [
        &["--frobnicate"][..],
        &["serve", "--frobnicate"],
        &["run", "x", "--frobnicate"],
        &["serve", "--port", "99999"],
        &["serve", "--max-model-len", "4 thousand"],
        &["serve", "--kv-cache-memory-bytes", "much"],
        &["srve", "--port", "0"],
        &["serve", "--tool-call-parser", "smoke"],
        &["serve", "--dtype", "int1"],
        &["run"],
        &["convert", "x", "y", "--dtype", "float16", "--bits", "4"],
    ] {
        let output = taper(args, "");
        let err = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}\n{err}");
        assert!(err.contains("error: ") && err.contains("--help"), "{err}");
    }
    let formats = text(&taper(&["serve", "--tool-call-parser", "smoke"], "").stderr);
    for name in ["auto", "none", "hermes", "llama3_json", "mistral", "qwen3_coder"] {
        assert!(formats.contains(name), "{formats}");
    }
    let nothing = fails(&["run", "x", "--model", "/nothing/here"]);
    assert!(nothing.contains("no directory /nothing/here"), "{nothing}");
    assert!(fails(&["serve", "./nope"]).contains("there is no directory ./nope"));
    assert!(fails(&["serve", "Cargo.toml"]).contains("Cargo.toml is a file"));
    assert!(fails(&["serve", "--host", ""]).contains("--host"));
    assert!(fails(&["pull", "src"]).contains("taper serve"));
    assert!(fails(&["pull", "name"]).contains("organisation is missing"));
    assert!(fails(&["run", "x", "--kv-cache-dtype", "int1"]).contains("int1"));
    let config = |json| fails(&["run", "x", "--additional-config", json]);
    assert!(config("{\"kv_schema\": 1}").contains("expected `kv_scheme`"));
    assert!(config("{\"kv_bits\": {\"x\": \"f16\"}}").contains("from 1 to 32"));
    assert!(config("{\"kv_bits\": {\"16\": \"bf16\"}}").contains("two KV schemes"));
    assert!(config("{\"kv_scheme\": [\"f16\"]}").contains("has 1 codecs, and the model"));
    let size = ["run", "x", "--kv-offloading-dir", "/tmp", "--kv-offloading-size", "0"];
    assert!(fails(&size).contains("above 0"));
    assert!(fails(&["run", "x", "--kv-offloading-dir", "/dev/null"]).contains("/dev/null"));
    assert!(fails(&["run", "x", "--temperature", "9"]).contains("temperature"));
    assert!(fails(&["chat", "--chat-template", "none"]).contains("run --raw"));
    assert!(fails(&["run", "--raw", ""]).contains("empty"));
}

#[test]
fn mistakes_have_a_next_step() {
    let file = fails(&["run", "x", "--model", "Cargo.toml"]);
    assert!(file.contains(".gguf") && file.contains("config.json"), "{file}");
    let cache = fails(&["serve", "--port", "0", "--kv-cache-memory-bytes", "1"]);
    assert!(cache.contains("raise --kv-cache-memory-bytes"), "{cache}");
    let kept = fails(&["run", "x", "--kv-offloading-dir", "/dev/null/x"]);
    assert!(kept.contains("/dev/null/x") && kept.contains("or leave it out"), "{kept}");
    let template = fails(&["run", "x", "--chat-template", "/nope"]);
    assert!(template.contains("/nope") && template.contains("Jinja template"), "{template}");
    let gpu = fails(&["run", "x", "--device", "metal", "--metallib", "/nope"]);
    assert!(gpu.contains("--device metal") && gpu.contains("docs/metal.md"), "{gpu}");
    let config = fails(&["run", "x", "--additional-config", "{"]);
    assert!(config.contains("write it as '{\"kv_scheme\""), "{config}");
    let scheme = fails(&["ps", "--url", "127.0.0.1:8000"]);
    assert!(scheme.contains("write it as http://"), "{scheme}");
    assert!(fails(&["run", ""]).contains("\"-\" to read standard input"));
    let dir = ModelDir::new("qwen3-bf16");
    // No system has names so long.
    let unwritten = dir.file(&"x".repeat(300));
    let convert = fails(&["convert", dir.path(), unwritten.to_str().unwrap()]);
    assert!(convert.contains("choose a destination"), "{convert}");
    dir.remove("tokenizer.json");
    let tokenizer = fails(&["run", "x", "--model", dir.path()]);
    assert!(tokenizer.contains("tokenizer.json") && tokenizer.contains("copy it"), "{tokenizer}");
    dir.remove("config.json");
    assert!(fails(&["inspect", dir.path()]).contains("copy the missing file"));
}

#[test]
fn ps_says_what_a_server_serves() {
    let server = Server::start(&["--served-model-name", "one,two", "--api-key", "k"]);
    let url = format!("http://{}", server.address);
    let (out, _) = works(&["ps", "--url", &format!("{url}/v1/"), "--api-key", "k"], "");
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines.len(), 3, "{out}");
    assert!(lines[1].starts_with("one ") && lines[2].starts_with("two "), "{out}");
    assert!(lines[1].ends_with("0.0%"), "{out}");
    assert!(fails(&["ps", "--url", &url]).contains("--api-key"));
    drop(server);
    assert!(fails(&["ps", "--url", &url]).contains("start one with `taper serve`"));
}

#[test]
fn a_host_name_is_all_its_addresses() {
    let server = Server::start(&["--host", "localhost"]);
    assert!(server.address.starts_with("localhost:"), "{}", server.address);
    assert_eq!(server.get("/health").status, 200);
}
