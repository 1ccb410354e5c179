//! Bodies on their way in: how many bytes of them are held, and how many are prepared, at a time.
//!
//! A body of 16 MiB is in memory as bytes, as fields, as a prompt and as tokens, and takes seconds
//! to tokenize. Few of them at a time are work, and many are an attack. Small ones never wait for
//! large ones.

use crate::{
    access::from_browser, config::ServerConfig, decode::Body, errors::ApiError, speech::FIELDS,
    state::AppState,
};
use axum::{
    body::{Body as HttpBody, Bytes},
    extract::{FromRequest, Request},
    http::{HeaderMap, header, request::Parts},
};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;
use std::{num::NonZero, sync::Arc, thread::available_parallelism, time::Duration};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout, timeout_at},
};

/// Bodies up to this size wait for nobody but each other.
const SMALL: usize = 256 << 10;

/// Bytes of large bodies that are held at a time, unless one alone may have more.
const HELD: usize = 64 << 20;

/// Bytes that add a second to the time that a body may take.
const BYTES_A_SECOND: usize = 64 << 10;

/// How long a large body may wait for others.
const PATIENCE: Duration = Duration::from_secs(30);

/// The limits on what comes in.
#[derive(Debug)]
pub(crate) struct Intake {
    /// Large bodies, in KiB.
    held: Arc<Semaphore>,
    /// Preparations that run at a time.
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Intake {
    pub(crate) fn new(config: &ServerConfig) -> Self {
        let cores = available_parallelism().map_or(1, NonZero::get);
        let slots = |n| Arc::new(Semaphore::new(n));
        let longest = config.max_body_bytes.max(config.max_audio_bytes.saturating_add(FIELDS));
        Self {
            held: slots(kib(HELD.max(longest)) as usize),
            small: slots(cores.max(2)),
            // The model needs the processor too.
            large: slots((cores / 4).max(1)),
        }
    }

    async fn hold(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let permit = Arc::clone(&self.held).acquire_many_owned(kib(bytes));
        timeout(PATIENCE, permit).await.map_err(|_| ApiError::Busy)?.map_err(|_| ApiError::Internal)
    }
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX)
}

/// The bytes of a body that may be JSON, and its share of what may be held.
///
/// A request that has been read already carries it as an extension.
#[derive(Debug, Clone)]
pub(crate) struct Payload {
    pub(crate) bytes: Vec<u8>,
    pub(crate) held: Option<Arc<OwnedSemaphorePermit>>,
}

impl FromRequest<AppState> for Payload {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let (mut parts, body) = request.into_parts();
        match parts.extensions.remove::<Self>() {
            Some(read) => Ok(read),
            None => Self::read(&parts, body, &state.0.config, &state.0.intake).await,
        }
    }
}

impl Payload {
    /// Reads a body.
    pub(crate) async fn read(
        parts: &Parts,
        body: HttpBody,
        config: &ServerConfig,
        intake: &Intake,
    ) -> Result<Self, ApiError> {
        check_headers(&parts.headers)?;
        let limits = (config.max_body_bytes, config.body_timeout);
        Self::take(&parts.headers, body, limits, intake).await
    }

    /// Reads a body of any type, of at most so many bytes, which may take so long to begin.
    pub(crate) async fn take(
        headers: &HeaderMap,
        body: HttpBody,
        (limit, patience): (usize, Duration),
        intake: &Intake,
    ) -> Result<Self, ApiError> {
        let length = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok());
        let length = length.and_then(|v| v.parse().ok());
        if length.is_some_and(|length: usize| length > limit) {
            return Err(ApiError::BodyTooLarge { limit });
        }
        read(body, length, (limit, patience), intake).await
    }
}

/// A page on another origin may send text/plain, a form, or nothing as a content type without a
/// preflight; only JSON needs one. Programs may leave it out, and curl calls everything a form.
fn check_headers(headers: &HeaderMap) -> Result<(), ApiError> {
    check_encoding(headers)?;
    let kind = headers.get(header::CONTENT_TYPE).map(|kind| kind.to_str().unwrap_or_default());
    let essence = kind.map(|k| k.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    match essence.as_deref() {
        Some("application/json") => Ok(()),
        None | Some("application/x-www-form-urlencoded") if !from_browser(headers) => Ok(()),
        _ => Err(ApiError::UnsupportedMediaType),
    }
}

/// Compressed bodies that the layer above knows are unpacked here.
pub(crate) fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => Err(ApiError::UnsupportedEncoding),
        _ => Ok(()),
    }
}

async fn read(
    mut body: HttpBody,
    length: Option<usize>,
    (limit, patience): (usize, Duration),
    intake: &Intake,
) -> Result<Payload, ApiError> {
    let (mut bytes, mut held) = (Vec::new(), None);
    let mut deadline = Instant::now() + patience;
    loop {
        let frame = timeout_at(deadline, body.frame()).await.map_err(|_| ApiError::BodyTimeout)?;
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|_| ApiError::UnreadableBody)?;
        let Ok(data): Result<Bytes, _> = frame.into_data() else { continue };
        let size = bytes.len() + data.len();
        if size > limit {
            return Err(ApiError::BodyTooLarge { limit });
        }
        if held.is_none() && size > SMALL {
            let waited = Instant::now();
            held = Some(intake.hold(length.unwrap_or(limit)).await?);
            deadline += waited.elapsed();
            bytes.reserve_exact(length.unwrap_or(size) - bytes.len());
        }
        deadline += Duration::from_secs_f64(data.len() as f64 / BYTES_A_SECOND as f64);
        bytes.extend_from_slice(&data);
    }
    // What is held for a length that was not known is more than enough.
    if let Some(held) = &mut held {
        let excess = held.num_permits().saturating_sub(kib(bytes.len()) as usize);
        drop(held.split(excess));
    }
    Ok(Payload { bytes, held: held.map(Arc::new) })
}

impl Intake {
    /// Works on a body away from the async threads, so that no other connection waits for it. The work
    /// goes on if its client goes away, and so it keeps its slot.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        payload: Payload,
        work: impl FnOnce(Payload) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turns = if payload.bytes.len() <= SMALL { &self.small } else { &self.large };
        let turn = Arc::clone(turns).acquire_owned().await.map_err(|_| ApiError::Internal)?;
        let done = tokio::task::spawn_blocking(move || {
            let held = payload.held.clone();
            let result = work(payload);
            drop((turn, held));
            result
        });
        done.await.map_err(|error| {
            tracing::error!(%error, "a request's preparation panicked");
            ApiError::Internal
        })?
    }
}

/// Parses and prepares a request.
pub(crate) async fn prepare<T: Send + 'static>(
    state: &AppState,
    payload: Payload,
    work: impl FnOnce(&AppState, Body) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let own = state.clone();
    let parsed = move |payload: Payload| work(&own, Body::parse(payload.bytes)?);
    state.0.intake.work(payload, parsed).await
}

impl Payload {
    /// Reads some fields of the body, which stays as it is.
    pub(crate) fn glance<T: DeserializeOwned>(self) -> Result<(T, Self), ApiError> {
        let mut body = Body::parse(self.bytes)?;
        let fields = body.read()?;
        Ok((fields, Self { bytes: body.into_json(), held: self.held }))
    }

    /// The body.
    pub(crate) fn parse(self) -> Result<Body, ApiError> {
        Body::parse(self.bytes)
    }
}
