//! Requests that wait for the one worker that transcribes. It computes with all threads: one after the other they are
//! done soonest.

use crate::errors::ApiError;
use axum::body::Bytes;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::Instant,
};
use taper_base::{
    SubmitError, TranscribeError, TranscribeOptions, Transcriber, Transcript, TranscriptListener,
    TranscriptSegment,
};
use tokio::sync::{
    OwnedSemaphorePermit,
    mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
};

/// What a request hears while it waits.
#[derive(Debug)]
pub(crate) enum Progress {
    Segment(TranscriptSegment),
    Done(Result<Transcript, ApiError>),
}

/// A request's end of the queue. The worker leaves off when it is dropped.
pub(crate) type Waiting = UnboundedReceiver<Progress>;

/// The queue and its model.
#[derive(Debug)]
pub(crate) struct Transcripts {
    model: Arc<dyn Transcriber>,
    queue: SyncSender<Job>,
    limit: u32,
    pub(crate) counts: Arc<SpeechCounts>,
}

struct Job {
    file: Bytes,
    options: TranscribeOptions,
    progress: UnboundedSender<Progress>,
    /// The file's share of memory.
    _held: Option<Arc<OwnedSemaphorePermit>>,
}

/// What was transcribed since the server started.
#[derive(Debug, Default)]
pub(crate) struct SpeechCounts {
    pub(crate) waiting: AtomicU64,
    pub(crate) transcripts: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) windows: AtomicU64,
    pub(crate) again: AtomicU64,
    pub(crate) segments: AtomicU64,
    /// In milliseconds.
    pub(crate) heard: AtomicU64,
    pub(crate) took: AtomicU64,
}

impl Transcripts {
    /// A queue of so many requests beside the one that runs. Its worker ends with it.
    pub(crate) fn new(model: Arc<dyn Transcriber>, limit: u32) -> Self {
        let (queue, jobs) = sync_channel(limit.max(1) as usize);
        let counts = Arc::new(SpeechCounts::default());
        let worker = (Arc::clone(&model), Arc::clone(&counts));
        let spawned = thread::Builder::new()
            .name("taper-transcriber".into())
            .spawn(move || work(&*worker.0, &jobs, &worker.1));
        // Requests then find the queue closed.
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread to transcribe");
        }
        Self { model, queue, limit, counts }
    }

    /// Puts a request into the queue.
    pub(crate) fn submit(
        &self,
        file: Bytes,
        options: TranscribeOptions,
        held: Option<Arc<OwnedSemaphorePermit>>,
    ) -> Result<Waiting, ApiError> {
        self.model.check(&options).map_err(refused)?;
        let (progress, waiting) = unbounded_channel();
        let job = Job { file, options, progress, _held: held };
        self.counts.waiting.fetch_add(1, Relaxed);
        self.queue.try_send(job).map_err(|error| {
            self.counts.waiting.fetch_sub(1, Relaxed);
            let source = match error {
                TrySendError::Full(_) => SubmitError::QueueFull { limit: self.limit },
                TrySendError::Disconnected(_) => SubmitError::EngineDead,
            };
            ApiError::Submit { source, prompt_param: "file" }
        })?;
        Ok(waiting)
    }
}

fn work(model: &dyn Transcriber, jobs: &Receiver<Job>, counts: &SpeechCounts) {
    while let Ok(job) = jobs.recv() {
        counts.waiting.fetch_sub(1, Relaxed);
        let Job { file, options, progress, .. } = &job;
        let since = Instant::now();
        let mut listener = Listener { progress, counts };
        // The next request finds the model as it was: it holds nothing of this one.
        let done = catch_unwind(AssertUnwindSafe(|| {
            if listener.is_gone() {
                return Err(TranscribeError::Cancelled);
            }
            model.transcribe(file, options, &mut listener)
        }));
        counts.took.fetch_add(since.elapsed().as_millis() as u64, Relaxed);
        let done = done.map_err(|_| ApiError::Internal).and_then(|done| done.map_err(refused));
        let counter = match &done {
            Ok(transcript) => {
                counts.heard.fetch_add((transcript.duration * 1e3) as u64, Relaxed);
                &counts.transcripts
            }
            Err(_) if progress.is_closed() => &counts.cancelled,
            Err(_) => &counts.failed,
        };
        counter.fetch_add(1, Relaxed);
        // Nobody may be there any more.
        let _ = progress.send(Progress::Done(done));
    }
}

struct Listener<'a> {
    progress: &'a UnboundedSender<Progress>,
    counts: &'a SpeechCounts,
}

impl TranscriptListener for Listener<'_> {
    fn segment(&mut self, segment: &TranscriptSegment) {
        self.counts.segments.fetch_add(1, Relaxed);
        let _ = self.progress.send(Progress::Segment(segment.clone()));
    }

    fn window(&mut self, again: bool) {
        let counter = if again { &self.counts.again } else { &self.counts.windows };
        counter.fetch_add(1, Relaxed);
    }

    fn is_gone(&self) -> bool {
        self.progress.is_closed()
    }
}

// By value: it is the argument of `map_err`.
#[allow(clippy::needless_pass_by_value)]
fn refused(error: TranscribeError) -> ApiError {
    let detail = error.to_string();
    match error {
        TranscribeError::Sound(detail) => ApiError::Sound { detail },
        TranscribeError::Language(_) => ApiError::value("language", detail),
        TranscribeError::Prompt => ApiError::value("prompt", detail),
        TranscribeError::NoTranslation => ApiError::unsupported("model", detail),
        TranscribeError::Cancelled => ApiError::EngineGone,
        other => {
            tracing::error!(error = ?other, "a transcript failed");
            ApiError::TranscriptFailed
        }
    }
}
