//! A model for speech, from a sound file to its text, over HTTP and in the terminal.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Server, fails, taper, text};
use serde_json::{Value, json};
use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

const AUDIO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/audio");
const MODEL: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/audio/whisper-speech");

/// The recordings of `make_speech.py`, as a WAV file.
fn notes(seconds: u32, seed: u64) -> Vec<u8> {
    let (mut state, mut data) = (seed, Vec::new());
    for start in (0..i64::from(seconds) * 16_000).step_by(2000) {
        state = (state * 1_103_515_245 + 12_345) % (1 << 31);
        let period = i64::try_from(20 + (state >> 16) % 180).unwrap();
        let loudness = i64::try_from((state >> 8) % 5 * 2000).unwrap();
        for t in start..start + 2000 {
            let sample =
                (((2 * (t % period) - period).abs() * 2 - period) * loudness).div_euclid(period);
            data.extend(i16::try_from(sample).unwrap().to_le_bytes());
        }
    }
    let size = u32::try_from(data.len()).unwrap();
    let mut file = b"RIFF".to_vec();
    file.extend((36 + size).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    file.extend(16_000u32.to_le_bytes());
    file.extend(32_000u32.to_le_bytes());
    file.extend(b"\x02\0\x10\0data");
    file.extend(size.to_le_bytes());
    file.extend(data);
    file
}

/// Posts a form, and gives the status and the body.
fn post(server: &Server, path: &str, file: &[u8], fields: &[(&str, &str)]) -> (u16, String) {
    let mut form = Vec::new();
    for (name, value) in fields {
        form.extend(
            format!("--edge\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
                .bytes(),
        );
    }
    form.extend(b"--edge\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n");
    form.extend(file);
    form.extend(b"\r\n--edge--\r\n");
    let mut socket = TcpStream::connect(&server.address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let head = format!(
        "POST {path} HTTP/1.0\r\nHost: {}\r\nContent-Type: multipart/form-data; boundary=edge\r\n\
         Content-Length: {}\r\n\r\n",
        server.address,
        form.len()
    );
    socket.write_all(head.as_bytes()).unwrap();
    socket.write_all(&form).unwrap();
    let mut reply = Vec::new();
    socket.read_to_end(&mut reply).unwrap();
    let reply = String::from_utf8(reply).unwrap();
    let status = reply.split(' ').nth(1).unwrap().parse().unwrap();
    (status, reply.split_once("\r\n\r\n").unwrap().1.to_owned())
}

const PATH: &str = "/v1/audio/transcriptions";

#[test]
fn speech_becomes_text() {
    let server = Server::start(&[MODEL]);
    let file = notes(40, 7);
    let (status, body) =
        post(&server, PATH, &file, &[("response_format", "verbose_json"), ("language", "de")]);
    assert_eq!(status, 200, "{body}");
    let reply: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&reply["duration"], &reply["language"]), (&json!(40.0), &json!("german")));
    assert_eq!(reply["usage"], json!({ "type": "duration", "seconds": 40 }));
    let segments = reply["segments"].as_array().unwrap();
    assert!(!segments.is_empty());
    let joined: String = segments.iter().map(|s| s["text"].as_str().unwrap()).collect();
    assert_eq!(reply["text"], joined.trim());
    // Equal requests get equal answers, in a stream too.
    let (_, again) = post(&server, PATH, &file, &[("language", "German")]);
    assert_eq!(serde_json::from_str::<Value>(&again).unwrap()["text"], reply["text"]);
    let (_, events) = post(&server, PATH, &file, &[("stream", "true"), ("language", "de")]);
    let events: Vec<Value> = events
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    let (done, deltas) = events.split_last().unwrap();
    assert_eq!((&done["type"], &done["text"]), (&json!("transcript.text.done"), &reply["text"]));
    let deltas: String = deltas.iter().map(|e| e["delta"].as_str().unwrap()).collect();
    assert_eq!(reply["text"], deltas.trim());
    assert_eq!(server.metric("taper:transcripts_total"), 3.0);
    assert_eq!(server.metric("taper:audio_seconds_total"), 120.0);
    assert!(server.metric("taper:transcript_windows_total") >= 6.0);
    let (status, _) = post(&server, "/v1/audio/translations", &file, &[]);
    assert_eq!(status, 200);
    // It does what it is for.
    let refused = server.post("/v1/chat/completions", &common::chat("Hi", json!({})));
    assert_eq!(refused.status, 400, "{}", refused.body);
}

#[test]
fn damaged_files_are_refused_or_heard() {
    let server = Server::start(&[MODEL]);
    let mut state = 9u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize
    };
    let mut statuses = [0; 2];
    for name in ["mono.mp3", "mono.m4a", "stereo.ogg", "mono.flac", "float.wav", "mono.aac"] {
        let whole = fs::read(format!("{AUDIO}/formats/{name}")).unwrap();
        for round in 0..36 {
            let mut file = whole.clone();
            match round % 3 {
                0 => file.truncate(random() % whole.len()),
                1 => {
                    for _ in 0..4 {
                        let at = random() % whole.len().min(400);
                        file[at] = random() as u8;
                    }
                }
                // What is heard takes long; most of it is no sound.
                _ => {
                    let at = random() % 16;
                    file[at..at + 8].fill(0xff);
                }
            }
            file.truncate(4000);
            let (status, body) = post(&server, PATH, &file, &[("language", "en")]);
            assert!(matches!(status, 200 | 400), "{name} {round}: {status} {body}");
            statuses[usize::from(status == 400)] += 1;
        }
    }
    assert_eq!(statuses.iter().sum::<i32>(), 216);
    assert!(statuses[1] > 20, "{statuses:?}");
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn the_terminal_writes_what_openais_whisper_writes() {
    let expected = fs::read(format!("{MODEL}/expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.wav");
    let path = path.to_str().unwrap();
    for case in expected["cases"].as_array().unwrap() {
        let number = |name: &str| case[name].as_u64().unwrap();
        fs::write(path, notes(u32::try_from(number("seconds")).unwrap(), number("seed"))).unwrap();
        let mut args = vec!["transcribe", MODEL, path, "--temperature", "0"];
        for (flag, name) in [("--language", "language"), ("--prompt", "initial_prompt")] {
            if let Some(value) = case[name].as_str() {
                args.extend([flag, value]);
            }
        }
        if case["task"] == "translate" {
            args.push("--translate");
        }
        let output = taper(&args, "");
        let segments = case["segments"].as_array().unwrap();
        let lines: String =
            segments.iter().map(|s| s["text"].as_str().unwrap().trim().to_owned() + "\n").collect();
        assert_eq!(text(&output.stdout), lines, "{}", text(&output.stderr));
        let subtitles = taper(&[&args[..], &["--format", "srt"]].concat(), "");
        let times = text(&subtitles.stdout).lines().filter(|line| line.contains(" --> ")).count();
        assert_eq!(times, segments.len());
    }
    fs::write(path, "no sound").unwrap();
    assert!(fails(&["transcribe", MODEL, path]).contains("WAV"));
    let no_whisper = fails(&["transcribe", &format!("{AUDIO}/../embedders/qwen3"), path]);
    assert!(no_whisper.contains("no model for speech"), "{no_whisper}");
}
