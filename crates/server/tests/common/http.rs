//! HTTP/1.1 over a bare socket: blocking, one request a connection, and a stream of events that can
//! be left in the middle.

use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::Duration,
};

/// A whole response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: String,
    /// In lower case, each with its value.
    headers: Vec<String>,
}

impl Reply {
    /// The value of a header, in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut of_name = self.headers.iter().filter_map(|line| line.split_once(": "));
        of_name.find(|(own, _)| *own == name).map(|(_, value)| value)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }
}

pub(crate) fn send(address: &str, method: &str, path: &str, body: Option<&str>) -> Reply {
    let (status, headers, mut reader) = open(address, method, path, body);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    Reply { status, body: text, headers }
}

/// Sends a request and reads the head of the response.
fn open(address: &str, method: &str, path: &str, body: Option<&str>) -> (u16, Vec<String>, Body) {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let body = body.unwrap_or_default();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len(),
    );
    // A server that refuses a long body responds before it has read all of it.
    let _ = socket.write_all(request.as_bytes());
    let mut reader = BufReader::new(socket);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).and_then(|s| s.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no status line: {line:?}"));
    let (mut chunked, mut headers) = (false, Vec::new());
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        let header = line.trim_end().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        chunked |= header == "transfer-encoding: chunked";
        headers.push(header);
    }
    (status, headers, Body { reader, left: if chunked { Some(0) } else { None }, ended: false })
}

/// What follows the head, to the end of the connection or of its chunks.
#[derive(Debug)]
struct Body {
    reader: BufReader<TcpStream>,
    /// Bytes left in the chunk, where there are chunks.
    left: Option<usize>,
    ended: bool,
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let Some(left) = &mut self.left else { return self.reader.read(buffer) };
        if *left == 0 && !self.ended {
            let mut line = String::new();
            self.reader.read_line(&mut line)?;
            *left = usize::from_str_radix(line.trim(), 16).unwrap_or(0);
            self.ended = *left == 0;
        }
        if self.ended {
            return Ok(0);
        }
        let room = buffer.len().min(*left);
        let n = self.reader.read(&mut buffer[..room])?;
        *left -= n;
        if *left == 0 {
            self.reader.read_exact(&mut [0; 2])?;
        }
        Ok(n)
    }
}

/// Server-sent events; dropping it hangs up.
#[derive(Debug)]
pub(crate) struct Stream {
    body: BufReader<Body>,
    pub(crate) status: u16,
}

impl Stream {
    pub(crate) fn open(address: &str, path: &str, body: &str) -> Self {
        let (status, _, body) = open(address, "POST", path, Some(body));
        Self { body: BufReader::new(body), status }
    }

    /// Reads to the end, which must be `[DONE]`.
    pub(crate) fn chunks(self) -> Vec<Value> {
        assert_eq!(self.status, 200);
        let mut events: Vec<_> = self.collect();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"), "after {} events", events.len());
        events.iter().map(|e| serde_json::from_str(e).unwrap()).collect()
    }
}

impl Iterator for Stream {
    type Item = String;

    /// The data of the next event.
    fn next(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.body.read_line(&mut line).unwrap() > 0 {
            if let Some(data) = line.trim_end().strip_prefix("data: ") {
                return Some(data.to_owned());
            }
            line.clear();
        }
        None
    }
}

/// All of a field of the deltas of a chat, or of the text of a completion.
pub(crate) fn joined(chunks: &[Value], field: &str) -> String {
    let choices = chunks.iter().flat_map(|c| c["choices"].as_array().unwrap());
    choices.filter_map(|c| c["delta"][field].as_str().or_else(|| c[field].as_str())).collect()
}
