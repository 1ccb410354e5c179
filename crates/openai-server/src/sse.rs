//! A generation written out as it goes: as server-sent events, or as lines of JSON.

use crate::{
    errors::ApiError,
    generation::{Generation, Step},
};
use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, header},
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use futures_util::{StreamExt, stream};
use serde::Serialize;
use std::{collections::VecDeque, convert::Infallible, time::Duration};

/// Turns steps into the events of one API.
pub(crate) trait Writer: Send + 'static {
    /// What comes before the first step.
    fn begin(&mut self, _out: &mut Chunks) -> Result<(), ApiError> {
        Ok(())
    }
    /// What a step adds to the stream.
    fn step(
        &mut self,
        choice: usize,
        step: Step,
        generation: &mut Generation,
        out: &mut Chunks,
    ) -> Result<(), ApiError>;
    /// What comes after the last step.
    fn end(&mut self, generation: &Generation, out: &mut Chunks) -> Result<(), ApiError>;
    /// The last events of a stream that failed.
    fn fail(
        &mut self,
        error: &ApiError,
        _generation: &Generation,
        out: &mut Chunks,
    ) -> Result<(), ApiError> {
        out.push(&error.body())
    }
    /// What goes down a silent stream.
    fn keep_alive(&self) -> Event {
        Event::default().comment("keep-alive")
    }
}

/// The last line of OpenAI's older streams.
const DONE: &str = "[DONE]";

/// Events that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct Chunks(VecDeque<Chunk>);

#[derive(Debug)]
struct Chunk {
    event: Option<&'static str>,
    data: String,
}

impl Chunks {
    /// Adds one event.
    pub(crate) fn push(&mut self, chunk: &impl Serialize) -> Result<(), ApiError> {
        self.add(None, chunk)
    }

    /// Adds one event with a name.
    pub(crate) fn push_named(
        &mut self,
        event: &'static str,
        chunk: &impl Serialize,
    ) -> Result<(), ApiError> {
        self.add(Some(event), chunk)
    }

    /// Says that there is no more.
    pub(crate) fn push_done(&mut self) {
        self.0.push_back(Chunk { event: None, data: DONE.to_owned() });
    }

    fn add(&mut self, event: Option<&'static str>, chunk: &impl Serialize) -> Result<(), ApiError> {
        let data = serde_json::to_string(chunk).map_err(|_| ApiError::Internal)?;
        self.0.push_back(Chunk { event, data });
        Ok(())
    }
}

impl From<Chunk> for Event {
    fn from(chunk: Chunk) -> Self {
        let event = chunk.event.map_or_else(Self::default, |name| Self::default().event(name));
        event.data(chunk.data)
    }
}

struct Stream<W> {
    generation: Generation,
    writer: W,
    chunks: Chunks,
    begun: bool,
    done: bool,
}

/// The response. When its body is dropped, because the client went away, so is the generation.
pub(crate) fn respond<W: Writer>(
    generation: Generation,
    writer: W,
    keep_alive: Duration,
) -> Response {
    let keep_alive = KeepAlive::new().interval(keep_alive).event(writer.keep_alive());
    let events = chunks(generation, writer).map(|chunk| Ok::<_, Infallible>(chunk.into()));
    unbuffered(Sse::new(events).keep_alive(keep_alive).into_response())
}

/// The response of an API whose streams are lines of JSON.
pub(crate) fn respond_lines<W: Writer>(generation: Generation, writer: W) -> Response {
    let lines = chunks(generation, writer).map(|Chunk { mut data, .. }| {
        data.push('\n');
        Ok::<_, Infallible>(data)
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    unbuffered((kind, Body::from_stream(lines)).into_response())
}

fn chunks<W: Writer>(
    generation: Generation,
    writer: W,
) -> impl futures_util::Stream<Item = Chunk> + Send {
    let chunks = Chunks::default();
    let state = Stream { generation, writer, chunks, begun: false, done: false };
    stream::unfold(state, |mut state| async move {
        loop {
            if let Some(chunk) = state.chunks.0.pop_front() {
                return Some((chunk, state));
            }
            if state.done {
                return None;
            }
            state.advance().await;
        }
    })
}

/// nginx would collect the stream before it passes it on.
pub(crate) fn unbuffered(mut response: Response) -> Response {
    let name = HeaderName::from_static("x-accel-buffering");
    response.headers_mut().insert(name, HeaderValue::from_static("no"));
    response
}

impl<W: Writer> Stream<W> {
    async fn advance(&mut self) {
        let Self { generation, writer, chunks, begun, done } = self;
        let written = if *begun {
            match generation.next().await {
                Some(Ok((choice, step))) => writer.step(choice, step, generation, chunks),
                Some(Err(error)) => Err(error),
                None => {
                    *done = true;
                    writer.end(generation, chunks)
                }
            }
        } else {
            *begun = true;
            writer.begin(chunks)
        };
        if let Err(error) = written {
            // The status line is long gone: the error travels as the last event.
            tracing::error!(%error, "stream failed");
            *done = true;
            if writer.fail(&error, generation, chunks).is_err() {
                tracing::error!("an error body did not serialize");
            }
        }
    }
}
