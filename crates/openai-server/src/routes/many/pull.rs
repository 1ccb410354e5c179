//! `POST /api/pull`: downloads a model, as Ollama's API.

use super::control::body;
use crate::{
    error_body::ErrorBody,
    errors::ApiError,
    many::{Models, PullStep, Watch, failed},
    sse::unbuffered,
    wire::{OllamaError, OllamaPullRequest, OllamaPullStatus},
};
use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Request, State},
    http::header,
    response::{IntoResponse, Response},
};
use futures_util::{Stream, stream};
use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

/// How often a stream says how far a file is.
const REPORT: Duration = Duration::from_millis(100);

/// Lines that wait for a client that does not read; further ones are left out.
const WAITING: usize = 64;

/// What happens to a download.
enum News {
    Line(OllamaPullStatus),
    End(Result<(), ApiError>),
}

pub(in crate::routes) async fn pull(
    State(models): State<Models>,
    request: Request,
) -> Result<Response, ApiError> {
    if !models.0.models.allow_updates {
        return Err(ApiError::NoModelUpdates);
    }
    let wire: OllamaPullRequest = body(&models, request).await?;
    let missing = || ApiError::MissingParameter { param: "model".to_owned() };
    let name = wire.model.or(wire.name).ok_or_else(missing)?;
    let mut news = start(models, name);
    if wire.stream != Some(false) {
        let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
        return Ok(unbuffered((kind, Body::from_stream(lines(news))).into_response()));
    }
    while let Some(next) = news.recv().await {
        if let News::End(end) = next {
            end?;
            return Ok(Json(OllamaPullStatus::of("success")).into_response());
        }
    }
    Err(ApiError::Internal)
}

/// Downloads until it is done or nobody listens.
fn start(models: Models, name: String) -> mpsc::Receiver<News> {
    let (sender, news) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        let (library, asked) = (Arc::clone(&models.0.library), name.clone());
        let mut watcher = Watcher { models: models.clone(), sender: sender.clone(), file: None };
        let _ = sender.send(News::Line(OllamaPullStatus::of("pulling manifest"))).await;
        let done = tokio::task::spawn_blocking(move || library.pull(&asked, &mut watcher)).await;
        let end = match done {
            Ok(Ok(listed)) => {
                tracing::info!(model = listed, "downloaded");
                models.refresh().await.map(drop)
            }
            Ok(Err(source)) => Err(failed(&name, source)),
            Err(_) => Err(ApiError::Internal),
        };
        let _ = sender.send(News::End(end)).await;
    });
    news
}

/// Tells a client how far its download is.
struct Watcher {
    models: Models,
    sender: mpsc::Sender<News>,
    /// The file that was told of last: its name, bytes of it, and when.
    file: Option<(String, u64, Instant)>,
}

impl Watcher {
    fn tell(&self, line: OllamaPullStatus) {
        // A client that does not read hears of the end all the same.
        let _ = self.sender.try_send(News::Line(line));
    }
}

impl Watch for Watcher {
    fn at(&mut self, step: PullStep) {
        let PullStep::File { name, total, completed } = step else { return };
        let now = Instant::now();
        let before = self.file.take().filter(|(file, ..)| *file == name);
        // What lay there before was not downloaded now.
        let known = before.as_ref().map_or(completed, |(_, bytes, _)| *bytes);
        self.models.pulled(completed.saturating_sub(known));
        let told = before.map(|(.., at)| at).filter(|at| now.duration_since(*at) < REPORT);
        self.file = Some((name.clone(), completed, told.unwrap_or(now)));
        if told.is_none() || completed == total {
            self.tell(OllamaPullStatus::file(&name, total, completed));
        }
    }

    fn is_gone(&self) -> bool {
        self.sender.is_closed()
    }
}

fn lines(news: mpsc::Receiver<News>) -> impl Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold(Some(news), |news| async move {
        let mut news = news?;
        let (line, rest) = match news.recv().await? {
            News::Line(status) => (serde_json::to_string(&status), Some(news)),
            News::End(Ok(())) => (serde_json::to_string(&OllamaPullStatus::of("success")), None),
            News::End(Err(error)) => {
                let body: ErrorBody = error.body();
                let error = OllamaError { error: body.message().to_owned() };
                (serde_json::to_string(&error), None)
            }
        };
        Some((Ok(Bytes::from(line.unwrap_or_default() + "\n")), rest))
    })
}
