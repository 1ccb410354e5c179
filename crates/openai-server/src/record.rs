//! One line in the log for each request, when its response has been sent. Never a word of a prompt.

use crate::{keys::Caller, random::random_id, state::unix_time, wire::Usage};
use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode},
};
use hyper::body::{Frame, SizeHint};
use std::{
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Instant,
};

/// Identifies a request in responses and in the log.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// nginx's status for a client that went away before there was a response.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// What is known of a request. It is logged when nobody needs it any more: the handler, the
/// generation and the response's body each hold it.
#[derive(Debug)]
pub(crate) struct Record {
    id: String,
    method: Method,
    path: String,
    arrived: Instant,
    status: AtomicU16,
    sent: AtomicBool,
    prompt_tokens: AtomicU64,
    output_tokens: AtomicU64,
    /// It is logged for debugging only.
    quiet: AtomicBool,
    /// Who sent it.
    caller: OnceLock<Arc<Caller>>,
}

impl Record {
    pub(crate) fn new(request: &Request) -> Arc<Self> {
        Arc::new(Self {
            id: given_id(request.headers()).unwrap_or_else(|| random_id("req")),
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            arrived: Instant::now(),
            status: AtomicU16::new(CLIENT_CLOSED_REQUEST),
            sent: AtomicBool::new(false),
            prompt_tokens: AtomicU64::new(0),
            output_tokens: AtomicU64::new(0),
            quiet: AtomicBool::new(false),
            caller: OnceLock::new(),
        })
    }

    /// Leaves the request out of the log, unless it is a log for debugging.
    pub(crate) fn be_quiet(&self) {
        self.quiet.store(true, Relaxed);
    }

    /// Says whose request this is.
    pub(crate) fn set_caller(&self, caller: Arc<Caller>) {
        // It is asked for its key once.
        let _ = self.caller.set(caller);
    }

    pub(crate) fn caller(&self) -> Option<&Caller> {
        self.caller.get().map(|caller| &**caller)
    }

    /// The response's `x-request-id`.
    pub(crate) fn id(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(&self.id).ok()
    }

    /// What a generation took.
    pub(crate) fn count(&self, usage: &Usage) {
        self.prompt_tokens.fetch_add(usage.prompt_tokens, Relaxed);
        self.output_tokens.fetch_add(usage.completion_tokens, Relaxed);
        if let Some(caller) = self.caller() {
            caller.spend(usage.total_tokens, unix_time());
        }
    }

    /// The response's body, which holds the record until it is sent.
    pub(crate) fn answer(self: Arc<Self>, status: StatusCode, body: Body) -> Body {
        self.status.store(status.as_u16(), Relaxed);
        self.sent.store(body.is_end_stream(), Relaxed);
        Body::new(Sending { body, record: self })
    }

    fn text(&self) -> String {
        let Self { method, path, .. } = self;
        let (status, ms) = (self.status.load(Relaxed), self.arrived.elapsed().as_millis());
        let mut text = format!("{method} {path} {status} in {ms} ms");
        let (prompt, output) = (self.prompt_tokens.load(Relaxed), self.output_tokens.load(Relaxed));
        if prompt + output > 0 {
            text += &format!(", {prompt} prompt tokens, {output} output tokens");
        }
        if !self.sent.load(Relaxed) {
            text += ", the client went away";
        }
        text + ", " + &self.id
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.quiet.load(Relaxed) {
            tracing::debug!("{}", self.text());
        } else {
            tracing::info!("{}", self.text());
        }
    }
}

/// The client's own id, if it is fit for a header and a line of a log.
fn given_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let fit = (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
    fit.then(|| id.to_owned())
}

struct Sending {
    body: Body,
    record: Arc<Record>,
}

impl HttpBody for Sending {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || self.body.is_end_stream() {
            self.record.sent.store(true, Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
