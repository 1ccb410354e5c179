//! A hub on this machine: the API, files behind a redirect to another host, and its bad days.

use sha2::{Digest, Sha256};
use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};
use taper_hub::{CacheDir, HubConfig};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Something that goes wrong, once, when a file (or "api") is asked for.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// The connection breaks after so many bytes.
    Cut(usize),
    /// The body ends after so many bytes as if that were all.
    Short(usize),
    /// Another status, `X-Error-Code` and `X-Error-Message`.
    Refuse(u16, &'static str, &'static str),
    /// The whole file, whatever range is asked for.
    IgnoreRange,
    /// Other bytes of the same length.
    Damage,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub path: String,
    /// Whether it went to the storage behind the hub, not to the hub itself.
    pub storage: bool,
    pub range: Option<String>,
    pub token: Option<String>,
    pub sent_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    files: Vec<(String, Vec<u8>)>,
    faults: HashMap<String, Vec<Fault>>,
    sizes: HashMap<String, u64>,
    names_only: bool,
    storage: String,
    hub: String,
    /// Responses to searches, a page each.
    pages: Vec<String>,
    seen: Vec<Seen>,
}

#[derive(Debug)]
pub struct StandIn {
    state: Arc<Mutex<State>>,
    endpoint: String,
    pub cache: tempfile::TempDir,
}

impl StandIn {
    pub fn new(files: &[(&str, &[u8])]) -> Self {
        let files = files.iter().map(|(n, b)| ((*n).to_owned(), b.to_vec())).collect();
        let state = Arc::new(Mutex::new(State { files, ..State::default() }));
        let storage = serve(state.clone(), true);
        state.lock().unwrap().storage = format!("http://localhost:{storage}");
        let endpoint = format!("http://127.0.0.1:{}", serve(state.clone(), false));
        state.lock().unwrap().hub.clone_from(&endpoint);
        Self { state, endpoint, cache: tempfile::tempdir().unwrap() }
    }

    pub fn config(&self) -> HubConfig {
        let mut config = HubConfig::new(CacheDir::new(self.cache.path()));
        config.endpoint.clone_from(&self.endpoint);
        (config.retries, config.retry_wait) = (0, Duration::ZERO);
        config
    }

    /// The next responses for a file, in order.
    pub fn faults(&self, file: &str, faults: &[Fault]) {
        self.state.lock().unwrap().faults.insert(file.to_owned(), faults.to_vec());
    }

    /// What the listing says of a file's size.
    pub fn claim_size(&self, file: &str, size: u64) {
        self.state.lock().unwrap().sizes.insert(file.to_owned(), size);
    }

    /// The listing has neither sizes nor hashes.
    pub fn names_only(&self) {
        self.state.lock().unwrap().names_only = true;
    }

    /// What a search finds, a page each.
    pub fn finds(&self, pages: &[&str]) {
        self.state.lock().unwrap().pages = pages.iter().map(|page| (*page).to_owned()).collect();
    }

    /// Requests since the last call.
    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state.lock().unwrap().seen)
    }

    /// Bytes of a file that went over the wire since the last call.
    pub fn sent(&self, file: &str) -> Vec<usize> {
        let bodies = self.seen().into_iter().filter(|s| s.path.ends_with(file) && s.sent_bytes > 0);
        bodies.map(|s| s.sent_bytes).collect()
    }
}

fn serve(state: Arc<Mutex<State>>, storage: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let state = state.clone();
            thread::spawn(move || answer(&state, storage, stream));
        }
    });
    port
}

fn answer(state: &Mutex<State>, storage: bool, mut stream: TcpStream) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines().map_while(Result::ok);
    let request = lines.next()?;
    let mut words = request.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let headers: HashMap<_, _> = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|l| Some((l.split_once(':')?.0.to_lowercase(), l.split_once(':')?.1.into())))
        .map(|(name, value): (String, String)| (name, value.trim().to_owned()))
        .collect();
    let header = |name: &str| headers.get(name).cloned();
    let (mut head, body, whole, fault) = {
        let mut state = state.lock().ok()?;
        let (head, body, fault) = route(&mut state, storage, &path, header("range").as_deref());
        let sent = match fault {
            Some(Fault::Cut(n) | Fault::Short(n)) => n.min(body.len()),
            _ if method == "HEAD" => 0,
            _ => body.len(),
        };
        let (range, token) = (header("range"), header("authorization"));
        state.seen.push(Seen { path, storage, range, token, sent_bytes: sent });
        (head, body[..sent].to_vec(), body.len(), fault)
    };
    // Of HEAD too: what GET would send.
    if !matches!(fault, Some(Fault::Short(_))) && !head.contains("Content-Length") {
        head += &format!("Content-Length: {whole}\r\n");
    }
    write!(stream, "HTTP/1.1 {head}Connection: close\r\n\r\n").ok()?;
    stream.write_all(&body).ok()?;
    stream.flush().ok()
}

fn route(
    state: &mut State,
    storage: bool,
    path: &str,
    range: Option<&str>,
) -> (String, Vec<u8>, Option<Fault>) {
    let none = |head: &str| (head.to_owned(), Vec::new(), None);
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    let api = path.starts_with("/api/models/");
    // The hub redirects weights, so that their faults happen at the storage.
    let redirects = name.ends_with(".safetensors") && !storage;
    let key = if api { "api" } else { &name };
    let mut fault = None;
    let planned = state.faults.get_mut(key).filter(|f| !f.is_empty());
    if let Some(faults) = planned.filter(|f| !redirects || matches!(f[0], Fault::Refuse(..))) {
        fault = Some(faults.remove(0));
    }
    if let Some(Fault::Refuse(status, code, message)) = fault {
        let head = format!("{status} No\r\nX-Error-Code: {code}\r\nX-Error-Message: {message}\r\n");
        return none(&head);
    }
    if path.starts_with("/api/models?") {
        let (head, page) = search(state, path);
        return (head, page.into_bytes(), None);
    }
    if api {
        let known = ["main", "v1", COMMIT]
            .iter()
            .any(|r| path.starts_with(&format!("/api/models/org/name/revision/{r}?blobs=true")));
        return if known {
            ("200 OK\r\n".to_owned(), listing(state).into_bytes(), fault)
        } else if path.starts_with("/api/models/org/name/") {
            none("404 Not Found\r\nX-Error-Code: RevisionNotFound\r\n")
        } else {
            none("401 Unauthorized\r\n")
        };
    }
    let Some((_, bytes)) = state.files.iter().find(|(n, _)| *n == name) else {
        return none("404 Not Found\r\nX-Error-Code: EntryNotFound\r\n");
    };
    let mut head = format!("X-Repo-Commit: {COMMIT}\r\nAccept-Ranges: bytes\r\n");
    if redirects {
        let (to, tag, size) = (&state.storage, sha256(bytes), bytes.len());
        head += &format!("Location: {to}/store/{name}\r\nX-Linked-Etag: \"{tag}\"\r\n");
        return none(&format!("302 Found\r\n{head}X-Linked-Size: {size}\r\n"));
    }
    head += &format!("ETag: \"{}\"\r\n", git_hash(bytes));
    let mut bytes = bytes.clone();
    if matches!(fault, Some(Fault::Damage)) {
        bytes[0] ^= 1;
    }
    let start = range.and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    match start.filter(|_| !matches!(fault, Some(Fault::IgnoreRange))) {
        Some(start) if start >= bytes.len() => none("416 Range Not Satisfiable\r\n"),
        Some(start) => {
            let (last, all) = (bytes.len() - 1, bytes.len());
            head += &format!("Content-Range: bytes {start}-{last}/{all}\r\n");
            (format!("206 Partial Content\r\n{head}"), bytes.split_off(start), fault)
        }
        None => (format!("200 OK\r\n{head}"), bytes, fault),
    }
}

/// A page, and where the next one is.
fn search(state: &State, path: &str) -> (String, String) {
    let cursor = path.split_once("cursor=").and_then(|(_, n)| n.parse().ok()).unwrap_or(0);
    let (hub, next) = (&state.hub, cursor + 1);
    let page = state.pages.get(cursor).cloned().unwrap_or_else(|| "[]".to_owned());
    let link = match next < state.pages.len() {
        true => format!("Link: <{hub}/api/models?cursor={next}>; rel=\"next\"\r\n"),
        false => String::new(),
    };
    (format!("200 OK\r\n{link}"), page)
}

fn listing(state: &State) -> String {
    let entry = |(name, bytes): &(String, Vec<u8>)| {
        if state.names_only {
            return format!(r#"{{"rfilename":"{name}"}}"#);
        }
        let size = state.sizes.get(name).copied().unwrap_or(bytes.len() as u64);
        let hash = sha256(bytes);
        let lfs = format!(r#","lfs":{{"sha256":"{hash}","size":{size},"pointerSize":134}}"#);
        let lfs = if name.ends_with(".safetensors") { lfs } else { String::new() };
        format!(r#"{{"rfilename":"{name}","size":{size},"blobId":"{}"{lfs}}}"#, git_hash(bytes))
    };
    let siblings: Vec<_> = state.files.iter().map(entry).collect();
    format!(r#"{{"id":"org/name","sha":"{COMMIT}","siblings":[{}]}}"#, siblings.join(","))
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// Git's name for a file.
pub fn git_hash(bytes: &[u8]) -> String {
    let header = format!("blob {}\0", bytes.len());
    let hash = sha1::Sha1::new_with_prefix(header).chain_update(bytes).finalize();
    hash.iter().map(|b| format!("{b:02x}")).collect()
}
