//! Server-sent events: a generation written out as it goes.

use crate::{
    errors::ApiError,
    generation::{Generation, Step},
};
use axum::{
    http::{HeaderName, HeaderValue},
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use futures_util::stream;
use serde::Serialize;
use std::{collections::VecDeque, convert::Infallible, time::Duration};

/// Turns steps into the chunks of one route.
pub(crate) trait Writer: Send + 'static {
    /// What a step adds to the stream.
    fn step(
        &mut self,
        choice: usize,
        step: Step,
        generation: &mut Generation,
        out: &mut Chunks,
    ) -> Result<(), ApiError>;
    /// What comes between the last step and `[DONE]`.
    fn end(&mut self, generation: &Generation, out: &mut Chunks) -> Result<(), ApiError>;
}

/// Events that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct Chunks(VecDeque<String>);

impl Chunks {
    /// Adds one event.
    pub(crate) fn push(&mut self, chunk: &impl Serialize) -> Result<(), ApiError> {
        let text = serde_json::to_string(chunk).map_err(|_| ApiError::Internal)?;
        self.0.push_back(text);
        Ok(())
    }
}

struct Stream<W> {
    generation: Generation,
    writer: W,
    chunks: Chunks,
    done: bool,
}

/// The response. When its body is dropped, because the client went away, so is the generation.
pub(crate) fn respond<W: Writer>(
    generation: Generation,
    writer: W,
    keep_alive: Duration,
) -> Response {
    let state = Stream { generation, writer, chunks: Chunks::default(), done: false };
    let events = stream::unfold(state, |mut state| async move {
        loop {
            if let Some(chunk) = state.chunks.0.pop_front() {
                return Some((Ok::<_, Infallible>(Event::default().data(chunk)), state));
            }
            if state.done {
                return None;
            }
            state.advance().await;
        }
    });
    let keep_alive = KeepAlive::new().interval(keep_alive).text("keep-alive");
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    // nginx would collect the stream before it passes it on.
    let name = HeaderName::from_static("x-accel-buffering");
    response.headers_mut().insert(name, HeaderValue::from_static("no"));
    response
}

impl<W: Writer> Stream<W> {
    async fn advance(&mut self) {
        let Self { generation, writer, chunks, done } = self;
        let written = match generation.next().await {
            Some(Ok((choice, step))) => writer.step(choice, step, generation, chunks),
            Some(Err(error)) => Err(error),
            None => {
                *done = true;
                let end = writer.end(generation, chunks);
                chunks.0.extend(end.is_ok().then(|| "[DONE]".to_owned()));
                end
            }
        };
        if let Err(error) = written {
            // The status line is long gone: the error travels as the last event.
            tracing::error!(%error, "stream failed");
            *done = true;
            if chunks.push(&error.body()).is_err() {
                tracing::error!("an error body did not serialize");
            }
        }
    }
}
