//! Requests that other local servers are checked with, sent to the demo model. The numbers are those
//! of two lists of cases: one of a server with vLLM's API (`vllm`), one of a server with fields of
//! its own (`own`). The demo model knows little, so that rows say what any model must get right.
//! Cases of header lines, pages and agents are in the API's tests over a scripted engine.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail the test")]

mod common;

use common::{Server, http::joined};
use serde_json::{Value, json};
use std::net::{TcpListener, TcpStream};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn user(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}

fn tool(name: &str, key: &str) -> Value {
    json!([{ "type": "function", "function": { "name": name, "parameters": {
        "type": "object", "properties": { key: { "type": "string" } }, "required": [key] } } }])
}

/// Fields of a chat of one message.
fn said(text: &str, fields: Value) -> Value {
    let mut body = fields;
    body["messages"] = user(text);
    body
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap_or_default()
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap_or_default()
}

fn ends(answer: &Value) -> &str {
    answer["choices"][0]["finish_reason"].as_str().unwrap_or_default()
}

fn usage(answer: &Value, name: &str) -> u64 {
    answer["usage"][name].as_u64().unwrap()
}

fn speaks(answer: &Value) -> bool {
    !content(answer).trim().is_empty()
}

type Row = (&'static str, Value, fn(&Value) -> bool);

/// A case, its request and what must hold of the response.
fn chats() -> Vec<Row> {
    let object = json!({ "type": "json_object" });
    let parts = |texts: &[&str]| -> Value {
        let parts: Vec<_> = texts.iter().map(|t| json!({ "type": "text", "text": t })).collect();
        json!([{ "role": "user", "content": parts }])
    };
    let with_system = |system: &str, text: &str, max: u32| {
        json!({ "max_tokens": max, "messages": [
            { "role": "system", "content": system }, { "role": "user", "content": text }] })
    };
    // What a JSON mode must never give, whether it came to an end or not.
    let whole_or_begun: fn(&Value) -> bool = |a| {
        let text = content(a);
        let whole = ends(a) != "stop" || serde_json::from_str::<Value>(text).is_ok();
        whole && text.trim_start().starts_with('{') && !text.contains("```")
    };
    vec![
        (
            "vllm 3: a greeting",
            said("Say hello", json!({ "max_tokens": 10, "temperature": 0 })),
            speaks,
        ),
        (
            "vllm 5: the weather by a tool",
            said(
                "What's the weather in Paris? Use the tool.",
                json!({ "tools": tool("get_weather", "city"), "tool_choice": "auto",
                         "max_tokens": 200, "temperature": 0 }),
            ),
            |a| {
                let call = &a["choices"][0]["message"]["tool_calls"][0];
                let arguments = call["function"]["arguments"].as_str().unwrap();
                let arguments: Value = serde_json::from_str(arguments).unwrap();
                let kinds = call["type"] == "function" && ends(a) == "tool_calls";
                kinds && call["function"]["name"] == "get_weather" && arguments.is_object()
            },
        ),
        (
            "vllm 6: reasoning is not in the answer",
            said(
                "Think step by step: what is 17 × 23?",
                json!({ "max_tokens": 400, "temperature": 0, "enable_thinking": true }),
            ),
            |a| !content(a).contains("think>"),
        ),
        (
            "vllm 7: no reasoning where none is asked for",
            said("Say hello in five words.", json!({ "max_tokens": 30, "temperature": 0 })),
            |a| speaks(a) && a["choices"][0]["message"].get("reasoning_content").is_none(),
        ),
        (
            "vllm 11: the capital in a few tokens",
            said(
                "What is the capital of France? Answer with one word.",
                json!({ "max_tokens": 8, "temperature": 0 }),
            ),
            |a| content(a).contains("Paris"),
        ),
        (
            "own 3: an answer that ends by itself, with an id",
            said("Say hello in one word.", json!({ "max_tokens": 40, "temperature": 0 })),
            |a| {
                speaks(a) && ends(a) == "stop" && a["id"].as_str().unwrap().starts_with("chatcmpl-")
            },
        ),
        ("own 5: a system message", with_system("You are a pirate.", "Say hello.", 20), speaks),
        (
            "own 7: a stop string does not show",
            said(
                "Write a short sentence about the sky.",
                json!({ "max_tokens": 100, "temperature": 0, "stop": ["."] }),
            ),
            |a| speaks(a) && !content(a).contains('.') && ends(a) == "stop",
        ),
        ("own 10: the counts", said("Hi", json!({ "max_tokens": 10 })), |a| {
            let (prompt, output) = (usage(a, "prompt_tokens"), usage(a, "completion_tokens"));
            prompt >= 3 && output > 0 && usage(a, "total_tokens") == prompt + output
        }),
        (
            "own 14: an object",
            said(
                "Return a JSON object with key 'greeting' and value 'hello world'. \
                  Only output JSON.",
                json!({ "max_tokens": 100, "temperature": 0, "response_format": object }),
            ),
            whole_or_begun,
        ),
        (
            "own 17: an object of several types",
            said(
                "Create a JSON object with keys: name (string), age (number), hobbies (array of \
                  strings). Use realistic values.",
                json!({ "max_tokens": 150, "temperature": 0, "response_format": object }),
            ),
            whole_or_begun,
        ),
        (
            "own 15: a list of one text",
            json!({ "max_tokens": 20, "messages": parts(&["Say hello."]) }),
            speaks,
        ),
        (
            "own 15: a list of two texts",
            json!({ "max_tokens": 20, "messages": parts(&["Hello.", "How are you?"]) }),
            speaks,
        ),
        (
            "own 16: penalties",
            said(
                "Hi",
                json!({ "top_k": 50, "frequency_penalty": 0.5, "presence_penalty": 0.5,
                               "max_tokens": 10 }),
            ),
            speaks,
        ),
        (
            "own 22: the most tokens",
            said("Count from 1 to 100.", json!({ "max_tokens": 3, "ignore_eos": true })),
            |a| ends(a) == "length" && usage(a, "completion_tokens") == 3,
        ),
        ("own 23: top_p", said("Say yes.", json!({ "top_p": 0.1, "max_tokens": 10 })), speaks),
        (
            "own 24: a penalty of repetitions",
            said("Say hello.", json!({ "repetition_penalty": 1.3, "max_tokens": 10 })),
            speaks,
        ),
        (
            "own 24.5: top_k and min_p",
            said("Say hi.", json!({ "top_k": 40, "min_p": 0.05, "max_tokens": 10 })),
            speaks,
        ),
        (
            "own 27: a calculator",
            said(
                "What is 2+2? Use the calculator tool.",
                json!({ "tools": tool("calculator", "expression"), "max_tokens": 50 }),
            ),
            |a| speaks(a) || a["choices"][0]["message"]["tool_calls"].is_array(),
        ),
        ("own 31: a plain question", said("Is 17 prime?", json!({ "max_tokens": 20 })), speaks),
        (
            "own, draft and stream: one word",
            said("What is 2+2? One word.", json!({ "max_tokens": 32 })),
            speaks,
        ),
    ]
}

#[test]
fn chats_whole_and_streamed() {
    let server = Server::shared();
    for (case, mut body, holds) in chats() {
        body["seed"] = json!(7);
        let answer = server.ask(CHAT, &body);
        assert!(holds(&answer), "{case}: {answer}");
        assert_eq!(answer["object"], "chat.completion");
        body["stream_options"] = json!({ "include_usage": true });
        let chunks = server.stream(CHAT, &body).chunks();
        assert!(chunks.iter().all(|c| c["object"] == "chat.completion.chunk"), "{case}");
        assert_eq!(joined(&chunks, "content"), content(&answer), "{case}");
        let last =
            chunks.iter().filter_map(|c| c["choices"][0]["finish_reason"].as_str()).next_back();
        assert_eq!(last, Some(ends(&answer)), "{case}");
        let counts = &chunks.last().unwrap()["usage"];
        for name in ["prompt_tokens", "completion_tokens"] {
            assert_eq!(counts[name], answer["usage"][name], "{case}");
        }
    }
}

#[test]
fn completions_whole_and_streamed() {
    let server = Server::shared();
    for (case, prompt, max) in [
        ("vllm 2 and own 8: a sentence to end", "The capital of France is", 10),
        ("vllm 4: a word", "Hello", 5),
        ("own 9: a tale", "Once upon a time", 20),
        ("own 36: a greeting", "Hello world.", 20),
    ] {
        // The demo model may have nothing to add to a whole sentence.
        let body =
            json!({ "prompt": prompt, "max_tokens": max, "temperature": 0, "min_tokens": 4 });
        let answer = server.ask(COMPLETIONS, &body);
        assert!(!text(&answer).trim().is_empty(), "{case}: {answer}");
        assert_eq!(answer["object"], "text_completion");
        assert!(answer["id"].as_str().unwrap().starts_with("cmpl-"));
        assert!(["stop", "length"].contains(&ends(&answer)), "{case}");
        let chunks = server.stream(COMPLETIONS, &body).chunks();
        assert!(chunks.iter().all(|c| c["object"] == "text_completion"), "{case}");
        assert_eq!(joined(&chunks, "text"), text(&answer), "{case}");
    }
}

/// own 11, 25, 26: the same seed, two at once, and one after the other.
#[test]
fn several_requests() {
    let server = Server::shared();
    let seeded =
        said("Count to five.", json!({ "max_tokens": 20, "temperature": 0.5, "seed": 42 }));
    let ask = |body: &Value| content(&server.ask(CHAT, body)).to_owned();
    assert_eq!(ask(&seeded), ask(&seeded));
    let one = |text: &str| said(text, json!({ "max_tokens": 10, "temperature": 0 }));
    let (one, two) = (one("Say one."), one("Say two."));
    std::thread::scope(|scope| {
        let both = [&one, &two].map(|body| scope.spawn(move || ask(body)));
        let both = both.map(|thread| thread.join().unwrap());
        assert_eq!(both, [ask(&one), ask(&two)]);
    });
    let system = "You are a concise assistant. Always reply in exactly one word.";
    for text in ["Say yes.", "Say no."] {
        let messages = json!([{ "role": "system", "content": system },
                              { "role": "user", "content": text }]);
        let answer = server.ask(CHAT, &json!({ "messages": messages, "max_tokens": 5 }));
        assert!(speaks(&answer), "{answer}");
    }
}

/// own 6 and 30: bad requests are 400, not 500, and name the field.
#[test]
fn bad_requests() {
    let server = Server::shared();
    for (case, body) in
        [("own 6", json!({ "invalid": true })), ("own 30", json!({ "messages": [] }))]
    {
        let reply = server.post(CHAT, &body);
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &json!("messages")),
            "{case}"
        );
    }
}

/// vllm 1; own 1, 2, 18, 19, 20, 28 and 29. That server's `/health` has counts and memory too; here
/// `/health` is cheap and says nothing about use, and `/metrics` counts, with vLLM's names.
#[test]
fn health_models_and_counts() {
    let server = Server::start(&[]);
    let health = server.get("/health");
    assert_eq!(health.status, 200);
    assert_eq!(health.json(), json!({ "status": "ok", "model": "taper-demo" }));
    let models = server.get("/v1/models").json();
    assert_eq!(
        (&models["object"], &models["data"][0]["id"]),
        (&json!("list"), &json!("taper-demo"))
    );
    let counts =
        ["vllm:prompt_tokens_total", "vllm:generation_tokens_total", "taper:engine_steps_total"];
    let read = || counts.map(|name| server.metric(name));
    let before = read();
    let body = said("Count to five.", json!({ "max_tokens": 20, "temperature": 0 }));
    let answer = server.ask(CHAT, &body);
    let after = read();
    assert_eq!(after[1] - before[1], usage(&answer, "completion_tokens") as f64);
    assert!(before.iter().zip(&after).all(|(before, after)| before < after));
    let page = server.get("/metrics").body;
    for part in [
        "# TYPE vllm:generation_tokens_total counter",
        "# TYPE vllm:e2e_request_latency_seconds histogram",
        "# TYPE taper:kv_cache_capacity_bytes gauge",
        "vllm:request_success_total{model_name=\"taper-demo\",finished_reason=\"stop\"} 1",
        "# TYPE process_start_time_seconds gauge",
    ] {
        assert!(page.contains(part), "{part} not in\n{page}");
    }
    if cfg!(target_os = "linux") {
        assert!(page.contains("# TYPE process_resident_memory_bytes gauge"), "{page}");
    }
}

/// vllm 9 and 10: codecs of which keys and values differ say what the plain cache says.
#[test]
fn codecs_do_not_babble() {
    for cache in ["turbo4v2", "turbo8v4"] {
        let server = Server::start(&["--kv-cache-dtype", cache, "--max-num-seqs", "1"]);
        let body = said("Hello!", json!({ "max_tokens": 30, "temperature": 0 }));
        let answer = server.ask(CHAT, &body);
        let greeting = content(&answer);
        assert!(greeting.starts_with("Hello!") && ends(&answer) == "stop", "{cache}: {greeting}");
        assert!(!greeting.contains(".2.2") && !greeting.contains("1\n1\n1"), "{cache}");
    }
}

/// vllm 12 and 18: a signal in the middle of an answer ends all of it, and the port is free.
#[cfg(target_os = "linux")]
#[test]
fn nothing_stays_behind() {
    let mut server = Server::start(&["--drain-timeout", "0"]);
    let body = said("Count to ten.", json!({ "max_tokens": 200_000, "ignore_eos": true }));
    let mut stream = server.stream(CHAT, &body);
    stream.next().expect("a first event");
    let children = format!("/proc/{0}/task/{0}/children", server.pid());
    assert_eq!(std::fs::read_to_string(children).unwrap().trim(), "", "one process");
    server.signal("-TERM");
    assert!(server.wait().success());
    assert!(TcpStream::connect(&server.address).is_err());
    drop(stream);
    TcpListener::bind(&server.address).expect("the port is free");
}

/// vllm 13: a conversation that grows for 14 turns, by itself on the server.
#[cfg(target_os = "linux")]
#[test]
fn a_growing_conversation_needs_no_growing_memory() {
    let server = Server::start(&["--max-num-seqs", "1"]);
    let resident = || -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    };
    let mut messages = Vec::new();
    let mut sizes = Vec::new();
    for turn in 0..14 {
        let ask = format!("Turn {turn}: {}", "The borrow checker makes sure. ".repeat(4));
        messages.push(json!({ "role": "user", "content": ask }));
        let body = json!({ "messages": messages, "max_tokens": 16, "temperature": 0 });
        let answer = server.ask(CHAT, &body);
        messages.push(answer["choices"][0]["message"].clone());
        sizes.push(resident());
        // All but the newest turn comes from the cache.
        let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert!(turn == 0 || cached.as_u64().unwrap() > 0, "turn {turn}");
    }
    // A few hundred tokens have less than 10 MB of keys and values.
    assert!(sizes[13] < sizes[3] + 30, "MiB by turn: {sizes:?}");
}

/// vllm 14: a directory behind a symbolic link is the model, and has the link's name.
#[cfg(unix)]
#[test]
fn a_symbolic_link_to_a_model() {
    let model = common::model_dir::ModelDir::new("qwen3-bf16");
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("my-model");
    std::os::unix::fs::symlink(model.path(), &link).unwrap();
    let server = Server::start(&[link.to_str().unwrap(), "--chat-template", "none"]);
    let models = server.get("/v1/models").json();
    let id = models["data"][0]["id"].as_str().unwrap();
    assert_eq!(id, "my-model");
    let body = json!({ "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "model": id });
    assert!(usage(&server.ask(COMPLETIONS, &body), "completion_tokens") > 0);
}

/// vllm 15: a long context of a small cache, in a stream; what the cache holds stays in its budget.
#[test]
fn a_long_context_stays_in_its_budget() {
    const BUDGET: u32 = 160 << 20;
    let flags = ["--kv-cache-dtype", "turbo4", "--max-model-len", "40960"];
    let budget = BUDGET.to_string();
    let server = Server::start(&[&flags[..], &["--kv-cache-memory-bytes", &budget]].concat());
    assert_eq!(server.get("/v1/models").json()["data"][0]["max_model_len"], 40_960);
    let body = said(&"apple ".repeat(1500), json!({ "max_tokens": 20, "ignore_eos": true }));
    let mut stream = server.stream(CHAT, &body);
    stream.next().expect("a first event");
    let used = server.metric("taper:kv_cache_used_bytes");
    assert!(used > 0.0 && used <= f64::from(BUDGET), "{used}");
    assert_eq!(stream.last().as_deref(), Some("[DONE]"));
    let longer = said("Hi", json!({ "max_tokens": 40_960 }));
    let reply = server.post(CHAT, &longer);
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded", "{}", reply.body);
}

/// vllm 16: tools that the model need not call, in a stream: pieces come, and a reason for the end.
#[test]
fn tools_in_streams() {
    let server = Server::shared();
    for text in ["Hello!", "Please get a weather with city Paris."] {
        let fields = json!({ "tools": tool("get_weather", "city"), "tool_choice": "auto",
                             "max_tokens": 200, "temperature": 0 });
        let chunks = server.stream(CHAT, &said(text, fields)).chunks();
        let calls = chunks.iter().any(|c| c["choices"][0]["delta"]["tool_calls"].is_array());
        let ends = chunks.iter().filter_map(|c| c["choices"][0]["finish_reason"].as_str());
        assert_eq!(ends.collect::<Vec<_>>(), [if calls { "tool_calls" } else { "stop" }], "{text}");
        assert!(chunks.len() > 4, "piece by piece");
    }
}

/// own 21: a key guards what costs.
#[test]
fn keys() {
    let server = Server::start(&["--api-key", "right-key"]);
    for path in ["/health", "/metrics"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let body = said("Hi", json!({ "max_tokens": 1 }));
    assert_eq!(server.post(CHAT, &body).status, 401);
    for (key, status) in [("wrong-key", "401"), ("right-key", "200")] {
        use std::io::{Read, Write};
        let mut socket = TcpStream::connect(&server.address).unwrap();
        let text = body.to_string();
        write!(
            socket,
            "POST {CHAT} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {key}\r\n\
             Content-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{text}",
            server.address,
            text.len()
        )
        .unwrap();
        let mut reply = String::new();
        socket.read_to_string(&mut reply).unwrap();
        assert_eq!(reply.split(' ').nth(1), Some(status), "{reply}");
    }
}
