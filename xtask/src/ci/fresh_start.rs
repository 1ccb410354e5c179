//! The release server as a newcomer meets it: no model, no flags, no files around it.

use super::{
    command::{Counts, Done, Runner},
    served::Served,
};
use anyhow::{Context, Result, ensure};
use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    process::Command,
    time::{Duration, Instant},
};

/// Resident memory of a server that has had no request yet.
const MAX_RESIDENT_BYTES: u64 = 150_000_000;

pub(crate) fn run(runner: &Runner) -> Done {
    let dir = std::env::temp_dir().join(format!("taper-fresh-start-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let checked = check(runner, &dir);
    fs::remove_dir_all(&dir)?;
    checked.map(|passed| (Counts { passed, failed: 0 }, None))
}

/// Returns the number of things that were checked.
fn check(runner: &Runner, dir: &std::path::Path) -> Result<u64> {
    let start = Instant::now();
    let mut server = Served::start(&runner.server(), dir, &[])?;
    let ready = start.elapsed();
    let mut checks = 0;
    let mut passes = |what: &str, holds: bool| {
        ensure!(holds, "{what}");
        println!("ok      {what}");
        checks += 1;
        Ok(())
    };
    println!("ready after {} ms", ready.as_millis());
    if let Ok(status) = fs::read_to_string(format!("/proc/{}/status", server.pid())) {
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap_or_default();
        let kib: u64 = line.split_whitespace().nth(1).context("VmRSS")?.parse()?;
        println!("{} MB resident", kib * 1024 / 1_000_000);
        passes("it is small", kib * 1024 < MAX_RESIDENT_BYTES)?;
    }
    let body = r#"{"messages": [{"role": "user", "content": "Hello!"}]}"#;
    let answer = post(&server.address, "/v1/chat/completions", body)?;
    let greeting = "Hello! How can I help you today?";
    passes("it answers", answer.starts_with("HTTP/1.1 200") && answer.contains(greeting))?;
    passes("it leaves no files behind", fs::read_dir(dir)?.next().is_none())?;
    if cfg!(unix) {
        let pid = server.pid().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status()?.success();
        passes("it ends with success when told to", sent && server.wait()?.success())?;
    }
    Ok(checks)
}

fn post(address: &str, path: &str, body: &str) -> Result<String> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(30)))?;
    write!(
        socket,
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    Ok(answer)
}
