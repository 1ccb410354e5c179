//! `/v1/audio/transcriptions` and `/v1/audio/translations`.

use crate::{
    errors::ApiError,
    speech::{Form, Progress, Shown, Upload, Waiting, usage},
    state::{AppState, InFlight, Phase},
    wire::TranscriptEvent,
};
use axum::{
    extract::State,
    http::{HeaderName, HeaderValue},
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use futures_util::stream;
use serde::Serialize;
use std::convert::Infallible;
use taper_base::{GenerationError, Transcript};
use tokio::sync::watch;

pub(super) async fn transcribe(
    State(state): State<AppState>,
    upload: Upload,
) -> Result<Response, ApiError> {
    answer(&state, upload, false).await
}

pub(super) async fn translate(
    State(state): State<AppState>,
    upload: Upload,
) -> Result<Response, ApiError> {
    answer(&state, upload, true).await
}

async fn answer(state: &AppState, upload: Upload, translated: bool) -> Result<Response, ApiError> {
    let Form { file, model, options, format, stream, held } =
        Form::read(upload, state, translated).await?;
    state.0.model(model.as_deref())?;
    let waiting = state.0.transcripts()?.submit(file, options, held)?;
    let mut request =
        Request { waiting, phases: state.0.phases(), _in_flight: InFlight::new(state) };
    if stream {
        return Ok(events(state, request));
    }
    loop {
        if let Progress::Done(done) = request.next().await {
            return Ok(Shown { transcript: done?, format, translated }.into_response());
        }
    }
}

/// A request in the queue, or at work. Dropping it ends the work.
struct Request {
    waiting: Waiting,
    phases: watch::Receiver<Phase>,
    _in_flight: InFlight,
}

impl Request {
    async fn next(&mut self) -> Progress {
        let Self { waiting, phases, .. } = self;
        let stopped = async { phases.wait_for(|p| *p == Phase::Stopped).await.map(drop) };
        tokio::select! {
            next = waiting.recv() => {
                next.unwrap_or(Progress::Done(Err(ApiError::EngineGone)))
            }
            _ = stopped => {
                Progress::Done(Err(GenerationError::ShuttingDown.into()))
            }
        }
    }
}

/// Segments as they are written.
fn events(state: &AppState, request: Request) -> Response {
    let begun = Some((request, true));
    let events = stream::unfold(begun, |begun| async move {
        let (mut request, first) = begun?;
        Some(match request.next().await {
            Progress::Segment(segment) => {
                // All deltas together are the text.
                let text = if first { segment.text.trim_start() } else { &segment.text };
                let delta = text.to_owned();
                (event(&TranscriptEvent::Delta { delta }), Some((request, false)))
            }
            Progress::Done(Ok(Transcript { text, duration, .. })) => {
                (event(&TranscriptEvent::Done { text, usage: usage(duration) }), None)
            }
            Progress::Done(Err(error)) => {
                tracing::error!(%error, "stream failed");
                (event(&error.body()), None)
            }
        })
    });
    let keep_alive = KeepAlive::new().interval(state.0.config.keep_alive).text("keep-alive");
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    // nginx would collect the stream before it passes it on.
    let name = HeaderName::from_static("x-accel-buffering");
    response.headers_mut().insert(name, HeaderValue::from_static("no"));
    response
}

fn event(data: &impl Serialize) -> Result<Event, Infallible> {
    // What stands here always serializes.
    Ok(Event::default().data(serde_json::to_string(data).unwrap_or_default()))
}
