//! Bodies of requests whose response was sent before they were read.
//!
//! Most clients send a whole body before they look at the response. If the connection is closed
//! under them, they see a broken pipe, and never the error that explains it.

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::header,
};
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{runtime::Handle, time};

/// What is thrown away before the connection closes all the same.
const MOST_BYTES: usize = 64 << 20;
const LONGEST: Duration = Duration::from_secs(5);

/// A body whose rest is read and thrown away when it is dropped early.
struct Lingering {
    /// `None` once it has ended.
    body: Option<Body>,
}

/// Lets a client finish sending whatever becomes of its request.
pub(crate) fn lingering(request: Request) -> Request {
    // Who waits for "100 Continue" sends nothing that would have to be thrown away.
    if request.headers().contains_key(header::EXPECT) {
        return request;
    }
    request.map(|body| Body::new(Lingering { body: Some(body) }))
}

impl HttpBody for Lingering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        if let Some(body) = self.body.take()
            && !body.is_end_stream()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(time::timeout(LONGEST, discard(body)));
        }
    }
}

async fn discard(mut body: Body) {
    let mut left = MOST_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        left = left.saturating_sub(bytes);
        if left == 0 {
            return;
        }
    }
}
