//! On a real socket: clients that go away, silence, and the end of the server.

use crate::support::{App, Reply, chat, config};
use serde_json::json;
use std::time::Duration;
use taper_base::{Event, GeneratedToken};
use taper_openai_server::{ServerConfig, serve};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
    time::{sleep, timeout},
};

pub(crate) struct Server {
    pub(crate) app: App,
    pub(crate) address: std::net::SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<std::io::Result<()>>,
}

pub(crate) async fn start(config: ServerConfig, reply: Reply, drain: Duration) -> Server {
    let app = App::with(config, reply);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let shutdown = async {
        let _ = stopped.await;
    };
    let task = tokio::spawn(serve(vec![listener], app.state.clone(), shutdown, drain));
    Server { app, address, stop: Some(stop), task }
}

impl Server {
    async fn post(&self, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        send(&mut stream, body).await;
        stream
    }

    pub(crate) fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    pub(crate) async fn ended(self) {
        timeout(Duration::from_secs(5), self.task)
            .await
            .expect("the server ends")
            .unwrap()
            .unwrap();
    }
}

async fn send(stream: &mut TcpStream, body: &str) {
    let length = body.len();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes()).await.unwrap();
}

async fn get(stream: &mut TcpStream, path: &str) {
    let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
}

/// Reads until `wanted` has come.
async fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut all = Vec::new();
    let read = async {
        let mut part = [0; 64 << 10];
        loop {
            let n = stream.read(&mut part).await.unwrap();
            // Only what is new, and as much before it as may belong to the words.
            let from = all.len().saturating_sub(wanted.len());
            all.extend_from_slice(&part[..n]);
            if all[from..].windows(wanted.len()).any(|window| window == wanted.as_bytes()) {
                return String::from_utf8_lossy(&all).into_owned();
            }
            assert!(n > 0, "closed before {wanted:?}");
        }
    };
    timeout(Duration::from_secs(5), read).await.expect("it comes in time")
}

/// Reads to the end of the connection.
async fn read_all(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let read = stream.read_to_end(&mut all);
    timeout(Duration::from_secs(5), read).await.expect("it closes").unwrap();
    String::from_utf8(all).unwrap()
}

async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..300 {
        if condition() {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("not within 3 s: {what}");
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn every_listener_is_served() {
    let app = App::with(config(), Reply::Seed);
    let (one, two) = (
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
    );
    let addresses = [one.local_addr().unwrap(), two.local_addr().unwrap()];
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async {
        let _ = stopped.await;
    };
    let task = tokio::spawn(serve(vec![one, two], app.state.clone(), shutdown, LONG));
    for address in addresses.repeat(3) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        get(&mut stream, "/ready").await;
        read_until(&mut stream, "200 OK").await;
    }
    stop.send(()).unwrap();
    timeout(Duration::from_secs(5), task).await.expect("the server ends").unwrap().unwrap();
}

#[tokio::test]
async fn a_client_that_goes_away_cancels() {
    // While it waits in the queue, and in the middle of a stream; streaming or not, and with n.
    for text in ["", "some"] {
        for fields in [json!({}), json!({ "stream": true }), json!({ "stream": true, "n": 3 })] {
            let n = fields["n"].as_u64().unwrap_or(1) as usize;
            let streams = fields["stream"] == true;
            let server = start(config(), Reply::Hold(text.into()), LONG).await;
            let mut client = server.post(&chat(fields).to_string()).await;
            if streams && !text.is_empty() {
                read_until(&mut client, "some".get(..1).unwrap()).await;
            }
            eventually("the engine has it", || server.app.engine.held_open() == n).await;
            assert_eq!(server.app.state.in_flight(), 1);
            drop(client);
            eventually("the sinks are closed", || server.app.engine.held_open() == 0).await;
            eventually("nothing is in flight", || server.app.state.in_flight() == 0).await;
            let (_, page) = server.app.get("/metrics").await;
            let line = format!("finished_reason=\"abort\"}} {n}");
            assert!(page.contains(&line), "{line} not in\n{page}");
        }
    }
}

#[tokio::test]
async fn silence_is_filled_with_comments() {
    let config = ServerConfig { keep_alive: Duration::from_millis(20), ..config() };
    let server = start(config, Reply::Hold(String::new()), LONG).await;
    let mut client = server.post(&chat(json!({ "stream": true })).to_string()).await;
    let text = read_until(&mut client, ": keep-alive\n\n").await;
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
}

#[tokio::test]
async fn draining_finishes_what_runs_and_refuses_the_rest() {
    let mut server = start(config(), Reply::Hold("half".into()), LONG).await;
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    get(&mut idle, "/ready").await;
    read_until(&mut idle, "\"ready\"").await;
    let mut running = server.post(&chat(json!({ "stream": true })).to_string()).await;
    read_until(&mut running, "\"f\"").await;
    server.stop();
    let state = server.app.state.clone();
    sleep(Duration::from_millis(50)).await;
    assert_eq!(state.in_flight(), 1);

    let mut late = server.post(&chat(json!({})).to_string()).await;
    let refused = read_all(&mut late).await;
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(refused.contains("shutting_down") && refused.contains("retry-after"), "{refused}");
    // On a connection that was open before: refused, and then closed.
    get(&mut idle, "/ready").await;
    let answer = read_all(&mut idle).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("connection: close"), "{answer}");

    let sink = server.app.engine.held.lock().unwrap().pop();
    sink.unwrap().send(taper_base::Event::Finished(taper_base::FinishReason::Stop));
    let rest = read_all(&mut running).await;
    assert!(rest.contains("\"finish_reason\":\"stop\"") && rest.contains("[DONE]"), "{rest}");
    let address = server.address;
    server.ended().await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn patience_ends_with_an_error() {
    let mut server = start(config(), Reply::Hold("half".into()), Duration::from_millis(50)).await;
    let mut streaming = server.post(&chat(json!({ "stream": true })).to_string()).await;
    read_until(&mut streaming, "\"f\"").await;
    let mut waiting = server.post(&chat(json!({})).to_string()).await;
    eventually("both run", || server.app.engine.held_open() == 2).await;
    server.stop();
    let end = read_all(&mut streaming).await;
    assert!(end.contains("\"code\":\"shutting_down\"") && !end.contains("[DONE]"), "{end}");
    let end = read_all(&mut waiting).await;
    assert!(end.starts_with("HTTP/1.1 503") && end.contains("shutting_down"), "{end}");
    assert_eq!(server.app.engine.held_open(), 0);
    server.ended().await;
}

#[tokio::test]
async fn an_idle_server_ends_at_once_though_a_client_dawdles() {
    let mut server = start(config(), Reply::Text("x".into()), LONG).await;
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    get(&mut idle, "/health").await;
    read_until(&mut idle, "ok").await;
    let mut dawdler = TcpStream::connect(server.address).await.unwrap();
    let head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{";
    dawdler.write_all(head).await.unwrap();
    sleep(Duration::from_millis(50)).await;
    server.stop();
    server.ended().await;
}

#[tokio::test]
async fn heads_and_bodies_that_never_come_are_given_up() {
    let soon = Duration::from_millis(200);
    let config = ServerConfig { header_timeout: soon, body_timeout: soon, ..config() };
    let server = start(config, Reply::Text("x".into()), LONG).await;
    let start = std::time::Instant::now();
    let mut half = TcpStream::connect(server.address).await.unwrap();
    half.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n").await.unwrap();
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{";
    let mut bodiless = TcpStream::connect(server.address).await.unwrap();
    bodiless.write_all(head.as_bytes()).await.unwrap();
    // A byte now and then does not help.
    let mut dripping = TcpStream::connect(server.address).await.unwrap();
    dripping.write_all(head.as_bytes()).await.unwrap();
    let drip = tokio::spawn(async move {
        for _ in 0..20 {
            sleep(Duration::from_millis(50)).await;
            if dripping.write_all(b" ").await.is_err() {
                break;
            }
        }
        read_until(&mut dripping, "body_timeout").await
    });
    read_all(&mut half).await;
    read_all(&mut silent).await;
    let answer = read_until(&mut bodiless, "body_timeout").await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(drip.await.unwrap().starts_with("HTTP/1.1 408"));
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_given_up() {
    let config = ServerConfig { write_timeout: Duration::from_millis(200), ..config() };
    // More than the sockets' buffers hold.
    let server = start(config, Reply::Text("x".repeat(200_000)), LONG).await;
    let body = chat(json!({ "stream": true })).to_string();
    let client = server.post(&body).await;
    eventually("it runs", || server.app.engine.count() == 1).await;
    eventually("it is given up", || server.app.state.in_flight() == 0).await;
    drop(client);
}

#[tokio::test]
async fn who_sends_too_much_still_reads_why() {
    let config = ServerConfig { max_body_bytes: 1000, ..config() };
    let server = start(config, Reply::Text("x".into()), LONG).await;
    let mut client = server.post(&"x".repeat(20 << 20)).await;
    let answer = read_until(&mut client, "body_too_large").await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    // Chunked, so that nobody knows the length.
    let mut client = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    client.write_all((head.to_owned() + &chunk.repeat(32) + "0\r\n\r\n").as_bytes()).await.unwrap();
    let answer = read_until(&mut client, "body_too_large").await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test]
async fn a_dead_engine_ends_the_server_with_an_error() {
    let drain = Duration::from_secs(1);
    let server = start(config(), Reply::Text("x".to_owned()), drain).await;
    assert_eq!(server.app.get("/health").await.0.as_u16(), 200);
    server.app.engine.dead.store(true, std::sync::atomic::Ordering::Relaxed);
    for path in ["/health", "/ready"] {
        assert_eq!(server.app.get(path).await.0.as_u16(), 503, "{path}");
    }
    let ended = timeout(Duration::from_secs(5), server.task).await.expect("the server ends");
    assert!(ended.unwrap().unwrap_err().to_string().contains("engine"));
}

#[tokio::test]
async fn a_client_that_stops_reading_is_cancelled() {
    let server = start(config(), Reply::Hold("x".to_owned()), Duration::from_secs(1)).await;
    let mut stream = server.post(&chat(json!({ "stream": true })).to_string()).await;
    eventually("it runs", || server.app.engine.held_open() == 1).await;
    // It reads nothing, and the connection takes only so much.
    let token = |id| GeneratedToken { id, logprobs: None, stops: false, open: false };
    let sent = (0..10_000_000u32)
        .take_while(|_| {
            let mut held = server.app.engine.held.lock().unwrap();
            held[0].send(Event::Token(token(u32::from(b'a'))));
            !held[0].is_closed()
        })
        .count();
    assert!(sent < 9_000_000, "it never ended");
    server.app.engine.held.lock().unwrap().clear();
    assert!(read_until(&mut stream, "output_not_read").await.contains("data: "));
}
