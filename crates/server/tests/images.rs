//! A model that sees, from a file in a request to the text that transformers writes.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use common::{BINARY, Server, model_dir::ModelDir};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::{collections::BTreeMap, fs, process::Command};

const MODEL: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/vision/qwen3_vl-chat");
const EXACT: [&str; 4] = ["--dtype", "float32", "--kv-cache-dtype", "f32"];

/// The fixture's image as a file, and the prompt's and the answer's tokens.
struct Fixture {
    file: Vec<u8>,
    prompt: Vec<u64>,
    greedy: Vec<u64>,
}

fn fixture() -> Fixture {
    let bytes = fs::read(format!("{MODEL}/expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let ids = |name: &str| -> Vec<u64> {
        let data = file.tensor(name).unwrap().data().to_vec();
        data.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect()
    };
    let image = fs::read(format!("{MODEL}/image.png")).unwrap();
    Fixture { file: image, prompt: ids("input_ids"), greedy: ids("greedy") }
}

/// A BMP file of 24 bits a pixel.
fn bmp(width: usize, height: usize, rgb: &[u8]) -> Vec<u8> {
    let row = (3 * width).next_multiple_of(4);
    let word = |n: usize| u32::try_from(n).unwrap().to_le_bytes();
    let mut file = b"BM".to_vec();
    for n in [54 + row * height, 0, 54, 40, width, height] {
        file.extend(word(n));
    }
    file.extend([1, 0, 24, 0]);
    for n in [0, row * height, 2835, 2835, 0, 0] {
        file.extend(word(n));
    }
    for line in rgb.chunks(3 * width).rev() {
        let mut line: Vec<u8> = line.chunks(3).flat_map(|p| [p[2], p[1], p[0]]).collect();
        line.resize(row, 0);
        file.extend(line);
    }
    file
}

fn body(url: &str, tokens: usize) -> Value {
    json!({
        "messages": [{ "role": "user", "content": [
            { "type": "image_url", "image_url": { "url": url } },
            { "type": "text", "text": "What is this?" },
        ] }],
        "temperature": 0, "max_tokens": tokens, "ignore_eos": true, "return_token_ids": true,
    })
}

#[test]
fn what_is_seen_is_what_transformers_sees() {
    let Fixture { file, prompt, greedy } = fixture();
    let server = Server::start(&[&[MODEL][..], &EXACT].concat());
    let base64 = BASE64_STANDARD.encode(&file);
    let ask = || {
        let url = format!("data:image/png;base64,{base64}");
        server.ask("/v1/chat/completions", &body(&url, greedy.len()))
    };
    let first = ask();
    assert_eq!(first["prompt_token_ids"], json!(prompt));
    assert_eq!(first["choices"][0]["token_ids"], json!(greedy));
    assert_eq!(first["usage"]["prompt_tokens"], prompt.len());
    let again = ask();
    assert_eq!(again["choices"][0], first["choices"][0]);
    let cached = again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached > 0, "{again}");
    let other = bmp(16, 16, &[200; 768]);
    let url = format!("data:image/bmp;base64,{}", BASE64_STANDARD.encode(other));
    let other = server.ask("/v1/chat/completions", &body(&url, greedy.len()));
    assert_ne!(other["choices"][0]["token_ids"], json!(greedy));
    let text = first["choices"][0]["message"]["content"].as_str().unwrap();
    let anthropic = json!({
        "max_tokens": greedy.len(), "temperature": 0,
        "messages": [{ "role": "user", "content": [
            { "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": base64 } },
            { "type": "text", "text": "What is this?" },
        ] }],
    });
    let answer = server.ask("/v1/messages", &anthropic);
    let said = answer["content"][0]["text"].as_str().unwrap_or_default();
    assert!(text.starts_with(said.trim_end()), "{said:?} of {text:?}");
    let page = server.get("/metrics").body;
    for line in ["taper:images_total", "taper:image_cache_hits_total"] {
        let line = page.lines().find(|l| l.starts_with(line)).unwrap();
        assert!(!line.ends_with(" 0"), "{line}");
    }
    assert!(server.get("/health").body.contains("\"vision\":true"));
}

#[test]
fn a_video_is_seen_as_images_of_two_frames_each() {
    let server = Server::start(&[&[MODEL][..], &EXACT].concat());
    let pixels: Vec<u8> = (0..24 * 16 * 3u32).map(|i| (i * i / 7) as u8).collect();
    let still = BASE64_STANDARD.encode(bmp(24, 16, &pixels));
    let image = json!({ "type": "image_url",
        "image_url": { "url": format!("data:image/bmp;base64,{still}") } });
    let text = |text: &str| json!({ "type": "text", "text": text });
    let video = |url: String| json!({ "type": "video_url", "video_url": { "url": url } });
    let ask = |parts: Value| {
        let body = json!({ "messages": [{ "role": "user", "content": parts }],
            "temperature": 0, "max_tokens": 16, "ignore_eos": true, "return_token_ids": true });
        server.ask("/v1/chat/completions", &body)
    };
    // Of frames that are alike, transformers makes what it makes of the image: it stands twice in time.
    let frames = [still.as_str(); 4].join(",");
    let seen = ask(json!([video(format!("data:video/jpeg;base64,{frames}")), text("What?")]));
    let images =
        ask(json!([text("<0.2 seconds>"), image, text("<1.2 seconds>"), image, text("What?")]));
    assert_eq!(seen["prompt_token_ids"], images["prompt_token_ids"]);
    assert_eq!(seen["choices"][0]["token_ids"], images["choices"][0]["token_ids"]);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/images");
    for name in ["animated.gif", "animated.webp"] {
        let file = BASE64_STANDARD.encode(fs::read(format!("{folder}/{name}")).unwrap());
        let kind = name.rsplit('.').next().unwrap();
        let seen = ask(json!([video(format!("data:image/{kind};base64,{file}")), text("What?")]));
        let tokens = &seen["usage"]["prompt_tokens_details"]["image_tokens"];
        assert!(tokens.as_u64().unwrap() >= 2, "{seen}");
    }
    assert_eq!(server.metric("taper:videos_total"), 3.0);
    assert_eq!(server.metric("taper:video_frames_total"), 10.0);
    for (name, says) in [("rgb.png", "does not move"), ("rgb.bmp", "does not move")] {
        let file = BASE64_STANDARD.encode(fs::read(format!("{folder}/{name}")).unwrap());
        let parts = json!([video(format!("data:video/x;base64,{file}"))]);
        let body = json!({ "messages": [{ "role": "user", "content": parts }] });
        let reply = server.post("/v1/chat/completions", &body);
        assert!(reply.status == 400 && reply.body.contains(says), "{}", reply.body);
    }
    let mp4 = BASE64_STANDARD.encode(b"\0\0\0\x18ftypisom");
    let parts = json!([video(format!("data:video/mp4;base64,{mp4}"))]);
    let body = json!({ "messages": [{ "role": "user", "content": parts }] });
    let reply = server.post("/v1/chat/completions", &body);
    assert!(reply.status == 400 && reply.body.contains("ffmpeg"), "{}", reply.body);
}

#[test]
fn the_terminal_shows_images_too() {
    let Fixture { file, greedy, .. } = fixture();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.png");
    fs::write(&path, file).unwrap();
    let server = Server::start(&[&[MODEL][..], &EXACT].concat());
    let tokens = server.ask("/detokenize", &json!({ "tokens": greedy }));
    let run = |image: &str| {
        let args = ["run", "What is this?", "--model", MODEL, "--image", image];
        let tokens = greedy.len().to_string();
        let limits = ["--temperature", "0", "--max-tokens", &tokens];
        Command::new(BINARY).args(args).args(limits).args(EXACT).output().unwrap()
    };
    let shown = run(path.to_str().unwrap());
    let text = String::from_utf8(shown.stdout).unwrap();
    let want = tokens["prompt"].as_str().unwrap();
    assert!(
        !text.trim().is_empty() && want.trim().starts_with(text.trim()),
        "{text:?} of {want:?}"
    );
    let missing = run("/nowhere/image.png");
    assert!(!missing.status.success());
    fs::write(&path, "no image").unwrap();
    let broken = run(path.to_str().unwrap());
    let says = String::from_utf8(broken.stderr).unwrap();
    assert!(!broken.status.success() && says.contains("the image cannot be used"), "{says}");
}

#[test]
fn without_its_tower_a_model_takes_no_images() {
    let server = Server::start(&[MODEL, "--limit-mm-per-prompt", r#"{"image": 0}"#]);
    let reply = server.post("/v1/chat/completions", &body("data:;base64,AAAA", 5));
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("does not take images"), "{}", reply.body);
}

/// What chat templates write for an image, by family.
const PLACEHOLDERS: [&str; 6] =
    ["<start_of_image>", "<|image|>", "<IMG_CONTEXT>", "<|image_pad|>", "[IMG]", "<image>"];

/// A checkpoint of a family, a conversation about two images, and the tokens of its prompt and of the answer.
struct Family {
    dir: ModelDir,
    body: Value,
    prompt: Vec<u64>,
    greedy: Vec<u64>,
}

impl Family {
    /// With a tokenizer of words and a template that puts parts one behind the other.
    fn new(name: &str) -> Self {
        let dir = ModelDir::of("vision", name);
        let tokens: BTreeMap<String, u64> =
            serde_json::from_slice(&fs::read(dir.file("tokens.json")).unwrap()).unwrap();
        let placeholder = PLACEHOLDERS.into_iter().find(|p| tokens.contains_key(*p)).unwrap();
        let special: Vec<_> = tokens
            .iter()
            .map(|(content, id)| {
                json!({ "id": id, "content": content, "single_word": false, "lstrip": false,
                        "rstrip": false, "normalized": false, "special": true })
            })
            .collect();
        let words = (0..320u64).filter(|id| !tokens.values().any(|own| own == id));
        let mut names: BTreeMap<u64, String> = words.map(|id| (id, format!("w{id}"))).collect();
        names.extend(tokens.iter().map(|(content, id)| (*id, content.clone())));
        let vocab: BTreeMap<_, _> = names.iter().map(|(id, name)| (name, id)).collect();
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": special,
            "normalizer": null, "pre_tokenizer": { "type": "WhitespaceSplit" },
            "post_processor": null, "decoder": null,
            "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "w0" },
        });
        dir.write("tokenizer.json", tokenizer.to_string());
        let template = format!(
            "{{% for m in messages %}}{{% for p in m.content %}}{{% if p.type == 'image' %}}{placeholder}{{% else %}} {{{{ p.text }}}} {{% endif %}}{{% endfor %}}{{% endfor %}}"
        );
        dir.write("tokenizer_config.json", json!({ "chat_template": template }).to_string());
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/vision");
        let bytes = fs::read(format!("{folder}/{name}/expected.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let ids = |name: &str| -> Vec<u64> {
            let data = file.tensor(name).unwrap().data().to_vec();
            data.as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b)).collect()
        };
        let (prompt, greedy, mut from, mut parts) =
            (ids("input_ids"), ids("greedy"), 0, Vec::new());
        let text = |ids: &[u64]| {
            let words: Vec<_> = ids.iter().map(|id| names[id].as_str()).collect();
            json!({ "type": "text", "text": words.join(" ") })
        };
        for i in 0..2 {
            let expansion = ids(&format!("expansion_{i}"));
            let mut places = prompt[from..].windows(expansion.len());
            let start = from + places.position(|tokens| tokens == expansion).unwrap();
            let image = file.tensor(&format!("image_{i}")).unwrap();
            let &[height, width, 3] = image.shape() else { panic!("{:?}", image.shape()) };
            let url = BASE64_STANDARD.encode(bmp(width, height, image.data()));
            let url = format!("data:image/bmp;base64,{url}");
            parts.push(text(&prompt[from..start]));
            parts.push(json!({ "type": "image_url", "image_url": { "url": url } }));
            from = start + expansion.len();
        }
        parts.push(text(&prompt[from..]));
        let body = json!({
            "messages": [{ "role": "user", "content": parts }], "temperature": 0,
            "max_tokens": greedy.len(), "ignore_eos": true, "return_token_ids": true,
        });
        Self { dir, body, prompt, greedy }
    }
}

#[test]
fn every_family_sees_what_transformers_sees() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/vision");
    let names =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    // The first has a tokenizer of its own, and of the second there is no tower yet.
    let mut names: Vec<_> =
        names.filter(|name| name != "qwen3_vl-chat" && name != "llava_next").collect();
    names.sort();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let Family { dir, body, prompt, greedy } = Family::new(&name);
        let server = Server::start(&[&[dir.path()][..], &EXACT].concat());
        for _ in 0..2 {
            let answer = server.ask("/v1/chat/completions", &body);
            assert_eq!(answer["prompt_token_ids"], json!(prompt), "{name}");
            assert_eq!(answer["choices"][0]["token_ids"], json!(greedy), "{name}");
        }
        assert!(server.metric("taper:image_cache_hits_total") >= 2.0, "{name}");
        println!("{name}: as transformers");
    }
}

/// Numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }
}

/// Files of images, good ones and bad ones, by their names.
fn files() -> Vec<(String, Vec<u8>)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/images");
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let images = entries.filter(|path| {
        !matches!(path.extension().and_then(|e| e.to_str()), Some("safetensors" | "json"))
    });
    let name = |path: &std::path::Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let mut all: Vec<_> = images.map(|path| (name(&path), fs::read(&path).unwrap())).collect();
    all.sort();
    all
}

/// A PNG file's header that says another size, with the sum that belongs to it.
fn resized(png: &[u8], width: u32, height: u32) -> Vec<u8> {
    let step = |sum: u32, _| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
    let mut file = png.to_vec();
    file[16..20].copy_from_slice(&width.to_be_bytes());
    file[20..24].copy_from_slice(&height.to_be_bytes());
    let sum = !file[12..29].iter().fold(!0, |sum, &byte| (0..8).fold(sum ^ u32::from(byte), step));
    file[29..33].copy_from_slice(&sum.to_be_bytes());
    file
}

/// A thousand files, most of them damaged.
fn thousand() -> Vec<(String, Vec<u8>)> {
    let whole = files();
    let mut all = whole.clone();
    let mut numbers = Numbers(43);
    let sizes = [1, 255, 4097, 8000, 30_000, 65_535, 1 << 20, u32::MAX >> 1, u32::MAX];
    for (name, file) in
        whole.iter().filter(|(_, file)| file.starts_with(b"\x89PNG") && file.len() > 33)
    {
        for _ in 0..6 {
            let size = [sizes[numbers.below(9)], sizes[numbers.below(9)]];
            all.push((format!("{name} of {size:?}"), resized(file, size[0], size[1])));
        }
    }
    // Places where GIF, BMP, JPEG and WebP files may have their sizes.
    for (name, file) in &whole {
        let place = match file.as_slice() {
            [b'G', b'I', b'F', ..] => 6..10,
            [b'B', b'M', ..] => 18..26,
            [b'R', b'I', b'F', b'F', ..] => 24..30,
            [0xff, 0xd8, ..] => {
                let found = file.windows(2).position(|w| matches!(w, [0xff, 0xc0 | 0xc2]));
                found.map_or(0..0, |at| at + 5..at + 9)
            }
            _ => continue,
        };
        if place.end <= file.len() {
            let mut huge = file.clone();
            huge[place].fill(0x7f);
            all.push((format!("{name}, huge"), huge));
        }
    }
    let heads: [&[u8]; 6] =
        [b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"RIFF", b"\xff\xd8\xff\xe0", b"%PDF-1.7"];
    for head in heads {
        all.push((format!("{head:?} alone"), head.to_vec()));
        all.push((format!("{head:?} and text"), [head, &[b'x'; 500]].concat()));
    }
    while all.len() < 1000 {
        let (name, file) = &whole[numbers.below(whole.len())];
        let mut bad = file.clone();
        let how = numbers.below(4);
        match how {
            0 => bad.truncate(numbers.below(file.len())),
            1 if !bad.is_empty() => (0..=numbers.below(8)).for_each(|_| {
                let at = numbers.below(bad.len());
                bad[at] ^= 1 << numbers.below(8);
            }),
            2 => {
                let (from, n) = (numbers.below(file.len()), numbers.below(64));
                bad.drain(from..(from + n).min(file.len()));
            }
            _ => {
                let (other, at) = (&whole[numbers.below(whole.len())].1, numbers.below(file.len()));
                bad.splice(at.., other.iter().skip(at).copied());
            }
        }
        all.push((format!("{name}, damaged in way {how}"), bad));
    }
    all
}

/// Most memory that a process has had, in MiB.
#[cfg(target_os = "linux")]
fn peak(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

#[test]
fn a_thousand_damaged_images_are_answered_or_refused() {
    let Fixture { file, greedy, .. } = fixture();
    let server = Server::start(&[&[MODEL][..], &EXACT].concat());
    let post = |image: &[u8], tokens| {
        let url = format!("data:image/png;base64,{}", BASE64_STANDARD.encode(image));
        server.post("/v1/chat/completions", &body(&url, tokens))
    };
    assert_eq!(post(&file, 1).status, 200);
    #[cfg(target_os = "linux")]
    let before = peak(server.pid());
    let refused: Value = serde_json::from_slice(
        &fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/images/refused.json"))
            .unwrap(),
    )
    .unwrap();
    let (all, whole) = (thousand(), files().len());
    let mut answered = 0;
    for (i, (name, image)) in all.iter().enumerate() {
        let reply = post(image, 1);
        if i < whole {
            let expected = if refused.get(name).is_some() { 400 } else { 200 };
            assert_eq!(reply.status, expected, "{name}: {}", reply.body);
        }
        match reply.status {
            200 => answered += 1,
            400 => {
                let error = &reply.json()["error"];
                assert_eq!(error["code"], "invalid_image", "{name}: {error}");
                assert!(error["message"].as_str().unwrap().len() > 20, "{name}: {error}");
            }
            other => panic!("{name}: {other} {}", reply.body),
        }
    }
    println!("{answered} of {} answered", all.len());
    assert!(answered > whole / 2 && answered < all.len() - 300, "{answered}");
    #[cfg(target_os = "linux")]
    {
        let more = peak(server.pid()) - before;
        println!("{more} MiB at most");
        assert!(more < 700, "{more} MiB");
    }
    let after: Value = post(&file, greedy.len()).json();
    assert_eq!(after["choices"][0]["token_ids"], json!(greedy));
}
