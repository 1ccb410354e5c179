//! Adapters of a server: models of their own names, loaded at the start or while it runs.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Server, chat, fails, taper, text};
use safetensors::{Dtype, serialize_to_file, tensor::TensorView};
use serde_json::{Value, json};
use std::{fs, path::Path};

/// An adapter of the demo model's output projections: one number everywhere in both matrices.
fn write(dir: &Path, name: &str, rank: usize, value: f32) -> String {
    let dir = dir.join(name);
    fs::create_dir(&dir).unwrap();
    let config = json!({
        "peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["o_proj"],
        "base_model_name_or_path": "taper-demo",
    });
    fs::write(dir.join("adapter_config.json"), config.to_string()).unwrap();
    let (inputs, outputs) = (4 * 128, 384);
    // Signs that differ from place to place, as what is alike everywhere a norm takes away.
    let numbers = |n: usize| -> Vec<u8> {
        let sign = |i: usize| if (i * 7919) % 31 < 15 { value } else { -value };
        (0..n).flat_map(|i| sign(i).to_le_bytes()).collect()
    };
    let (a, b) = (numbers(rank * inputs), numbers(outputs * rank));
    let view = |shape: &[usize], data| TensorView::new(Dtype::F32, shape.to_vec(), data).unwrap();
    let tensors = (0..8).flat_map(|layer| {
        let at = format!("base_model.model.model.layers.{layer}.self_attn.o_proj");
        [
            (format!("{at}.lora_A.weight"), view(&[rank, inputs], &a)),
            (format!("{at}.lora_B.weight"), view(&[outputs, rank], &b)),
        ]
    });
    serialize_to_file(tensors, None, &dir.join("adapter_model.safetensors")).unwrap();
    dir.to_str().unwrap().to_owned()
}

/// What a command that must succeed prints.
fn output(args: &[&str]) -> String {
    let output = taper(args, "");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn say(server: &Server, model: &str) -> String {
    let fields = json!({ "model": model, "temperature": 0, "max_tokens": 24 });
    let reply = server.chat("What is 12 + 30?", fields);
    assert_eq!(reply["model"], model);
    reply["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn adapters_are_models_of_a_server() {
    let tmp = tempfile::tempdir().unwrap();
    let none = write(tmp.path(), "none", 4, 0.0);
    let wild = write(tmp.path(), "wild", 4, 0.3);
    let wide = write(tmp.path(), "wide", 32, 0.1);
    let modules = [format!("calm={none}"), format!("wild={wild}")];
    let server = Server::start(&[
        "--enable-lora",
        "--lora-modules",
        &modules[0],
        &modules[1],
        "--max-loras",
        "3",
        "--max-lora-rank",
        "8",
        "--allow-runtime-lora-updating",
    ]);
    let list = server.get("/v1/models").json();
    let cards: Vec<_> = list["data"].as_array().unwrap().iter().collect();
    let of = |field: &str| cards.iter().map(|card| card[field].clone()).collect::<Vec<Value>>();
    assert_eq!(of("id"), [json!("taper-demo"), json!("calm"), json!("wild")]);
    assert_eq!(of("parent"), [json!(null), json!("taper-demo"), json!("taper-demo")]);
    assert_eq!(cards[2]["root"], json!(wild));
    assert_eq!(server.get("/v1/models/wild").json()["parent"], json!("taper-demo"));
    let plain = say(&server, "taper-demo");
    assert!(plain.contains("42"), "{plain}");
    assert_eq!(say(&server, "calm"), plain, "an adapter of zeros");
    let changed = say(&server, "wild");
    assert_ne!(changed, plain);
    assert_eq!(say(&server, "taper-demo"), plain, "with what the other left in the cache");
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("max_lora=\"3\",running_lora_adapters=\"\""), "{metrics}");
    assert!(metrics.contains("lora_name=\"wild\",rank=\"4\""), "{metrics}");
    // While it runs.
    let load = |body: Value| {
        let reply = server.post("/v1/load_lora_adapter", &body);
        (reply.status, reply.body)
    };
    for (body, status, word) in [
        (json!({ "lora_name": "more" }), 400, "lora_path"),
        (json!({ "lora_name": "", "lora_path": none }), 400, "lora_name"),
        (json!({ "lora_name": "more", "lora_path": none, "what": 1 }), 400, "what"),
        (json!({ "lora_name": "taper-demo", "lora_path": none }), 400, "adapter_exists"),
        (json!({ "lora_name": "calm", "lora_path": none }), 400, "adapter_exists"),
        (json!({ "lora_name": "more", "lora_path": wide }), 400, "rank 32"),
        (json!({ "lora_name": "more", "lora_path": "/nowhere" }), 400, "holds no adapter"),
    ] {
        let (got, text) = load(body);
        assert!(got == status && text.contains(word), "{got} {text}");
    }
    let (status, text) = load(json!({ "lora_name": "more", "lora_path": wild }));
    assert_eq!((status, text.as_str()), (200, "Success: LoRA adapter 'more' added successfully."));
    assert_eq!(say(&server, "more"), changed);
    let (status, text) = load(json!({ "lora_name": "fourth", "lora_path": wild }));
    assert!(status == 400 && text.contains("too_many_adapters"), "{text}");
    let unload = |name: &str| {
        let reply = server.post("/v1/unload_lora_adapter", &json!({ "lora_name": name }));
        (reply.status, reply.body)
    };
    let gone = (200, "Success: LoRA adapter 'wild' removed successfully.".to_owned());
    assert_eq!(unload("wild"), gone);
    assert!(unload("wild").1.contains("adapter_not_found"));
    let reply = server.post("/v1/chat/completions", &chat("x", json!({ "model": "wild" })));
    assert!(reply.status == 404 && reply.body.contains("calm, more"), "{}", reply.body);
}

#[test]
fn adapters_need_flags() {
    let server = Server::shared();
    let body = json!({ "lora_name": "x", "lora_path": "/x" });
    for path in ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"] {
        let reply = server.post(path, &body);
        assert!(reply.status == 404 && reply.body.contains("unknown_url"), "{}", reply.body);
    }
    let tmp = tempfile::tempdir().unwrap();
    let none = write(tmp.path(), "none", 4, 0.0);
    let named = format!("taper-demo={none}");
    let error = fails(&["serve", "--port", "0", "--enable-lora", "--lora-modules", &named]);
    assert!(error.contains("is the name of the model itself"), "{error}");
    let error = fails(&["run", "--lora", "/nowhere", "x"]);
    assert!(error.contains("/nowhere holds no adapter"), "{error}");
}

#[test]
fn an_adapter_in_the_terminal() {
    let tmp = tempfile::tempdir().unwrap();
    let (none, wild) = (write(tmp.path(), "none", 4, 0.0), write(tmp.path(), "wild", 4, 0.3));
    let run = |more: &[&str]| {
        let args =
            [&["run", "--temperature", "0", "--max-tokens", "24"], more, &["What is 12 + 30?"]];
        output(&args.concat())
    };
    let plain = run(&[]);
    assert!(plain.contains("42"), "{plain}");
    assert_eq!(run(&["--lora", &none]), plain);
    assert_ne!(run(&["--lora", &wild]), plain);
    let shown = output(&["inspect", "--lora", &wild]);
    assert!(shown.contains("rank 4, 8 modules"), "{shown}");
}
