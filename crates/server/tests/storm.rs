//! Many clients at once, a third of whom hang up, and what is left when they are gone.
//!
//!     cargo test --release -p server --test storm -- --ignored --nocapture a_storm_of_ten_minutes

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Server, chat, http::joined};
use serde_json::{Value, json};
use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

const PATH: &str = "/v1/chat/completions";

/// Numbers that look random and are the same every time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n as u64) as usize
    }
}

/// Short enough to be asked again and again.
fn sample(i: usize) -> Value {
    let words = ["river", "amber", "castle", "Paris", "lantern", "forge", "quiet", "42"];
    let text = format!("Repeat exactly: {} {} {i}", words[i % 8], words[(i * 3 + 1) % 8]);
    chat(&text, json!({ "max_tokens": 12 + i * 3, "ignore_eos": true }))
}

fn long(numbers: &mut Numbers) -> Value {
    let words = vec!["word"; 1 + numbers.below(400)].join(" ");
    let tokens = 20 + numbers.below(2980);
    let text = format!("{words} {}", numbers.below(1000));
    chat(&text, json!({ "max_tokens": tokens, "ignore_eos": true }))
}

/// Bytes that the server holds in memory.
fn resident(server: &Server) -> u64 {
    let page = server.get("/metrics").body;
    let line = page.lines().find_map(|l| l.strip_prefix("process_resident_memory_bytes "));
    line.map_or(0, |n| n.parse::<f64>().unwrap() as u64)
}

#[derive(Default)]
struct Counts {
    whole: AtomicUsize,
    left: AtomicUsize,
    samples: AtomicUsize,
    events: AtomicUsize,
}

/// One client after another sends requests until time is over.
fn client(server: &Server, seed: u64, end: Instant, alone: &[String], counts: &Counts) {
    let mut numbers = Numbers(seed);
    while Instant::now() < end {
        if numbers.below(8) == 0 {
            let i = numbers.below(alone.len());
            let said = joined(&server.stream(PATH, &sample(i)).chunks(), "content");
            assert_eq!(said, alone[i], "sample {i} says something else beside others");
            counts.samples.fetch_add(1, Relaxed);
            continue;
        }
        let leaves = (numbers.below(3) == 0).then(|| numbers.below(500));
        let mut stream = server.stream(PATH, &long(&mut numbers));
        assert_eq!(stream.status, 200);
        let mut seen = 0;
        let over = loop {
            if leaves.is_some_and(|after| seen >= after) || Instant::now() >= end {
                break false;
            }
            match stream.next() {
                Some(event) if event == "[DONE]" => break true,
                Some(event) => assert!(!event.contains("\"error\""), "{event}"),
                None => panic!("a stream ends in the middle"),
            }
            seen += 1;
        };
        counts.events.fetch_add(seen, Relaxed);
        if over { &counts.whole } else { &counts.left }.fetch_add(1, Relaxed);
    }
}

/// Memory, in MB, each second.
fn storm(clients: u64, time: Duration) -> Vec<u64> {
    // 32768 tokens.
    let server = Server::start(&["--kv-cache-memory-bytes", "256MiB", "--max-model-len", "8192"]);
    let alone: Vec<_> =
        (0..8).map(|i| joined(&server.stream(PATH, &sample(i)).chunks(), "content")).collect();
    let (counts, end) = (Counts::default(), Instant::now() + time);
    let memory = thread::scope(|scope| {
        for seed in 0..clients {
            let (server, alone, counts) = (&server, &alone, &counts);
            let run = move || client(server, seed, end, alone, counts);
            thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, run).unwrap();
        }
        let mut memory = Vec::new();
        while Instant::now() < end {
            thread::sleep(Duration::from_secs(1));
            memory.push(resident(&server) / 1_000_000);
        }
        memory
    });
    server.wait_until_idle();
    let [whole, left, samples, events] =
        [&counts.whole, &counts.left, &counts.samples, &counts.events].map(|n| n.load(Relaxed));
    println!(
        "{clients} clients, {time:?}: {whole} whole, {left} left early, {samples} samples equal, {events} events, \
         {} steps, {} preemptions, memory {memory:?} MB, {} MB idle",
        server.metric("taper:engine_steps_total"),
        server.metric("vllm:num_preemptions_total"),
        resident(&server) / 1_000_000,
    );
    for name in ["failed_steps", "restarts", "hung_steps"] {
        assert_eq!(server.metric(&format!("taper:engine_{name}_total")), 0.0, "{name}");
    }
    assert!(samples > 0 && left > 0, "they were to come and go");
    let again = joined(&server.stream(PATH, &sample(0)).chunks(), "content");
    assert_eq!(again, alone[0]);
    memory
}

#[test]
fn a_short_storm_leaves_nothing_behind() {
    storm(48, Duration::from_secs(5));
}

#[test]
#[ignore = "a minute"]
fn a_storm_of_a_minute_leaves_nothing_behind_and_memory_stays() {
    long_storm(60);
}

#[test]
#[ignore = "ten minutes"]
fn a_storm_of_ten_minutes_leaves_nothing_behind_and_memory_stays() {
    long_storm(600);
}

fn long_storm(seconds: u64) {
    let memory = storm(256, Duration::from_secs(seconds));
    let (warm, rest) = memory.split_at(memory.len() / 2);
    let most = |part: &[u64]| part.iter().copied().max().unwrap_or(0);
    let (warm, late) = (most(warm), most(rest));
    assert!(late * 100 <= warm * 102, "memory grows from {warm} to {late} MB");
}

/// Connections that are open and do nothing, or nearly nothing, and heads without end.
#[test]
fn idle_slow_and_greedy_clients_keep_nobody_out() {
    let server = Server::start(&[]);
    // As many as this process may open.
    let idle: Vec<_> = (0..2000).map_while(|_| TcpStream::connect(&server.address).ok()).collect();
    let mut slow: Vec<_> =
        (0..20).map_while(|_| TcpStream::connect(&server.address).ok()).collect();
    for socket in &mut slow {
        socket.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nX-").unwrap();
    }
    // Who reads nothing of much.
    let much = json!({ "max_tokens": 3000, "ignore_eos": true });
    let unread: Vec<_> =
        (0..8).map(|_| server.stream(PATH, &chat("Count to ten.", much.clone()))).collect();
    for i in 0..4 {
        slow.iter_mut().for_each(|socket| socket.write_all(b"a").unwrap());
        let said = server.chat(&format!("Hello {i}"), json!({ "max_tokens": 4 }));
        assert!(said["choices"][0]["finish_reason"].is_string());
    }
    let mut greedy = TcpStream::connect(&server.address).unwrap();
    let head =
        format!("GET /health HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n", "a".repeat(4 << 20));
    // It may be closed before all is sent.
    let _ = greedy.write_all(head.as_bytes());
    let mut answer = Vec::new();
    let _ = greedy.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    let many: String = (0..500).map(|i| format!("X-{i}: a\r\n")).collect();
    let mut greedy = TcpStream::connect(&server.address).unwrap();
    greedy.write_all(format!("GET /health HTTP/1.1\r\nHost: x\r\n{many}\r\n").as_bytes()).unwrap();
    let mut answer = [0; 12];
    greedy.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 431");
    println!("{} idle connections, {} MB", idle.len(), resident(&server) / 1_000_000);
    drop((idle, slow, unread));
    server.wait_until_idle();
    assert_eq!(server.get("/health").status, 200);
}

/// Connections beyond the first thousand need more files than a shell grants at first.
#[cfg(target_os = "linux")]
#[test]
fn the_server_takes_as_many_files_as_it_may() {
    let server = Server::start(&[]);
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<_> = line.split_whitespace().filter(|n| n.parse::<u64>().is_ok()).collect();
    assert!(numbers.len() < 2 || numbers[0] == numbers[1], "{line}");
}
