//! The `taper` executable as a process, and a small HTTP client that can hang up in mid-response.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod http;
pub(crate) mod model_dir;

use http::{Reply, Stream};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{Arc, Mutex, Weak, mpsc},
    thread,
    time::{Duration, Instant},
};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_taper");
/// Longer than any build of any machine should need.
const PATIENCE: Duration = Duration::from_secs(60);
/// A place without a file of flags: that of the user is none of the tests' business.
pub(crate) const NO_CONFIG: (&str, &str) = ("XDG_CONFIG_HOME", env!("CARGO_TARGET_TMPDIR"));

/// A running server; it is killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) address: String,
    /// From the start of the process to the line that says where it serves.
    pub(crate) ready_after: Duration,
}

impl Server {
    /// Serves on a free port; `args` are flags, and a model perhaps.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_in(args, &[])
    }

    /// [`Self::start`] with variables of the environment.
    pub(crate) fn start_in(args: &[&str], variables: &[(&str, &str)]) -> Self {
        let start = Instant::now();
        let mut command = Command::new(BINARY);
        command.envs([NO_CONFIG]).envs(variables.iter().copied());
        if !args.contains(&"--log-level") {
            command.env("RUST_LOG", "warn");
        }
        let mut child = command
            .args(["serve", "--port", "0"])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the executable starts");
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, address) = mpsc::channel();
        // Reads to the end, so that the server never waits for a full pipe.
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let rest = line.strip_prefix("serving on http");
                if let Some(rest) =
                    rest.and_then(|rest| rest.trim_start_matches('s').strip_prefix("://"))
                {
                    let _ = sender.send(rest.split(',').next().unwrap_or_default().to_owned());
                }
            }
        });
        let address = address.recv_timeout(PATIENCE).expect("the server says where it serves");
        Self { child, address, ready_after: start.elapsed() }
    }

    /// One demo server for the tests that run at the moment; it ends with the last of them.
    pub(crate) fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap();
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Self::start(&[]));
            *shared = Arc::downgrade(&server);
            server
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        http::send(&self.address, "GET", path, None)
    }

    pub(crate) fn post_text(&self, path: &str, body: &str) -> Reply {
        http::send(&self.address, "POST", path, Some(body))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_text(path, &body.to_string())
    }

    /// A response that must be good.
    pub(crate) fn ask(&self, path: &str, body: &Value) -> Value {
        let reply = self.post(path, body);
        assert_eq!(reply.status, 200, "{body}\n{}", reply.body);
        reply.json()
    }

    pub(crate) fn chat(&self, text: &str, fields: Value) -> Value {
        self.ask("/v1/chat/completions", &chat(text, fields))
    }

    pub(crate) fn stream(&self, path: &str, body: &Value) -> Stream {
        let mut body = body.clone();
        body["stream"] = json!(true);
        Stream::open(&self.address, path, &body.to_string())
    }

    /// The value of a metric that has no labels of its own.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").body;
        let line = page.lines().find(|l| l.starts_with(&format!("{name}{{")));
        let line = line.unwrap_or_else(|| panic!("no {name} in\n{page}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    pub(crate) fn wait_for_metric(&self, name: &str, holds: impl Fn(f64) -> bool) {
        let start = Instant::now();
        while !holds(self.metric(name)) {
            assert!(start.elapsed() < PATIENCE, "{name} stays {}", self.metric(name));
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Nothing runs, nothing waits and no block is held.
    pub(crate) fn wait_until_idle(&self) {
        self.wait_for_metric("vllm:num_requests_running", |n| n == 0.0);
        self.wait_for_metric("vllm:num_requests_waiting", |n| n == 0.0);
        self.wait_for_metric("vllm:kv_cache_usage_perc", |n| n == 0.0);
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.pid().to_string()]).status();
        assert!(status.unwrap().success());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child)
    }
}

/// Waits for a process that must end; it is killed if it does not.
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("the process does not end");
        }
        thread::sleep(Duration::from_millis(20));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Neither can fail for a child that was not waited for, and otherwise it is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A greedy chat of one message.
pub(crate) fn chat(text: &str, fields: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": text }],
                           "temperature": 0, "max_tokens": 64 });
    if let Value::Object(fields) = fields {
        fields.into_iter().for_each(|(name, value)| body[name] = value);
    }
    body
}

/// A command with pipes for all it reads and writes.
pub(crate) fn taper_child(args: &[&str]) -> Child {
    Command::new(BINARY)
        .args(args)
        .envs([NO_CONFIG])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the executable starts")
}

/// Runs a command to its end.
pub(crate) fn taper(args: &[&str], stdin: &str) -> Output {
    let mut child = taper_child(args);
    // A command that reads nothing may have closed it.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let mut err = child.stderr.take().unwrap();
    let errors = thread::spawn(move || {
        let mut text = Vec::new();
        err.read_to_end(&mut text).map(|_| text)
    });
    // A server that should have failed must not run for ever.
    let (pid, start) = (child.id().to_string(), Instant::now());
    let (done, ended) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        if ended.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = Command::new("kill").arg(pid).status();
        }
    });
    let mut output = child.wait_with_output().unwrap();
    drop(done);
    watchdog.join().unwrap();
    assert!(start.elapsed() < PATIENCE, "{args:?} does not end");
    output.stderr = errors.join().unwrap().unwrap();
    output
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the output is UTF-8")
}

/// A command that must fail with exit code 1, one line of explanation, and no panic.
pub(crate) fn fails(args: &[&str]) -> String {
    let output = taper(args, "");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{args:?}\n{out}\n{err}");
    assert!(!err.contains("panicked"), "{err}");
    let lines: Vec<_> = err.lines().filter(|l| l.starts_with("error: ")).collect();
    assert_eq!(lines.len(), 1, "{err}");
    lines[0].to_owned()
}
